// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/collectives/partitioned_rows.h"
#include "custom_ops/engine/collectives/summed_rows.h"
#include "custom_ops/engine/record/table_counts.h"

namespace tfdear {

// What is known of one reduced tensor when its function is traced.
struct TensorSpec {
  DataType type = DataType::kFloat32;
  int64_t count = 0;    // Elements; -1 if the shape is known at run time only.
  bool sparse = false;  // Rows and their indices (IndexedSlices), gathered instead of summed.
  bool norms = false;   // The optimizer wants norms with the sum; [Note: Parallel norms].
  // Of the variable whose gradient it is; empty where nobody said. [Note: identity of tensors]
  std::string name;        // For messages.
  std::string comparable;  // What of it the ranks may compare.
  std::string kind;        // Type and shape.
  uint64_t identity = 0;
  // Rows go to the ranks that hold them; null: to all.
  std::shared_ptr<const TablePartition> partition;
  WholeTable whole;                       // If its rows go to all ranks.
  std::shared_ptr<RowCounts> row_counts;  // Null: nobody counts its rows.

  // Of what travels.
  bool operator==(const TensorSpec& other) const {
    return type == other.type && count == other.count && sparse == other.sparse;
  }
};

// Tensors that travel as one collective. A bucket is a plan; its memory is a FusionBuffer.
struct Bucket {
  DataType type = DataType::kFloat32;
  bool sparse = false;
  std::vector<int> tensors;     // Indices into the layout, in the order of their slots.
  std::vector<size_t> offsets;  // Start of each tensor's slot, in elements, kSlotAlignment apart.
  size_t count = 0;             // Elements of the whole bucket, gaps included; 0 if run-time sized.
};

// The bucket of these tensors, with their slots in this order.
Bucket MakeBucket(const std::vector<TensorSpec>& tensors, const std::vector<int>& members);

}  // namespace tfdear
