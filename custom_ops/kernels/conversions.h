// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#ifndef TFDEAR_KERNELS_CONVERSIONS_H_
#define TFDEAR_KERNELS_CONVERSIONS_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/memory/fusion_buffer.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

// Between the engine's types and TensorFlow's: the only place where they meet.
namespace tfdear {

absl::Status ToAbsl(const Status& status);
DataType ToEngine(tensorflow::DataType type);
std::vector<int64_t> ToEngine(const tensorflow::TensorShape& shape);
tensorflow::TensorShape ToTensorShape(const std::vector<int64_t>& shape);

// A tensor over a slice of a fusion buffer, without a copy. It keeps the buffer alive. TensorFlow
// will not write into it in place: another tensor may look at the same slice.
tensorflow::Tensor Alias(std::shared_ptr<FusionBuffer> owner, void* data,
                         const tensorflow::TensorShape& shape, tensorflow::DataType type);

}  // namespace tfdear

#endif  // TFDEAR_KERNELS_CONVERSIONS_H_
