// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "custom_ops/engine/base/thread_annotations.h"

namespace tfdear {

// How long to wait so that all together take no more bytes per second. Thread safe.
class RateLimit {
 public:
  // `rate`: bytes per second; 0: as many as there are.
  explicit RateLimit(double rate) : rate_(rate) {}

  // So many bytes were taken; the time before more may be.
  std::chrono::milliseconds Take(size_t bytes) TFDEAR_EXCLUDES(mutex_) {
    if (rate_ <= 0) return std::chrono::milliseconds(0);
    const std::chrono::duration<double> cost(static_cast<double>(bytes) / rate_);
    const auto now = Clock::now();
    MutexLock lock(mutex_);
    next_ = std::max(next_, now) + std::chrono::duration_cast<Clock::duration>(cost);
    return std::chrono::duration_cast<std::chrono::milliseconds>(next_ - now);
  }

 private:
  using Clock = std::chrono::steady_clock;

  const double rate_;
  Mutex mutex_;
  Clock::time_point next_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
