// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <vector>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/base/thread_annotations.h"

namespace tfdear {

// The result-to-be of one submitted collective. Finishes exactly once. Safe from any thread.
class Work {
 public:
  // Blocks until the collective is over and returns how it went. Ends in any case, since every
  // collective has a deadline. Never call it in an OnDone callback: that thread moves the bytes.
  Status Wait();

  bool done() const;

  // Calls `callback` once, when the collective is over: on the process group's thread, or at once
  // on this one if it is over already. Callbacks run in the order they were given; they must be
  // short and must not throw.
  void OnDone(std::function<void(const Status&)> callback);

  // For whoever runs the collective: ends it. A second call does nothing.
  void Finish(const Status& status);

 private:
  mutable Mutex mutex_;
  std::condition_variable finished_;
  bool done_ TFDEAR_GUARDED_BY(mutex_) = false;
  Status status_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<std::function<void(const Status&)>> callbacks_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
