// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Buckets: at which offsets tensors lie in what travels together.

#include "custom_ops/engine/schedule/bucket.h"

#include <random>

#include "custom_ops/engine/memory/fusion_buffer.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

TensorSpec Dense(int64_t count, DataType type = DataType::kFloat32) {
  return TensorSpec{type, count, false};
}

TEST(Bucket, TensorsLie64BytesApart) {
  const Bucket bucket = MakeBucket({Dense(4), Dense(17), Dense(900)}, {2, 1, 0});
  EXPECT_EQ(bucket.tensors, (std::vector<int>{2, 1, 0}));
  // In elements of four bytes: 900 -> 912, 17 -> 32, 4 -> 16.
  EXPECT_EQ(bucket.offsets, (std::vector<size_t>{0, 912, 944}));
  EXPECT_EQ(bucket.count, 960u);
}

TEST(Bucket, SlotsAreThoseOfItsType) {
  const std::vector<TensorSpec> tensors(2, Dense(8, DataType::kFloat16));
  const Bucket bucket = MakeBucket(tensors, {1, 0});
  EXPECT_EQ(bucket.type, DataType::kFloat16);
  EXPECT_EQ(bucket.offsets, (std::vector<size_t>{0, 32}));
}

TEST(Bucket, WhatIsSizedAtRunTimeTakesNoRoom) {
  const Bucket unsized = MakeBucket({Dense(-1)}, {0});
  EXPECT_FALSE(unsized.sparse);
  EXPECT_EQ(unsized.count, 0u);
  const Bucket rows = MakeBucket({TensorSpec{DataType::kFloat32, -1, true}}, {0});
  EXPECT_TRUE(rows.sparse);
  EXPECT_EQ(rows.count, 0u);
  EXPECT_EQ(MakeBucket({Dense(0), Dense(0)}, {1, 0}).count, 0u);
}

TEST(Bucket, RulesHoldForRandomTensors) {
  std::minstd_rand random(1);
  for (int round = 0; round < 300; ++round) {
    const DataType type = AllDataTypes()[random() % AllDataTypes().size()];
    std::vector<TensorSpec> tensors;
    std::vector<int> members;
    for (int i = 0; i < 1 + static_cast<int>(random() % 40); ++i) {
      tensors.push_back(Dense(static_cast<int64_t>(random() % 700), type));
      members.insert(members.begin(), i);
    }
    const Bucket bucket = MakeBucket(tensors, members);
    ASSERT_EQ(bucket.tensors, members);
    ASSERT_EQ(bucket.offsets.size(), members.size());
    size_t end = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      EXPECT_EQ(bucket.offsets[i] * SizeOf(type) % kSlotAlignment, 0u);
      EXPECT_GE(bucket.offsets[i], end) << "slots must not overlap";
      EXPECT_LT((bucket.offsets[i] - end) * SizeOf(type), kSlotAlignment);
      end = bucket.offsets[i] + static_cast<size_t>(tensors[members[i]].count);
    }
    EXPECT_GE(bucket.count, end);
    EXPECT_LT((bucket.count - end) * SizeOf(type), kSlotAlignment);
  }
}

}  // namespace
}  // namespace tfdear
