// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/signal_mask.h"

namespace tfdear {

// The error of a rank that may have no more threads.
inline Status NoMoreThreads(const std::system_error& thrown) {
  return Status(StatusCode::kResourceExhausted,
                TextOf("this rank cannot start another thread (", thrown.what(),
                       "): give it more, by `ulimit -u` or the pids limit of its container"));
}

// Starts a thread that gets no signals of the process (signal_mask.h).
template <typename Function>
Status StartHelperThread(Function run, std::thread* thread) {
  const ScopedHelperThreadSignals signals;
  try {
    *thread = std::thread(std::move(run));
  } catch (const std::system_error& thrown) {
    return NoMoreThreads(thrown);
  }
  return Status();
}

}  // namespace tfdear
