// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// What a sparse exchange does with its pairs besides sending them, as plain C, for benchmarks. All
// memory belongs to the caller; of what a call needs itself, a thread keeps the last one's.
#ifndef TFDEAR_ENGINE_SPARSE_CODE_API_H_
#define TFDEAR_ENGINE_SPARSE_CODE_API_H_

#include <stdint.h>

#define TFDEAR_EXPORT __attribute__((visibility("default")))

extern "C" {

// Codes the pairs of k of d elements, as bfloat16 if that is not 0. Returns the bytes of the code,
// of which `capacity` at most are written.
TFDEAR_EXPORT int64_t tfdear_sparse_encode(const uint32_t* indices, const float* values, int64_t k,
                                           int64_t d, int bfloat16, char* code, int64_t capacity);

// Decodes pairs and adds them to data[0 .. d). Returns 0, or 1 if `code` is none.
TFDEAR_EXPORT int tfdear_sparse_decode_and_add(const char* code, int64_t size, int64_t d,
                                               float* data);

}  // extern "C"

#endif  // TFDEAR_ENGINE_SPARSE_CODE_API_H_
