// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/kernels/update_threads.h"

#include <algorithm>

#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/env.h"

namespace tfdear {

// An idle one sleeps at once: looking for work for a while would take processors from the next
// pass. As many as a quarter of the processors: updates pass over memory, which few threads can
// fill.
tensorflow::thread::ThreadPool* UpdateThreads() {
  static const int number = std::clamp(tensorflow::port::MaxParallelism() / 4, 2, 8);
  // The longest name that a thread can show, after the prefix that TensorFlow adds.
  static auto* threads = new tensorflow::thread::ThreadPool(
      tensorflow::Env::Default(), tensorflow::ThreadOptions(), "dear_updates", number,
      /*low_latency_hint=*/false);
  return threads;
}

}  // namespace tfdear
