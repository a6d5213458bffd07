// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// The data movement of TcpBackend's sums and gathers: rings, and the choice among them, the
// recursive and the direct exchange. tcp_backend.cc holds the rest.

#include <algorithm>
#include <vector>

#include "custom_ops/engine/base/sum.h"
#include "custom_ops/engine/collectives/collective_arguments.h"
#include "custom_ops/engine/collectives/tcp_backend.h"

namespace tfdear {
namespace {

// Up to here latencies count for more than the bytes of a fold, which are sent twice.
constexpr size_t kMostFoldedBytes = 64 << 10;
constexpr size_t kLeastSegmentBytes = 16 << 10;

// The messages that travel over one link in one ring pass: in step s the shard
// (first_shard - s) mod size, cut into segments. Both ends of the link compute the same list.
std::vector<Range> RingMessages(const std::vector<Range>& byte_ranges, int first_shard,
                                size_t segment_bytes) {
  const int size = static_cast<int>(byte_ranges.size());
  std::vector<Range> messages;
  for (int step = 0; step + 1 < size; ++step) {
    const Range range = byte_ranges[((first_shard - step) % size + size) % size];
    for (size_t begin = range.begin; begin < range.end; begin += segment_bytes) {
      messages.push_back({begin, std::min(begin + segment_bytes, range.end)});
    }
  }
  return messages;
}

// [Note: messages of a ring]
// In step s a rank sends one shard to its right neighbour and receives another from its left, which
// it sends on in step s + 1. So the list of sends is the segments of the shard it starts with,
// followed by the list of receives without its last step. The `first_sends` are sent at once, the
// others each as soon as its segment is there. Sends never block, hence no deadlock.
//
// `type`: of the sums; null for a gather.
Status RunRing(Channel* channel, int left, int right, char* data, uint64_t first_tag,
               const std::vector<Range>& sends, size_t first_sends,
               const std::vector<Range>& receives, const DataType* type) {
  TFDEAR_RETURN_IF_ERROR(channel->Reach({left, right}));
  const size_t receives_ahead = channel->ReceivesAhead();
  auto receive = [&](size_t i) {
    char* const target = type == nullptr ? data + receives[i].begin : nullptr;
    return channel->Receive(left, first_tag + i, target, receives[i].size());
  };
  auto send = [&](size_t i) {
    channel->GiveWay();
    channel->Send(right, first_tag + i, data + sends[i].begin, sends[i].size());
  };
  std::vector<Channel::Message*> arrivals(receives.size());
  for (size_t i = 0; i < std::min(receives_ahead, receives.size()); ++i) arrivals[i] = receive(i);
  for (size_t i = 0; i < first_sends; ++i) send(i);
  for (size_t i = 0; i < receives.size(); ++i) {
    TFDEAR_RETURN_IF_ERROR(channel->Wait(arrivals[i], [&](const char* values) {
      if (type == nullptr) return;
      SumInto(*type, data + receives[i].begin, values, receives[i].size() / SizeOf(*type));
    }));
    if (first_sends + i < sends.size()) send(first_sends + i);
    const size_t next = i + receives_ahead;
    if (next < receives.size()) arrivals[next] = receive(next);
  }
  return channel->WaitForSends();
}

}  // namespace

size_t TcpBackend::SegmentBytes(const Shards& shards) const {
  const size_t connections = transport_->connections();
  if (connections == 1) return segment_bytes_;
  // Rounded up: shards may differ by an element.
  const size_t parts = connections * size();
  const size_t part = (TotalOf(shards) / parts / kLeastSegmentBytes + 1) * kLeastSegmentBytes;
  return std::min(segment_bytes_, part);
}

bool TcpBackend::IsDirect(size_t bytes) const {
  const int most = DirectExchange::IsSmall(bytes) ? kMostDirectRanks : 1;
  return size() <= std::max(direct_ranks_, most);
}

bool TcpBackend::IsRecursive(size_t bytes) const {
  if (DirectExchange::IsSmall(bytes)) return true;
  return direct_ranks_ > 0 && (!recursive_.folds() || bytes <= kMostFoldedBytes);
}

Status TcpBackend::ScatterSums(Channel* channel, char* data, const Shards& shards, DataType type) {
  size_t segment_bytes = SegmentBytes(shards);
  if (IsDirect(TotalOf(shards))) {
    return direct_.ReduceScatter(channel, data, shards, type, segment_bytes);
  }
  if (IsRecursive(TotalOf(shards))) {
    return recursive_.ReduceScatter(channel, data, shards, type, segment_bytes);
  }
  segment_bytes -= segment_bytes % SizeOf(type);
  // The shard received last, and finished here, is this rank's: rank - 2 - (size - 2) = rank.
  const auto sends = RingMessages(shards, rank() - 1, segment_bytes);
  const auto receives = RingMessages(shards, rank() - 2, segment_bytes);
  return RunRing(channel, Peer(-1), Peer(1), data, DirectExchange::kReduceTag, sends,
                 SegmentsOf(shards[Peer(-1)], segment_bytes), receives, &type);
}

Status TcpBackend::Gather(Channel* channel, char* data, const Shards& shards) {
  const size_t segment_bytes = SegmentBytes(shards);
  if (IsDirect(TotalOf(shards))) return direct_.AllGather(channel, data, shards, segment_bytes);
  if (IsRecursive(TotalOf(shards))) {
    return recursive_.AllGather(channel, data, shards, segment_bytes);
  }
  const auto sends = RingMessages(shards, rank(), segment_bytes);
  const auto receives = RingMessages(shards, rank() - 1, segment_bytes);
  return RunRing(channel, Peer(-1), Peer(1), data, DirectExchange::kGatherTag, sends,
                 SegmentsOf(shards[rank()], segment_bytes), receives, nullptr);
}

}  // namespace tfdear
