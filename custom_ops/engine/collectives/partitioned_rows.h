// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/id_places.h"
#include "custom_ops/engine/collectives/row_exchange.h"
#include "custom_ops/engine/memory/fusion_buffer.h"

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

// The ids that all ranks look up in one table, in the order of the ranks.
struct IdsOfRanks {
  const int32_t* ids = nullptr;
  std::vector<int64_t> counts;  // Of each rank.
};

// The same with memory of its own.
struct GatheredIds {
  std::vector<int32_t> ids;
  std::vector<int64_t> counts;

  IdsOfRanks View() const { return {ids.data(), counts}; }
  // Where the ids of a rank begin.
  const int32_t* Of(int rank) const;
  // Those that are in a set, and the others, each in their order.
  std::pair<GatheredIds, GatheredIds> Split(const IdPlaces& set) const;
};

GatheredIds CopyOf(const IdsOfRanks& ids);

// This rank's rows of the gradient of one table.
struct PartitionedRows {
  const TablePartition* partition;
  const int64_t* numbers;  // Of the rows of `values` in the table.
  Rows values;
  // Gives memory for what the ranks sent: the numbers of rows, of int64, and of each row the bytes
  // of this rank's part.
  std::function<Status(size_t rows, size_t kept_bytes, void** numbers, void** values)> allocate;
  // Where every rank's rows are those of the ids that it has looked up, in their order: what all
  // know, and need not tell each other. Else null, on all ranks alike.
  const IdsOfRanks* known = nullptr;
};

// How much of them a rank of a group of this size sends to others.
size_t SentBytes(const PartitionedRows& table, int rank, int size);

// Brings the rows of the gradients of several tables to the ranks that hold them: each gets, of all
// ranks in their order, the numbers of the rows it has a part of, and that part. `pool`: for what
// travels. `around`: is called when all is packed.
Status ExchangePartitionedRows(CollectiveBackend* backend, const Signature& signature,
                               uint64_t sequence, const std::vector<PartitionedRows>& tables,
                               FusionBufferPool* pool, const AroundExchange& around = nullptr);

}  // namespace tfdear
