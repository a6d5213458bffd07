// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/collectives/pieces.h"
#include "custom_ops/engine/transport/channel.h"

namespace tfdear {

// Segment `index` of a range; empty behind its end.
Range SegmentOf(Range range, size_t index, size_t segment_bytes);
size_t SegmentsOf(Range range, size_t segment_bytes);

// Collectives in which every rank sends straight to the ranks that need its data: one latency, and
// sums in the order of the ranks, whoever forms them. Ranges are in bytes.
class DirectExchange {
 public:
  // Tags of the first messages, for the two halves of an all-reduce in one channel.
  static constexpr uint64_t kReduceTag = 0;
  static constexpr uint64_t kGatherTag = uint64_t{1} << 62;

  DirectExchange(int rank, int size);

  // In place: afterwards this rank's shard holds the sum.
  Status ReduceScatter(Channel* channel, char* data, const std::vector<Range>& shards,
                       DataType type, size_t segment_bytes);
  // In place: every rank sends its shard to all.
  Status AllGather(Channel* channel, char* data, const std::vector<Range>& shards,
                   size_t segment_bytes);
  // In place, at once: every rank sends all shards to all, and sums them. For small data.
  Status AllReduce(Channel* channel, char* data, const std::vector<Range>& shards, DataType type);
  // Entry r of `sends` goes to rank r; entry r of `receives` comes from there.
  Status AllToAll(Channel* channel, const std::vector<OutgoingPieces>& sends,
                  const std::vector<IncomingPieces>& receives, size_t segment_bytes);

  // Whether so few bytes among so few ranks are faster this way, and by AllReduce(), than with more
  // latencies.
  static bool IsSmall(size_t bytes, int size) { return IsSmall(bytes) && size <= kSmallRanks; }
  // Whether so few bytes cost what a message without any does.
  static bool IsSmall(size_t bytes) { return bytes <= kSmallBytes; }

 private:
  static constexpr size_t kSmallBytes = 8 << 10;
  static constexpr int kSmallRanks = 16;

  using Messages = std::vector<Channel::Message*>;
  // Peers, or Channel::kAll, and what they get: a message for each round.
  using Outgoing = std::vector<std::pair<int, OutgoingPieces>>;

  int Peer(int offset) const { return (rank_ + offset + size_) % size_; }
  char* Scratch(size_t bytes);
  Outgoing ToPeers(const std::vector<OutgoingPieces>& messages) const;
  std::vector<int> Targets(const Channel& channel) const;
  Status Run(Channel* channel, uint64_t first_tag, size_t rounds, const Outgoing& outgoing,
             const std::function<Channel::Message*(size_t round, int peer)>& receive,
             const std::function<Status(size_t round, const Messages& of_peer)>& use) const;
  Status Move(Channel* channel, uint64_t first_tag, const Outgoing& outgoing,
              const std::vector<IncomingPieces>& incoming) const;

  const int rank_;
  const int size_;
  std::vector<int> peers_;     // From this rank on, so that none is the first target of all.
  std::vector<char> scratch_;  // Kept between collectives.
};

}  // namespace tfdear
