// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/collectives/direct_exchange.h"
#include "custom_ops/engine/transport/channel.h"

namespace tfdear {

// Collectives in rounds, one for each prime factor of P: recursive halving for sums of shards,
// recursive doubling for gathers and small sums, and the same with 3, 5 or 7 ranks in place of
// two. As many bytes as a ring, and log2(P) latencies where P is a power of two. Ranges are in
// bytes.
//
// [Note: order of the sums]
// A rank's number is written in digits, one for each factor, the highest first. Round by round,
// from the highest digit down, the ranks that differ in that digit alone exchange directly, and sum
// in the order of the digit. So after each round all ranks that differ in the digits so far have
// the same bits of their sums: the order depends neither on the shard in which a value lies nor on
// the rank that forms it.
//
// [Note: fold]
// A factor above 7 would be a round with too many messages. Where P has one, the ranks from the
// largest number without one, Q, on give all they have to the ranks before Q, one each, and get
// what is theirs from them: up to twice the bytes.
class RecursiveExchange {
 public:
  RecursiveExchange(int rank, int size);

  // In place: afterwards this rank's shard holds the sum. What else there is gets lost.
  Status ReduceScatter(Channel* channel, char* data, const std::vector<Range>& shards,
                       DataType type, size_t segment_bytes);
  // In place: every rank gets all shards.
  Status AllGather(Channel* channel, char* data, const std::vector<Range>& shards,
                   size_t segment_bytes);
  // In place, with all shards in every round. For small data.
  Status AllReduce(Channel* channel, char* data, const std::vector<Range>& shards, DataType type);

  bool folds() const { return core_ < size_; }

 private:
  // The ranks that differ from this one in one digit only.
  struct Round {
    DirectExchange exchange;
    int distance;  // Between neighbours among them, and so many ranks have the same digits so far.
    int factor;
    int first;  // The first rank that has the same higher digits as this one.
    uint64_t tag;
  };

  // The shards of the ranks [first, first + count) and of those that fold onto them.
  std::vector<Range> ShardsOfRanks(const std::vector<Range>& shards, int first, int count) const;
  // What each member of a round owns after it (sums), or before it (gathers).
  DirectExchange::Parts PartsOf(const Round& round, const std::vector<Range>& shards) const;
  bool is_folded() const { return rank_ >= core_; }
  bool has_folded() const { return rank_ + core_ < size_; }
  int partner_in_fold() const { return is_folded() ? rank_ - core_ : rank_ + core_; }

  // What ranks that fold send before the rounds, and get after them.
  Status Send(Channel* channel, uint64_t first_tag, const char* data,
              const std::vector<Range>& ranges, size_t segment_bytes) const;
  // `type`: of the sums; null for what replaces what is there.
  Status Receive(Channel* channel, uint64_t first_tag, char* data, const std::vector<Range>& ranges,
                 size_t segment_bytes, const DataType* type) const;

  const int rank_;
  const int size_;
  const int core_;  // The ranks that take part in the rounds.
  std::vector<Round> rounds_;
  std::vector<int> peers_;
};

}  // namespace tfdear
