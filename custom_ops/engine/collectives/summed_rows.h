// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "custom_ops/engine/collectives/row_exchange.h"

namespace tfdear {

// [Note: Rows summed on their way]
// Where all ranks have a table whole, all of them need the gradient's rows. These are gathered:
// each rank gets those of all. If the ranks have most rows of the table, most of them come several
// times, and less travels when they are summed first, as a dense all-reduce does: each row by the
// rank that is its number modulo the ranks, in the order of the ranks, and the sums are gathered.
// Bits of all ranks say which rows they have, so rows that nobody has do not travel, and the result
// is that of adding up gathered rows in the order of the ranks, in every bit.
//
// The choice is made in every step, by the rows that all ranks have together, which all know.
struct WholeTable {
  int64_t rows = 0;           // 0: not known, and rows are gathered.
  int64_t most_gathered = 0;  // If the ranks have more rows than that, they are summed.
};

// What became of rows.
struct RowsOfRanks {
  int64_t count = 0;  // Of all ranks, together.
  bool summed = false;
  size_t sent_bytes = 0;  // By this rank to others, without what says how many rows there are.
};

// Gives all ranks the rows of all, each with its index: as AllGatherIndexedRows(), or one row of
// each index, their sum, as [Note: Rows summed on their way] says. A rank has one row of each
// index, or its own ones are added up first.
Status ExchangeIndexedRows(CollectiveBackend* backend, const Signature& signature,
                           uint64_t sequence, const int64_t* indices, const Rows& values,
                           DataType type, const WholeTable& table,
                           const AllocateIndexedRows& allocate, RowsOfRanks* seen);

}  // namespace tfdear
