// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/bags.h"

#include <limits>
#include <numeric>

namespace tfdear {
namespace {

// What goes over the line for one table, of all ranks together: vectors, so many to each rank.
// In float64: it is compared only, and cannot overflow.
double VectorBytes(const std::vector<int64_t>& counts, const TablePartition& partition,
                   size_t element_bytes) {
  const auto& begins = partition.column_begins;
  double bytes = 0;
  for (size_t reader = 0; reader < counts.size(); ++reader) {
    const int64_t own = begins[reader + 1] - begins[reader];
    bytes += static_cast<double>(counts[reader]) * (begins.back() - own) * element_bytes;
  }
  return bytes;
}

}  // namespace

bool MakeBags(const int32_t* positions, const int32_t* bag_of, int64_t tokens, int64_t count,
              Bags* bags) {
  bags->sizes.assign(count, 0);
  for (int64_t i = 0; i < tokens; ++i) {
    if (bag_of[i] >= count) return false;
    if (bag_of[i] >= 0) ++bags->sizes[bag_of[i]];
  }
  std::vector<int64_t> next(1, 0);  // Where the next token of each bag goes.
  for (int32_t size : bags->sizes) next.push_back(next.back() + size);
  bags->positions.resize(next.back());
  for (int64_t i = 0; i < tokens; ++i) {
    if (bag_of[i] >= 0) bags->positions[next[bag_of[i]]++] = positions[i];
  }
  return true;
}

Status PoolingPays(const BagCounts& counts, const TablePartition& partition, size_t element_bytes,
                   bool* pays) {
  size_t bags = 0, tokens = 0;
  TFDEAR_RETURN_IF_ERROR(CheckedTotal(counts.bags, sizeof(int32_t), "bags", &bags));
  TFDEAR_RETURN_IF_ERROR(CheckedTotal(counts.tokens, sizeof(int32_t), "tokens of bags", &tokens));
  // Places are of int32.
  constexpr size_t kMost = std::numeric_limits<int32_t>::max();
  const size_t ids = std::accumulate(counts.ids.begin(), counts.ids.end(), size_t{0});
  if (partition.by_row() || bags > kMost || tokens > kMost || ids > kMost) {
    *pays = false;
    return Status();
  }
  const double sent_bags =
      static_cast<double>(bags + tokens) * sizeof(int32_t) * (counts.bags.size() - 1);
  *pays = sent_bags + VectorBytes(counts.bags, partition, element_bytes) <
          VectorBytes(counts.ids, partition, element_bytes);
  return Status();
}

int64_t GatheredBags::total() const {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Status GatheredBags::Add(const int32_t* sent, int64_t bags, int64_t tokens, int64_t first_id,
                         int64_t ids) {
  const auto refuse = [&](const char* what, int64_t received, int64_t most) {
    return Internal("bags: member ", counts.size(), " of the process group sent ", received,
                    " as the ", what, ", expected 0 to ", most,
                    "; it may run another version of tfdear, or its memory is damaged");
  };
  const int64_t first_bag = total();
  int64_t left = tokens;
  for (int64_t bag = 0; bag < bags; ++bag) {
    if (sent[bag] < 0 || sent[bag] > left) return refuse("size of a bag", sent[bag], left);
    left -= sent[bag];
    bag_of.insert(bag_of.end(), sent[bag], static_cast<int32_t>(first_bag + bag));
  }
  if (left != 0) return refuse("number of tokens that are in no bag", left, 0);
  for (const int32_t* position = sent + bags; position != sent + bags + tokens; ++position) {
    if (*position < 0 || *position >= ids) return refuse("place of an id", *position, ids - 1);
    positions.push_back(static_cast<int32_t>(first_id + *position));
  }
  counts.push_back(bags);
  return Status();
}

Status GatherBags(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                  std::vector<TableOfBags>* tables) {
  const int size = backend->size();
  std::vector<int64_t> of_rank(size, 0);
  std::vector<int32_t> given;
  for (const TableOfBags& table : *tables) {
    for (int rank = 0; rank < size; ++rank) {
      of_rank[rank] += table.counts.bags[rank] + table.counts.tokens[rank];
    }
    given.insert(given.end(), table.own.sizes.begin(), table.own.sizes.end());
    given.insert(given.end(), table.own.positions.begin(), table.own.positions.end());
  }
  size_t total = 0;
  TFDEAR_RETURN_IF_ERROR(CheckedTotal(of_rank, sizeof(int32_t), signature.text(), &total));
  std::vector<int32_t> gathered(total);
  TFDEAR_RETURN_IF_ERROR(backend->AllGatherV(
      given.data(), gathered.data(), BytesOf(of_rank, sizeof(int32_t)), signature, sequence));
  const int32_t* next = gathered.data();
  std::vector<int64_t> first_ids(tables->size(), 0);
  for (int rank = 0; rank < size; ++rank) {
    for (size_t t = 0; t < tables->size(); ++t) {
      const BagCounts& counts = (*tables)[t].counts;
      TFDEAR_RETURN_IF_ERROR((*tables)[t].all.Add(next, counts.bags[rank], counts.tokens[rank],
                                                  first_ids[t], counts.ids[rank]));
      next += counts.bags[rank] + counts.tokens[rank];
      first_ids[t] += counts.ids[rank];
    }
  }
  return Status();
}

}  // namespace tfdear
