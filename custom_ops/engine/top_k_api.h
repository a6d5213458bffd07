// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Top-k as plain C, for programs without TensorFlow, such as benchmarks. All calls block; vectors
// belong to the caller. Nothing is checked: k <= d, and float16, bfloat16 or float32.
#ifndef TFDEAR_ENGINE_TOP_K_API_H_
#define TFDEAR_ENGINE_TOP_K_API_H_

#include <stdint.h>

#define TFDEAR_EXPORT __attribute__((visibility("default")))

extern "C" {

// A TopK with its own `threads` threads; the caller's is one of them.
TFDEAR_EXPORT void* tfdear_top_k_create(int threads);
TFDEAR_EXPORT void tfdear_top_k_destroy(void* top_k);

TFDEAR_EXPORT void tfdear_top_k_select(void* top_k, int data_type, const void* x, int64_t d,
                                       int64_t k, void* values, uint32_t* indices);
TFDEAR_EXPORT void tfdear_top_k_select_with_feedback(void* top_k, const float* x, float* residual,
                                                     int64_t d, int64_t k, float* values,
                                                     uint32_t* indices);
// Forgets the vector that was selected from last: the next call is as the first.
TFDEAR_EXPORT void tfdear_top_k_forget(void* top_k);

// The passes of memory_pass.h, on the same threads.
TFDEAR_EXPORT void tfdear_read_pass(void* top_k, const uint32_t* x, int64_t count);
TFDEAR_EXPORT void tfdear_add_pass(void* top_k, const float* x, float* y, int64_t count);

}  // extern "C"

#endif  // TFDEAR_ENGINE_TOP_K_API_H_
