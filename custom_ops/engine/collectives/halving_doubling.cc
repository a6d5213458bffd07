// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/halving_doubling.h"

#include <algorithm>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/sum.h"
#include "custom_ops/engine/collectives/direct_exchange.h"

namespace tfdear {
namespace {

// Rounds have tags of their own, among which the segments are numbered.
constexpr uint64_t kTagsOfRound = uint64_t{1} << 40;
// Longer than any message.
constexpr size_t kWhole = size_t{1} << 40;
// Before the first round and after the last one.
constexpr uint64_t kFoldTag = DirectExchange::kReduceTag + 61 * kTagsOfRound;
constexpr uint64_t kUnfoldTag = DirectExchange::kReduceTag + 62 * kTagsOfRound;

std::vector<Range> Cut(const std::vector<Range>& ranges, size_t segment_bytes) {
  std::vector<Range> segments;
  for (const Range& range : ranges) {
    for (size_t begin = range.begin; begin < range.end; begin += segment_bytes) {
      segments.push_back({begin, std::min(begin + segment_bytes, range.end)});
    }
  }
  return segments;
}

void Send(Channel* channel, int peer, uint64_t first_tag, const char* data,
          const std::vector<Range>& segments) {
  for (size_t i = 0; i < segments.size(); ++i) {
    channel->GiveWay();
    channel->Send(peer, first_tag + i, data + segments[i].begin, segments[i].size());
  }
}

// `type`: of the sums; null for what replaces what is there.
Status Receive(Channel* channel, int peer, uint64_t first_tag, char* data,
               const std::vector<Range>& segments, const DataType* type) {
  std::vector<Channel::Message*> arrivals(segments.size());
  auto receive = [&](size_t i) {
    char* const target = type == nullptr ? data + segments[i].begin : nullptr;
    arrivals[i] = channel->Receive(peer, first_tag + i, target, segments[i].size());
  };
  const size_t ahead = channel->ReceivesAhead();
  for (size_t i = 0; i < std::min(ahead, segments.size()); ++i) receive(i);
  for (size_t i = 0; i < segments.size(); ++i) {
    TFDEAR_RETURN_IF_ERROR(channel->Wait(arrivals[i], [&](const char* values) {
      if (type == nullptr) return;
      SumInto(*type, data + segments[i].begin, values, segments[i].size() / SizeOf(*type));
    }));
    if (i + ahead < segments.size()) receive(i + ahead);
  }
  return Status();
}

int LargestPowerOfTwo(int size) {
  int power = 1;
  while (2 * power <= size) power *= 2;
  return power;
}

}  // namespace

HalvingDoubling::HalvingDoubling(int rank, int size)
    : rank_(rank), size_(size), power_(LargestPowerOfTwo(size)) {
  if (is_folded() || has_folded()) peers_.push_back(partner_in_fold());
  for (int distance = 1; distance < power_ && !is_folded(); distance *= 2) {
    peers_.push_back(rank_ ^ distance);
  }
}

std::vector<Range> HalvingDoubling::ShardsOfRanks(const std::vector<Range>& shards, int first,
                                                  int count) const {
  std::vector<Range> ranges;
  for (int begin : {first, first + power_}) {
    for (int rank = begin; rank < std::min(begin + count, size_); ++rank) {
      const Range& shard = shards[rank];
      if (!ranges.empty() && ranges.back().end == shard.begin) {
        ranges.back().end = shard.end;
      } else {
        ranges.push_back(shard);
      }
    }
  }
  return ranges;
}

Status HalvingDoubling::ReduceScatter(Channel* channel, char* data,
                                      const std::vector<Range>& shards, DataType type,
                                      size_t segment_bytes) const {
  TFDEAR_RETURN_IF_ERROR(channel->Reach(peers_));
  segment_bytes -= segment_bytes % SizeOf(type);
  const auto all = Cut(ShardsOfRanks(shards, 0, power_), segment_bytes);
  if (is_folded()) {
    Send(channel, partner_in_fold(), kFoldTag, data, all);
    TFDEAR_RETURN_IF_ERROR(channel->WaitForSends());
    return Receive(channel, partner_in_fold(), kUnfoldTag, data,
                   Cut({shards[rank_]}, segment_bytes), nullptr);
  }
  if (has_folded()) {
    TFDEAR_RETURN_IF_ERROR(Receive(channel, partner_in_fold(), kFoldTag, data, all, &type));
  }
  uint64_t tag = DirectExchange::kReduceTag;
  for (int distance = power_ / 2; distance > 0; distance /= 2, tag += kTagsOfRound) {
    const int peer = rank_ ^ distance;
    // The ranks of either half have these bits in common.
    const int own = rank_ & ~(distance - 1);
    const int other = peer & ~(distance - 1);
    Send(channel, peer, tag, data, Cut(ShardsOfRanks(shards, other, distance), segment_bytes));
    TFDEAR_RETURN_IF_ERROR(Receive(
        channel, peer, tag, data, Cut(ShardsOfRanks(shards, own, distance), segment_bytes), &type));
  }
  if (has_folded()) {
    Send(channel, partner_in_fold(), kUnfoldTag, data,
         Cut({shards[partner_in_fold()]}, segment_bytes));
  }
  return channel->WaitForSends();
}

Status HalvingDoubling::AllGather(Channel* channel, char* data, const std::vector<Range>& shards,
                                  size_t segment_bytes) const {
  TFDEAR_RETURN_IF_ERROR(channel->Reach(peers_));
  const uint64_t first_tag = DirectExchange::kGatherTag;
  if (is_folded()) {
    Send(channel, partner_in_fold(), first_tag + kFoldTag, data,
         Cut({shards[rank_]}, segment_bytes));
    TFDEAR_RETURN_IF_ERROR(channel->WaitForSends());
    return Receive(channel, partner_in_fold(), first_tag + kUnfoldTag, data,
                   Cut(ShardsOfRanks(shards, 0, power_), segment_bytes), nullptr);
  }
  if (has_folded()) {
    TFDEAR_RETURN_IF_ERROR(Receive(channel, partner_in_fold(), first_tag + kFoldTag, data,
                                   Cut({shards[partner_in_fold()]}, segment_bytes), nullptr));
  }
  uint64_t tag = first_tag;
  for (int distance = 1; distance < power_; distance *= 2, tag += kTagsOfRound) {
    const int peer = rank_ ^ distance;
    const int own = rank_ & ~(distance - 1);
    const int other = peer & ~(distance - 1);
    Send(channel, peer, tag, data, Cut(ShardsOfRanks(shards, own, distance), segment_bytes));
    TFDEAR_RETURN_IF_ERROR(Receive(channel, peer, tag, data,
                                   Cut(ShardsOfRanks(shards, other, distance), segment_bytes),
                                   nullptr));
  }
  if (has_folded()) {
    Send(channel, partner_in_fold(), first_tag + kUnfoldTag, data,
         Cut(ShardsOfRanks(shards, 0, power_), segment_bytes));
  }
  return channel->WaitForSends();
}

Status HalvingDoubling::AllReduce(Channel* channel, char* data, const std::vector<Range>& shards,
                                  DataType type) const {
  TFDEAR_RETURN_IF_ERROR(channel->Reach(peers_));
  const auto all = Cut(ShardsOfRanks(shards, 0, power_), kWhole);
  if (is_folded()) {
    Send(channel, partner_in_fold(), kFoldTag, data, all);
    TFDEAR_RETURN_IF_ERROR(channel->WaitForSends());
    return Receive(channel, partner_in_fold(), kUnfoldTag, data, all, nullptr);
  }
  if (has_folded()) {
    TFDEAR_RETURN_IF_ERROR(Receive(channel, partner_in_fold(), kFoldTag, data, all, &type));
  }
  uint64_t tag = DirectExchange::kReduceTag;
  for (int distance = power_ / 2; distance > 0; distance /= 2, tag += kTagsOfRound) {
    const int peer = rank_ ^ distance;
    Send(channel, peer, tag, data, all);
    // What is sent must not change before it has gone.
    TFDEAR_RETURN_IF_ERROR(channel->WaitForSends());
    TFDEAR_RETURN_IF_ERROR(Receive(channel, peer, tag, data, all, &type));
  }
  if (has_folded()) Send(channel, partner_in_fold(), kUnfoldTag, data, all);
  return channel->WaitForSends();
}

}  // namespace tfdear
