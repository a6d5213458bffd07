// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/elementwise_operation.h"

#include <iterator>

#include "custom_ops/engine/base/vector_clones.h"
#include "custom_ops/engine/updates/elementwise_functions.h"

namespace tfdear {
namespace {

// An operation for every kind of operands. A target may be an operand as well, element for element:
// nothing is carried from one to the next.
#define TFDEAR_UNARY(Name)                                                              \
  TFDEAR_VECTOR_CLONES void Name##Array(float* target, const float* left, const float*, \
                                        size_t count) {                                 \
    _Pragma("GCC ivdep") for (size_t i = 0; i < count; ++i) {                           \
      const float x = left[i];                                                          \
      target[i] = Compute<ElementwiseOperation::k##Name>(x, x);                         \
    }                                                                                   \
  }                                                                                     \
  void Name##Number(float* target, const float* left, const float*, size_t count) {     \
    const float x = *left;                                                              \
    const float value = Compute<ElementwiseOperation::k##Name>(x, x);                   \
    for (size_t i = 0; i < count; ++i) target[i] = value;                               \
  }
#define TFDEAR_BINARY(Name)                                                                    \
  TFDEAR_VECTOR_CLONES void Name##Arrays(float* target, const float* left, const float* right, \
                                         size_t count) {                                       \
    _Pragma("GCC ivdep") for (size_t i = 0; i < count; ++i) {                                  \
      const float x = left[i], y = right[i];                                                   \
      target[i] = Compute<ElementwiseOperation::k##Name>(x, y);                                \
    }                                                                                          \
  }                                                                                            \
  TFDEAR_VECTOR_CLONES void Name##ArrayNumber(float* target, const float* left,                \
                                              const float* right, size_t count) {              \
    const float y = *right;                                                                    \
    _Pragma("GCC ivdep") for (size_t i = 0; i < count; ++i) {                                  \
      const float x = left[i];                                                                 \
      target[i] = Compute<ElementwiseOperation::k##Name>(x, y);                                \
    }                                                                                          \
  }                                                                                            \
  TFDEAR_VECTOR_CLONES void Name##NumberArray(float* target, const float* left,                \
                                              const float* right, size_t count) {              \
    const float x = *left;                                                                     \
    _Pragma("GCC ivdep") for (size_t i = 0; i < count; ++i) {                                  \
      const float y = right[i];                                                                \
      target[i] = Compute<ElementwiseOperation::k##Name>(x, y);                                \
    }                                                                                          \
  }                                                                                            \
  void Name##Numbers(float* target, const float* left, const float* right, size_t count) {     \
    const float x = *left, y = *right;                                                         \
    const float value = Compute<ElementwiseOperation::k##Name>(x, y);                          \
    for (size_t i = 0; i < count; ++i) target[i] = value;                                      \
  }

TFDEAR_UNARY(Copy)
TFDEAR_UNARY(Negate)
TFDEAR_UNARY(SquareRoot)
TFDEAR_BINARY(Add)
TFDEAR_BINARY(Subtract)
TFDEAR_BINARY(Multiply)
TFDEAR_BINARY(Divide)
TFDEAR_BINARY(Maximum)
TFDEAR_BINARY(Minimum)
TFDEAR_UNARY(Absolute)
TFDEAR_UNARY(Sign)
TFDEAR_BINARY(Power)
TFDEAR_BINARY(Greater)
TFDEAR_BINARY(GreaterEqual)
TFDEAR_BINARY(Equal)
TFDEAR_UNARY(Not)
TFDEAR_BINARY(Where)
TFDEAR_BINARY(Unless)
TFDEAR_BINARY(Unite)
#undef TFDEAR_UNARY
#undef TFDEAR_BINARY

// An operation's functions: of arrays, of array and number, of number and array, of numbers.
struct Functions {
  ElementwiseFunction of[4];
  bool is_unary;
};
#define TFDEAR_UNARY(Name) \
  { {Name##Array, Name##Array, Name##Number, Name##Number}, true }
#define TFDEAR_BINARY(Name) \
  { {Name##Arrays, Name##ArrayNumber, Name##NumberArray, Name##Numbers}, false }

// In the order of ElementwiseOperation.
const Functions kFunctions[] = {
    TFDEAR_UNARY(Copy),     TFDEAR_UNARY(Negate),        TFDEAR_UNARY(SquareRoot),
    TFDEAR_BINARY(Add),     TFDEAR_BINARY(Subtract),     TFDEAR_BINARY(Multiply),
    TFDEAR_BINARY(Divide),  TFDEAR_BINARY(Maximum),      TFDEAR_BINARY(Minimum),
    TFDEAR_UNARY(Absolute), TFDEAR_UNARY(Sign),          TFDEAR_BINARY(Power),
    TFDEAR_BINARY(Greater), TFDEAR_BINARY(GreaterEqual), TFDEAR_BINARY(Equal),
    TFDEAR_UNARY(Not),      TFDEAR_BINARY(Where),        TFDEAR_BINARY(Unless),
    TFDEAR_BINARY(Unite),
};
#undef TFDEAR_UNARY
#undef TFDEAR_BINARY
static_assert(std::size(kFunctions) == kElementwiseOperations);

}  // namespace

bool IsUnary(ElementwiseOperation operation) {
  return kFunctions[static_cast<int>(operation)].is_unary;
}

ElementwiseFunction FunctionOf(ElementwiseOperation operation, bool left_is_number,
                               bool right_is_number) {
  return kFunctions[static_cast<int>(operation)].of[2 * left_is_number + right_is_number];
}

}  // namespace tfdear
