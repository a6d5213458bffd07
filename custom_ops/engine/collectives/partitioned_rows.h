// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/engine/collectives/row_exchange.h"

namespace tfdear {

// Which rank of a group holds what of a table: its columns of all rows, or all columns of the rows
// whose number is its rank, modulo the size of the group. (Embeddings over all-to-all; EmbRace,
// section 4.1.1.)
struct TablePartition {
  // Where each rank's columns begin, and after them where the last ones end; empty: by rows.
  std::vector<int64_t> column_begins;

  bool by_row() const { return column_begins.empty(); }
  std::string Describe() const;
};

// Brings the rows of a sparse gradient to the ranks that hold them: each gets, of all ranks in
// their order, the indices of the rows it has a part of, and that part.
Status ExchangePartitionedRows(CollectiveBackend* backend, const Signature& signature,
                               uint64_t sequence, const TablePartition& partition,
                               const int64_t* indices, const Rows& values,
                               const AllocateIndexedRows& allocate);

}  // namespace tfdear
