// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/engine/updates/elementwise_program.h"

namespace tfdear {

// Rows of a gradient, each of one row of a table; other rows have a gradient of zero.
struct RowsOfGradient {
  const int64_t* rows = nullptr;  // Different ones.
  size_t count = 0;
  const float* values = nullptr;  // [count, width]
};

// Sums, over all elements of a table of [rows, width], of what a program yields for each of them.
//
// The program's variables are `arrays`, which it leaves as they are, and then its outputs, one for
// every sum. Sums are of float64, in an order that depends on rows and width alone, whatever the
// processor's instructions are. Denormals are flushed, as in updates.
void SumOverRows(const ElementwiseProgram& program, const std::vector<const float*>& arrays,
                 const std::vector<float>& scalars, int64_t rows, int64_t width,
                 const RowsOfGradient& gradient, std::vector<double>* sums);

}  // namespace tfdear
