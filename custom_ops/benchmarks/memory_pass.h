// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#ifndef TFDEAR_BENCHMARKS_MEMORY_PASS_H_
#define TFDEAR_BENCHMARKS_MEMORY_PASS_H_

#include <cstddef>
#include <cstdint>

#include "custom_ops/engine/base/parallel_for.h"

namespace tfdear {

// What memory allows, to measure kernels by: passes that do next to nothing with what they read,
// on `threads` threads.

// Reads x[0 .. count); returns the sum of the words, so that the reads cannot be left out.
uint64_t ReadPass(const uint32_t* x, size_t count, int threads, const ParallelFor& parallel_for);

// y[i] += x[i]: reads two vectors and writes one.
void AddPass(const float* x, float* y, size_t count, int threads, const ParallelFor& parallel_for);

}  // namespace tfdear

#endif  // TFDEAR_BENCHMARKS_MEMORY_PASS_H_
