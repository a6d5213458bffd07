// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "custom_ops/engine/base/data_type.h"

namespace tfdear {

// accumulator[i] += addend[i] for i < count. Neither pointer needs any alignment beyond the
// element's; the ranges must not overlap. Integers wrap around. float16 and bfloat16 are added in
// float32 and rounded to nearest even, so the result does not depend on the processor.
void SumInto(DataType type, void* accumulator, const void* addend, size_t count);

// target[i] = factor * source[i] for i < count, of a floating type; alignment and ranges as above.
// float64 is multiplied as such, the others in float32, float16 and bfloat16 rounded to nearest
// even.
void CopyScaled(DataType type, void* target, const void* source, double factor, size_t count);

namespace sum_internal {

// Scalar conversions, used where the processor has no float16 instructions.
float FloatFromHalf(uint16_t half);
uint16_t HalfFromFloat(float value);

void SumHalfPortable(uint16_t* accumulator, const uint16_t* addend, size_t count);

// The same bits. Call only if HasHalfInstructions().
void SumHalfInstructions(uint16_t* accumulator, const uint16_t* addend, size_t count);
bool HasHalfInstructions();

}  // namespace sum_internal
}  // namespace tfdear
