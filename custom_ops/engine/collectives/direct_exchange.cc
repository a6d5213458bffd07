// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/direct_exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "custom_ops/engine/base/sum.h"
#include "custom_ops/engine/collectives/collective_arguments.h"

namespace tfdear {
namespace {

// Cuts into messages of at most so many bytes.
template <typename Byte>
std::vector<Piece<Byte>> Segments(const std::vector<Piece<Byte>>& pieces, size_t segment_bytes) {
  std::vector<Piece<Byte>> segments;
  for (const Piece<Byte>& piece : pieces) {
    const Range all{0, piece.bytes};
    for (size_t i = 0; i < SegmentsOf(all, segment_bytes); ++i) {
      const Range segment = SegmentOf(all, i, segment_bytes);
      segments.push_back({piece.data + segment.begin, segment.size()});
    }
  }
  return segments;
}

// The same for each of several ranks.
template <typename Byte>
std::vector<std::vector<Piece<Byte>>> SegmentsOfRanks(
    const std::vector<std::vector<Piece<Byte>>>& pieces, size_t segment_bytes) {
  std::vector<std::vector<Piece<Byte>>> segments;
  for (const auto& of_rank : pieces) segments.push_back(Segments(of_rank, segment_bytes));
  return segments;
}

// One piece for each range.
template <typename Byte>
std::vector<std::vector<Piece<Byte>>> PiecesAt(Byte* data, const DirectExchange::Parts& parts) {
  std::vector<std::vector<Piece<Byte>>> pieces(parts.size());
  for (size_t member = 0; member < parts.size(); ++member) {
    for (const Range& range : parts[member]) {
      pieces[member].push_back({data + range.begin, range.size()});
    }
  }
  return pieces;
}

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Range SegmentOf(Range range, size_t index, size_t segment_bytes) {
  if (index >= SegmentsOf(range, segment_bytes)) return Range{range.end, range.end};
  const size_t begin = range.begin + index * segment_bytes;
  return Range{begin, begin + std::min(segment_bytes, range.end - begin)};
}

size_t SegmentsOf(Range range, size_t segment_bytes) {
  return range.size() / segment_bytes + (range.size() % segment_bytes > 0 ? 1 : 0);
}

std::vector<Range> Cut(const std::vector<Range>& ranges, size_t segment_bytes) {
  std::vector<Range> segments;
  for (const Range& range : ranges) {
    for (size_t i = 0; i < SegmentsOf(range, segment_bytes); ++i) {
      segments.push_back(SegmentOf(range, i, segment_bytes));
    }
  }
  return segments;
}

DirectExchange::DirectExchange(int rank, int size) : DirectExchange(rank, AllRanks(size)) {}

DirectExchange::DirectExchange(int place, std::vector<int> ranks)
    : place_(place), size_(static_cast<int>(ranks.size())), ranks_(std::move(ranks)) {
  for (int offset = 1; offset < size_; ++offset) {
    peers_.push_back(Peer(offset));
    peer_ranks_.push_back(ranks_[Peer(offset)]);
  }
}

DirectExchange::Parts DirectExchange::OneEach(const std::vector<Range>& shards) {
  Parts parts;
  for (const Range& shard : shards) parts.push_back({shard});
  return parts;
}

char* DirectExchange::Scratch(size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return scratch_.data();
}

// Every member starts with another peer, so that none is the first target of all.
DirectExchange::Outgoing DirectExchange::ToPeers(
    const std::vector<OutgoingPieces>& messages) const {
  Outgoing outgoing;
  for (int offset = 1; offset < size_; ++offset) {
    const OutgoingPieces& to_peer = messages[Peer(offset)];
    if (!to_peer.empty()) outgoing.emplace_back(Peer(offset), to_peer);
  }
  return outgoing;
}

// Who gets what all peers get.
std::vector<int> DirectExchange::Targets(const Channel& channel) const {
  if (channel.SendsToAll()) return std::vector<int>(size_ > 1 ? 1 : 0, Channel::kAll);
  return peers_;
}

// [Note: rounds of a direct exchange]
// Ranges are cut into segments, so that one is used while the next arrives. In round i a rank sends
// segment i of everything that it sends, and receives segment i of everything that it receives.
//
// A round of receives ends with its slowest message; meanwhile the other senders, for which no
// receives are left, wait too. How a node's connections share its link is up to the network, and
// one that falls far behind holds up all ranks. So a rank starts a round of sends only when those
// of an earlier round have all left, which keeps its connections together. (128 MiB on 4 nodes of 1
// Gbit/s used 0.87 of the link without that, and 0.99 with it.)
//
// No deadlock: for the rank in the lowest round, every peer has started the sends and the receives
// of that round.
//
// `receive(round, peer)` starts a receive; `use(round, of_peer)` waits for those of a round.
Status DirectExchange::Run(
    Channel* channel, uint64_t first_tag, size_t rounds, const Outgoing& outgoing,
    const std::function<Channel::Message*(size_t round, int peer)>& receive,
    const std::function<Status(size_t round, const Messages& of_peer)>& use) const {
  TFDEAR_RETURN_IF_ERROR(channel->Reach(peer_ranks_));
  std::vector<Messages> sends(std::min(rounds, channel->SendsAhead(outgoing.size())));
  std::vector<Messages> arrivals(std::min(rounds, channel->ReceivesAhead()), Messages(size_));
  auto send_round = [&](size_t round) {
    channel->GiveWay();
    Messages& messages = sends[round % sends.size()];
    for (Channel::Message* message : messages) TFDEAR_RETURN_IF_ERROR(channel->Wait(message));
    messages.clear();
    for (const auto& [peer, segments] : outgoing) {
      if (round >= segments.size()) continue;
      messages.push_back(channel->Send(RankOf(peer), first_tag + round, segments[round].data,
                                       segments[round].bytes));
    }
    return Status();
  };
  auto receive_round = [&](size_t round) {
    for (int offset = 1; offset < size_; ++offset) {
      const int peer = Peer(-offset);
      arrivals[round % arrivals.size()][peer] = receive(round, peer);
    }
  };
  for (size_t i = 0; i < arrivals.size(); ++i) receive_round(i);
  for (size_t i = 0; i < sends.size(); ++i) TFDEAR_RETURN_IF_ERROR(send_round(i));
  for (size_t i = 0; i < rounds; ++i) {
    if (i + sends.size() < rounds) TFDEAR_RETURN_IF_ERROR(send_round(i + sends.size()));
    TFDEAR_RETURN_IF_ERROR(use(i, arrivals[i % arrivals.size()]));
    if (i + arrivals.size() < rounds) receive_round(i + arrivals.size());
  }
  return channel->WaitForSends();
}

// Puts everything that arrives where it belongs.
Status DirectExchange::Move(Channel* channel, uint64_t first_tag, const Outgoing& outgoing,
                            const std::vector<IncomingPieces>& incoming) const {
  // Ranks do not know what others exchange, so they may differ in their numbers of rounds; each
  // takes part in all that concern it.
  size_t rounds = 0;
  for (const auto& of_peer : outgoing) rounds = std::max(rounds, of_peer.second.size());
  for (const IncomingPieces& of_peer : incoming) rounds = std::max(rounds, of_peer.size());
  auto receive = [&](size_t round, int peer) {
    const Piece<char> segment =
        round < incoming[peer].size() ? incoming[peer][round] : Piece<char>();
    return channel->Receive(RankOf(peer), first_tag + round, segment.data, segment.bytes);
  };
  auto use = [&](size_t, const Messages& of_peer) {
    for (int offset = 1; offset < size_; ++offset) {
      TFDEAR_RETURN_IF_ERROR(channel->Wait(of_peer[Peer(-offset)]));
    }
    return Status();
  };
  return Run(channel, first_tag, rounds, outgoing, receive, use);
}

Status DirectExchange::AllGather(Channel* channel, char* data, const Parts& parts,
                                 size_t segment_bytes, uint64_t first_tag) {
  std::vector<IncomingPieces> incoming = SegmentsOfRanks(PiecesAt(data, parts), segment_bytes);
  OutgoingPieces segments;
  for (const Piece<char>& segment : incoming[place_]) {
    segments.push_back({segment.data, segment.bytes});
  }
  incoming[place_].clear();
  Outgoing outgoing;
  for (int target : Targets(*channel)) outgoing.emplace_back(target, segments);
  return Move(channel, first_tag, outgoing, incoming);
}

Status DirectExchange::AllToAll(Channel* channel, const std::vector<OutgoingPieces>& sends,
                                const std::vector<IncomingPieces>& receives, size_t segment_bytes) {
  for (size_t i = 0; i < sends[place_].size(); ++i) {
    const Piece<const char> from = sends[place_][i];
    if (from.bytes > 0) std::memcpy(receives[place_][i].data, from.data, from.bytes);
  }
  std::vector<IncomingPieces> incoming = SegmentsOfRanks(receives, segment_bytes);
  incoming[place_].clear();
  return Move(channel, kReduceTag, ToPeers(SegmentsOfRanks(sends, segment_bytes)), incoming);
}

Status DirectExchange::ReduceScatter(Channel* channel, char* data, const Parts& parts,
                                     DataType type, size_t segment_bytes, uint64_t first_tag) {
  segment_bytes -= segment_bytes % SizeOf(type);
  const std::vector<Range> own = Cut(parts[place_], segment_bytes);
  const auto sends = SegmentsOfRanks(PiecesAt<const char>(data, parts), segment_bytes);
  size_t rounds = 0, sum_bytes = 0;
  for (const OutgoingPieces& segments : sends) rounds = std::max(rounds, segments.size());
  // In the order of the members: this one's values on top of the sum of those before it (two
  // summands may change places), then those after it. The sum of several is formed in scratch
  // memory, on top of the values of the first, for each round that is received ahead.
  const bool several_before = place_ > 1;
  if (several_before) {
    for (const Range& segment : own) sum_bytes = std::max(sum_bytes, segment.size());
  }
  const size_t sums = channel->ReceivesAhead();
  char* const scratch = Scratch(sums * sum_bytes);
  auto sum_before = [&](size_t round) { return scratch + round % sums * sum_bytes; };
  auto segment_of = [&](size_t round) { return round < own.size() ? own[round] : Range(); };
  auto receive = [&](size_t round, int peer) {
    char* const target = several_before && peer == 0 ? sum_before(round) : nullptr;
    return channel->Receive(RankOf(peer), first_tag + round, target, segment_of(round).size());
  };
  auto use = [&](size_t round, const Messages& of_peer) {
    const Range segment = segment_of(round);
    for (int peer = 0; peer < size_; ++peer) {
      char* const sum = several_before && peer < place_ ? sum_before(round) : data + segment.begin;
      auto add = [&](const char* values) {
        if (values != sum) SumInto(type, sum, values, segment.size() / SizeOf(type));
      };
      if (peer != place_) {
        TFDEAR_RETURN_IF_ERROR(channel->Wait(of_peer[peer], add));
      } else if (several_before) {
        add(sum_before(round));
      }
    }
    return Status();
  };
  return Run(channel, first_tag, rounds, ToPeers(sends), receive, use);
}

Status DirectExchange::AllReduce(Channel* channel, char* data, const std::vector<Range>& ranges,
                                 DataType type, uint64_t first_tag) {
  const size_t bytes = TotalOf(ranges);
  if (size_ == 1 || bytes == 0) return channel->WaitForSends();
  TFDEAR_RETURN_IF_ERROR(channel->Reach(peer_ranks_));
  char* const mine = Scratch(2 * bytes);
  char* const sum = mine + bytes;
  // They may be pieces of the data: they travel side by side.
  auto each_range = [&](auto copy) {
    size_t offset = 0;
    for (const Range& range : ranges) {
      if (range.size() > 0) copy(offset, data + range.begin, range.size());
      offset += range.size();
    }
  };
  each_range([&](size_t at, char* range, size_t size) { std::memcpy(mine + at, range, size); });
  Messages arrivals(size_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == place_) continue;
    arrivals[peer] = channel->Receive(RankOf(peer), first_tag, peer == 0 ? sum : nullptr, bytes);
  }
  for (int target : Targets(*channel)) channel->Send(RankOf(target), first_tag, mine, bytes);
  if (place_ == 0) std::memcpy(sum, mine, bytes);
  for (int peer = 0; peer < size_; ++peer) {
    auto add = [&](const char* values) {
      if (peer > 0) SumInto(type, sum, values, bytes / SizeOf(type));
    };
    if (peer == place_) {
      add(mine);
    } else {
      TFDEAR_RETURN_IF_ERROR(channel->Wait(arrivals[peer], add));
    }
  }
  TFDEAR_RETURN_IF_ERROR(channel->WaitForSends());
  each_range([&](size_t at, char* range, size_t size) { std::memcpy(range, sum + at, size); });
  return Status();
}

}  // namespace tfdear
