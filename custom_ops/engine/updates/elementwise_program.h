// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/engine/base/errors.h"

namespace tfdear {

// An optimizer update as a chain of element-wise operations on float32.
//
// Operation by operation, as TensorFlow runs it, an update reads and writes all of its arrays again
// and again. Here all operations are done on one tile before the next, so that what passes between
// them stays in the nearest cache, and an array is read and written once. Every operation is one
// that IEEE 754 rounds correctly and is rounded by itself, so the bits are the same.
class ElementwiseProgram {
 public:
  // Numbers that `tfdear/gradients/elementwise_update.py` has too.
  enum class Operation { kCopy, kNegate, kSquareRoot, kAdd, kSubtract, kMultiply, kDivide };

  // Registers: 0 is the gradient, then come the variables, the scalars, and what operations yield.
  // An operation of one operand has it at `left`; `right` is then 0.
  struct Instruction {
    Operation operation;
    int target;
    int left;
    int right;
  };

  // A variable: where it is read, and where it is written; both may be the same.
  struct Array {
    const float* source;
    float* target;
  };

  // `code`: the four members of each instruction. Every variable is written by one.
  static Status Parse(const std::vector<int64_t>& code, int variables, int scalars,
                      ElementwiseProgram* program);

  // Runs on arrays of `count` elements.
  void Run(const float* gradient, const std::vector<Array>& variables,
           const std::vector<float>& scalars, size_t count) const;

 private:
  int variables_ = 0;
  int scalars_ = 0;
  int registers_ = 1;
  std::vector<Instruction> instructions_;
};

}  // namespace tfdear
