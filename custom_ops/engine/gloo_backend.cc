// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#include "custom_ops/engine/gloo_backend.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "custom_ops/engine/collective_call.h"
#include "custom_ops/engine/exchange.h"
#include "custom_ops/engine/reduce.h"

namespace tfdear {
namespace {

// Fastest of 64 KiB .. 1 MiB on the loopback device with two ranks on two cores and 16 MiB.
constexpr size_t kDefaultSegmentBytes = 512 * 1024;

// With fewer, one connection runs dry between segments.
constexpr size_t kLeastReceivesAhead = 4;

// A direct exchange has as many senders per receiver: more of them would collide in the switch.
constexpr int kDefaultDirectRanks = 8;

// A binomial tree, numbered from its root: a rank's parent is its number without the lowest set
// bit; its children set one bit below that. Segments flow along it one after another.
struct Tree {
  Tree(int rank, int size, int root) {
    const int number = ((rank - root) % size + size) % size;
    int lowest_bit = 1;
    while (lowest_bit < size && (number & lowest_bit) == 0) lowest_bit <<= 1;
    for (int bit = lowest_bit >> 1; bit > 0; bit >>= 1) {
      if (number + bit < size) children.push_back((number + bit + root) % size);
    }
    if (number != 0) parent = (number - lowest_bit + root) % size;
  }
  int parent = -1;
  std::vector<int> children;  // The one with the largest subtree first.
};

}  // namespace

Status GlooBackend::Create(int rank, int size, const std::string& bind_address,
                           std::chrono::milliseconds timeout, std::unique_ptr<GlooBackend>* result,
                           int connections) {
  std::unique_ptr<GlooTransport> transport;
  TFDEAR_RETURN_IF_ERROR(
      GlooTransport::Create(rank, size, bind_address, timeout, connections, &transport));
  result->reset(new GlooBackend(std::move(transport)));
  return Status();
}

GlooBackend::GlooBackend(std::unique_ptr<GlooTransport> transport)
    : transport_(std::move(transport)),
      receives_ahead_(std::max(kLeastReceivesAhead, size_t{2} * transport_->connections())),
      segment_bytes_(kDefaultSegmentBytes),
      direct_ranks_(kDefaultDirectRanks) {}

GlooBackend::~GlooBackend() = default;

std::string GlooBackend::Listen() { return transport_->Listen(); }

Status GlooBackend::Connect(const std::vector<std::string>& blob_of_rank) {
  TFDEAR_RETURN_IF_ERROR(transport_->Connect(blob_of_rank));
  // All ranks must have been given the same addresses, and be connected, before anyone goes on.
  std::string everybody = "connect";
  for (const std::string& blob : blob_of_rank) everybody += "\n" + blob;
  const Signature addresses(everybody);
  return Barrier(Signature("connect " + std::to_string(addresses.hash())),
                 std::numeric_limits<uint64_t>::max());
}

void GlooBackend::set_segment_bytes(size_t bytes) {
  segment_bytes_ = std::max<size_t>(bytes, sizeof(double));
}

char* GlooBackend::Scratch(size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return scratch_.data();
}

Status GlooBackend::ReduceScatter(void* data, const Shards& shards, DataType type,
                                  const Signature& signature, uint64_t sequence) {
  Shards ranges;
  TFDEAR_RETURN_IF_ERROR(ToByteRanges(data, shards, type, size(), &ranges));
  Exchange exchange(transport_.get(), "reduce_scatter", signature, sequence,
                    rounds_.Next(sequence));
  const size_t total = TotalOf(ranges);
  if (size() == 1 || total == 0) return exchange.status();
  char* bytes = static_cast<char*>(data);
  return IsDirect(total) ? DirectReduceScatter(&exchange, bytes, ranges, type)
                         : RingReduceScatter(&exchange, bytes, ranges, type);
}

Status GlooBackend::AllGather(void* data, const Shards& shards, DataType type,
                              const Signature& signature, uint64_t sequence) {
  Shards ranges;
  TFDEAR_RETURN_IF_ERROR(ToByteRanges(data, shards, type, size(), &ranges));
  Exchange exchange(transport_.get(), "all_gather", signature, sequence, rounds_.Next(sequence));
  return Gather(&exchange, static_cast<char*>(data), ranges);
}

Status GlooBackend::AllReduce(void* data, const Shards& shards, DataType type,
                              const Signature& signature, uint64_t sequence) {
  Shards ranges;
  TFDEAR_RETURN_IF_ERROR(ToByteRanges(data, shards, type, size(), &ranges));
  Exchange exchange(transport_.get(), "all_reduce", signature, sequence, rounds_.Next(sequence));
  const size_t total = TotalOf(ranges);
  if (size() == 1 || total == 0) return exchange.status();
  char* bytes = static_cast<char*>(data);
  if (IsSmall(total)) return DirectAllReduce(&exchange, bytes, ranges, type);
  if (IsDirect(total)) {
    TFDEAR_RETURN_IF_ERROR(DirectReduceScatter(&exchange, bytes, ranges, type));
    return DirectAllGather(&exchange, bytes, ranges);
  }
  TFDEAR_RETURN_IF_ERROR(RingReduceScatter(&exchange, bytes, ranges, type));
  return RingAllGather(&exchange, bytes, ranges);
}

Status GlooBackend::Gather(Exchange* exchange, char* data, const Shards& shards) {
  const size_t total = TotalOf(shards);
  if (size() == 1 || total == 0) return exchange->status();
  return IsDirect(total) ? DirectAllGather(exchange, data, shards)
                         : RingAllGather(exchange, data, shards);
}

Status GlooBackend::AllGatherV(const void* input, void* output,
                               const std::vector<size_t>& bytes_of_rank, const Signature& signature,
                               uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckLength("bytes_of_rank", bytes_of_rank.size(), size()));
  Exchange exchange(transport_.get(), "all_gather_v", signature, sequence, rounds_.Next(sequence));
  const std::vector<Range> ranges = ConsecutiveRanges(bytes_of_rank);
  const Range mine = ranges[rank()];
  char* const bytes = static_cast<char*>(output);
  if (mine.size() > 0 && bytes + mine.begin != input) {
    std::memcpy(bytes + mine.begin, input, mine.size());
  }
  return Gather(&exchange, bytes, ranges);
}

Status GlooBackend::AllToAllV(const void* input, const std::vector<size_t>& send_bytes,
                              void* output, const std::vector<size_t>& recv_bytes,
                              const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckExchange(send_bytes, recv_bytes, rank(), size()));
  Exchange exchange(transport_.get(), "all_to_all_v", signature, sequence, rounds_.Next(sequence));
  if (!exchange.status().ok()) return exchange.status();
  const char* const from = static_cast<const char*>(input);
  char* const to = static_cast<char*>(output);
  const std::vector<Range> sends = ConsecutiveRanges(send_bytes);
  const std::vector<Range> receives = ConsecutiveRanges(recv_bytes);
  std::vector<Exchange::Message*> arrivals;
  // Everybody starts with another peer, so that no rank is everyone's first target.
  for (int offset = 1; offset < size(); ++offset) {
    const Range range = receives[Peer(-offset)];
    arrivals.push_back(exchange.Receive(Peer(-offset), 0, to + range.begin, range.size()));
  }
  for (int offset = 1; offset < size(); ++offset) {
    const Range range = sends[Peer(offset)];
    exchange.Send(Peer(offset), 0, from + range.begin, range.size());
  }
  const Range mine = sends[rank()];
  if (mine.size() > 0) std::memcpy(to + receives[rank()].begin, from + mine.begin, mine.size());
  for (Exchange::Message* arrival : arrivals) TFDEAR_RETURN_IF_ERROR(exchange.Wait(arrival));
  return exchange.WaitForSends();
}

Status GlooBackend::Broadcast(void* data, size_t bytes, int root, const Signature& signature,
                              uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckRoot(root, size()));
  Exchange exchange(transport_.get(), "broadcast", signature, sequence, rounds_.Next(sequence));
  const Tree tree(rank(), size(), root);
  const size_t segment_count = (bytes + segment_bytes_ - 1) / segment_bytes_;
  char* const begin = static_cast<char*>(data);
  auto length = [&](size_t i) { return std::min(segment_bytes_, bytes - i * segment_bytes_); };
  std::vector<Exchange::Message*> arrivals;
  for (size_t i = 0; tree.parent >= 0 && i < segment_count; ++i) {
    arrivals.push_back(exchange.Receive(tree.parent, i, begin + i * segment_bytes_, length(i)));
  }
  for (size_t i = 0; i < segment_count; ++i) {
    if (tree.parent >= 0) TFDEAR_RETURN_IF_ERROR(exchange.Wait(arrivals[i]));
    for (int child : tree.children) {
      exchange.Send(child, i, begin + i * segment_bytes_, length(i));
    }
  }
  return exchange.WaitForSends();
}

Status GlooBackend::Reduce(void* data, size_t count, DataType type, int root,
                           const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckElements(data, count, type));
  TFDEAR_RETURN_IF_ERROR(CheckRoot(root, size()));
  Exchange exchange(transport_.get(), "reduce", signature, sequence, rounds_.Next(sequence));
  const Tree tree(rank(), size(), root);
  const size_t element_bytes = SizeOf(type);
  const size_t segment_bytes = segment_bytes_ / element_bytes * element_bytes;
  const size_t bytes = count * element_bytes;
  const size_t segment_count = (bytes + segment_bytes - 1) / segment_bytes;
  const size_t num_children = tree.children.size();
  char* const begin = static_cast<char*>(data);
  char* const scratch = Scratch(receives_ahead_ * num_children * segment_bytes);
  auto length = [&](size_t i) { return std::min(segment_bytes, bytes - i * segment_bytes); };
  auto slot = [&](size_t i, size_t child) {
    return scratch + (i % receives_ahead_ * num_children + child) * segment_bytes;
  };
  std::vector<std::vector<Exchange::Message*>> arrivals(receives_ahead_);
  auto receive = [&](size_t i) {
    auto& messages = arrivals[i % receives_ahead_];
    messages.clear();
    for (size_t c = 0; c < num_children; ++c) {
      messages.push_back(exchange.Receive(tree.children[c], i, slot(i, c), length(i)));
    }
  };
  for (size_t i = 0; i < std::min(receives_ahead_, segment_count); ++i) receive(i);
  for (size_t i = 0; i < segment_count; ++i) {
    char* const target = begin + i * segment_bytes;
    for (size_t c = 0; c < num_children; ++c) {
      TFDEAR_RETURN_IF_ERROR(exchange.Wait(arrivals[i % receives_ahead_][c]));
      SumInto(type, target, slot(i, c), length(i) / element_bytes);
    }
    if (tree.parent >= 0) exchange.Send(tree.parent, i, target, length(i));
    if (i + receives_ahead_ < segment_count) receive(i + receives_ahead_);
  }
  return exchange.WaitForSends();
}

Status GlooBackend::Barrier(const Signature& signature, uint64_t sequence) {
  // Before the exchange, which may still receive when a wait failed.
  const char token = 1;
  char received = 0;
  Exchange exchange(transport_.get(), "barrier", signature, sequence, rounds_.Next(sequence));
  // Dissemination: after round k every rank has heard, indirectly, of the 2^(k+1) - 1 before it.
  for (int distance = 1; distance < size(); distance *= 2) {
    Exchange::Message* arrival = exchange.Receive(Peer(-distance), distance, &received, 1);
    exchange.Send(Peer(distance), distance, &token, 1);
    TFDEAR_RETURN_IF_ERROR(exchange.Wait(arrival));
  }
  return exchange.WaitForSends();
}

}  // namespace tfdear
