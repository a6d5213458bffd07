// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Plans: their form as numbers, and what is refused.

#include "custom_ops/engine/schedule/plan.h"

#include "tests/cc/plan_testing.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

TensorSpec Dense(int64_t count, DataType type = DataType::kFloat32) {
  return TensorSpec{type, count, false};
}
TensorSpec Sparse() { return TensorSpec{DataType::kFloat32, -1, true}; }

// "reduce_scatter0 all_gather0:1/2": phases, buckets and chunks of a plan.
std::string StepsOf(const Plan& plan) {
  std::string text;
  for (const Plan::Step& step : plan.steps) {
    text += std::string(text.empty() ? "" : " ") + Name(step.kind) + std::to_string(step.bucket);
    if (step.chunks > 1) {
      text += ":" + std::to_string(step.chunk) + "/" + std::to_string(step.chunks);
    }
  }
  return text;
}

TEST(Plan, NoLevelIsLeftOut) {
  const std::vector<TensorSpec> tensors = {Dense(8)};
  const Plan::Step all[] = {{kIntraReduceScatter, 0},
                            {kInterReduceScatter, 0},
                            {kInterAllGather, 0},
                            {kIntraAllGather, 0}};
  auto holds = [&](std::vector<Plan::Step> steps, Levels levels) {
    Plan plan;
    plan.buckets = {{0}};
    plan.steps = std::move(steps);
    return plan.Check(tensors, levels).ok();
  };
  EXPECT_TRUE(holds({all[0], all[1], all[2], all[3]}, {true, true}));
  EXPECT_TRUE(holds({{kReduceScatter, 0}, {kAllGather, 0}}, {true, true}));
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

TEST(Plan, OnlyFloatBucketsAreExchangedSparsely) {
  const std::vector<TensorSpec> tensors = {Dense(4000), Dense(4000, DataType::kFloat64), Dense(-1),
                                           Sparse()};
  auto holds = [&](int bucket, std::vector<StepKind> kinds, int chunks = 1) {
    Plan plan;
    plan.buckets = {{0}, {1}, {2}, {3}};
    for (int b = 0; b < 4; ++b) {
      const StepKind whole = b == 3 ? kSparseGather : kAllReduce;
      if (b != bucket) plan.steps.push_back({whole, b});
    }
    for (const StepKind& kind : kinds) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        plan.steps.push_back({kind, bucket, chunk, chunks});
      }
    }
    return plan.Check(tensors, {true, true}).ok();
  };
  for (int bucket = 0; bucket < 4; ++bucket) {
    const std::vector<StepKind> exchange = {kIntraReduceScatter, kSparseExchange, kIntraAllGather};
    EXPECT_EQ(holds(bucket, {kSparseAllGather}), bucket == 0);
    EXPECT_EQ(holds(bucket, exchange), bucket == 0);
  }
  EXPECT_FALSE(holds(0, {kSparseAllGather}, 2));  // Selection needs all of it.
  EXPECT_FALSE(holds(0, {kSparseExchange}));      // Of a node's sum.
}

TEST(Plan, SurvivesItsFormAsNumbers) {
  Plan plan;
  plan.buckets = {{3, 1}, {0}, {2}};
  plan.steps = {{kReduceScatter, 0},   {kAllGather, 0, 0, 2}, {kAllReduce, 1},
                {kAllGather, 0, 1, 2}, {kReduce, 2, 0, 1},    {kBroadcast, 2, 0, 1}};
  plan.wait_for_all = true;
  TFDEAR_EXPECT_OK(plan.Check({Dense(1), Dense(2), Dense(3), Dense(4)}));
  Plan decoded;
  TFDEAR_EXPECT_OK(Plan::Decode(plan.Encode(), &decoded));
  EXPECT_EQ(decoded.buckets, plan.buckets);
  EXPECT_EQ(StepsOf(decoded), StepsOf(plan));
  EXPECT_TRUE(decoded.wait_for_all);
}

TEST(Plan, DamagedNumbersAreRefused) {
  const auto words = PlanFor({Dense(1), Dense(2)}, 1, Schedule::kDear).Encode();
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
  plan.steps = {{kAllReduce, 0, 0, static_cast<int>(many)}};
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
  const std::vector<Plan::Step> rest = {{kAllReduce, 1}, {kSparseGather, 2}, {kAllReduce, 3}};
  auto with = [&](std::vector<Plan::Step> steps) {
    steps.insert(steps.end(), rest.begin(), rest.end());
    return make(buckets, steps).Check(tensors);
  };
  TFDEAR_EXPECT_OK(with({{kAllReduce, 0}}));
  TFDEAR_EXPECT_OK(
      with({{kReduceScatter, 0, 0, 2}, {kReduceScatter, 0, 1, 2}, {kAllGather, 0, 0, 1}}));
  const std::vector<std::vector<Plan::Step>> wrong = {
      {},                                              // bucket 0 is forgotten
      {{kReduceScatter, 0}},                           // never spread
      {{kAllGather, 0}},                               // never reduced
      {{kAllGather, 0}, {kReduceScatter, 0}},          // in the wrong order
      {{kReduceScatter, 0, 0, 2}, {kAllGather, 0}},    // half reduced
      {{kReduceScatter, 0}, {kBroadcast, 0}},          // halves of two kinds
      {{kAllReduce, 0}, {kAllReduce, 0}},              // twice
      {{kAllReduce, 0, 0, 2}, {kAllReduce, 0, 1, 3}},  // chunks that do not fit
      {{kAllReduce, 0, 2, 2}},                         // no such chunk
      {{kSparseGather, 0}},                            // of dense tensors
      {{kAllReduce, 4}, {kAllReduce, 0}},              // no such bucket
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
    std::vector<Plan::Step> steps = {{kAllReduce, 0}};
    steps.insert(steps.end(), rest.begin(), rest.end());
    EXPECT_EQ(make(misplaced[i], steps).Check(tensors).code(), StatusCode::kInvalidArgument)
        << "case " << i;
  }
}

}  // namespace
}  // namespace tfdear
