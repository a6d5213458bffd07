// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Who waits now.

#include "custom_ops/engine/record/waits.h"

#include <thread>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

using Names = std::vector<std::string>;

TEST(Waits, TheOldestComesFirst) {
  Waits waits;
  Names ops;
  EXPECT_EQ(waits.Read(&ops), 0);
  EXPECT_TRUE(ops.empty());
  const int64_t first = waits.Begin("first");
  const int64_t second = waits.Begin("second");
  waits.Begin("first");
  EXPECT_EQ(waits.Read(&ops), 3);
  EXPECT_EQ(ops, (Names{"first", "second", "first"}));
  waits.End(first);
  EXPECT_EQ(waits.Read(&ops), 4);
  EXPECT_EQ(ops, (Names{"second", "first"}));
  waits.End(second);
  EXPECT_EQ(waits.Read(&ops), 5);
  EXPECT_EQ(ops, (Names{"first"}));
  EXPECT_EQ(waits.Read(&ops), 5);
}

TEST(Waits, OfSeveralThreads) {
  constexpr int kThreads = 4, kWaits = 1000;
  Waits waits;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&waits] {
      Names ops;
      for (int wait = 0; wait < kWaits; ++wait) {
        const int64_t number = waits.Begin("op");
        waits.Read(&ops);
        waits.End(number);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Names ops;
  EXPECT_EQ(waits.Read(&ops), 2 * kThreads * kWaits);
  EXPECT_TRUE(ops.empty());
}

}  // namespace
}  // namespace tfdear
