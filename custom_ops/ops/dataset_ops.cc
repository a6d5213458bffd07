// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {

REGISTER_OP("DearCommonEndDataset")
    .Input("input_dataset: variant")
    .Input("data_set: int64")
    .Output("handle: variant")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .Attr("metadata: string = ''")
    .SetDoNotOptimize()
    .SetShapeFn(shape_inference::ScalarShape)
    .Doc(R"doc(
What a rank has alone, until no rank has any more. Read it where all ranks read in the same order.

input_dataset: Without an end. The last component of its elements, a scalar bool, says whether this
    rank has that batch; what it has instead of one is given out as well.
data_set: A number, the same on all ranks, for messages.
)doc");

}  // namespace tensorflow
