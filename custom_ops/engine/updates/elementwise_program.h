// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/updates/elementwise_operation.h"
#include "custom_ops/engine/updates/fused_programs.h"

namespace tfdear {

// An optimizer update as a chain of element-wise operations on float32.
//
// Operation by operation, as TensorFlow runs it, an update reads and writes all of its arrays again
// and again. Here all operations are done on one tile before the next, so that what passes between
// them stays in the nearest cache; those of the usual optimizers are one loop (`fused_programs.h`).
class ElementwiseProgram {
 public:
  using Operation = ElementwiseOperation;

  // Registers: 0 is the gradient, then come the variables, the scalars, and what operations yield.
  // An operation of one operand has it at `left`; `right` is then 0.
  struct Instruction {
    Operation operation;
    int target;
    int left;
    int right;
  };

  // A variable: where it is read, and where it is written; both may be the same. The target of one
  // that is only read is not used.
  struct Array {
    const float* source;
    float* target;
  };

  // What a variable's new value is computed from, one bit for each; the gradient aside.
  struct Sources {
    uint64_t variables = 0;
    uint64_t scalars = 0;
  };

  // The memory of runs, for those that follow one another closely. Not for two threads at once.
  struct Scratch {
    std::vector<float> tiles;
    std::vector<const float*> read;
    std::vector<float*> written;
  };

  // `code`: the four members of each instruction. Every variable is written by one, unless some
  // may be only read.
  static Status Parse(const std::vector<int64_t>& code, int variables, int scalars,
                      ElementwiseProgram* program, bool some_only_read = false);

  // Runs on arrays of `count` elements. The gradient may be null if no instruction reads it.
  void Run(const float* gradient, const std::vector<Array>& variables,
           const std::vector<float>& scalars, size_t count) const;
  void Run(const float* gradient, const std::vector<Array>& variables,
           const std::vector<float>& scalars, size_t count, Scratch* scratch) const;

  int variables() const { return variables_; }
  int scalars() const { return scalars_; }
  int registers() const { return registers_; }
  const std::vector<Instruction>& instructions() const { return instructions_; }
  bool reads_gradient() const { return reads_gradient_; }
  bool is_fused() const { return fused_ != nullptr; }
  // Whether it writes a variable, and does not only read it.
  bool Writes(int variable) const;
  // Not there for programs of more than 64 variables or scalars.
  const std::vector<Sources>& sources() const { return sources_; }

 private:
  int variables_ = 0;
  int scalars_ = 0;
  int registers_ = 1;
  bool reads_gradient_ = false;
  std::vector<Instruction> instructions_;
  std::vector<ElementwiseFunction> functions_;  // Of the instructions.
  FusedFunction fused_ = nullptr;               // All of them in one, if there is one.
  std::vector<Sources> sources_;                // Of the variables.
};

}  // namespace tfdear
