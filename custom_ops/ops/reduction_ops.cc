// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {

using shape_inference::InferenceContext;

constexpr char kReducedTypes[] = "T: {half, bfloat16, float, double, int32, int64}";

REGISTER_OP("DearOpenReduction")
    .Input("order: resource")
    .Output("ticket: variant")
    .Attr("layout: int")
    .SetIsStateful()
    .SetShapeFn(shape_inference::ScalarShape)
    .Doc(R"doc(
Takes the next place in the order of collectives for one execution of a reduction.

order: A resource of no content. Every op that takes a place has it as an input, so that automatic
  control dependencies keep them in program order, which all ranks share.
ticket: Handed to the ops that contribute tensors and receive sums.
layout: The tensors of the reduction, as registered with the engine.
)doc");

REGISTER_OP("DearContribute")
    .Input("ticket: variant")
    .Input("tensor: T")
    .Input("weight: double")
    .Attr(kReducedTypes)
    .Attr("index: int")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Copies this rank's share of a tensor, times a weight, into its bucket and returns at once.

weight: What the tensor is multiplied by. If 0, zeros are contributed whatever the tensor holds: the
  rank had no examples in this step. Integers weigh 0 or 1.
index: Place of the tensor in the layout.
)doc");

REGISTER_OP("DearContributeRows")
    .Input("ticket: variant")
    .Input("values: T")
    .Input("indices: int64")
    .Input("weight: double")
    .Input("lookup: num_lookups * variant")
    .Attr("num_lookups: int >= 0")
    .Attr("table_of_lookup: int = 0")
    .Attr(kReducedTypes)
    .Attr("index: int")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Contributes the rows of a sparse tensor, times a weight; rows of all ranks are gathered.

weight: As for DearContribute; if 0, no rows are contributed.
lookup: If the rows are those of the ids of one of its tables, in their order, on all ranks: the
  ticket of a lookup. A weight of 0 then contributes zeros.
)doc");

REGISTER_OP("DearReduced")
    .Input("ticket: variant")
    .Output("sum: T")
    .Attr(kReducedTypes)
    .Attr("index: int")
    .Attr("shape: shape")
    .SetShapeFn(shape_inference::ExplicitShape)
    .Doc(R"doc(
The sum of a contributed tensor over all ranks, as soon as it is there.

Stateless on purpose: a sum that nobody reads is not waited for.
)doc");

REGISTER_OP("DearReducedRows")
    .Input("ticket: variant")
    .Output("values: T")
    .Output("indices: int64")
    .Attr(kReducedTypes)
    .Attr("index: int")
    .Attr("shape: shape")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(shape_inference::ExplicitShape(c));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The rows that all ranks contributed, in the order of the ranks.
)doc");

REGISTER_OP("DearDeferUpdate")
    .Input("ticket: variant")
    .Input("captured: Tcaptured")
    .Input("moments: num_moments * resource")
    .Input("step: num_steps * float")
    .Input("scalars: num_scalars * float")
    .Input("table: num_tables * resource")
    .Input("lookup: num_lookups * variant")
    .Attr("Tcaptured: list(type) >= 0")
    .Attr("num_tables: int >= 0")
    .Attr("num_lookups: int >= 0")
    .Attr("table_of_lookup: int = 0")
    .Attr("number: int = -1")
    .Attr("rows: {'all', 'touched', 'noted'} = 'all'")
    .Attr("stride: int >= 1 = 1")
    .Attr("offset: int >= 0 = 0")
    .Attr("first_column: int >= 0 = 0")
    .Attr("num_moments: int >= 0")
    .Attr("num_steps: int >= 0")
    .Attr("num_scalars: int >= 0")
    .Attr("program: list(int)")
    .Attr("program_variables: list(int)")
    .Attr("norms: {'none', 'lars', 'lamb'} = 'none'")
    .Attr("norms_argument: int = -1")
    .Attr(kReducedTypes)
    .Attr("f: func")
    .Attr("index: int")
    .Attr("sparse: bool")
    .Attr("writes: list(int)")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Puts an optimizer update off until the sum of its gradient is there, and returns at once.

captured: What `f` takes after the gradient: values at the time of this call, and the resource
  handles of the variables that it reads and writes.
f: The update: called with the sum (values and indices if sparse) and the captured tensors.
writes: The variables that `f` writes, and those that it reads in place. Who uses them later waits
  (DearAwait) until it has run.
norms: Which norms `f` wants of its layer, taken in parallel over the ranks: of the weights and of
  the gradient (lars) or of Adam's step (lamb).
norms_argument: The captured tensor in whose place `f` gets the two norms.
moments: With norms, the variable, and for lamb its mean and its square of gradients.
step: For lamb, six numbers: those of AdamStep, sum_of_squares.h.
program: The update as an ElementwiseProgram, elementwise_program.h, which runs in place of `f`; empty
  if it is none.
program_variables: The captured tensors that are the program's variables.
scalars: The program's scalars.
table: The sharded table whose rows are updated by the program, if there is one; `number`,
  `rows`, `stride`, `offset` and `first_column` are those of DearChangeTable.
lookup, table_of_lookup: Those that DearContributeRows is given for this gradient.
)doc");

REGISTER_OP("DearAwait")
    .Input("handles: N * resource")
    .Attr("N: int >= 1")
    .Attr("variables: list(int)")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Completes when no update is in flight on the variables. Blocks no thread.

handles: Orders this op between the updates and the reads of the same variables.
)doc");

REGISTER_OP("DearForwardMark")
    .Attr("variable: int")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Records when the forward pass came to a variable: when what this op depends on was computed.
)doc");

REGISTER_OP("DearLayerNorms")
    .Input("gradient: float")
    .Input("weight: float")
    .Input("moments: num_moments * float")
    .Input("step: num_steps * float")
    .Output("norms: float")
    .Attr("num_moments: int >= 0")
    .Attr("num_steps: int >= 0")
    .Attr("kind: {'lars', 'lamb'}")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The norms of one layer for LARS or LAMB, taken by this rank alone in one pass.

moments: For lamb, the mean and the square of the gradients before this step.
step: For lamb, six numbers: those of AdamStep, sum_of_squares.h.
norms: Of the weights, and of the gradient (lars) or of Adam's step (lamb).
)doc");

}  // namespace tensorflow
