// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Plans of buckets: what travels together, in which order, at which offsets.

#include "custom_ops/engine/bucket.h"

#include <limits>
#include <map>
#include <random>

#include "custom_ops/engine/fusion_buffer.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

constexpr size_t kHuge = std::numeric_limits<size_t>::max();

TensorSpec Dense(int64_t count, DataType type = DataType::kFloat32) {
  return TensorSpec{type, count, false};
}
TensorSpec Sparse(DataType type = DataType::kFloat32) { return TensorSpec{type, -1, true}; }

std::vector<std::vector<int>> Members(const std::vector<Bucket>& plan) {
  std::vector<std::vector<int>> members;
  for (const Bucket& bucket : plan) members.push_back(bucket.tensors);
  return members;
}

using Groups = std::vector<std::vector<int>>;

TEST(PlanFixedSize, OneByteGivesEveryTensorItsOwnBucketLastFirst) {
  EXPECT_EQ(Members(PlanFixedSize({Dense(4), Dense(1), Dense(900)}, 1)), (Groups{{2}, {1}, {0}}));
}

TEST(PlanFixedSize, HugeLimitGivesOneBucket) {
  const auto plan = PlanFixedSize({Dense(4), Dense(17), Dense(900)}, kHuge);
  ASSERT_EQ(Members(plan), (Groups{{2, 1, 0}}));
  // In elements of four bytes, 64 bytes apart: 900 -> 912, 17 -> 32, 4 -> 16.
  EXPECT_EQ(plan[0].offsets, (std::vector<size_t>{0, 912, 944}));
  EXPECT_EQ(plan[0].count, 960u);
}

TEST(PlanFixedSize, KibibyteIsFilledToTheBrimAndNotBeyond) {
  // 64 float32 fill a slot of 256 bytes: four to a bucket.
  const std::vector<TensorSpec> tensors(9, Dense(64));
  EXPECT_EQ(Members(PlanFixedSize(tensors, 1024)), (Groups{{8, 7, 6, 5}, {4, 3, 2, 1}, {0}}));
  EXPECT_EQ(Members(PlanFixedSize(tensors, 1023)), (Groups{{8, 7, 6}, {5, 4, 3}, {2, 1, 0}}));
}

TEST(PlanFixedSize, GapsCountAgainstTheLimit) {
  // One element occupies 64 bytes.
  EXPECT_EQ(Members(PlanFixedSize(std::vector<TensorSpec>(3, Dense(1)), 128)),
            (Groups{{2, 1}, {0}}));
}

TEST(PlanFixedSize, TensorAboveTheLimitTravelsAlone) {
  EXPECT_EQ(Members(PlanFixedSize({Dense(8), Dense(1000), Dense(8), Dense(8)}, 1024)),
            (Groups{{3, 2}, {1}, {0}}));
}

TEST(PlanFixedSize, TypesDoNotMix) {
  const auto plan = PlanFixedSize({Dense(8), Dense(8, DataType::kFloat16), Dense(8),
                                   Dense(8, DataType::kFloat16), Dense(8, DataType::kInt64)},
                                  kHuge);
  ASSERT_EQ(Members(plan), (Groups{{4}, {3, 1}, {2, 0}}));
  EXPECT_EQ(plan[0].type, DataType::kInt64);
  EXPECT_EQ(plan[1].type, DataType::kFloat16);
  EXPECT_EQ(plan[1].offsets, (std::vector<size_t>{0, 32}));
  EXPECT_EQ(plan[2].type, DataType::kFloat32);
}

TEST(PlanFixedSize, SparseAndUnsizedTensorsTravelAlone) {
  const auto plan = PlanFixedSize({Dense(8), Sparse(), Dense(8), Dense(-1), Dense(8)}, kHuge);
  // They do not end the bucket that is being filled.
  ASSERT_EQ(Members(plan), (Groups{{4, 2, 0}, {3}, {1}}));
  EXPECT_FALSE(plan[1].sparse);
  EXPECT_EQ(plan[1].count, 0u);
  EXPECT_TRUE(plan[2].sparse);
  EXPECT_EQ(plan[2].count, 0u);
  EXPECT_EQ(Members(PlanFixedSize({Sparse(), Sparse(), Dense(-1), Dense(-1)}, kHuge)),
            (Groups{{3}, {2}, {1}, {0}}));
}

TEST(PlanFixedSize, EmptyListsAndEmptyTensors) {
  EXPECT_TRUE(PlanFixedSize({}, 1024).empty());
  const auto plan = PlanFixedSize({Dense(0), Dense(0)}, 1);
  ASSERT_EQ(Members(plan), (Groups{{1, 0}}));
  EXPECT_EQ(plan[0].count, 0u);
}

// What must hold for any tensors and any limit.
void CheckPlan(const std::vector<TensorSpec>& tensors, size_t limit,
               const std::vector<Bucket>& plan) {
  std::vector<int> times(tensors.size(), 0);
  std::map<DataType, size_t> previous;  // Data type -> the last dense bucket before this one.
  int first_of_last = static_cast<int>(tensors.size());
  for (size_t b = 0; b < plan.size(); ++b) {
    const Bucket& bucket = plan[b];
    SCOPED_TRACE("bucket " + std::to_string(b));
    ASSERT_FALSE(bucket.tensors.empty());
    ASSERT_EQ(bucket.tensors.size(), bucket.offsets.size());
    EXPECT_LT(bucket.tensors[0], first_of_last) << "buckets go from the last tensor to the first";
    first_of_last = bucket.tensors[0];
    const size_t element = SizeOf(bucket.type);
    size_t end = 0;
    bool alone = false;
    for (size_t i = 0; i < bucket.tensors.size(); ++i) {
      const TensorSpec& tensor = tensors[bucket.tensors[i]];
      ++times[bucket.tensors[i]];
      if (i > 0) {
        EXPECT_LT(bucket.tensors[i], bucket.tensors[i - 1]);
      }
      EXPECT_EQ(tensor.type, bucket.type);
      EXPECT_EQ(tensor.sparse, bucket.sparse);
      EXPECT_EQ(bucket.offsets[i] * element % kSlotAlignment, 0u);
      EXPECT_GE(bucket.offsets[i], end) << "slots must not overlap";
      alone = alone || tensor.sparse || tensor.count < 0;
      if (!alone) end = bucket.offsets[i] + static_cast<size_t>(tensor.count);
    }
    EXPECT_GE(bucket.count, end);
    if (alone) {
      EXPECT_EQ(bucket.tensors.size(), 1u);
      EXPECT_EQ(bucket.count, 0u);
      continue;
    }
    if (bucket.tensors.size() > 1) {
      EXPECT_LE(bucket.count * element, limit);
    }
    auto before = previous.find(bucket.type);
    if (before != previous.end()) {
      const Bucket& full = plan[before->second];
      const size_t next = AlignUp(tensors[bucket.tensors[0]].count * element);
      EXPECT_GT(full.count * element + next, limit) << "the bucket before had room";
    }
    previous[bucket.type] = b;
  }
  EXPECT_EQ(times, std::vector<int>(tensors.size(), 1)) << "every tensor exactly once";
}

TEST(PlanFixedSize, RulesHoldForRandomTensors) {
  std::minstd_rand random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<TensorSpec> tensors(random() % 40);
    for (TensorSpec& tensor : tensors) {
      tensor.type = AllDataTypes()[random() % AllDataTypes().size()];
      tensor.sparse = random() % 8 == 0;
      tensor.count = random() % 8 == 0 ? -1 : static_cast<int64_t>(random() % 700);
    }
    for (size_t limit : {size_t{1}, size_t{1024}, size_t{5000}, size_t{1} << 30, kHuge}) {
      SCOPED_TRACE("round " + std::to_string(round) + ", limit " + std::to_string(limit));
      const auto plan = PlanFixedSize(tensors, limit);
      CheckPlan(tensors, limit, plan);
      const auto again = PlanFixedSize(tensors, limit);
      ASSERT_EQ(Members(plan), Members(again));
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tfdear
