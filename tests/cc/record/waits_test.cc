// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Who waits now.

#include "custom_ops/engine/record/waits.h"

#include <chrono>
#include <thread>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

using Names = std::vector<std::string>;

TEST(Waits, TheOldestComesFirst) {
  EventRecord events;
  Waits waits(&events);
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

TEST(Waits, APeriodInWhichSomeOpWaitsIsOneEvent) {
  EventRecord events;
  Waits waits(&events);
  uint64_t position = 0;
  // As a clock of microseconds sees it, a period takes time.
  auto let_time_pass = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  const int64_t before = EventRecord::NowMicros();
  const int64_t first = waits.Begin("first");
  let_time_pass();
  const int64_t second = waits.Begin("second");
  waits.End(first);
  EXPECT_TRUE(events.Read(&position).empty()) << "the second op waits";
  let_time_pass();
  waits.End(second);
  const int64_t between = EventRecord::NowMicros();
  const int64_t ahead = waits.Begin("looks ahead", /*looks_ahead=*/true);
  let_time_pass();
  waits.End(ahead);
  const int64_t third = waits.Begin("third");
  let_time_pass();
  waits.End(third);
  const auto periods = events.Read(&position);
  ASSERT_EQ(periods.size(), 2u);
  for (const Event& period : periods) {
    EXPECT_EQ(period.kind, EventKind::kWait);
    EXPECT_LT(period.begin_us, period.end_us);
    EXPECT_GE(period.computation_us, 0);
  }
  EXPECT_EQ(periods[0].detail, 2);
  EXPECT_EQ(periods[1].detail, 1);
  EXPECT_LE(before, periods[0].begin_us);
  EXPECT_LE(periods[0].end_us, between);
  EXPECT_LT(between, periods[1].begin_us);
}

TEST(Waits, OfSeveralThreads) {
  constexpr int kThreads = 4, kWaits = 1000;
  EventRecord events;
  Waits waits(&events);
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
