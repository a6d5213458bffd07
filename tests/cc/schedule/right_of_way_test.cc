// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/right_of_way.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

// What waits in a thread of its own.
class Waiter {
 public:
  explicit Waiter(std::function<void()> wait)
      : thread_([this, wait = std::move(wait)] {
          wait();
          went_ = true;
        }) {}
  ~Waiter() { thread_.join(); }
  bool Went() const { return went_; }
  bool Goes() const {
    return Eventually([this] { return Went(); });
  }

 private:
  std::atomic<bool> went_{false};
  std::thread thread_;
};

void Pause() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

RightOfWay::Held RowsOf(int64_t lookup) {
  auto rows = std::make_shared<RightOfWay::Rows>();
  rows->lookup = lookup;
  rows->tables = {{7, GatheredIds{{1, 2}, {2}}}};
  rows->writes = {7};
  return rows;
}

TEST(RightOfWay, DenseGradientsGiveWayWhileUrgentBytesFlow) {
  RightOfWay right_of_way;
  right_of_way.GiveWay();  // To nobody.
  auto first = std::make_unique<RightOfWay::Urgent>(&right_of_way);
  auto second = std::make_unique<RightOfWay::Urgent>(&right_of_way);
  Waiter dense([&] { right_of_way.GiveWay(); });
  first = nullptr;
  Pause();
  EXPECT_FALSE(dense.Went());
  second = nullptr;
  EXPECT_TRUE(dense.Goes());
}

TEST(RightOfWay, NothingIsHeldBackForever) {
  RightOfWay right_of_way;
  const RightOfWay::Urgent urgent(&right_of_way);
  right_of_way.DenseBegan(0);
  right_of_way.LookupArrived(1);
  const auto rows = RowsOf(3);
  right_of_way.Add(rows);
  const auto begin = std::chrono::steady_clock::now();
  Waiter dense([&] { right_of_way.GiveWay(); });
  Waiter early([&] { right_of_way.WaitForDense(); });
  Waiter delayed([&] { right_of_way.WaitFor(rows); });
  EXPECT_TRUE(dense.Goes() && early.Goes() && delayed.Goes());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, RightOfWay::kLongest);
}

TEST(RightOfWay, EarlyVectorsWaitForTheSumsThatAreUnderWay) {
  RightOfWay right_of_way;
  right_of_way.WaitForDense();  // There are none.
  right_of_way.DenseBegan(4);
  right_of_way.LookupArrived(1);
  Waiter early([&] { right_of_way.WaitForDense(); });
  Pause();
  right_of_way.DenseBegan(5);     // The step's own.
  right_of_way.LookupArrived(0);  // Nothing new.
  EXPECT_FALSE(early.Went());
  right_of_way.DenseEnded(4);
  EXPECT_TRUE(early.Goes());
  right_of_way.WaitForDense();
}

TEST(RightOfWay, DelayedRowsWaitForTheNextVectorsAndThenForTheSums) {
  RightOfWay right_of_way;
  const auto rows = RowsOf(3);
  right_of_way.DenseBegan(4);
  right_of_way.Add(rows);
  Waiter delayed([&] { right_of_way.WaitFor(rows); });
  right_of_way.LookupArrived(3);  // Their own.
  Pause();
  EXPECT_FALSE(delayed.Went());
  right_of_way.LookupArrived(4);
  right_of_way.DenseBegan(5);
  Pause();
  EXPECT_FALSE(delayed.Went());
  right_of_way.DenseEnded(4);
  EXPECT_TRUE(delayed.Goes());
  // Where both were over before, they do not wait at all.
  right_of_way.DenseEnded(5);
  const auto late = RowsOf(3);
  right_of_way.Add(late);
  right_of_way.WaitFor(late);
}

TEST(RightOfWay, WhoNeedsDelayedRowsGetsThem) {
  const std::function<void(RightOfWay*)> wants[] = {
      [](RightOfWay* it) { it->RowsWanted(4, 7, {2}); },
      [](RightOfWay* it) { it->VariableWanted(7); },
      [](RightOfWay* it) { it->Release(); },
  };
  for (const auto& want : wants) {
    RightOfWay right_of_way;
    right_of_way.DenseBegan(4);
    const auto rows = RowsOf(3);
    right_of_way.Add(rows);
    Waiter delayed([&] { right_of_way.WaitFor(rows); });
    right_of_way.RowsWanted(4, 7, {3});  // Others.
    right_of_way.VariableWanted(8);
    Pause();
    EXPECT_FALSE(delayed.Went());
    want(&right_of_way);
    EXPECT_TRUE(delayed.Goes());
  }
}

TEST(RightOfWay, RowsThatWereWantedBeforeTheyWereReadyAreNotHeldBack) {
  int64_t read = 8;
  RightOfWay right_of_way([&](const std::vector<int64_t>& variables) {
    return std::find(variables.begin(), variables.end(), read) != variables.end();
  });
  const auto is_held = [&] {
    const auto rows = RowsOf(3);
    right_of_way.Add(rows);
    Waiter delayed([&] { right_of_way.WaitFor(rows); });
    Pause();
    const bool held = !delayed.Went();
    right_of_way.Release();
    EXPECT_TRUE(delayed.Goes());
    return held;
  };
  EXPECT_TRUE(is_held());
  read = 7;
  EXPECT_FALSE(is_held());
  read = 8;
  right_of_way.DenseBegan(4);
  right_of_way.RowsWanted(4, 7, {2});
  EXPECT_FALSE(is_held());
  right_of_way.LookupArrived(3);
  EXPECT_FALSE(is_held());
  right_of_way.LookupArrived(4);  // It has them.
  EXPECT_TRUE(is_held()) << "until the sums are there";
}

}  // namespace
}  // namespace tfdear
