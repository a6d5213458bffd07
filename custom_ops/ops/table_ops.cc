// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {

using shape_inference::InferenceContext;

namespace {

constexpr char kTableTypes[] = "T: {half, bfloat16, float, double}";

// Rows of as many columns as the attribute says.
absl::Status SetRows(InferenceContext* c, const char* attribute) {
  int64_t columns = 0;
  TF_RETURN_IF_ERROR(c->GetAttr(attribute, &columns));
  c->set_output(0, c->Matrix(InferenceContext::kUnknownDim, columns));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("DearUniqueIds")
    .Input("ids: Tids")
    .Output("unique: int32")
    .Output("positions: int32")
    .Attr("Tids: {int8, uint8, int16, uint16, int32, uint32, int64}")
    .Attr("rows: int >= 1")
    .Attr("label: string")
    .Attr("number: int = -1")
    .SetShapeFn([](InferenceContext* c) {
      shape_inference::ShapeHandle ids;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ids));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, ids);
      return absl::OkStatus();
    })
    .Doc(R"doc(
The different ids of a batch in the order in which they come, and for each id its place among them.
An id that is not a row of the table is an error, in which `label` names the layer. They are counted
for the variable whose number in the engine is `number`.
)doc");

REGISTER_OP("DearOpenLookup")
    .Input("order: resource")
    .Output("ticket: variant")
    .Attr("lookup: int")
    .SetIsStateful()
    .SetShapeFn(shape_inference::ScalarShape)
    .Doc(R"doc(
Takes the next place in the order of lookups, for several tables at once.
)doc");

REGISTER_OP("DearOpenLookAhead")
    .Input("order: resource")
    .Input("lookup: variant")
    .Output("ticket: variant")
    .SetIsStateful()
    .SetShapeFn(shape_inference::ScalarShape)
    .Doc(R"doc(
Takes the next place in the order of lookups, for what the next step is expected to look up.
)doc");

REGISTER_OP("DearContributeIds")
    .Input("ticket: variant")
    .Input("ids: int32")
    .Attr("index: int")
    .Attr("number: int")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Gives the ids that this rank looks up in a table, each of them once. `number`: the table's.
)doc");

REGISTER_OP("DearContributeNextIds")
    .Input("ticket: variant")
    .Input("ids: Tids")
    .Input("present: bool")
    .Attr("Tids: {int8, uint8, int16, uint16, int32, uint32, int64}")
    .Attr("index: int")
    .Attr("rows: int >= 1")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Gives the ids that this rank expects to look up in a table of `rows` rows in the next step.

ticket: One of DearOpenLookAhead.
present: Whether there are any: a next batch, and a way to its ids.
)doc");

REGISTER_OP("DearGatheredIds")
    .Input("ticket: variant")
    .Output("ids: int32")
    .Output("counts: int64")
    .Output("needed: int32")
    .Attr("index: int")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The ids that all ranks look up in a table, in the order of the ranks, how many are of each, and those
of them whose vectors are still needed.
)doc");

REGISTER_OP("DearContributeBags")
    .Input("ticket: variant")
    .Input("positions: int32")
    .Input("bags: int32")
    .Input("count: int32")
    .Attr("index: int")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Gives this rank's bags in a table whose vectors the ranks that hold its columns may pool.

positions: Of the id of each token among those that DearContributeIds gives.
bags: In which each token is; in none if that is negative.
count: How many bags there are.
)doc");

REGISTER_OP("DearGatheredBags")
    .Input("ticket: variant")
    .Input("ids: int32")
    .Output("positions: int32")
    .Output("bags: int32")
    .Output("count: int32")
    .Output("pooled: bool")
    .Attr("index: int")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < 2; ++i) c->set_output(i, c->Vector(InferenceContext::kUnknownDim));
      for (int i = 2; i < 4; ++i) c->set_output(i, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
The bags of all ranks in a table: of each token the position of its id among those of all ranks and
the bag that it is in, and how many bags there are.

ids: What DearGatheredIds yields for the table: bags are there when ids are.
pooled: Whether sums of bags travel in this step, of which the holders contribute their columns; else
  vectors of ids do, and there are no bags.
)doc");

REGISTER_OP("DearContributeVectors")
    .Input("ticket: variant")
    .Input("held: T")
    .Input("version: int64")
    .Attr(kTableTypes)
    .Attr("index: int")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Gives what this rank holds of the vectors of all ranks' ids that are needed, or of the sums of all
ranks' bags if these travel, and the version of the table in which it found them.
)doc");

REGISTER_OP("DearExchangedVectors")
    .Input("ticket: variant")
    .Output("vectors: T")
    .Attr(kTableTypes)
    .Attr("index: int")
    .Attr("columns: int")
    .SetShapeFn([](InferenceContext* c) { return SetRows(c, "columns"); })
    .Doc(R"doc(
The whole vectors of this rank's ids, in the order in which it gave them, or the sums of its bags.
)doc");

REGISTER_OP("DearTableLookup")
    .Input("table: resource")
    .Input("ids: int32")
    .Output("vectors: T")
    .Output("version: int64")
    .Attr(kTableTypes)
    .Attr("number: int")
    .Attr("stride: int >= 1")
    .Attr("offset: int >= 0")
    .Attr("columns: int >= 0")
    .Attr("looks_ahead: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(1, c->Scalar());
      return SetRows(c, "columns");
    })
    .Doc(R"doc(
What this rank holds of the vectors of some ids, with every update made up for that the rows missed,
once no gradient is in flight for them; and the version of the table, which changes with its values.
Of a table that is partitioned by rows, `stride` is the number of ranks and `offset` this one: ids of
other ranks are left out. `looks_ahead`: no layer waits for these vectors.
)doc");

REGISTER_OP("DearTableOutput")
    .Input("table: resource")
    .Input("vectors: T")
    .Input("positions: int32")
    .Input("ids: Tids")
    .Output("output: T")
    .Attr(kTableTypes)
    .Attr("Tids: {int8, uint8, int16, uint16, int32, uint32, int64}")
    .Attr("shape: shape")
    .SetShapeFn([](InferenceContext* c) {
      shape_inference::ShapeHandle vectors;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &vectors));
      c->set_output(0, c->Matrix(c->Dim(c->input(2), 0), c->Dim(vectors, 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The vector of every id of a batch; 0 for positions where there is no vector. The gradient of the
table, which has this `shape`, is in its rows `ids`.
)doc");

REGISTER_OP("DearPooledOutput")
    .Input("table: resource")
    .Input("sums: T")
    .Input("bags: int32")
    .Input("ids: Tids")
    .Input("count: int32")
    .Output("output: T")
    .Attr(kTableTypes)
    .Attr("Tids: {int8, uint8, int16, uint16, int32, uint32, int64}")
    .Attr("shape: shape")
    .SetShapeFn([](InferenceContext* c) {
      shape_inference::ShapeHandle sums;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &sums));
      c->set_output(0, c->Matrix(InferenceContext::kUnknownDim, c->Dim(sums, 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The sum of each of `count` bags; 0 for those of which there is none. The gradient of the table, which
has this `shape`, is in its rows `ids`: of each token that of its bag, or 0 if that is negative.
)doc");

REGISTER_OP("DearTableValue")
    .Input("table: resource")
    .Input("value: T")
    .Output("output: T")
    .Attr(kTableTypes)
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The value of a whole table, whose gradient is that of the table.
)doc");

REGISTER_OP("DearSettleTable")
    .Input("table: resource")
    .Input("slots: num_slots * resource")
    .Attr("num_slots: int >= 0")
    .Attr("number: int")
    .Attr("forgets_noted: bool = false")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Makes up for every update that some row of a table missed.

slots: Those that are used next: their rows are made up for, too, so they keep its place.
forgets_noted: No update is for rows that what was `noted` has touched (DearChangeTable): their sums of
  gradients are about to be replaced.
)doc");

REGISTER_OP("DearReadShard")
    .Input("table: resource")
    .Input("variable: resource")
    .Input("range: int64")
    .Output("value: T")
    .Attr(kTableTypes)
    .Attr("number: int")
    .Attr("columns: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return SetRows(c, "columns"); })
    .Doc(R"doc(
A copy of rows that this rank holds of a table or one of its slots.

range: Where the rows begin and end, and how many changes of the table they are to have, which must
  be complete; -1: all.
)doc");

REGISTER_OP("DearTableChanges")
    .Input("table: resource")
    .Output("changes: int64")
    .Attr("number: int")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
How many changes a table was given so far, and how many of the first of them are complete.
)doc");

REGISTER_OP("DearChangeTable")
    .Input("table: resource")
    .Input("captured: Tcaptured")
    .Input("scalars: num_scalars * float")
    .Input("gradients: num_gradients * float")
    .Input("indices: num_gradients * int64")
    .Attr("Tcaptured: list(type) >= 0")
    .Attr("num_scalars: int >= 0")
    .Attr("num_gradients: int >= 0")
    .Attr("program: list(int)")
    .Attr("program_variables: list(int)")
    .Attr("number: int")
    .Attr("rows: {'all', 'touched', 'noted'}")
    .Attr("stride: int >= 1")
    .Attr("offset: int >= 0")
    .Attr("first_column: int >= 0")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Changes a table by a program, at once: the rows of a gradient if there is one, and others that it is
for when they are next read, with a gradient of zero.

gradients: None, or rows whose columns from `first_column` on concern this rank.
rows: Which rows get it, RowChange::Rows. Of what is `touched`, those with a gradient, and those that
  what was `noted` before has touched; without a gradient, those of the next change that has one.
)doc");

REGISTER_OP("DearTableSums")
    .Input("table: resource")
    .Input("captured: Tcaptured")
    .Input("scalars: num_scalars * float")
    .Input("gradients: num_gradients * float")
    .Input("indices: num_gradients * int64")
    .Output("totals: double")
    .Attr("Tcaptured: list(type) >= 0")
    .Attr("num_scalars: int >= 0")
    .Attr("num_gradients: int >= 0")
    .Attr("sums: int >= 1")
    .Attr("program: list(int)")
    .Attr("program_variables: list(int)")
    .Attr("number: int")
    .Attr("stride: int >= 1")
    .Attr("offset: int >= 0")
    .Attr("first_column: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t sums;
      TF_RETURN_IF_ERROR(c->GetAttr("sums", &sums));
      c->set_output(0, c->Vector(sums));
      return absl::OkStatus();
    })
    .Doc(R"doc(
This rank's shares of sums over a table of what a program yields for every element, with every update
made up for and the gradient given.

gradients: None, or rows whose columns from `first_column` on concern this rank; others are zero.
sums: How many. They are of the program's last variables, which it only writes; it changes no other.
)doc");

}  // namespace tensorflow
