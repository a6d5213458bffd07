// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/base/injected_delay.h"

#include <chrono>
#include <random>
#include <thread>

namespace tfdear {

void InjectDelay(int max_ms) {
  if (max_ms <= 0) return;
  thread_local std::minstd_rand random(std::random_device{}());
  const int micros = std::uniform_int_distribution<int>(0, max_ms * 1000)(random);
  std::this_thread::sleep_for(std::chrono::microseconds(micros));
}

}  // namespace tfdear
