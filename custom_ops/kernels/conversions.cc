// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/kernels/conversions.h"

#include <memory>
#include <utility>

#include "tensorflow/core/framework/allocation_description.pb.h"

namespace tfdear {
namespace {

class FusionBufferSlice : public tensorflow::TensorBuffer {
 public:
  FusionBufferSlice(std::shared_ptr<FusionBuffer> owner, void* data, size_t size)
      : TensorBuffer(data), owner_(std::move(owner)), size_(size) {}

  size_t size() const override { return size_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(size_));
    proto->set_allocator_name("tfdear_fusion_buffer");
  }
  bool OwnsMemory() const override { return false; }

 private:
  const std::shared_ptr<FusionBuffer> owner_;
  const size_t size_;
};

// A tensor over a slice of a fusion buffer, without a copy. It keeps the buffer alive. TensorFlow
// will not write into it in place: another tensor may look at the same slice.
tensorflow::Tensor Alias(std::shared_ptr<FusionBuffer> owner, void* data,
                         const tensorflow::TensorShape& shape, tensorflow::DataType type) {
  const size_t bytes = shape.num_elements() * tensorflow::DataTypeSize(type);
  tensorflow::core::RefCountPtr<FusionBufferSlice> slice(
      new FusionBufferSlice(std::move(owner), data, bytes));
  return tensorflow::Tensor(type, shape, slice.get());
}

}  // namespace

absl::Status ToAbsl(const Status& status) {
  // In the order of StatusCode. TensorFlow turns "unavailable", from ops that it does not know as
  // communication, into an internal error with another message; "aborted" arrives as it is.
  using Code = absl::StatusCode;
  static constexpr Code kCodes[] = {
      Code::kOk,      Code::kInvalidArgument, Code::kDeadlineExceeded, Code::kAborted,
      Code::kAborted, Code::kInternal,        Code::kCancelled,        Code::kResourceExhausted};
  return absl::Status(kCodes[static_cast<int>(status.code())], status.message());
}

DataType ToEngine(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_HALF:
      return DataType::kFloat16;
    case tensorflow::DT_BFLOAT16:
      return DataType::kBFloat16;
    case tensorflow::DT_DOUBLE:
      return DataType::kFloat64;
    case tensorflow::DT_INT32:
      return DataType::kInt32;
    case tensorflow::DT_INT64:
      return DataType::kInt64;
    default:
      return DataType::kFloat32;  // The ops' type constraints admit nothing else.
  }
}

std::vector<int64_t> ToEngine(const tensorflow::TensorShape& shape) {
  std::vector<int64_t> dimensions;
  for (int d = 0; d < shape.dims(); ++d) dimensions.push_back(shape.dim_size(d));
  return dimensions;
}

std::vector<tensorflow::Tensor> ToTensors(const Reduced& sum, tensorflow::DataType type,
                                          bool sparse) {
  const tensorflow::TensorShape shape(sum.shape);
  std::vector<tensorflow::Tensor> tensors = {Alias(sum.owner, sum.data, shape, type)};
  if (sparse) {
    tensors.push_back(Alias(sum.indices_owner, sum.indices,
                            tensorflow::TensorShape({shape.dim_size(0)}), tensorflow::DT_INT64));
  }
  return tensors;
}

}  // namespace tfdear
