// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Sizes beyond 2^32 elements and bytes, in the functions that compute with sizes only: no memory of
// such a size is needed.

#include <gtest/gtest.h>

#include <limits>

#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/collectives/collective_arguments.h"
#include "custom_ops/engine/collectives/direct_exchange.h"
#include "custom_ops/engine/collectives/row_exchange.h"
#include "custom_ops/engine/compression/sparse_code.h"
#include "custom_ops/engine/compression/sparse_exchange.h"
#include "custom_ops/engine/schedule/bucket.h"

namespace tfdear {
namespace {

constexpr size_t kMany = (size_t{1} << 33) + 5;

TEST(LargeSizes, BucketsPlaceTensorsBehindLargeOnes) {
  const std::vector<TensorSpec> tensors = {{DataType::kFloat32, static_cast<int64_t>(kMany), false},
                                           {DataType::kFloat32, static_cast<int64_t>(kMany), false},
                                           {DataType::kFloat32, 7, false}};
  const Bucket bucket = MakeBucket(tensors, {0, 1, 2});
  const size_t slot = (size_t{1} << 33) + 16;  // Whole cache lines.
  EXPECT_EQ(bucket.offsets, (std::vector<size_t>{0, slot, 2 * slot}));
  EXPECT_EQ(bucket.count, 2 * slot + 16);
}

TEST(LargeSizes, ShardsCoverEverything) {
  for (const size_t count : {kMany, size_t{1} << 62, std::numeric_limits<size_t>::max()}) {
    for (const int size : {1, 3, 1000}) {
      const std::vector<Range> shards = ShardsOf(count, size);
      EXPECT_EQ(shards.front().begin, 0u);
      EXPECT_EQ(shards.back().end, count);
      for (int rank = 1; rank < size; ++rank) {
        ASSERT_EQ(shards[rank].begin, shards[rank - 1].end);
        ASSERT_LE(shards[rank].size() - count / size, 1u);
      }
      size_t total = 0;
      for (int chunk = 0; chunk < 7; ++chunk) total += TotalOf(ShardsOf(count, size, chunk, 7));
      EXPECT_EQ(total, count);
    }
  }
}

TEST(LargeSizes, RangesOfBytes) {
  const int size = 3;
  const char* const data = "not looked at";
  std::vector<Range> bytes;
  ASSERT_TRUE(ToByteRanges(data, ShardsOf(kMany, size), DataType::kFloat64, size, &bytes).ok());
  EXPECT_EQ(bytes[0].begin, 0u);
  EXPECT_EQ(bytes[2].end, 8 * kMany);
  EXPECT_EQ(bytes[1].begin, bytes[0].end);
  const std::vector<Range> ranges = ConsecutiveRanges({kMany, 1, kMany});
  EXPECT_EQ(ranges[2].begin, kMany + 1);
  EXPECT_EQ(ranges[2].end, 2 * kMany + 1);
}

TEST(LargeSizes, SegmentsOfAShard) {
  const Range shard{3, 3 + kMany};
  const size_t segment_bytes = 512 * 1024;
  const size_t last = kMany / segment_bytes;
  EXPECT_EQ(SegmentsOf(shard, segment_bytes), last + 1);
  EXPECT_EQ(SegmentOf(shard, last, segment_bytes).begin, 3 + last * segment_bytes);
  EXPECT_EQ(SegmentOf(shard, last, segment_bytes).end, shard.end);
  EXPECT_EQ(SegmentOf(shard, last + 1, segment_bytes).size(), 0u);
  EXPECT_EQ(SegmentOf(shard, 0, std::numeric_limits<size_t>::max()).end, shard.end);
}

TEST(LargeSizes, RowsOfPeers) {
  const auto rows = static_cast<int64_t>(kMany);
  size_t total = 0;
  ASSERT_TRUE(CheckedTotal({rows, rows, 1}, 512, "rows", &total).ok());
  EXPECT_EQ(total, 2 * kMany + 1);
  EXPECT_GT(total * 512, size_t{1} << 42);
  // Their sum in bytes would be 2^64, which is 0.
  EXPECT_FALSE(CheckedTotal({int64_t{1} << 60, int64_t{1} << 60}, 8, "rows", &total).ok());
  EXPECT_FALSE(CheckedTotal({std::numeric_limits<int64_t>::max(), 1}, 1, "rows", &total).ok());
}

TEST(LargeSizes, SparseExchanges) {
  EXPECT_EQ(ElementsToSelect(0.5, kMany + 1, 2, kMany), (kMany + 1) / 4 + 1);
  EXPECT_EQ(ElementsToSelect(1, kMany, 1, kMany), kMany);
  const size_t bound = SparseCodeBound(kMany, 2 * kMany, ValueFormat::kFloat32);
  EXPECT_GT(bound, 4 * kMany);
  EXPECT_LT(bound, 5 * kMany);
}

}  // namespace
}  // namespace tfdear
