// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "custom_ops/engine/base/data_type.h"

namespace tfdear {

// The magnitude of a floating-point number is what its bits say without the sign, as an unsigned
// integer: that has the order of |x|, from zero over denormals to infinity, with no rounding and no
// scale. NaNs come after infinity.

enum class InstructionSet { kPortable, kAvx2, kAvx512 };

// What this processor has, the best one last.
std::vector<InstructionSet> SupportedInstructionSets();

// Elements that passed a filter, in ascending order of their indices. 16-bit elements are widened.
struct Candidates {
  // Keeps memory that is large enough already; forgets the elements.
  void Reserve(size_t capacity);
  bool overflowed() const { return count > capacity; }

  std::unique_ptr<uint32_t[]> indices;
  std::unique_ptr<uint32_t[]> bits;
  size_t count = 0;
  size_t capacity = 0;  // of what may be kept; the memory holds one step of a filter more
};

// Appends x[i], begin <= i < end, whose magnitude is above `limit`, and stops soon after the
// capacity is exceeded. `x` is float16, bfloat16 or float32; both 16-bit types have the same order.
void FilterMagnitude(InstructionSet instructions, DataType type, const void* x, size_t begin,
                     size_t end, uint32_t limit, Candidates* candidates);

// The same for the sums residual[i] + x[i], which replace residual[i] in the same pass, all of them
// also when the capacity is exceeded.
void FilterMagnitudeOfSum(InstructionSet instructions, const float* x, float* residual,
                          size_t begin, size_t end, uint32_t limit, Candidates* candidates);

// Appends the first `wanted` of x[i], begin <= i < end, whose magnitude is `magnitude`, and perhaps
// a few more than wanted. Above infinity it stands for all NaNs.
void FindMagnitude(DataType type, const void* x, size_t begin, size_t end, uint32_t magnitude,
                   size_t wanted, Candidates* candidates);

}  // namespace tfdear
