// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace tfdear {

// Whose norms an optimizer wants, beside that of the weights w.
enum class NormKind : int {
  kLars = 0,  // The gradient's.
  kLamb = 1,  // That of Adam's step, with weight decay.
};

// What Adam's step is made with, as LAMB does it.
struct AdamStep {
  float mean_rate = 0;          // 1 - beta_1
  float square_rate = 0;        // 1 - beta_2
  float mean_correction = 1;    // 1 - beta_1^t
  float square_correction = 1;  // 1 - beta_2^t
  float epsilon = 0;
  float weight_decay = 0;
};

// A stretch of one layer: `count` elements at each pointer.
struct LayerPiece {
  NormKind kind = NormKind::kLars;
  size_t count = 0;
  const float* gradient = nullptr;
  const float* weight = nullptr;
  // LAMB only: the moments before this step.
  const float* mean = nullptr;
  const float* square = nullptr;
  AdamStep step;
};

// Writes two sums for every piece: of the squares of its weights, and of those of its gradient or
// step. Reads everything once and stores no step anywhere. Squares are exact and added in float64,
// in an order that depends on the count alone, so sums do not depend on the processor's
// instructions (a step may, in its last bit).
void SumOfSquares(const std::vector<LayerPiece>& pieces, double* sums);

}  // namespace tfdear
