// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace tfdear {

// The operations of an ElementwiseProgram. `tfdear/gradients/elementwise_program.py` has the same
// numbers. All are correctly rounded by IEEE 754 or exact, but for kPower.
enum class ElementwiseOperation {
  // Of one operand, or of two: what their names say.
  kCopy,
  kNegate,
  kSquareRoot,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  // Of a NaN and anything else NaN, as in TensorFlow, and of zeros of both signs the second, as
  // TensorFlow's vectorised code has it (its code for the last few elements takes the first).
  kMaximum,
  kMinimum,
  kAbsolute,
  kSign,  // NaN of NaN, and 0 of zeros of both signs
  kPower,
  // Conditions: 1 where they hold, else 0. kNot turns one round.
  kGreater,
  kGreaterEqual,
  kEqual,
  kNot,
  // A choice among two values by a condition is made of three operations: the right operand where
  // the left one is not 0 (and +0 elsewhere), another one where it is, and the two united, bit by
  // bit, so that infinities and NaN pass.
  kWhere,
  kUnless,
  kUnite,
};
constexpr int kElementwiseOperations = static_cast<int>(ElementwiseOperation::kUnite) + 1;

// Has one operand, the left one.
bool IsUnary(ElementwiseOperation operation);

// Fills `target`, which may be an operand as well. An operand is an array of `count` elements, or
// one number for all of them; a unary operation does not look at `right`.
using ElementwiseFunction = void (*)(float* target, const float* left, const float* right,
                                     size_t count);
ElementwiseFunction FunctionOf(ElementwiseOperation operation, bool left_is_number,
                               bool right_is_number);

}  // namespace tfdear
