// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// The sums of squares behind norms as plain C, for benchmarks.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/engine/base/export.h"
#include "custom_ops/engine/norms/sum_of_squares.h"

extern "C" {

// SumOfSquares() over whole layers, in the calling thread. `arrays`: of every layer its gradient,
// its weights and, for LAMB, mean and square; `counts`: their elements; `sums`: two per layer.
// LAMB's step is that of rates 0.1 and 0.001 after the first step.
TFDEAR_EXPORT void tfdear_sums_of_squares(int lamb, const float* const* arrays,
                                          const int64_t* counts, int layers, double* sums) {
  std::vector<tfdear::LayerPiece> pieces(layers);
  for (int i = 0; i < layers; ++i) {
    tfdear::LayerPiece& piece = pieces[i];
    piece.count = static_cast<size_t>(counts[i]);
    piece.gradient = *arrays++;
    piece.weight = *arrays++;
    if (!lamb) continue;
    piece.kind = tfdear::NormKind::kLamb;
    piece.mean = *arrays++;
    piece.square = *arrays++;
    piece.step = {0.1f, 0.001f, 0.1f, 0.001f, 1e-6f, 0.01f};
  }
  tfdear::SumOfSquares(pieces, sums);
}

}  // extern "C"
