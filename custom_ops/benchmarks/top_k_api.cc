// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Top-k as plain C, for benchmarks. All calls block; vectors belong to the caller. Nothing is
// checked: k <= d, and float16, bfloat16 or float32.

#include <cstdint>

#include "custom_ops/benchmarks/memory_pass.h"
#include "custom_ops/engine/base/export.h"
#include "custom_ops/engine/compression/top_k.h"

namespace {

struct TopKWithThreads {
  explicit TopKWithThreads(int threads)
      : workers(threads), top_k(workers.threads(), workers.parallel_for()) {}

  tfdear::WorkerThreads workers;
  tfdear::TopK top_k;
};

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

// The passes of memory_pass.h, on the same threads.
TFDEAR_EXPORT void tfdear_read_pass(void* top_k, const uint32_t* x, int64_t count) {
  tfdear::WorkerThreads& workers = Cast(top_k)->workers;
  tfdear::ReadPass(x, static_cast<size_t>(count), workers.threads(), workers.parallel_for());
}

TFDEAR_EXPORT void tfdear_add_pass(void* top_k, const float* x, float* y, int64_t count) {
  tfdear::WorkerThreads& workers = Cast(top_k)->workers;
  tfdear::AddPass(x, y, static_cast<size_t>(count), workers.threads(), workers.parallel_for());
}

}  // extern "C"
