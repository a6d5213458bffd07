// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// The data movement of GlooBackend's sums and gathers: rings for large payloads, direct exchange
// for small ones. gloo_backend.cc holds the rest.

#include <algorithm>
#include <cstring>
#include <vector>

#include "custom_ops/engine/exchange.h"
#include "custom_ops/engine/gloo_backend.h"
#include "custom_ops/engine/reduce.h"

namespace tfdear {
namespace {

// Up to here a direct exchange is faster than a ring: one latency instead of P - 1 (or twice that).
constexpr size_t kDirectBytes = 8 * 1024;
constexpr int kDirectRanks = 16;

// Receives posted ahead of the one being waited for, so that the sender never waits for us.
constexpr size_t kReceivesAhead = 4;

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

// [Note: ring]
// In step s a rank sends one shard to its right neighbour and receives another from its left, which
// it sends on in step s + 1. So the list of sends is the segments of the shard it starts with,
// followed by the list of receives without its last step. The former are sent at once, the latter
// each as soon as its segment is there. Sends never block, hence the ring cannot lock up.
//
// `target(i)` is where message i is to arrive, `arrived(i)` what to do before it is sent on.
template <typename Target, typename Arrived>
Status RunRing(Exchange* exchange, int left, int right, char* data, uint64_t phase,
               const std::vector<Segment>& sends, size_t own_sends,
               const std::vector<Segment>& receives, Target target, Arrived arrived) {
  auto receive = [&](size_t i) {
    return exchange->Receive(left, phase + i, target(i), receives[i].bytes);
  };
  auto send = [&](size_t i) {
    exchange->Send(right, phase + i, data + sends[i].offset, sends[i].bytes);
  };
  std::vector<Exchange::Message*> arrivals(receives.size());
  for (size_t i = 0; i < std::min(kReceivesAhead, receives.size()); ++i) arrivals[i] = receive(i);
  for (size_t i = 0; i < own_sends; ++i) send(i);
  for (size_t i = 0; i < receives.size(); ++i) {
    TFDEAR_RETURN_IF_ERROR(exchange->Wait(arrivals[i]));
    arrived(i);
    if (own_sends + i < sends.size()) send(own_sends + i);
    const size_t next = i + kReceivesAhead;
    if (next < receives.size()) arrivals[next] = receive(next);
  }
  return exchange->WaitForSends();
}

// Tags of the two halves of an all-reduce, and of direct messages.
constexpr uint64_t kReducePhase = 0;
constexpr uint64_t kGatherPhase = uint64_t{1} << 62;

}  // namespace

bool GlooBackend::IsDirect(size_t bytes) const {
  return bytes <= kDirectBytes && size() <= kDirectRanks;
}

Status GlooBackend::RingReduceScatter(Exchange* exchange, char* data, size_t count, DataType type) {
  const size_t element_bytes = SizeOf(type);
  const size_t segment_bytes = segment_bytes_ / element_bytes * element_bytes;
  const std::vector<Range> shards = ShardRanges(count, element_bytes, size());
  // The shard received last, and finished here, is the own one: rank - 2 - (size - 2) = rank.
  const auto sends = RingMessages(shards, rank() - 1, segment_bytes);
  const auto receives = RingMessages(shards, rank() - 2, segment_bytes);
  const size_t own_sends = SegmentsOf(shards[Peer(-1)], segment_bytes);
  char* const scratch = Scratch(kReceivesAhead * segment_bytes);
  auto slot = [&](size_t i) { return scratch + i % kReceivesAhead * segment_bytes; };
  return RunRing(exchange, Peer(-1), Peer(1), data, kReducePhase, sends, own_sends, receives, slot,
                 [&](size_t i) {
                   SumInto(type, data + receives[i].offset, slot(i),
                           receives[i].bytes / element_bytes);
                 });
}

Status GlooBackend::RingAllGather(Exchange* exchange, char* data,
                                  const std::vector<Range>& byte_ranges) {
  const auto sends = RingMessages(byte_ranges, rank(), segment_bytes_);
  const auto receives = RingMessages(byte_ranges, rank() - 1, segment_bytes_);
  const size_t own_sends = SegmentsOf(byte_ranges[rank()], segment_bytes_);
  return RunRing(
      exchange, Peer(-1), Peer(1), data, kGatherPhase, sends, own_sends, receives,
      [&](size_t i) { return data + receives[i].offset; }, [](size_t) {});
}

Status GlooBackend::DirectReduceScatter(Exchange* exchange, char* data, size_t count,
                                        DataType type) {
  const size_t element_bytes = SizeOf(type);
  const std::vector<Range> shards = ShardRanges(count, element_bytes, size());
  const Range mine = shards[rank()];
  char* const scratch = Scratch(mine.size() * size());
  auto slot = [&](int peer) { return scratch + mine.size() * peer; };
  std::vector<Exchange::Message*> arrivals(size());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    arrivals[peer] = exchange->Receive(peer, kReducePhase, slot(peer), mine.size());
    exchange->Send(peer, kReducePhase, data + shards[peer].begin, shards[peer].size());
  }
  if (mine.size() > 0) std::memcpy(slot(rank()), data + mine.begin, mine.size());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) TFDEAR_RETURN_IF_ERROR(exchange->Wait(arrivals[peer]));
    if (peer > 0) SumInto(type, slot(0), slot(peer), mine.size() / element_bytes);
  }
  if (mine.size() > 0) std::memcpy(data + mine.begin, slot(0), mine.size());
  return exchange->WaitForSends();
}

Status GlooBackend::DirectAllReduce(Exchange* exchange, char* data, size_t count, DataType type) {
  const size_t bytes = count * SizeOf(type);
  char* const scratch = Scratch(bytes * size());
  auto slot = [&](int peer) { return scratch + bytes * peer; };
  std::vector<Exchange::Message*> arrivals(size());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    arrivals[peer] = exchange->Receive(peer, kReducePhase, slot(peer), bytes);
    exchange->Send(peer, kReducePhase, data, bytes);
  }
  std::memcpy(slot(rank()), data, bytes);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) TFDEAR_RETURN_IF_ERROR(exchange->Wait(arrivals[peer]));
    if (peer > 0) SumInto(type, slot(0), slot(peer), count);
  }
  // The sends read data: they have to be over before the sum goes there.
  TFDEAR_RETURN_IF_ERROR(exchange->WaitForSends());
  std::memcpy(data, slot(0), bytes);
  return Status();
}

Status GlooBackend::DirectAllGather(Exchange* exchange, char* data,
                                    const std::vector<Range>& byte_ranges) {
  const Range mine = byte_ranges[rank()];
  std::vector<Exchange::Message*> arrivals;
  for (int offset = 1; offset < size(); ++offset) {
    const int peer = Peer(-offset);
    const Range theirs = byte_ranges[peer];
    arrivals.push_back(exchange->Receive(peer, kGatherPhase, data + theirs.begin, theirs.size()));
    exchange->Send(peer, kGatherPhase, data + mine.begin, mine.size());
  }
  for (Exchange::Message* arrival : arrivals) TFDEAR_RETURN_IF_ERROR(exchange->Wait(arrival));
  return exchange->WaitForSends();
}

Status GlooBackend::Gather(Exchange* exchange, char* data, const std::vector<Range>& byte_ranges) {
  const size_t bytes = byte_ranges.back().end;
  if (size() == 1 || bytes == 0) return exchange->status();
  return IsDirect(bytes) ? DirectAllGather(exchange, data, byte_ranges)
                         : RingAllGather(exchange, data, byte_ranges);
}

std::vector<Range> GlooBackend::ShardRanges(size_t count, size_t element_bytes, int size) {
  std::vector<Range> ranges;
  for (int rank = 0; rank < size; ++rank) {
    const Range shard = ShardOf(count, rank, size);
    ranges.push_back(Range{shard.begin * element_bytes, shard.end * element_bytes});
  }
  return ranges;
}

}  // namespace tfdear
