// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/recursive_exchange.h"

#include <algorithm>
#include <utility>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/sum.h"

namespace tfdear {
namespace {

constexpr int kFactors[] = {2, 3, 5, 7};
// Rounds have tags of their own, among which the segments are numbered.
constexpr uint64_t kTagsOfRound = uint64_t{1} << 40;
// Before the first round and after the last one.
constexpr uint64_t kFoldTag = 61 * kTagsOfRound;
constexpr uint64_t kUnfoldTag = 62 * kTagsOfRound;
// Longer than any message.
constexpr size_t kWhole = size_t{1} << 40;

// The factors of a number; none if there are others than kFactors.
std::vector<int> FactorsOf(int number) {
  std::vector<int> factors;
  for (int factor : kFactors) {
    for (; number % factor == 0; number /= factor) factors.push_back(factor);
  }
  if (number > 1) factors.clear();
  return factors;
}

int LargestCore(int size) {
  int core = size;
  while (core > 1 && FactorsOf(core).empty()) --core;
  return core;
}

}  // namespace

RecursiveExchange::RecursiveExchange(int rank, int size)
    : rank_(rank), size_(size), core_(LargestCore(size)) {
  if (is_folded() || has_folded()) peers_.push_back(partner_in_fold());
  if (is_folded()) return;
  int distance = core_;
  for (int factor : FactorsOf(core_)) {
    const int first = rank_ / distance * distance;
    distance /= factor;
    std::vector<int> ranks;
    for (int digit = 0; digit < factor; ++digit) {
      ranks.push_back(first + digit * distance + rank_ % distance);
      if (ranks.back() != rank_) peers_.push_back(ranks.back());
    }
    rounds_.push_back({DirectExchange((rank_ - first) / distance, std::move(ranks)), distance,
                       factor, first, rounds_.size() * kTagsOfRound});
  }
}

std::vector<Range> RecursiveExchange::ShardsOfRanks(const std::vector<Range>& shards, int first,
                                                    int count) const {
  std::vector<Range> ranges;
  for (int begin : {first, first + core_}) {
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

DirectExchange::Parts RecursiveExchange::PartsOf(const Round& round,
                                                 const std::vector<Range>& shards) const {
  DirectExchange::Parts parts;
  for (int digit = 0; digit < round.factor; ++digit) {
    parts.push_back(ShardsOfRanks(shards, round.first + digit * round.distance, round.distance));
  }
  return parts;
}

Status RecursiveExchange::Send(Channel* channel, uint64_t first_tag, const char* data,
                               const std::vector<Range>& ranges, size_t segment_bytes) const {
  for (const Range& segment : Cut(ranges, segment_bytes)) {
    channel->GiveWay();
    channel->Send(partner_in_fold(), first_tag++, data + segment.begin, segment.size());
  }
  return channel->WaitForSends();
}

Status RecursiveExchange::Receive(Channel* channel, uint64_t first_tag, char* data,
                                  const std::vector<Range>& ranges, size_t segment_bytes,
                                  const DataType* type) const {
  const std::vector<Range> segments = Cut(ranges, segment_bytes);
  std::vector<Channel::Message*> arrivals(segments.size());
  auto receive = [&](size_t i) {
    char* const target = type == nullptr ? data + segments[i].begin : nullptr;
    arrivals[i] = channel->Receive(partner_in_fold(), first_tag + i, target, segments[i].size());
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

Status RecursiveExchange::ReduceScatter(Channel* channel, char* data,
                                        const std::vector<Range>& shards, DataType type,
                                        size_t segment_bytes) {
  TFDEAR_RETURN_IF_ERROR(channel->Reach(peers_));
  segment_bytes -= segment_bytes % SizeOf(type);
  const uint64_t tag = DirectExchange::kReduceTag;
  const auto all = ShardsOfRanks(shards, 0, core_);
  if (is_folded()) {
    TFDEAR_RETURN_IF_ERROR(Send(channel, tag + kFoldTag, data, all, segment_bytes));
    return Receive(channel, tag + kUnfoldTag, data, {shards[rank_]}, segment_bytes, nullptr);
  }
  if (has_folded()) {
    TFDEAR_RETURN_IF_ERROR(Receive(channel, tag + kFoldTag, data, all, segment_bytes, &type));
  }
  for (Round& round : rounds_) {
    TFDEAR_RETURN_IF_ERROR(round.exchange.ReduceScatter(channel, data, PartsOf(round, shards), type,
                                                        segment_bytes, tag + round.tag));
  }
  if (!has_folded()) return Status();
  return Send(channel, tag + kUnfoldTag, data, {shards[partner_in_fold()]}, segment_bytes);
}

Status RecursiveExchange::AllGather(Channel* channel, char* data, const std::vector<Range>& shards,
                                    size_t segment_bytes) {
  TFDEAR_RETURN_IF_ERROR(channel->Reach(peers_));
  const uint64_t tag = DirectExchange::kGatherTag;
  const auto all = ShardsOfRanks(shards, 0, core_);
  if (is_folded()) {
    TFDEAR_RETURN_IF_ERROR(Send(channel, tag + kFoldTag, data, {shards[rank_]}, segment_bytes));
    return Receive(channel, tag + kUnfoldTag, data, all, segment_bytes, nullptr);
  }
  if (has_folded()) {
    TFDEAR_RETURN_IF_ERROR(Receive(channel, tag + kFoldTag, data, {shards[partner_in_fold()]},
                                   segment_bytes, nullptr));
  }
  for (auto round = rounds_.rbegin(); round != rounds_.rend(); ++round) {
    TFDEAR_RETURN_IF_ERROR(round->exchange.AllGather(channel, data, PartsOf(*round, shards),
                                                     segment_bytes, tag + round->tag));
  }
  if (!has_folded()) return Status();
  return Send(channel, tag + kUnfoldTag, data, all, segment_bytes);
}

Status RecursiveExchange::AllReduce(Channel* channel, char* data, const std::vector<Range>& shards,
                                    DataType type) {
  TFDEAR_RETURN_IF_ERROR(channel->Reach(peers_));
  const uint64_t tag = DirectExchange::kReduceTag;
  const auto all = ShardsOfRanks(shards, 0, core_);
  if (is_folded()) {
    TFDEAR_RETURN_IF_ERROR(Send(channel, tag + kFoldTag, data, all, kWhole));
    return Receive(channel, tag + kUnfoldTag, data, all, kWhole, nullptr);
  }
  if (has_folded()) {
    TFDEAR_RETURN_IF_ERROR(Receive(channel, tag + kFoldTag, data, all, kWhole, &type));
  }
  for (Round& round : rounds_) {
    TFDEAR_RETURN_IF_ERROR(round.exchange.AllReduce(channel, data, all, type, tag + round.tag));
  }
  return has_folded() ? Send(channel, tag + kUnfoldTag, data, all, kWhole) : Status();
}

}  // namespace tfdear
