// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/engine/collectives/partitioned_rows.h"

namespace tfdear {

// A bag is what is pooled to one vector: tokens, each of one of the ids that a rank looks up. The
// ranks that hold the columns of a table can add up the vectors of a bag if they know the bags of
// all ranks.

// A rank's bags in one table.
struct Bags {
  std::vector<int32_t> sizes;      // How many tokens each of them has.
  std::vector<int32_t> positions;  // Of the id of each token among the rank's, bag by bag.
};

// Makes `count` bags of tokens in any order; those of a bag keep theirs, so that sums do. A token
// whose bag is negative is in none. False if a token's bag is not less than `count`.
bool MakeBags(const int32_t* positions, const int32_t* bag_of, int64_t tokens, int64_t count,
              Bags* bags);

// How much each rank has of one table.
struct BagCounts {
  std::vector<int64_t> ids;
  std::vector<int64_t> bags;
  std::vector<int64_t> tokens;
};

// Whether all ranks together send fewer bytes if the sums of bags travel, and before them the bags,
// than if the vectors of ids do. An error: a rank announced what cannot be.
Status PoolingPays(const BagCounts& counts, const TablePartition& partition, size_t element_bytes,
                   bool* pays);

// The bags of all ranks, in the order of the ranks.
struct GatheredBags {
  std::vector<int64_t> counts;     // Of each rank.
  std::vector<int32_t> positions;  // Of the id of each token among those of all ranks.
  std::vector<int32_t> bag_of;     // Of each token, among the bags of all ranks.

  int64_t total() const;
  // Adds those of the next rank, from what it sent: sizes, then positions. `first_id`: where its
  // `ids` ids begin. An error if they are not what it announced.
  Status Add(const int32_t* sent, int64_t bags, int64_t tokens, int64_t first_id, int64_t ids);
};

// What is gathered of one table.
struct TableOfBags {
  Bags own;
  BagCounts counts;
  GatheredBags all;  // The result.
};

// Gathers the bags of all ranks, of several tables at once, all of whose counts every rank knows.
Status GatherBags(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                  std::vector<TableOfBags>* tables);

}  // namespace tfdear
