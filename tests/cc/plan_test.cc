// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Plans: what the engine starts with, their form as numbers, and what is refused.

#include "custom_ops/engine/plan.h"

#include <limits>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

constexpr size_t kHuge = std::numeric_limits<size_t>::max();

TensorSpec Dense(int64_t count, DataType type = DataType::kFloat32) {
  return TensorSpec{type, count, false};
}
TensorSpec Sparse() { return TensorSpec{DataType::kFloat32, -1, true}; }

// "reduce_scatter0 all_gather0:1/2": phases, buckets and chunks of a plan.
std::string StepsOf(const Plan& plan) {
  std::string text;
  for (const Plan::Step& step : plan.steps) {
    text += std::string(text.empty() ? "" : " ") + Name(step.phase) + std::to_string(step.bucket);
    if (step.chunks > 1) {
      text += ":" + std::to_string(step.chunk) + "/" + std::to_string(step.chunks);
    }
  }
  return text;
}

TEST(Plan, StartsWithTheOrderOfTheSchedule) {
  const std::vector<TensorSpec> tensors = {Dense(4), Sparse(), Dense(4)};
  auto steps = [&](Schedule schedule, Algorithm algorithm) {
    const Plan plan = Plan::Make(tensors, 1, schedule, algorithm);
    TFDEAR_EXPECT_OK(plan.Check(tensors));
    EXPECT_EQ(plan.wait_for_all, schedule == Schedule::kSequential);
    return StepsOf(plan);
  };
  EXPECT_EQ(steps(Schedule::kDear, Algorithm::kShards),
            "reduce_scatter0 sparse_gather1 reduce_scatter2 all_gather2 all_gather0");
  EXPECT_EQ(steps(Schedule::kWfbp, Algorithm::kShards), "all_reduce0 sparse_gather1 all_reduce2");
  EXPECT_EQ(steps(Schedule::kSequential, Algorithm::kShards),
            "all_reduce0 sparse_gather1 all_reduce2");
  EXPECT_EQ(steps(Schedule::kDear, Algorithm::kTree),
            "reduce0 sparse_gather1 reduce2 broadcast2 broadcast0");
  EXPECT_EQ(steps(Schedule::kWfbp, Algorithm::kTree),
            "reduce0 broadcast0 sparse_gather1 reduce2 broadcast2");
}

TEST(Plan, BucketsOfTheUsualSize) {
  auto sizes = [](int64_t elements, int count) {
    const std::vector<TensorSpec> tensors(count, Dense(elements));
    std::vector<size_t> bytes;
    for (const auto& bucket : Plan::Make(tensors, 0, Schedule::kDear, Algorithm::kShards).buckets) {
      bytes.push_back(bucket.size() * elements * sizeof(float));
    }
    return bytes;
  };
  EXPECT_EQ(sizes(16, 100), std::vector<size_t>({6400}));  // Too small to be cut.
  EXPECT_EQ(sizes(1 << 14, 4), std::vector<size_t>(4, 64 << 10));
  EXPECT_EQ(sizes(1 << 16, 64), std::vector<size_t>(16, 1 << 20));
  EXPECT_EQ(sizes(1 << 20, 256).front(), size_t{24} << 20);  // No larger than 25 MiB.
}

TEST(Plan, LevelsThatExistAreUsed) {
  const std::vector<TensorSpec> tensors = {Dense(4), Sparse(), Dense(4)};
  auto steps = [&](Schedule schedule, Levels levels) {
    const Plan plan = Plan::Make(tensors, 1, schedule, Algorithm::kLevels, levels);
    TFDEAR_EXPECT_OK(plan.Check(tensors, levels));
    return StepsOf(plan);
  };
  const Levels both = {true, true};
  EXPECT_EQ(steps(Schedule::kDear, both),
            "intra_reduce_scatter0 inter_reduce_scatter0 sparse_gather1 intra_reduce_scatter2 "
            "inter_reduce_scatter2 inter_all_gather2 intra_all_gather2 inter_all_gather0 "
            "intra_all_gather0");
  // The node begins with bucket 2 before it waits for what the nodes sum of bucket 0.
  EXPECT_EQ(steps(Schedule::kWfbp, both),
            "intra_reduce_scatter0 inter_reduce_scatter0 inter_all_gather0 sparse_gather1 "
            "intra_reduce_scatter2 intra_all_gather0 inter_reduce_scatter2 inter_all_gather2 "
            "intra_all_gather2");
  EXPECT_EQ(steps(Schedule::kDear, {true, false}),
            "intra_reduce_scatter0 sparse_gather1 intra_reduce_scatter2 intra_all_gather2 "
            "intra_all_gather0");
  EXPECT_EQ(steps(Schedule::kDear, {false, true}),
            "inter_reduce_scatter0 sparse_gather1 inter_reduce_scatter2 inter_all_gather2 "
            "inter_all_gather0");
  EXPECT_EQ(steps(Schedule::kDear, {}),
            "reduce_scatter0 sparse_gather1 reduce_scatter2 all_gather2 all_gather0");
}

TEST(Plan, NoLevelIsLeftOut) {
  const std::vector<TensorSpec> tensors = {Dense(8)};
  const Plan::Step all[] = {{Phase::kIntraReduceScatter, 0},
                            {Phase::kInterReduceScatter, 0},
                            {Phase::kInterAllGather, 0},
                            {Phase::kIntraAllGather, 0}};
  auto holds = [&](std::vector<Plan::Step> steps, Levels levels) {
    Plan plan;
    plan.buckets = {{0}};
    plan.steps = std::move(steps);
    return plan.Check(tensors, levels).ok();
  };
  EXPECT_TRUE(holds({all[0], all[1], all[2], all[3]}, {true, true}));
  EXPECT_TRUE(holds({{Phase::kReduceScatter, 0}, {Phase::kAllGather, 0}}, {true, true}));
  EXPECT_FALSE(holds({all[0], all[1], all[2], all[3]}, {true, false}));
  EXPECT_FALSE(holds({all[0], all[3]}, {true, true}));
  EXPECT_FALSE(holds({all[1], all[2]}, {true, true}));
  EXPECT_FALSE(holds({all[0], all[2], all[1], all[3]}, {true, true}));
  EXPECT_FALSE(holds({all[0], all[1], all[2]}, {true, true}));
  EXPECT_TRUE(holds({all[0], all[3]}, {true, false}));
  EXPECT_TRUE(holds({all[1], all[2]}, {false, true}));
  // Chunks go their own way only where all phases are cut alike.
  auto chunk = [&](int phase, int number, int chunks) {
    Plan::Step step = all[phase];
    step.chunk = number;
    step.chunks = chunks;
    return step;
  };
  EXPECT_TRUE(holds({chunk(0, 0, 2), chunk(1, 0, 2), chunk(0, 1, 2), chunk(2, 0, 2), chunk(3, 0, 2),
                     chunk(1, 1, 2), chunk(2, 1, 2), chunk(3, 1, 2)},
                    {true, true}));
  EXPECT_FALSE(holds({chunk(0, 0, 2), chunk(1, 0, 2), chunk(0, 1, 2), chunk(1, 1, 2),
                      chunk(2, 0, 1), chunk(3, 0, 1)},
                     {true, true}));
  EXPECT_TRUE(holds({chunk(0, 0, 2), chunk(0, 1, 2), chunk(1, 0, 2), chunk(1, 1, 2), chunk(2, 0, 1),
                     chunk(3, 0, 3), chunk(3, 1, 3), chunk(3, 2, 3)},
                    {true, true}));
  EXPECT_FALSE(holds({chunk(0, 0, 2), chunk(1, 1, 2), chunk(0, 1, 2), chunk(1, 0, 2),
                      chunk(2, 0, 1), chunk(3, 0, 1)},
                     {true, true}));
}

TEST(Plan, LargeFloatBucketsAreExchangedSparsely) {
  const std::vector<TensorSpec> tensors = {Dense(4000), Dense(4000, DataType::kFloat64), Dense(4),
                                           Dense(3000)};
  auto steps = [&](Schedule schedule, Levels levels, bool hierarchical = true) {
    const Plan plan = Plan::Make(tensors, 1, schedule, Algorithm::kShards, levels,
                                 SparseBuckets{1000, hierarchical});
    TFDEAR_EXPECT_OK(plan.Check(tensors, levels));
    return StepsOf(plan);
  };
  // Bucket 0 is of the last tensor; that of four elements and that of float64 stay dense.
  EXPECT_EQ(steps(Schedule::kWfbp, {true, true}),
            "intra_reduce_scatter0 sparse_exchange0 all_reduce1 all_reduce2 "
            "intra_reduce_scatter3 intra_all_gather0 sparse_exchange3 intra_all_gather3");
  EXPECT_EQ(steps(Schedule::kDear, {true, true}),
            "intra_reduce_scatter0 sparse_exchange0 reduce_scatter1 reduce_scatter2 "
            "intra_reduce_scatter3 sparse_exchange3 intra_all_gather3 all_gather2 all_gather1 "
            "intra_all_gather0");
  EXPECT_EQ(steps(Schedule::kDear, {false, true}),
            "sparse_exchange0 reduce_scatter1 reduce_scatter2 sparse_exchange3 all_gather2 "
            "all_gather1");
  EXPECT_EQ(steps(Schedule::kWfbp, {true, false}),
            "all_reduce0 all_reduce1 all_reduce2 all_reduce3");
  EXPECT_EQ(steps(Schedule::kWfbp, {true, true}, /*hierarchical=*/false),
            "sparse_all_gather0 all_reduce1 all_reduce2 sparse_all_gather3");
  Plan plan = Plan::Make(tensors, 1, Schedule::kWfbp, Algorithm::kShards);
  for (Plan::Step& step : plan.steps) step.phase = Phase::kSparseAllGather;
  EXPECT_FALSE(plan.Check(tensors).ok());  // Of float64, too.
}

TEST(Plan, SurvivesItsFormAsNumbers) {
  Plan plan;
  plan.buckets = {{3, 1}, {0}, {2}};
  plan.steps = {{Phase::kReduceScatter, 0}, {Phase::kAllGather, 0, 0, 2},
                {Phase::kAllReduce, 1},     {Phase::kAllGather, 0, 1, 2},
                {Phase::kReduce, 2, 0, 1},  {Phase::kBroadcast, 2, 0, 1}};
  plan.wait_for_all = true;
  TFDEAR_EXPECT_OK(plan.Check({Dense(1), Dense(2), Dense(3), Dense(4)}));
  Plan decoded;
  TFDEAR_EXPECT_OK(Plan::Decode(plan.Encode(), &decoded));
  EXPECT_EQ(decoded.buckets, plan.buckets);
  EXPECT_EQ(StepsOf(decoded), StepsOf(plan));
  EXPECT_TRUE(decoded.wait_for_all);
}

TEST(Plan, DamagedNumbersAreRefused) {
  const std::vector<TensorSpec> tensors = {Dense(1), Dense(2)};
  const auto words = Plan::Make(tensors, 1, Schedule::kDear, Algorithm::kShards).Encode();
  Plan plan;
  for (size_t length = 0; length < words.size(); ++length) {
    const std::vector<int64_t> cut(words.begin(), words.begin() + length);
    EXPECT_EQ(Plan::Decode(cut, &plan).code(), StatusCode::kInvalidArgument) << length;
  }
  auto longer = words;
  longer.push_back(0);
  EXPECT_EQ(Plan::Decode(longer, &plan).code(), StatusCode::kInvalidArgument);
  auto negative = words;
  negative[2] = -1;
  EXPECT_EQ(Plan::Decode(negative, &plan).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(Plan::Decode({2, 0, 0}, &plan).ok());  // wait_for_all is neither true nor false.
}

TEST(Plan, ANumberAloneSizesNothing) {
  Plan plan;
  const int64_t many = int64_t{1} << 24;
  for (const std::vector<int64_t>& words : std::vector<std::vector<int64_t>>{
           {0, many}, {0, 1, many}, {0, 0, many}, {0, 1, 1, 0, many, 2, 0, 0, 1}}) {
    EXPECT_FALSE(Plan::Decode(words, &plan).ok());
    EXPECT_LE(plan.buckets.capacity(), words.size());
    EXPECT_LE(plan.steps.capacity(), words.size());
  }
  // So many chunks cannot all come.
  plan.buckets = {{0}};
  plan.steps = {{Phase::kAllReduce, 0, 0, static_cast<int>(many)}};
  EXPECT_NE(plan.Check({Dense(8)}).message().find("a step names bucket 0, chunk 0 of 16777216"),
            std::string::npos);
}

TEST(Plan, OnlyWholePlansHold) {
  const std::vector<TensorSpec> tensors = {Dense(8), Dense(8), Dense(8, DataType::kFloat64),
                                           Sparse(), Dense(-1)};
  auto make = [](std::vector<std::vector<int>> buckets, std::vector<Plan::Step> steps) {
    Plan plan;
    plan.buckets = std::move(buckets);
    plan.steps = std::move(steps);
    return plan;
  };
  const std::vector<std::vector<int>> buckets = {{0, 1}, {2}, {3}, {4}};
  const std::vector<Plan::Step> rest = {
      {Phase::kAllReduce, 1}, {Phase::kSparseGather, 2}, {Phase::kAllReduce, 3}};
  auto with = [&](std::vector<Plan::Step> steps) {
    steps.insert(steps.end(), rest.begin(), rest.end());
    return make(buckets, steps).Check(tensors);
  };
  TFDEAR_EXPECT_OK(with({{Phase::kAllReduce, 0}}));
  TFDEAR_EXPECT_OK(with({{Phase::kReduceScatter, 0, 0, 2},
                         {Phase::kReduceScatter, 0, 1, 2},
                         {Phase::kAllGather, 0, 0, 1}}));
  const std::vector<std::vector<Plan::Step>> wrong = {
      {},                                                            // bucket 0 is forgotten
      {{Phase::kReduceScatter, 0}},                                  // never spread
      {{Phase::kAllGather, 0}},                                      // never reduced
      {{Phase::kAllGather, 0}, {Phase::kReduceScatter, 0}},          // in the wrong order
      {{Phase::kReduceScatter, 0, 0, 2}, {Phase::kAllGather, 0}},    // half reduced
      {{Phase::kReduceScatter, 0}, {Phase::kBroadcast, 0}},          // halves of two kinds
      {{Phase::kAllReduce, 0}, {Phase::kAllReduce, 0}},              // twice
      {{Phase::kAllReduce, 0, 0, 2}, {Phase::kAllReduce, 0, 1, 3}},  // chunks that do not fit
      {{Phase::kAllReduce, 0, 2, 2}},                                // no such chunk
      {{Phase::kSparseGather, 0}},                                   // of dense tensors
      {{Phase::kAllReduce, 4}, {Phase::kAllReduce, 0}},              // no such bucket
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_EQ(with(wrong[i]).code(), StatusCode::kInvalidArgument) << "case " << i;
  }
  const std::vector<std::vector<std::vector<int>>> misplaced = {
      {{0}, {2}, {3}, {4}},        // a tensor is missing
      {{0, 1}, {1, 2}, {3}, {4}},  // a tensor twice
      {{0, 1}, {2, 5}, {3}, {4}},  // no such tensor
      {{0, 1}, {}, {3}, {4}},      // an empty bucket
      {{0, 2}, {1}, {3}, {4}},     // two data types
      {{0, 1}, {2}, {3, 4}, {4}},  // a sparse tensor in company
  };
  for (size_t i = 0; i < misplaced.size(); ++i) {
    std::vector<Plan::Step> steps = {{Phase::kAllReduce, 0}};
    steps.insert(steps.end(), rest.begin(), rest.end());
    EXPECT_EQ(make(misplaced[i], steps).Check(tensors).code(), StatusCode::kInvalidArgument)
        << "case " << i;
  }
}

TEST(Plan, GapsDoNotDecideWhatIsCompressed) {
  // 3 tensors of 5 elements take slots of 16.
  const std::vector<TensorSpec> tensors(3, TensorSpec{DataType::kFloat32, 5, false});
  auto compresses = [&](int64_t at_least) {
    const Plan plan = Plan::Make(tensors, size_t{1} << 20, Schedule::kDear, Algorithm::kShards, {},
                                 SparseBuckets{at_least, false});
    return plan.steps[0].phase == Phase::kSparseAllGather;
  };
  EXPECT_TRUE(compresses(0));
  EXPECT_TRUE(compresses(15));
  EXPECT_FALSE(compresses(16));
  EXPECT_FALSE(compresses(48));
  EXPECT_FALSE(compresses(-1));
}

}  // namespace
}  // namespace tfdear
