// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "custom_ops/engine/compression/bisection_top_k.h"
#include "custom_ops/engine/compression/top_k.h"
#include "custom_ops/kernels/conversions.h"
#include "custom_ops/kernels/device_threads.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdear {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// k and room for the selected elements; null pointers if k is wrong.
struct Selection {
  Selection(OpKernelContext* context, const Tensor& x, const Tensor& k_tensor) {
    OP_REQUIRES(context, tensorflow::TensorShapeUtils::IsScalar(k_tensor.shape()),
                absl::InvalidArgumentError(absl::StrCat("k must be a scalar. Received: shape ",
                                                        k_tensor.shape().DebugString())));
    const int64_t wanted = k_tensor.scalar<int64_t>()();
    OP_REQUIRES(
        context, 0 <= wanted && wanted <= x.NumElements(),
        absl::InvalidArgumentError(absl::StrCat("k must be from 0 to the number of elements of x, ",
                                                x.NumElements(), ". Received: k = ", wanted)));
    OP_REQUIRES(context, x.NumElements() <= std::numeric_limits<int32_t>::max(),
                absl::InvalidArgumentError(absl::StrCat(
                    "x must have less than 2^31 elements, because indices are int32. Received: ",
                    x.NumElements(), " elements. Select from parts of it.")));
    k = static_cast<size_t>(wanted);
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({wanted}), &values_tensor));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({wanted}), &indices_tensor));
    values = values_tensor->data();
    indices = static_cast<uint32_t*>(indices_tensor->data());
  }

  size_t k = 0;
  Tensor* values_tensor = nullptr;
  Tensor* indices_tensor = nullptr;
  void* values = nullptr;
  uint32_t* indices = nullptr;
};

// The TopK of one kernel: of one place in a graph, or of all eager calls with the same types and
// attributes. Steps that overlap get one of their own, which has no guess: results do not depend on
// it.
class SharedTopK {
 public:
  template <typename Select>
  void Use(OpKernelContext* context, const Select& select) {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    std::unique_ptr<TopK> own;
    std::unique_ptr<TopK>& top_k = lock.owns_lock() ? top_k_ : own;
    if (top_k == nullptr) {
      top_k = std::make_unique<TopK>(WorkersOf(context).num_threads, OnDevice(context));
    }
    select(top_k.get());
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<TopK> top_k_;  // guarded by mutex_
};

class MSTopKOp : public tensorflow::OpKernel {
 public:
  explicit MSTopKOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("samplings", &samplings_));
    OP_REQUIRES_OK(context, context->GetAttr("seed", &seed_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const Selection selection(context, x, context->input(1));
    if (!context->status().ok()) return;
    const DataType type = ToEngine(x.dtype());
    const size_t d = static_cast<size_t>(x.NumElements());
    if (samplings_ > 0) {
      BisectionTopK(type, x.data(), d, selection.k, samplings_, static_cast<uint64_t>(seed_),
                    WorkersOf(context).num_threads, OnDevice(context), selection.values,
                    selection.indices);
      return;
    }
    top_k_.Use(context, [&](TopK* top_k) {
      top_k->Select(type, x.data(), d, selection.k, selection.values, selection.indices);
    });
  }

 private:
  int samplings_;
  int64_t seed_;
  SharedTopK top_k_;
};

class MSTopKWithFeedbackOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const Tensor& residual = context->input(1);
    OP_REQUIRES(context, x.shape() == residual.shape(),
                absl::InvalidArgumentError(
                    absl::StrCat("residual must have the shape of x, ", x.shape().DebugString(),
                                 ". Received: ", residual.shape().DebugString())));
    const Selection selection(context, x, context->input(2));
    if (!context->status().ok()) return;
    Tensor* updated;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({1}, 2, x.shape(), &updated));
    if (updated->data() != residual.data()) {
      std::memcpy(updated->data(), residual.data(), residual.NumElements() * sizeof(float));
    }
    top_k_.Use(context, [&](TopK* top_k) {
      top_k->SelectWithFeedback(static_cast<const float*>(x.data()),
                                static_cast<float*>(updated->data()),
                                static_cast<size_t>(x.NumElements()), selection.k,
                                static_cast<float*>(selection.values), selection.indices);
    });
  }

 private:
  SharedTopK top_k_;
};

REGISTER_KERNEL_BUILDER(Name("DearMSTopK").Device(tensorflow::DEVICE_CPU), MSTopKOp);
REGISTER_KERNEL_BUILDER(Name("DearMSTopKWithFeedback").Device(tensorflow::DEVICE_CPU),
                        MSTopKWithFeedbackOp);

}  // namespace
}  // namespace tfdear
