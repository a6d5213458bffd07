// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Top-k as plain C, for benchmarks. All calls block; vectors belong to the caller. Nothing is
// checked: k <= d, and float16, bfloat16 or float32.

#include <cstdint>
#include <vector>

#include "custom_ops/engine/base/export.h"
#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/base/vector_clones.h"
#include "custom_ops/engine/compression/top_k.h"

namespace {

struct TopKWithThreads {
  explicit TopKWithThreads(int threads)
      : workers(threads), top_k(workers.threads(), workers.parallel_for()) {}

  // Calls pass(slab, range) for the slabs of `count` elements. They are more than threads, so that
  // one that starts late does less, as in TopK.
  template <typename Pass>
  void ForSlabs(int64_t count, const Pass& pass) {
    const int slabs = kSlabsPerThread * workers.threads();
    workers.parallel_for()(slabs, [&](int slab) {
      pass(slab, tfdear::ShardOf(static_cast<size_t>(count), slab, slabs));
    });
  }

  static constexpr int kSlabsPerThread = 4;
  tfdear::WorkerThreads workers;
  tfdear::TopK top_k;
};

constexpr size_t kLanes = 64;  // several registers of sums, none of which waits for another

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

TopKWithThreads* Cast(void* top_k) { return static_cast<TopKWithThreads*>(top_k); }

}  // namespace

extern "C" {

// A TopK with its own `threads` threads; the caller's is one of them.
TFDEAR_EXPORT void* tfdear_top_k_create(int threads) { return new TopKWithThreads(threads); }

TFDEAR_EXPORT void tfdear_top_k_destroy(void* top_k) { delete Cast(top_k); }

TFDEAR_EXPORT void tfdear_top_k_select(void* top_k, int data_type, const void* x, int64_t d,
                                       int64_t k, void* values, uint32_t* indices) {
  Cast(top_k)->top_k.Select(static_cast<tfdear::DataType>(data_type), x, static_cast<size_t>(d),
                            static_cast<size_t>(k), values, indices);
}

TFDEAR_EXPORT void tfdear_top_k_select_with_feedback(void* top_k, const float* x, float* residual,
                                                     int64_t d, int64_t k, float* values,
                                                     uint32_t* indices) {
  Cast(top_k)->top_k.SelectWithFeedback(x, residual, static_cast<size_t>(d), static_cast<size_t>(k),
                                        values, indices);
}

// Forgets the vector that was selected from last: the next call is as the first.
TFDEAR_EXPORT void tfdear_top_k_forget(void* top_k) { Cast(top_k)->top_k.Forget(); }

// What memory allows, to measure kernels by: passes that do next to nothing with what they read, on
// the same threads. The first reads x[0 .. count).
TFDEAR_EXPORT void tfdear_read_pass(void* top_k, const uint32_t* x, int64_t count) {
  TopKWithThreads* const threads = Cast(top_k);
  // Kept, so that the reads cannot be left out.
  std::vector<uint32_t> sums(TopKWithThreads::kSlabsPerThread * threads->workers.threads());
  threads->ForSlabs(
      count, [&](int slab, tfdear::Range range) { sums[slab] = Sum(x, range.begin, range.end); });
}

// y[i] += x[i]: reads two vectors and writes one.
TFDEAR_EXPORT void tfdear_add_pass(void* top_k, const float* x, float* y, int64_t count) {
  Cast(top_k)->ForSlabs(count,
                        [&](int, tfdear::Range range) { Add(x, y, range.begin, range.end); });
}

}  // extern "C"
