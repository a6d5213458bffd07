// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Small tables travel together, and large ones by themselves.

#include "custom_ops/engine/schedule/table_runs.h"

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

using Places = std::vector<size_t>;
constexpr int64_t kSmall = TableRuns::kApartBytes - 1, kLarge = TableRuns::kApartBytes;

std::vector<Places> RunsOf(const std::vector<int64_t>& bytes, TableRuns::Order order) {
  TableRuns runs(bytes.size(), order);
  for (size_t table = 0; table < bytes.size(); ++table) {
    runs.SetBytes(table, bytes[table]);
    runs.SetReady(table);
  }
  std::vector<Places> result;
  while (!runs.done()) {
    result.push_back(runs.Take());
    if (result.back().empty()) break;
  }
  EXPECT_TRUE(runs.Take().empty());
  return result;
}

TEST(TableRuns, SmallOnesTravelTogetherAndLargeOnesApart) {
  const auto forward = TableRuns::Order::kForward, backward = TableRuns::Order::kBackward;
  EXPECT_TRUE(RunsOf({}, forward).empty());
  EXPECT_EQ(RunsOf({kLarge}, backward), (std::vector<Places>{{0}}));
  EXPECT_EQ(RunsOf({0, kSmall, kSmall, 0}, forward), (std::vector<Places>{{0, 1, 2, 3}}));
  EXPECT_EQ(RunsOf({0, kSmall, 1}, backward), (std::vector<Places>{{2, 1, 0}}));
  const std::vector<int64_t> mixed = {kSmall, 0, kLarge, kLarge, kSmall};
  EXPECT_EQ(RunsOf(mixed, forward), (std::vector<Places>{{0, 1}, {2}, {3}, {4}}));
  EXPECT_EQ(RunsOf(mixed, backward), (std::vector<Places>{{4}, {3}, {2}, {1, 0}}));
}

TEST(TableRuns, WaitForTheTablesOfTheNextRunOnly) {
  TableRuns runs(3, TableRuns::Order::kForward);
  EXPECT_TRUE(runs.Take().empty());
  runs.SetBytes(0, kSmall);
  runs.SetReady(0);
  EXPECT_TRUE(runs.Take().empty()) << "the second may be as small";
  runs.SetBytes(1, kLarge);
  EXPECT_EQ(runs.Take(), Places{0});
  EXPECT_TRUE(runs.Take().empty()) << "the second is not ready";
  runs.SetReady(1);
  EXPECT_EQ(runs.Take(), Places{1});
  EXPECT_FALSE(runs.done());
  runs.SetReady(2);
  EXPECT_TRUE(runs.Take().empty()) << "it is not known how much";
  runs.SetBytes(2, 0);
  EXPECT_EQ(runs.Take(), Places{2});
  EXPECT_TRUE(runs.done());
}

TEST(TableRuns, TheRankWithTheMostRowsCounts) {
  EXPECT_EQ(MostBytes({1, 5, 3}, 8), 40);
  EXPECT_EQ(MostBytes({0, 0}, 8), 0);
  EXPECT_EQ(MostBytes({}, 8), 0) << "nobody knows";
}

}  // namespace
}  // namespace tfdear
