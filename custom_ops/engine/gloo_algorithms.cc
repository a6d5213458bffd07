// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// The data movement of GlooBackend's sums and gathers: direct exchanges and rings. gloo_backend.cc
// holds the rest.

#include <algorithm>
#include <cstring>
#include <vector>

#include "custom_ops/engine/exchange.h"
#include "custom_ops/engine/gloo_backend.h"
#include "custom_ops/engine/reduce.h"

namespace tfdear {
namespace {

// Up to here an exchange among all is faster than anything with more latencies.
constexpr size_t kSmallBytes = 8 * 1024;
constexpr int kSmallRanks = 16;

// A piece of a shard on its way around the ring.
struct Segment {
  size_t offset = 0;  // bytes from the start of data
  size_t bytes = 0;
};

size_t SegmentsOf(Range byte_range, size_t segment_bytes) {
  return (byte_range.size() + segment_bytes - 1) / segment_bytes;
}

// The messages that travel over one link in one ring pass: in step s the shard
// (first_shard - s) mod size, cut into segments. Both ends of the link compute the same list.
std::vector<Segment> RingMessages(const std::vector<Range>& byte_ranges, int first_shard,
                                  size_t segment_bytes) {
  const int size = static_cast<int>(byte_ranges.size());
  std::vector<Segment> messages;
  for (int step = 0; step + 1 < size; ++step) {
    const Range range = byte_ranges[((first_shard - step) % size + size) % size];
    for (size_t begin = range.begin; begin < range.end; begin += segment_bytes) {
      messages.push_back(Segment{begin, std::min(segment_bytes, range.end - begin)});
    }
  }
  return messages;
}

// [Note: messages of a ring]
// In step s a rank sends one shard to its right neighbour and receives another from its left, which
// it sends on in step s + 1. So the list of sends is the segments of the shard it starts with,
// followed by the list of receives without its last step. The former are sent at once, the latter
// each as soon as its segment is there. Sends never block, hence the ring cannot lock up.
//
// `target(i)` is where message i is to arrive, `arrived(i)` what to do before it is sent on.
template <typename Target, typename Arrived>
Status RunRing(Exchange* exchange, int left, int right, char* data, uint64_t phase,
               const std::vector<Segment>& sends, size_t own_sends,
               const std::vector<Segment>& receives, size_t receives_ahead, Target target,
               Arrived arrived) {
  auto receive = [&](size_t i) {
    return exchange->Receive(left, phase + i, target(i), receives[i].bytes);
  };
  auto send = [&](size_t i) {
    exchange->Send(right, phase + i, data + sends[i].offset, sends[i].bytes);
  };
  std::vector<Exchange::Message*> arrivals(receives.size());
  for (size_t i = 0; i < std::min(receives_ahead, receives.size()); ++i) arrivals[i] = receive(i);
  for (size_t i = 0; i < own_sends; ++i) send(i);
  for (size_t i = 0; i < receives.size(); ++i) {
    TFDEAR_RETURN_IF_ERROR(exchange->Wait(arrivals[i]));
    arrived(i);
    if (own_sends + i < sends.size()) send(own_sends + i);
    const size_t next = i + receives_ahead;
    if (next < receives.size()) arrivals[next] = receive(next);
  }
  return exchange->WaitForSends();
}

// Tags of the two halves of an all-reduce, and of direct messages.
constexpr uint64_t kReducePhase = 0;
constexpr uint64_t kGatherPhase = uint64_t{1} << 62;

}  // namespace

bool GlooBackend::IsSmall(size_t bytes) const {
  return bytes <= kSmallBytes && size() <= kSmallRanks;
}

bool GlooBackend::IsDirect(size_t bytes) const { return size() <= direct_ranks_ || IsSmall(bytes); }

Status GlooBackend::RingReduceScatter(Exchange* exchange, char* data, const Shards& shards,
                                      DataType type) {
  const size_t element_bytes = SizeOf(type);
  const size_t segment_bytes = segment_bytes_ / element_bytes * element_bytes;
  // The shard received last, and finished here, is the own one: rank - 2 - (size - 2) = rank.
  const auto sends = RingMessages(shards, rank() - 1, segment_bytes);
  const auto receives = RingMessages(shards, rank() - 2, segment_bytes);
  const size_t own_sends = SegmentsOf(shards[Peer(-1)], segment_bytes);
  char* const scratch = Scratch(receives_ahead_ * segment_bytes);
  auto slot = [&](size_t i) { return scratch + i % receives_ahead_ * segment_bytes; };
  return RunRing(exchange, Peer(-1), Peer(1), data, kReducePhase, sends, own_sends, receives,
                 receives_ahead_, slot, [&](size_t i) {
                   SumInto(type, data + receives[i].offset, slot(i),
                           receives[i].bytes / element_bytes);
                 });
}

Status GlooBackend::RingAllGather(Exchange* exchange, char* data, const Shards& shards) {
  const auto sends = RingMessages(shards, rank(), segment_bytes_);
  const auto receives = RingMessages(shards, rank() - 1, segment_bytes_);
  const size_t own_sends = SegmentsOf(shards[rank()], segment_bytes_);
  return RunRing(
      exchange, Peer(-1), Peer(1), data, kGatherPhase, sends, own_sends, receives, receives_ahead_,
      [&](size_t i) { return data + receives[i].offset; }, [](size_t) {});
}

Status GlooBackend::DirectReduceScatter(Exchange* exchange, char* data, const Shards& shards,
                                        DataType type) {
  const size_t element_bytes = SizeOf(type);
  const size_t segment_bytes = segment_bytes_ / element_bytes * element_bytes;
  const Range mine = shards[rank()];
  const size_t slot_bytes = std::min(segment_bytes, mine.size());
  char* const scratch = Scratch(receives_ahead_ * size() * slot_bytes);
  auto slot = [&](size_t i, int peer) {
    return scratch + (i % receives_ahead_ * size() + peer) * slot_bytes;
  };
  auto segment_of = [&](Range shard, size_t i) {
    const size_t begin = shard.begin + i * segment_bytes;
    return Range{begin, std::min(begin + segment_bytes, shard.end)};
  };
  const size_t segments = SegmentsOf(mine, segment_bytes);
  std::vector<std::vector<Exchange::Message*>> arrivals(receives_ahead_);
  auto receive = [&](size_t i) {
    auto& messages = arrivals[i % receives_ahead_];
    messages.assign(size(), nullptr);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      messages[peer] =
          exchange->Receive(peer, kReducePhase + i, slot(i, peer), segment_of(mine, i).size());
    }
  };
  for (size_t i = 0; i < std::min(receives_ahead_, segments); ++i) receive(i);
  // Everybody starts with another owner, and gives every owner a first segment before a second.
  bool more = true;
  for (size_t i = 0; more; ++i) {
    more = false;
    for (int offset = 1; offset < size(); ++offset) {
      const int peer = Peer(offset);
      if (i >= SegmentsOf(shards[peer], segment_bytes)) continue;
      const Range segment = segment_of(shards[peer], i);
      exchange->Send(peer, kReducePhase + i, data + segment.begin, segment.size());
      more = true;
    }
  }
  for (size_t i = 0; i < segments; ++i) {
    const Range segment = segment_of(mine, i);
    const size_t count = segment.size() / element_bytes;
    const auto& messages = arrivals[i % receives_ahead_];
    // In the order of the ranks: those before this one into the first one's slot, then the own
    // values on top (two summands may change places), then those after.
    for (int peer = 0; peer < rank(); ++peer) {
      TFDEAR_RETURN_IF_ERROR(exchange->Wait(messages[peer]));
      if (peer > 0) SumInto(type, slot(i, 0), slot(i, peer), count);
    }
    if (rank() > 0) SumInto(type, data + segment.begin, slot(i, 0), count);
    for (int peer = rank() + 1; peer < size(); ++peer) {
      TFDEAR_RETURN_IF_ERROR(exchange->Wait(messages[peer]));
      SumInto(type, data + segment.begin, slot(i, peer), count);
    }
    if (i + receives_ahead_ < segments) receive(i + receives_ahead_);
  }
  return exchange->WaitForSends();
}

Status GlooBackend::DirectAllReduce(Exchange* exchange, char* data, const Shards& shards,
                                    DataType type) {
  size_t bytes = 0;
  for (const Range& shard : shards) bytes += shard.size();
  char* const scratch = Scratch(bytes * size());
  auto slot = [&](int peer) { return scratch + bytes * peer; };
  // The shards may be pieces of the data: they travel side by side.
  auto copy = [&](auto move) {
    char* packed = slot(rank());
    for (const Range& shard : shards) {
      if (shard.size() > 0) move(packed, data + shard.begin, shard.size());
      packed += shard.size();
    }
  };
  copy([](char* packed, const char* source, size_t size) { std::memcpy(packed, source, size); });
  std::vector<Exchange::Message*> arrivals(size());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    arrivals[peer] = exchange->Receive(peer, kReducePhase, slot(peer), bytes);
    exchange->Send(peer, kReducePhase, slot(rank()), bytes);
  }
  const size_t count = bytes / SizeOf(type);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) TFDEAR_RETURN_IF_ERROR(exchange->Wait(arrivals[peer]));
  }
  // The sends read this rank's slot: they have to be over before a sum goes there.
  TFDEAR_RETURN_IF_ERROR(exchange->WaitForSends());
  for (int peer = 1; peer < size(); ++peer) SumInto(type, slot(0), slot(peer), count);
  if (rank() > 0) std::memcpy(slot(rank()), slot(0), bytes);
  copy([](const char* packed, char* target, size_t size) { std::memcpy(target, packed, size); });
  return Status();
}

// Cut into segments too, with few receives ahead: a sender that may put whole shards on the line
// for all peers at once overruns the queue of the link, and lost packets cost more than waiting.
Status GlooBackend::DirectAllGather(Exchange* exchange, char* data, const Shards& shards) {
  const Range mine = shards[rank()];
  auto segment_of = [&](Range shard, size_t i) {
    const size_t begin = shard.begin + i * segment_bytes_;
    return Range{begin, std::min(begin + segment_bytes_, shard.end)};
  };
  size_t segments = 0;
  for (const Range& shard : shards) {
    segments = std::max(segments, SegmentsOf(shard, segment_bytes_));
  }
  std::vector<std::vector<Exchange::Message*>> arrivals(receives_ahead_);
  auto receive = [&](size_t i) {
    auto& messages = arrivals[i % receives_ahead_];
    messages.clear();
    for (int offset = 1; offset < size(); ++offset) {
      const int peer = Peer(-offset);
      if (i >= SegmentsOf(shards[peer], segment_bytes_)) continue;
      const Range segment = segment_of(shards[peer], i);
      messages.push_back(
          exchange->Receive(peer, kGatherPhase + i, data + segment.begin, segment.size()));
    }
  };
  for (size_t i = 0; i < std::min(receives_ahead_, segments); ++i) receive(i);
  for (size_t i = 0; i < SegmentsOf(mine, segment_bytes_); ++i) {
    const Range segment = segment_of(mine, i);
    for (int offset = 1; offset < size(); ++offset) {
      exchange->Send(Peer(offset), kGatherPhase + i, data + segment.begin, segment.size());
    }
  }
  for (size_t i = 0; i < segments; ++i) {
    for (Exchange::Message* arrival : arrivals[i % receives_ahead_]) {
      TFDEAR_RETURN_IF_ERROR(exchange->Wait(arrival));
    }
    if (i + receives_ahead_ < segments) receive(i + receives_ahead_);
  }
  return exchange->WaitForSends();
}

}  // namespace tfdear
