// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/engine/norms/sum_of_squares.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfdear {

// Describes a layer to the engine. `moments`: for LAMB, mean and square of its gradients; `step`:
// for LAMB, one vector with the members of AdamStep. The piece points into the tensors and knows no
// gradient yet.
absl::Status DescribeLayer(const std::string& norms, const tensorflow::Tensor& weight,
                           const std::vector<tensorflow::Tensor>& moments,
                           const std::vector<tensorflow::Tensor>& step, LayerPiece* piece);

}  // namespace tfdear
