// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "custom_ops/kernels/layer_operands.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdear {

using tensorflow::Tensor;

absl::Status DescribeLayer(const std::string& norms, const Tensor& weight,
                           const std::vector<Tensor>& moments, const std::vector<Tensor>& step,
                           LayerPiece* piece) {
  const bool lamb = norms == "lamb";
  if (moments.size() != (lamb ? 2 : 0) || step.size() != (lamb ? 1 : 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the norms of ", norms, " take ", lamb ? "two moments and a step" : "weights",
                     ", received ", moments.size(), " moments and ", step.size(), " steps"));
  }
  piece->kind = lamb ? NormKind::kLamb : NormKind::kLars;
  piece->count = weight.NumElements();
  piece->weight = weight.flat<float>().data();
  if (!lamb) return absl::OkStatus();
  for (const Tensor& moment : moments) {
    if (moment.NumElements() != weight.NumElements()) {
      return absl::InvalidArgumentError(
          absl::StrCat("weights of shape ", weight.shape().DebugString(),
                       " have a moment of shape ", moment.shape().DebugString()));
    }
  }
  piece->mean = moments[0].flat<float>().data();
  piece->square = moments[1].flat<float>().data();
  if (step[0].NumElements() != 6) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of LAMB has 6 numbers, received ", step[0].NumElements()));
  }
  const auto numbers = step[0].flat<float>();
  piece->step = {numbers(0), numbers(1), numbers(2), numbers(3), numbers(4), numbers(5)};
  return absl::OkStatus();
}

namespace {

class LayerNormsOp : public tensorflow::OpKernel {
 public:
  explicit LayerNormsOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("kind", &kind_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const Tensor& gradient = context->input(0);
    const Tensor& weight = context->input(1);
    OP_REQUIRES(context, gradient.NumElements() == weight.NumElements(),
                absl::InvalidArgumentError(
                    absl::StrCat("weights of shape ", weight.shape().DebugString(),
                                 " have a gradient of shape ", gradient.shape().DebugString())));
    tensorflow::OpInputList moments, step;
    OP_REQUIRES_OK(context, context->input_list("moments", &moments));
    OP_REQUIRES_OK(context, context->input_list("step", &step));
    LayerPiece piece;
    OP_REQUIRES_OK(context, DescribeLayer(kind_, weight, {moments.begin(), moments.end()},
                                          {step.begin(), step.end()}, &piece));
    piece.gradient = gradient.flat<float>().data();
    double sums[2];
    SumOfSquares({piece}, sums);
    Tensor* norms = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape({2}), &norms));
    for (int i = 0; i < 2; ++i) norms->flat<float>()(i) = static_cast<float>(std::sqrt(sums[i]));
  }

 private:
  std::string kind_;
};

REGISTER_KERNEL_BUILDER(Name("DearLayerNorms").Device(tensorflow::DEVICE_CPU), LayerNormsOp);

}  // namespace
}  // namespace tfdear
