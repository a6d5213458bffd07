// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {

using shape_inference::InferenceContext;

REGISTER_OP("DearCachedBatchesDataset")
    .Input("reader: int64")
    .Input("read_ahead: int64")
    .Output("handle: variant")
    .Attr("batched: bool")
    .Attr("positions: bool")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .Attr("metadata: string = ''")
    .SetDoNotOptimize()
    .SetShapeFn(shape_inference::ScalarShape)
    .Doc(R"doc(
A rank's rows of batches of a cache's examples. Every iterator begins an epoch when it is first read.

reader: Number of a reader.
read_ahead: Batches whose examples are wanted before they are read.
batched: Whether elements are batches; else examples, of those batches that have one of this rank.
positions: Whether the last tensor of a batch is the place of each row in all epochs.
)doc");

REGISTER_OP("DearNextExamples")
    .Input("store: int64")
    .Input("most: int64")
    .Input("most_in_order: int64")
    .Output("examples: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Waits for examples that are to be prepared.

store: Number of a store of examples.
most: How many at most.
most_in_order: The same, where they are needed in the order of their numbers.
examples: Their numbers, in the order in which they are needed; none: the store was closed.
)doc");

REGISTER_OP("DearPrepareExamples")
    .Input("store: int64")
    .Input("examples: int64")
    .Input("names: string")
    .Input("errors: string")
    .Input("raw: Traw")
    .Input("captured: Tcaptured")
    .Attr("f: func")
    .Attr("parallelism: int >= 1")
    .Attr("skip: bool")
    .Attr("types: list(type) >= 1")
    .Attr("shapes: list(shape) >= 1")
    .Attr("Traw: list(type) >= 1")
    .Attr("Tcaptured: list(type) >= 0")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc(R"doc(
Calls a function for each of some raw records, and puts the examples that it returns into a store.

store: Number of a store of examples.
examples: Their numbers.
names: What messages call them.
errors: Why a raw record could not be read; empty where it was.
raw: The tensors of raw records, each with a first dimension of records.
captured: What the function captured.
f: From a raw record to an example.
parallelism: Calls at a time.
skip: Whether examples that cannot be prepared are left out; else whoever reads one gets the error.
types: Of an example's tensors.
shapes: Of an example's tensors.
)doc");

REGISTER_OP("DearIndexRecords")
    .Input("path: string")
    .Output("offsets: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Where the records of a TFRecord file are. Reads their lengths alone.

path: Of an uncompressed file.
offsets: In bytes, of every record and of the end.
)doc");

REGISTER_OP("DearReadRecords")
    .Input("paths: string")
    .Input("files: int64")
    .Input("begins: int64")
    .Input("ends: int64")
    .Output("records: string")
    .Output("errors: string")
    .Attr("verify: bool = true")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      c->set_output(1, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads records of TFRecord files, those that lie one behind the other at once, and compares their
checksums.

paths: Of files.
files: Of each record, the index of its path.
begins: Where each record begins in its file, in bytes.
ends: Where each record ends.
verify: Whether checksums are compared.
records: Their contents; empty where there is an error.
errors: Why a record could not be read, after the name of a status; empty where it was.
)doc");

REGISTER_OP("DearReadFiles")
    .Input("paths: string")
    .Output("contents: string")
    .Output("errors: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(0));
      c->set_output(1, c->input(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads whole files.

paths: Of files.
contents: Of each; empty where there is an error.
errors: Why a file could not be read, after the name of a status; empty where it was.
)doc");

}  // namespace tensorflow
