// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdear {

// A whole program on `count` elements: `sources` and `targets` of its variables, which may be the
// same arrays, and a gradient, which may be null if it is not read.
using FusedFunction = void (*)(const float* gradient, const float* const* sources,
                               float* const* targets, const float* scalars, size_t count);

// One loop for a program that is one of the usual optimizers' (SGD, momentum, Nesterov, Adam,
// AdamW, Adagrad, RMSprop), which keeps between registers what an ElementwiseProgram keeps in
// tiles. It does the same operations in the same order, so the bits are the same. Null: there is
// none.
//
// Programs are known by their code, as translated from what Keras traces: an optimizer that is
// written otherwise is only slower. `tests/unit/gradients/test_elementwise_program.py` says when
// Keras's are.
FusedFunction FusedProgram(const std::vector<int64_t>& code, int variables, int scalars);

struct FusedCode {
  std::vector<int64_t> code;
  int variables;
  int scalars;
};
// All that there are.
std::vector<FusedCode> FusedCodes();

}  // namespace tfdear
