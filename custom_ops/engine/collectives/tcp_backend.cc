// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/tcp_backend.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "custom_ops/engine/base/sum.h"
#include "custom_ops/engine/collectives/collective_arguments.h"
#include "custom_ops/engine/transport/membership.h"
#include "custom_ops/engine/transport/tcp/tcp_transport.h"

namespace tfdear {
namespace {

// Fastest of 64 KiB .. 1 MiB on the loopback device with two ranks on two cores and 16 MiB.
constexpr size_t kDefaultSegmentBytes = 512 * 1024;

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
  std::vector<int> peers() const {
    std::vector<int> all = children;
    if (parent >= 0) all.push_back(parent);
    return all;
  }
  int parent = -1;
  std::vector<int> children;  // The one with the largest subtree first.
};

}  // namespace

Status TcpBackend::Create(int rank, int size, std::chrono::milliseconds timeout, Sockets sockets,
                          std::unique_ptr<TcpBackend>* result) {
  std::unique_ptr<TcpTransport> transport;
  TFDEAR_RETURN_IF_ERROR(TcpTransport::Create(rank, size, timeout, std::move(sockets), &transport));
  *result = std::make_unique<TcpBackend>(std::move(transport));
  return Status();
}

TcpBackend::TcpBackend(std::unique_ptr<MessageTransport> transport)
    : transport_(std::move(transport)),
      segment_bytes_(kDefaultSegmentBytes),
      direct_ranks_(kMostDirectRanks),
      direct_(transport_->rank(), transport_->size()),
      recursive_(transport_->rank(), transport_->size()) {}

Status TcpBackend::Connect(const std::vector<std::string>& blob_of_rank) {
  TFDEAR_RETURN_IF_ERROR(transport_->Connect(blob_of_rank));
  // All ranks must have been given the same addresses, and be connected, before any goes on.
  return Barrier(SignatureOfBlobs(blob_of_rank), std::numeric_limits<uint64_t>::max());
}

void TcpBackend::set_segment_bytes(size_t bytes) {
  segment_bytes_ = std::max<size_t>(bytes, sizeof(double));
}

Status TcpBackend::ReduceScatter(void* data, const Shards& shards, DataType type,
                                 const Signature& signature, uint64_t sequence) {
  Shards ranges;
  TFDEAR_RETURN_IF_ERROR(ToByteRanges(data, shards, type, size(), &ranges));
  const auto exchange =
      transport_->Open("reduce_scatter", signature, sequence, rounds_.Next(sequence));
  return ScatterSums(exchange.get(), static_cast<char*>(data), ranges, type);
}

Status TcpBackend::AllGather(void* data, const Shards& shards, DataType type,
                             const Signature& signature, uint64_t sequence) {
  Shards ranges;
  TFDEAR_RETURN_IF_ERROR(ToByteRanges(data, shards, type, size(), &ranges));
  const auto exchange = transport_->Open("all_gather", signature, sequence, rounds_.Next(sequence));
  return Gather(exchange.get(), static_cast<char*>(data), ranges);
}

Status TcpBackend::AllReduce(void* data, const Shards& shards, DataType type,
                             const Signature& signature, uint64_t sequence) {
  Shards ranges;
  TFDEAR_RETURN_IF_ERROR(ToByteRanges(data, shards, type, size(), &ranges));
  const auto exchange = transport_->Open("all_reduce", signature, sequence, rounds_.Next(sequence));
  char* const bytes = static_cast<char*>(data);
  if (const size_t total = TotalOf(ranges); DirectExchange::IsSmall(total)) {
    return IsDirect(total) ? direct_.AllReduce(exchange.get(), bytes, ranges, type)
                           : recursive_.AllReduce(exchange.get(), bytes, ranges, type);
  }
  TFDEAR_RETURN_IF_ERROR(ScatterSums(exchange.get(), bytes, ranges, type));
  return Gather(exchange.get(), bytes, ranges);
}

Status TcpBackend::AllGatherV(const void* input, void* output,
                              const std::vector<size_t>& bytes_of_rank, const Signature& signature,
                              uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckLength("bytes_of_rank", bytes_of_rank.size(), size()));
  const auto exchange =
      transport_->Open("all_gather_v", signature, sequence, rounds_.Next(sequence));
  const std::vector<Range> ranges = ConsecutiveRanges(bytes_of_rank);
  const Range mine = ranges[rank()];
  char* const bytes = static_cast<char*>(output);
  if (mine.size() > 0 && bytes + mine.begin != input) {
    std::memcpy(bytes + mine.begin, input, mine.size());
  }
  return Gather(exchange.get(), bytes, ranges);
}

Status TcpBackend::AllToAllPieces(const std::vector<OutgoingPieces>& sends,
                                  const std::vector<IncomingPieces>& receives,
                                  const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckPieces(sends, receives, rank(), size()));
  const auto exchange =
      transport_->Open("all_to_all_v", signature, sequence, rounds_.Next(sequence));
  // Whole pieces: a message for each.
  return direct_.AllToAll(exchange.get(), sends, receives, std::numeric_limits<size_t>::max());
}

Status TcpBackend::Broadcast(void* data, size_t bytes, int root, const Signature& signature,
                             uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckRoot(root, size()));
  const auto exchange = transport_->Open("broadcast", signature, sequence, rounds_.Next(sequence));
  const Tree tree(rank(), size(), root);
  TFDEAR_RETURN_IF_ERROR(exchange->Reach(tree.peers()));
  const size_t segment_count = (bytes + segment_bytes_ - 1) / segment_bytes_;
  char* const begin = static_cast<char*>(data);
  auto length = [&](size_t i) { return std::min(segment_bytes_, bytes - i * segment_bytes_); };
  std::vector<Channel::Message*> arrivals;
  for (size_t i = 0; tree.parent >= 0 && i < segment_count; ++i) {
    arrivals.push_back(exchange->Receive(tree.parent, i, begin + i * segment_bytes_, length(i)));
  }
  for (size_t i = 0; i < segment_count; ++i) {
    if (tree.parent >= 0) TFDEAR_RETURN_IF_ERROR(exchange->Wait(arrivals[i]));
    exchange->GiveWay();
    for (int child : tree.children) {
      exchange->Send(child, i, begin + i * segment_bytes_, length(i));
    }
  }
  return exchange->WaitForSends();
}

Status TcpBackend::Reduce(void* data, size_t count, DataType type, int root,
                          const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckElements(data, count, type));
  TFDEAR_RETURN_IF_ERROR(CheckRoot(root, size()));
  const auto exchange = transport_->Open("reduce", signature, sequence, rounds_.Next(sequence));
  const Tree tree(rank(), size(), root);
  TFDEAR_RETURN_IF_ERROR(exchange->Reach(tree.peers()));
  const size_t element_bytes = SizeOf(type);
  const size_t segment_bytes = segment_bytes_ / element_bytes * element_bytes;
  const size_t bytes = count * element_bytes;
  const size_t segment_count = (bytes + segment_bytes - 1) / segment_bytes;
  const size_t receives_ahead = exchange->ReceivesAhead();
  char* const begin = static_cast<char*>(data);
  auto length = [&](size_t i) { return std::min(segment_bytes, bytes - i * segment_bytes); };
  std::vector<std::vector<Channel::Message*>> arrivals(receives_ahead);
  auto receive = [&](size_t i) {
    auto& messages = arrivals[i % receives_ahead];
    messages.clear();
    for (int child : tree.children) {
      messages.push_back(exchange->Receive(child, i, nullptr, length(i)));
    }
  };
  for (size_t i = 0; i < std::min(receives_ahead, segment_count); ++i) receive(i);
  for (size_t i = 0; i < segment_count; ++i) {
    char* const target = begin + i * segment_bytes;
    for (Channel::Message* message : arrivals[i % receives_ahead]) {
      TFDEAR_RETURN_IF_ERROR(exchange->Wait(message, [&](const char* values) {
        SumInto(type, target, values, length(i) / element_bytes);
      }));
    }
    exchange->GiveWay();
    if (tree.parent >= 0) exchange->Send(tree.parent, i, target, length(i));
    if (i + receives_ahead < segment_count) receive(i + receives_ahead);
  }
  return exchange->WaitForSends();
}

// A sum that nobody looks at: it is over when all have given to it.
Status TcpBackend::Barrier(const Signature& signature, uint64_t sequence) {
  int32_t token = 0;
  char* const bytes = reinterpret_cast<char*>(&token);
  Shards shards(size());
  shards[0] = {0, sizeof(token)};
  const auto exchange = transport_->Open("barrier", signature, sequence, rounds_.Next(sequence));
  return IsDirect(sizeof(token))
             ? direct_.AllReduce(exchange.get(), bytes, shards, DataType::kInt32)
             : recursive_.AllReduce(exchange.get(), bytes, shards, DataType::kInt32);
}

}  // namespace tfdear
