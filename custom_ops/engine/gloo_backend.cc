// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#include "custom_ops/engine/gloo_backend.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "custom_ops/engine/exchange.h"

namespace tfdear {
namespace {

// Fastest of 64 KiB .. 1 MiB on the loopback device with two ranks on two cores and 16 MiB.
constexpr size_t kDefaultSegmentBytes = 512 * 1024;

Status CheckArguments(const void* data, size_t count, DataType type) {
  if (SizeOf(type) == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "unknown data type " + std::to_string(static_cast<int>(type)));
  }
  if (count > 0 && data == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "data is null, expected " + std::to_string(count) + " elements");
  }
  return Status();
}

Status CheckLength(const char* name, const std::vector<size_t>& values, int size) {
  if (values.size() == static_cast<size_t>(size)) return Status();
  return Status(StatusCode::kInvalidArgument, std::string("expected ") + name + " for " +
                                                  std::to_string(size) + " ranks, received " +
                                                  std::to_string(values.size()));
}

std::vector<Range> ConsecutiveRanges(const std::vector<size_t>& sizes) {
  std::vector<Range> ranges;
  size_t begin = 0;
  for (size_t size : sizes) {
    ranges.push_back(Range{begin, begin + size});
    begin += size;
  }
  return ranges;
}

}  // namespace

Status GlooBackend::Create(int rank, int size, const std::string& bind_address,
                           std::chrono::milliseconds timeout,
                           std::unique_ptr<GlooBackend>* result) {
  std::unique_ptr<GlooTransport> transport;
  TFDEAR_RETURN_IF_ERROR(GlooTransport::Create(rank, size, bind_address, timeout, &transport));
  result->reset(new GlooBackend(std::move(transport)));
  return Status();
}

GlooBackend::GlooBackend(std::unique_ptr<GlooTransport> transport)
    : transport_(std::move(transport)),
      segment_bytes_(kDefaultSegmentBytes),
      last_sequence_(std::numeric_limits<uint64_t>::max()) {}

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

uint64_t GlooBackend::NextRound(uint64_t sequence) {
  round_ = sequence == last_sequence_ ? round_ + 1 : 0;
  last_sequence_ = sequence;
  return round_;
}

char* GlooBackend::Scratch(size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return scratch_.data();
}

Status GlooBackend::ReduceScatter(void* data, size_t count, DataType type,
                                  const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckArguments(data, count, type));
  Exchange exchange(transport_.get(), "reduce_scatter", signature, sequence, NextRound(sequence));
  if (size() == 1 || count == 0) return exchange.status();
  char* bytes = static_cast<char*>(data);
  return IsDirect(count * SizeOf(type)) ? DirectReduceScatter(&exchange, bytes, count, type)
                                        : RingReduceScatter(&exchange, bytes, count, type);
}

Status GlooBackend::AllGather(void* data, size_t count, DataType type, const Signature& signature,
                              uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckArguments(data, count, type));
  Exchange exchange(transport_.get(), "all_gather", signature, sequence, NextRound(sequence));
  return Gather(&exchange, static_cast<char*>(data), ShardRanges(count, SizeOf(type), size()));
}

Status GlooBackend::AllReduce(void* data, size_t count, DataType type, const Signature& signature,
                              uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckArguments(data, count, type));
  Exchange exchange(transport_.get(), "all_reduce", signature, sequence, NextRound(sequence));
  if (size() == 1 || count == 0) return exchange.status();
  char* bytes = static_cast<char*>(data);
  if (IsDirect(count * SizeOf(type))) return DirectAllReduce(&exchange, bytes, count, type);
  TFDEAR_RETURN_IF_ERROR(RingReduceScatter(&exchange, bytes, count, type));
  return RingAllGather(&exchange, bytes, ShardRanges(count, SizeOf(type), size()));
}

Status GlooBackend::AllGatherV(const void* input, void* output,
                               const std::vector<size_t>& bytes_of_rank, const Signature& signature,
                               uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckLength("bytes_of_rank", bytes_of_rank, size()));
  Exchange exchange(transport_.get(), "all_gather_v", signature, sequence, NextRound(sequence));
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
  TFDEAR_RETURN_IF_ERROR(CheckLength("send_bytes", send_bytes, size()));
  TFDEAR_RETURN_IF_ERROR(CheckLength("recv_bytes", recv_bytes, size()));
  if (send_bytes[rank()] != recv_bytes[rank()]) {
    return Status(StatusCode::kInvalidArgument,
                  "a rank sends itself " + std::to_string(send_bytes[rank()]) +
                      " bytes, but expects " + std::to_string(recv_bytes[rank()]) + " from itself");
  }
  Exchange exchange(transport_.get(), "all_to_all_v", signature, sequence, NextRound(sequence));
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
  if (root < 0 || root >= size()) {
    return Status(StatusCode::kInvalidArgument, "expected 0 <= root < " + std::to_string(size()) +
                                                    ", received " + std::to_string(root));
  }
  Exchange exchange(transport_.get(), "broadcast", signature, sequence, NextRound(sequence));
  // A binomial tree, numbered from the root: a rank's parent is its number without the lowest set
  // bit; its children set one bit below that. Segments flow down the tree one after another.
  const int number = Peer(-root);
  int lowest_bit = 1;
  while (lowest_bit < size() && (number & lowest_bit) == 0) lowest_bit <<= 1;
  std::vector<int> children;  // the one with the largest subtree first
  for (int bit = lowest_bit >> 1; bit > 0; bit >>= 1) {
    if (number + bit < size()) children.push_back((number + bit + root) % size());
  }
  const int parent = number == 0 ? -1 : (number - lowest_bit + root) % size();
  const size_t segment_count = (bytes + segment_bytes_ - 1) / segment_bytes_;
  char* const begin = static_cast<char*>(data);
  auto length = [&](size_t i) { return std::min(segment_bytes_, bytes - i * segment_bytes_); };
  std::vector<Exchange::Message*> arrivals;
  for (size_t i = 0; parent >= 0 && i < segment_count; ++i) {
    arrivals.push_back(exchange.Receive(parent, i, begin + i * segment_bytes_, length(i)));
  }
  for (size_t i = 0; i < segment_count; ++i) {
    if (parent >= 0) TFDEAR_RETURN_IF_ERROR(exchange.Wait(arrivals[i]));
    for (int child : children) exchange.Send(child, i, begin + i * segment_bytes_, length(i));
  }
  return exchange.WaitForSends();
}

Status GlooBackend::Barrier(const Signature& signature, uint64_t sequence) {
  Exchange exchange(transport_.get(), "barrier", signature, sequence, NextRound(sequence));
  // Dissemination: after round k every rank has heard, indirectly, of the 2^(k+1) - 1 before it.
  const char token = 1;
  for (int distance = 1; distance < size(); distance *= 2) {
    char received = 0;
    Exchange::Message* arrival = exchange.Receive(Peer(-distance), distance, &received, 1);
    exchange.Send(Peer(distance), distance, &token, 1);
    TFDEAR_RETURN_IF_ERROR(exchange.Wait(arrival));
  }
  return exchange.WaitForSends();
}

}  // namespace tfdear
