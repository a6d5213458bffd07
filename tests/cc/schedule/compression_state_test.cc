// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/compression_state.h"

#include <gtest/gtest.h>

#include <random>

#include "custom_ops/engine/base/data_type.h"
#include "tests/cc/plan_testing.h"

namespace tfdear {
namespace {

constexpr int kPlaces = 2;
constexpr int kMembers = 3;
const std::vector<TensorSpec> kTensors = {{DataType::kFloat32, 100, false},
                                          {DataType::kFloat32, 7, false},
                                          {DataType::kFloat32, 33, false},
                                          {DataType::kInt32, 5, false}};

Plan PlanOf(std::vector<std::vector<int>> buckets) {
  Plan plan;
  plan.buckets = std::move(buckets);
  for (int b = 0; b < static_cast<int>(plan.buckets.size()); ++b) {
    plan.steps.push_back({kAllReduce, b});
  }
  return plan;
}

// With numbers that say where they belong: 1000 x tensor + element, in the slots of tensors.
std::unique_ptr<CompressionState> Filled(const SparseExchangeOptions& options, int place) {
  const Plan plan = PlanOf({{2, 1}, {0}, {3}});
  auto state = std::make_unique<CompressionState>(kTensors, plan, options, place, kPlaces);
  state->steps = 11;
  for (int b = 0; b < 2; ++b) {
    const Bucket bucket = MakeBucket(kTensors, plan.buckets[b]);
    std::vector<float> whole(bucket.count);
    for (size_t slot = 0; slot < bucket.tensors.size(); ++slot) {
      for (int64_t i = 0; i < kTensors[bucket.tensors[slot]].count; ++i) {
        whole[bucket.offsets[slot] + i] = static_cast<float>(1000 * bucket.tensors[slot] + i);
      }
    }
    const Range shard = state->shard(b);
    state->exchange(b)->residual.assign(whole.begin() + shard.begin, whole.begin() + shard.end);
    if (options.momentum != 0) state->exchange(b)->velocity.assign(shard.size(), 2.0f);
    if (options.optimizer_has_momentum) state->exchange(b)->last_sum.assign(shard.size(), 3.0f);
  }
  return state;
}

TEST(CompressionStateTest, AnotherPlanGetsEverythingThatWasHeldBackOnce) {
  const SparseExchangeOptions options;
  const Bucket bucket = MakeBucket(kTensors, {0, 1, 2});
  std::vector<float> sum(bucket.count);
  for (int place = 0; place < kPlaces; ++place) {
    Filled(options, place)->AddHeldBack(bucket, kMembers, sum.data());
  }
  for (size_t slot = 0; slot < 3; ++slot) {
    for (int64_t i = 0; i < kTensors[slot].count; ++i) {
      EXPECT_EQ(sum[bucket.offsets[slot] + i], static_cast<float>(1000 * slot + i));
    }
  }
  std::vector<float> alone(MakeBucket(kTensors, {1}).count);
  for (int place = 0; place < kPlaces; ++place) {
    Filled(options, place)->AddHeldBack(MakeBucket(kTensors, {1}), kMembers, alone.data());
  }
  for (int i = 0; i < 7; ++i) EXPECT_EQ(alone[i], static_cast<float>(1000 + i));
}

TEST(CompressionStateTest, WhatAnotherLayoutTookIsLeftOut) {
  SparseExchangeOptions options;
  options.momentum = 0.5f;
  // Tensor 1 is tensor 0 of another layout, and tensor 0 was not taken.
  const std::vector<int> taken = {-1, 0, -1, -1}, rest = {0, -1, 2, 3};
  const Bucket there = MakeBucket({kTensors[1]}, {0});
  const Bucket here = MakeBucket(kTensors, {0, 1, 2});
  std::vector<float> other(there.count), sum(here.count), saved(here.count);
  for (int place = 0; place < kPlaces; ++place) {
    const auto state = Filled(options, place);
    state->AddHeldBack(there, kMembers, other.data(), taken);
    state->AddHeldBack(here, kMembers, sum.data(), rest);
    std::vector<char> bytes;
    state->Save(&bytes, rest);
    const char* next = bytes.data();
    std::unique_ptr<CompressionState> loaded;
    ASSERT_TRUE(CompressionState::Load(&next, next + bytes.size(), place, kPlaces, &loaded).ok());
    loaded->Use(options);
    loaded->AddHeldBack(here, kMembers, saved.data());
  }
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(other[i], static_cast<float>(1000 + i) + 0.5f * 2.0f);
    EXPECT_EQ(sum[here.offsets[1] + i], 0);
  }
  EXPECT_EQ(sum[here.offsets[2]], 2000 + 0.5f * 2.0f);
  EXPECT_EQ(saved, sum);
}

TEST(CompressionStateTest, MomentumGoesOnOnce) {
  SparseExchangeOptions options;
  options.momentum = 0.5f;
  const Bucket bucket = MakeBucket(kTensors, {0});
  std::vector<float> sum(bucket.count);
  for (int place = 0; place < kPlaces; ++place) {
    Filled(options, place)->AddHeldBack(bucket, kMembers, sum.data());
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sum[i], static_cast<float>(i) + 0.5f * 2.0f);
}

TEST(CompressionStateTest, TheMomentumOfTheOptimizerIsTakenIntoAccount) {
  SparseExchangeOptions options;
  options.momentum = 0.75f;
  options.optimizer_has_momentum = true;
  const Bucket bucket = MakeBucket(kTensors, {0});
  std::vector<float> sum(bucket.count);
  for (int place = 0; place < kPlaces; ++place) {
    Filled(options, place)->AddHeldBack(bucket, kMembers, sum.data());
  }
  for (int i = 0; i < 100; ++i) {
    const float expected = 0.25f * static_cast<float>(i) + 0.75f * 2.0f - 0.75f * 3.0f / kMembers;
    EXPECT_NEAR(sum[i], expected, 1e-5);
  }
}

TEST(CompressionStateTest, OtherOptionsForgetWhatTheyDoNotHoldBack) {
  SparseExchangeOptions options;
  options.momentum = 0.5f;
  options.optimizer_has_momentum = true;
  const auto state = Filled(options, 0);
  options.optimizer_has_momentum = false;
  state->Use(options);
  EXPECT_TRUE(state->exchange(0)->last_sum.empty());
  EXPECT_FALSE(state->exchange(0)->velocity.empty());
  options.momentum = 0;
  state->Use(options);
  EXPECT_TRUE(state->exchange(0)->velocity.empty());
  EXPECT_FALSE(state->exchange(0)->residual.empty());
  options.error_feedback = false;
  state->Use(options);
  EXPECT_TRUE(state->exchange(0)->residual.empty());
}

TEST(CompressionStateTest, ComesBackAsItWasSaved) {
  SparseExchangeOptions options;
  options.momentum = 0.5f;
  options.optimizer_has_momentum = true;
  std::vector<char> bytes;
  Filled(options, 0)->Save(&bytes);
  Filled(options, 0)->Save(&bytes);  // Several states follow one another.
  const char* next = bytes.data();
  const char* const end = next + bytes.size();
  for (int i = 0; i < 2; ++i) {
    std::unique_ptr<CompressionState> state;
    const Status status = CompressionState::Load(&next, end, 0, kPlaces, &state);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto expected = Filled(options, 0);
    EXPECT_EQ(state->steps, 11);
    EXPECT_TRUE(state->tensors() == kTensors);
    EXPECT_EQ(state->plan().Encode(), expected->plan().Encode());
    for (int b = 0; b < 3; ++b) {
      EXPECT_EQ(state->exchange(b)->residual, expected->exchange(b)->residual);
      EXPECT_EQ(state->exchange(b)->velocity, expected->exchange(b)->velocity);
      EXPECT_EQ(state->exchange(b)->last_sum, expected->exchange(b)->last_sum);
    }
  }
  EXPECT_EQ(next, end);
}

TEST(CompressionStateTest, RefusesWhatDoesNotFit) {
  const SparseExchangeOptions options;
  std::vector<char> bytes;
  Filled(options, 1)->Save(&bytes);
  auto load = [&](const std::vector<char>& saved, int place, int places) {
    const std::vector<char> copy(saved.begin(), saved.end());
    const char* next = copy.data();
    std::unique_ptr<CompressionState> state;
    return CompressionState::Load(&next, next + copy.size(), place, places, &state);
  };
  EXPECT_TRUE(load(bytes, 1, 2).ok());
  EXPECT_NE(load(bytes, 0, 2).message().find("rank 1 of 2"), std::string::npos);
  EXPECT_FALSE(load(bytes, 1, 3).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(load({bytes.begin(), bytes.begin() + size}, 1, 2).ok());
  }
  std::mt19937 random(1);
  // Damage is refused, or what comes out is a whole state, which is saved as it is loaded.
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<char> damaged = bytes;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    const char* next = damaged.data();
    std::unique_ptr<CompressionState> state;
    if (!CompressionState::Load(&next, next + damaged.size(), 1, 2, &state).ok()) {
      ++refused;
      continue;
    }
    ASSERT_LE(next, damaged.data() + damaged.size());
    std::vector<char> once, twice;
    state->Save(&once);
    next = once.data();
    ASSERT_TRUE(CompressionState::Load(&next, next + once.size(), 1, 2, &state).ok());
    EXPECT_EQ(next, once.data() + once.size());
    state->Save(&twice);
    EXPECT_EQ(once, twice);
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 3000);
}

TEST(CompressionStateTest, DensityFallsExponentially) {
  EXPECT_EQ(DensityAt(0.01, 0.25, 0, 0), 0.01);
  EXPECT_EQ(DensityAt(0.01, 0.25, 10, 0), 0.25);
  EXPECT_NEAR(DensityAt(0.01, 0.25, 10, 5), 0.05, 1e-12);
  EXPECT_EQ(DensityAt(0.01, 0.25, 10, 10), 0.01);
  EXPECT_EQ(DensityAt(0.3, 0.25, 10, 0), 0.3);
}

}  // namespace
}  // namespace tfdear
