// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/engine/collectives/partitioned_rows.h"

namespace tfdear {

// The forward half of embeddings over all-to-all: each rank gets the vectors of its ids from the
// ranks that hold them. All ranks know the ids of all, so nobody says how much travels.

// Which of the ids a rank holds a part of, rank by rank: the rows it looks up.
std::vector<int32_t> HeldIds(const IdsOfRanks& ids, const TablePartition& partition, int rank);

// One table of an exchange.
struct LookedUp {
  TablePartition partition;
  IdsOfRanks ids;
  const void* held = nullptr;  // This rank's part of the vectors of HeldIds().
  size_t element_bytes = 0;
  int64_t columns = 0;     // Of the whole vectors.
  void* result = nullptr;  // The whole vectors of this rank's ids.
  // Where the sums of bags travel instead of the vectors of ids, by column only: how many of each
  // rank. `held` and `result` are sums then. Else empty.
  std::vector<int64_t> bags;

  // How many vectors each rank gets.
  const std::vector<int64_t>& counts() const { return bags.empty() ? ids.counts : bags; }
};

// How much of them this rank sends to others.
size_t SentBytes(const LookedUp& table, int rank);

// Exchanges the vectors of several tables at once. `pool`: for what travels. `around`: is called
// when all is packed.
Status ExchangeVectors(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                       const std::vector<LookedUp>& tables, FusionBufferPool* pool,
                       const AroundExchange& around = nullptr);

// Gathers the ids of all ranks, of several tables at once; `all` has an entry for each table.
//
// Each rank says what it knows of the ids before, by a number, and `agreed` is the smallest of all
// ranks: only where that is 0 the ids are gathered, and `all` is set. `further`: numbers, of which
// all ranks have equally many and learn those of all, rank by rank, whatever was agreed.
Status GatherIds(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                 const std::vector<std::vector<int32_t>>& own, int64_t known, int64_t* agreed,
                 std::vector<GatheredIds>* all, const std::vector<int64_t>& further = {},
                 std::vector<int64_t>* further_of_all = nullptr);

}  // namespace tfdear
