// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {

using shape_inference::InferenceContext;

namespace {

// Rows of other ranks come or go: only the first dimension is unknown.
absl::Status RowsChange(InferenceContext* c) {
  shape_inference::ShapeHandle input, output;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), 1, &input));
  TF_RETURN_IF_ERROR(c->ReplaceDim(input, 0, c->UnknownDim(), &output));
  c->set_output(0, output);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("DearOpenCollective")
    .Input("order: resource")
    .Output("ticket: variant")
    .Attr("lane: int")
    .SetIsStateful()
    .SetShapeFn(shape_inference::ScalarShape)
    .Doc(R"doc(
Takes the next place in a lane's order of collectives for a single collective.
)doc");

REGISTER_OP("DearAllGather")
    .Input("ticket: variant")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: type")
    .SetIsStateful()
    .SetShapeFn(RowsChange)
    .Doc(R"doc(
Concatenates the inputs of all ranks along the first dimension, in the order of the ranks. The
numbers of rows may differ.
)doc");

REGISTER_OP("DearReduceScatter")
    .Input("ticket: variant")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .SetIsStateful()
    .SetShapeFn(RowsChange)
    .Doc(R"doc(
Sums the inputs of all ranks and returns this rank's part of the rows: rows
[rank * n / size, (rank + 1) * n / size) of n.
)doc");

REGISTER_OP("DearAllToAll")
    .Input("ticket: variant")
    .Input("input: T")
    .Input("splits: int64")
    .Output("output: T")
    .Output("received_splits: int64")
    .Attr("T: type")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(RowsChange(c));
      c->set_output(1, c->input(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sends splits[r] consecutive rows to every rank r and returns what was received, in the order of the
ranks.
)doc");

REGISTER_OP("DearBroadcast")
    .Input("ticket: variant")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: type")
    .Attr("root: int")
    .Attr("label: string = ''")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The input of rank `root`, on every rank. All inputs have the same shape. `label` says what it is, on
all ranks alike.
)doc");

REGISTER_OP("DearBarrier")
    .Input("ticket: variant")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Completes when every rank has come here.
)doc");

}  // namespace tensorflow
