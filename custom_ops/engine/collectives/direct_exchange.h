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
// The segments of all ranges.
std::vector<Range> Cut(const std::vector<Range>& ranges, size_t segment_bytes);

// Collectives in which every member sends straight to the members that need its data: one latency,
// and sums in the order of the members, whoever forms them. Members are all ranks of a group, or
// some; they know each other by their places in the list of members. Ranges are in bytes.
class DirectExchange {
 public:
  // What each member owns.
  using Parts = std::vector<std::vector<Range>>;

  // Tags of the first messages, for the two halves of an all-reduce in one channel.
  static constexpr uint64_t kReduceTag = 0;
  static constexpr uint64_t kGatherTag = uint64_t{1} << 62;

  // All ranks of a group.
  DirectExchange(int rank, int size);
  // Member `place` of those that have these ranks.
  DirectExchange(int place, std::vector<int> ranks);

  // In place: afterwards this member's part holds the sum.
  Status ReduceScatter(Channel* channel, char* data, const Parts& parts, DataType type,
                       size_t segment_bytes, uint64_t first_tag = kReduceTag);
  Status ReduceScatter(Channel* channel, char* data, const std::vector<Range>& shards,
                       DataType type, size_t segment_bytes) {
    return ReduceScatter(channel, data, OneEach(shards), type, segment_bytes);
  }
  // In place: every member sends its part to all.
  Status AllGather(Channel* channel, char* data, const Parts& parts, size_t segment_bytes,
                   uint64_t first_tag = kGatherTag);
  Status AllGather(Channel* channel, char* data, const std::vector<Range>& shards,
                   size_t segment_bytes) {
    return AllGather(channel, data, OneEach(shards), segment_bytes);
  }
  // In place, at once: every member sends everything to all, and sums it. For small data.
  Status AllReduce(Channel* channel, char* data, const std::vector<Range>& ranges, DataType type,
                   uint64_t first_tag = kReduceTag);
  // Entry m of `sends` goes to member m; entry m of `receives` comes from there.
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
  // Members, or Channel::kAll, and what they get: a message for each round.
  using Outgoing = std::vector<std::pair<int, OutgoingPieces>>;

  static Parts OneEach(const std::vector<Range>& shards);
  int Peer(int offset) const { return (place_ + offset + size_) % size_; }
  int RankOf(int member) const { return member == Channel::kAll ? member : ranks_[member]; }
  char* Scratch(size_t bytes);
  Outgoing ToPeers(const std::vector<OutgoingPieces>& messages) const;
  std::vector<int> Targets(const Channel& channel) const;
  Status Run(Channel* channel, uint64_t first_tag, size_t rounds, const Outgoing& outgoing,
             const std::function<Channel::Message*(size_t round, int peer)>& receive,
             const std::function<Status(size_t round, const Messages& of_peer)>& use) const;
  Status Move(Channel* channel, uint64_t first_tag, const Outgoing& outgoing,
              const std::vector<IncomingPieces>& incoming) const;

  const int place_;
  const int size_;
  const std::vector<int> ranks_;
  std::vector<int> peers_;       // From this member on, so that none is the first target of all.
  std::vector<int> peer_ranks_;  // Theirs.
  std::vector<char> scratch_;    // Kept between collectives.
};

}  // namespace tfdear
