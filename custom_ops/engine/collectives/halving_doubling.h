// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/transport/channel.h"

namespace tfdear {

// Collectives in log2(P) rounds, in each of which a rank exchanges with one other: recursive
// halving for sums of shards, recursive doubling for gathers and small sums. Ranges are in bytes.
//
// [Note: order of the sums]
// Round by round, from the highest bit down, a rank adds what the rank has whose number differs in
// that bit. Addition commutes, so after each round all ranks that differ in the bits so far have
// the same bits of their sums: the order depends neither on the shard in which a value lies nor on
// the rank that forms it.
//
// [Note: fold]
// Where P is no power of two, the ranks from the largest one, Q, on give all they have to the ranks
// Q before them, and get what is theirs from them: up to twice the bytes.
class HalvingDoubling {
 public:
  HalvingDoubling(int rank, int size);

  // In place: afterwards this rank's shard holds the sum. What else there is gets lost.
  Status ReduceScatter(Channel* channel, char* data, const std::vector<Range>& shards,
                       DataType type, size_t segment_bytes) const;
  // In place: every rank gets all shards.
  Status AllGather(Channel* channel, char* data, const std::vector<Range>& shards,
                   size_t segment_bytes) const;
  // In place, with all shards in every round. For small data.
  Status AllReduce(Channel* channel, char* data, const std::vector<Range>& shards,
                   DataType type) const;

  // Whether a group of this size needs no fold.
  static bool IsPowerOfTwo(int size) { return (size & (size - 1)) == 0; }

 private:
  // The shards of the ranks [first, first + count) and of those that fold onto them.
  std::vector<Range> ShardsOfRanks(const std::vector<Range>& shards, int first, int count) const;
  bool is_folded() const { return rank_ >= power_; }
  bool has_folded() const { return rank_ + power_ < size_; }
  int partner_in_fold() const { return is_folded() ? rank_ - power_ : rank_ + power_; }

  const int rank_;
  const int size_;
  const int power_;  // The largest power of two of ranks that there are.
  std::vector<int> peers_;
};

}  // namespace tfdear
