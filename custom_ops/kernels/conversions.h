// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/schedule/reduction.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

// Between the engine's types and TensorFlow's: the only place where they meet.
namespace tfdear {

absl::Status ToAbsl(const Status& status);
DataType ToEngine(tensorflow::DataType type);
std::vector<int64_t> ToEngine(const tensorflow::TensorShape& shape);

// The sum, and the indices of its rows if it is sparse, where they lie in fusion buffers.
std::vector<tensorflow::Tensor> ToTensors(const Reduced& sum, tensorflow::DataType type,
                                          bool sparse);

}  // namespace tfdear
