// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/benchmarks/memory_pass.h"

#include <vector>

#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/base/vector_clones.h"

namespace tfdear {
namespace {

constexpr size_t kLanes = 64;  // several registers of sums, none of which waits for another

// A thread that starts late does less, as in TopK.
constexpr int kSlabsPerThread = 4;

TFDEAR_VECTOR_CLONES uint32_t Sum(const uint32_t* x, size_t begin, size_t end) {
  uint32_t sums[kLanes] = {};
  size_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) sums[j] += x[i + j];
  }
  for (; i < end; ++i) sums[0] += x[i];
  for (size_t j = 1; j < kLanes; ++j) sums[0] += sums[j];
  return sums[0];
}

TFDEAR_VECTOR_CLONES void Add(const float* x, float* y, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) y[i] += x[i];
}

}  // namespace

uint64_t ReadPass(const uint32_t* x, size_t count, int threads, const ParallelFor& parallel_for) {
  const int slabs = kSlabsPerThread * threads;
  std::vector<uint64_t> sums(slabs);
  parallel_for(slabs, [&](int slab) {
    const Range range = ShardOf(count, slab, slabs);
    sums[slab] = Sum(x, range.begin, range.end);
  });
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

void AddPass(const float* x, float* y, size_t count, int threads, const ParallelFor& parallel_for) {
  const int slabs = kSlabsPerThread * threads;
  parallel_for(slabs, [&](int slab) {
    const Range range = ShardOf(count, slab, slabs);
    Add(x, y, range.begin, range.end);
  });
}

}  // namespace tfdear
