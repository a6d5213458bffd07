// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {

using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

namespace {

// Values and indices have the length k, if that is known while the graph is made.
absl::Status SetSelected(InferenceContext* c, int k_input) {
  ShapeHandle unused, selected = c->Vector(InferenceContext::kUnknownDim);
  TF_RETURN_IF_ERROR(c->WithRank(c->input(k_input), 0, &unused));
  const Tensor* k = c->input_tensor(k_input);
  if (k != nullptr) {
    const int64_t length = k->scalar<int64_t>()();
    const shape_inference::DimensionHandle elements = c->NumElements(c->input(0));
    if (length < 0 || (c->ValueKnown(elements) && length > c->Value(elements))) {
      return absl::InvalidArgumentError(
          absl::StrCat("k must be from 0 to the number of elements of x, ",
                       c->ValueKnown(elements) ? absl::StrCat(c->Value(elements)) : "unknown yet",
                       ". Received: k = ", length));
    }
    selected = c->Vector(length);
  }
  c->set_output(0, selected);
  c->set_output(1, selected);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("DearMSTopK")
    .Input("x: T")
    .Input("k: int64")
    .Output("values: T")
    .Output("indices: int32")
    .Attr("T: {half, bfloat16, float}")
    .Attr("samplings: int >= 0 = 0")
    .Attr("seed: int = 0")
    .SetShapeFn([](InferenceContext* c) { return SetSelected(c, 1); })
    .Doc(R"doc(
Selects the k elements of a tensor that are largest by magnitude.

x: Of any shape; indices count its elements in row-major order.
k: From 0 to the number of elements.
values: The selected elements, in ascending order of their indices.
indices: Exactly k, all different. NaNs come first, of equal magnitudes the lowest index.
samplings: 0 selects exactly. Otherwise MSTopK as published, with so many counting passes.
seed: Of the random place that the published algorithm uses.
)doc");

REGISTER_OP("DearMSTopKWithFeedback")
    .Input("x: float")
    .Input("residual: float")
    .Input("k: int64")
    .Output("values: float")
    .Output("indices: int32")
    .Output("new_residual: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle both;
      TF_RETURN_IF_ERROR(c->Merge(c->input(0), c->input(1), &both));
      c->set_output(2, both);
      return SetSelected(c, 2);
    })
    .Doc(R"doc(
Selects the k largest of x + residual, exactly, and keeps the rest as the new residual.

x: Of any shape; indices count its elements in row-major order.
residual: What was not selected before; of the shape of x. Its memory is used for new_residual if
  nothing else needs it.
k: From 0 to the number of elements.
values: The selected sums, in ascending order of their indices.
indices: As of DearMSTopK.
new_residual: x + residual, with 0 where an element was selected.
)doc");

}  // namespace tensorflow
