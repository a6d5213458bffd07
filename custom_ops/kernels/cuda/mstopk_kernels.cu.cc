// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// DearMSTopK and DearMSTopKWithFeedback on a GPU; the CPU kernels are in mstopk_kernels.cc.
// Compiled by nvcc, in a library of its own: `make cuda-ops`.
#include <cstdint>
#include <mutex>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/kernels/cuda/top_k_cuda.cu.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

namespace tfdear {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Not that of conversions.h, which brings the engine with it.
DataType TypeOf(const Tensor& tensor) {
  if (tensor.dtype() == tensorflow::DT_HALF) return DataType::kFloat16;
  return tensor.dtype() == tensorflow::DT_BFLOAT16 ? DataType::kBFloat16 : DataType::kFloat32;
}

cudaStream_t StreamOf(OpKernelContext* context) {
  return static_cast<cudaStream_t>(
      context->op_device_context()->stream()->platform_specific_handle().stream);
}

absl::Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("Top-k on a GPU: ", what,
                                          " failed: ", cudaGetErrorString(error),
                                          ". It needs compute capability 8.0 or more."));
}

// The selection of one kernel: of one place in a graph, or of all eager calls with the same types
// and attributes. It keeps the last threshold as long as sizes stay the same. All work is queued in
// the stream of the device, one selection after another, so that they can share a workspace.
class SharedCudaTopK {
 public:
  absl::Status Select(OpKernelContext* context, const Tensor& x, int64_t k, float* residual,
                      Tensor* values, Tensor* indices) {
    if (x.NumElements() == 0) return absl::OkStatus();
    const cudaStream_t stream = StreamOf(context);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (size_ != x.NumElements() || k_ != k) {
      size_ = -1;
      TF_RETURN_IF_ERROR(FromCuda(
          top_k_.Init(TypeOf(x), residual != nullptr, x.NumElements(), static_cast<size_t>(k)),
          "the choice of a grid"));
      const TensorShape shape({static_cast<int64_t>(top_k_.WorkspaceBytes())});
      TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_INT8, shape, &workspace_));
      TF_RETURN_IF_ERROR(
          FromCuda(CudaTopK::Reset(workspace_.data(), stream), "clearing the workspace"));
      size_ = x.NumElements();
      k_ = k;
    }
    return FromCuda(
        top_k_.Select(x.data(), residual, values->data(), static_cast<uint32_t*>(indices->data()),
                      workspace_.data(), stream),
        "the launch");
  }

 private:
  std::mutex mutex_;
  // All guarded by mutex_.
  CudaTopK top_k_;
  int64_t size_ = -1;
  int64_t k_ = -1;
  Tensor workspace_;
};

// Checks k, which is in the memory of the host, and makes room for what is selected.
absl::Status AllocateSelected(OpKernelContext* context, const Tensor& x, const Tensor& k_tensor,
                              Tensor** values, Tensor** indices) {
  if (!tensorflow::TensorShapeUtils::IsScalar(k_tensor.shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("k must be a scalar. Received: shape ", k_tensor.shape().DebugString()));
  }
  const int64_t k = k_tensor.scalar<int64_t>()();
  if (k < 0 || k > x.NumElements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("k must be from 0 to the number of elements of x, ", x.NumElements(),
                     ". Received: k = ", k));
  }
  if (x.NumElements() > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("x must have less than 2^31 elements, because indices are int32. Received: ",
                     x.NumElements(), " elements. Select from parts of it."));
  }
  TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({k}), values));
  return context->allocate_output(1, TensorShape({k}), indices);
}

class CudaMSTopKOp : public tensorflow::OpKernel {
 public:
  explicit CudaMSTopKOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    int samplings;
    OP_REQUIRES_OK(context, context->GetAttr("samplings", &samplings));
    OP_REQUIRES(context, samplings == 0,
                absl::UnimplementedError(absl::StrCat(
                    "The published bisection runs on a CPU only. Received: samplings = ", samplings,
                    " on a GPU. Use samplings = 0, or tf.device('CPU').")));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor *values, *indices;
    OP_REQUIRES_OK(context, AllocateSelected(context, x, context->input(1), &values, &indices));
    OP_REQUIRES_OK(context,
                   top_k_.Select(context, x, values->NumElements(), nullptr, values, indices));
  }

 private:
  SharedCudaTopK top_k_;
};

class CudaMSTopKWithFeedbackOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const Tensor& residual = context->input(1);
    OP_REQUIRES(context, x.shape() == residual.shape(),
                absl::InvalidArgumentError(
                    absl::StrCat("residual must have the shape of x, ", x.shape().DebugString(),
                                 ". Received: ", residual.shape().DebugString())));
    Tensor *values, *indices, *updated;
    OP_REQUIRES_OK(context, AllocateSelected(context, x, context->input(2), &values, &indices));
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({1}, 2, x.shape(), &updated));
    if (updated->data() != residual.data()) {
      OP_REQUIRES_OK(context, FromCuda(cudaMemcpyAsync(updated->data(), residual.data(),
                                                       residual.NumElements() * sizeof(float),
                                                       cudaMemcpyDeviceToDevice, StreamOf(context)),
                                       "the copy of the residual"));
    }
    OP_REQUIRES_OK(context, top_k_.Select(context, x, values->NumElements(),
                                          static_cast<float*>(updated->data()), values, indices));
  }

 private:
  SharedCudaTopK top_k_;
};

REGISTER_KERNEL_BUILDER(Name("DearMSTopK").Device(tensorflow::DEVICE_GPU).HostMemory("k"),
                        CudaMSTopKOp);
REGISTER_KERNEL_BUILDER(
    Name("DearMSTopKWithFeedback").Device(tensorflow::DEVICE_GPU).HostMemory("k"),
    CudaMSTopKWithFeedbackOp);

}  // namespace
}  // namespace tfdear
