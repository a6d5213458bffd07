// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/shared_memory_backend.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <utility>

#include "custom_ops/engine/base/sum.h"
#include "custom_ops/engine/collectives/collective_arguments.h"
#include "custom_ops/engine/transport/membership.h"

namespace tfdear {
namespace {

// In blobs, before the address of the arena.
const std::string kArenaMark = " arena ";

// Summed at once from all ranks: stays in the fastest cache.
constexpr size_t kBlockBytes = 8 * 1024;

// Of every rank's shard, summed and gathered before the next ones.
constexpr size_t kSegmentsOfPart = 2;

// The messages of a collective through the rings of a transport: all to one peer each, or all to
// all peers. Sending copies; what is received is read where its sender put it.
class RingChannel : public Channel {
 public:
  RingChannel(SharedMemoryTransport* transport, bool to_all)
      : transport_(transport), to_all_(to_all) {}

  Message* Send(int peer, uint64_t, const void* data, size_t bytes) override {
    if (status_.ok() && bytes > 0) status_ = transport_->Publish(peer, data, bytes);
    return nullptr;
  }
  Message* Receive(int peer, uint64_t, void* target, size_t bytes) override {
    messages_.push_back({peer, bytes, static_cast<char*>(target)});
    return &messages_.back();
  }
  Status Wait(Message* message, const Use& use) override {
    if (!status_.ok() || message == nullptr || message->bytes == 0) return status_;
    const char* values = nullptr;
    status_ = transport_->Receive(message->peer, to_all_, message->bytes, &values);
    if (!status_.ok()) return status_;
    if (message->target != nullptr) {
      std::memcpy(message->target, values, message->bytes);
      values = message->target;
    }
    if (use) use(values);
    transport_->Release(message->peer, to_all_);
    return status_;
  }
  Status WaitForSends() override { return status_; }
  bool SendsToAll() const override { return to_all_; }
  size_t ReceivesAhead() const override { return 1; }
  // As much as the ring holds, together with what is sent next.
  size_t SendsAhead(size_t messages) const override {
    return transport_->slots() / std::max<size_t>(messages, 1) - 1;
  }

 private:
  static_assert(kAll == SharedMemoryTransport::kAll);
  SharedMemoryTransport* const transport_;
  const bool to_all_;
  Status status_;
  std::deque<Message> messages_;
};

}  // namespace

Status SharedMemoryBackend::Create(int rank, int size, std::chrono::milliseconds timeout,
                                   std::unique_ptr<SharedMemoryBackend>* result,
                                   size_t arena_bytes) {
  std::unique_ptr<SharedMemoryTransport> transport;
  TFDEAR_RETURN_IF_ERROR(SharedMemoryTransport::Create(rank, size, timeout, &transport));
  std::shared_ptr<SharedMemoryArena> arena;
  // Collectives that copy do without it.
  if (size > 1 && arena_bytes > 0) (void)SharedMemoryArena::Create(rank, size, arena_bytes, &arena);
  result->reset(new SharedMemoryBackend(std::move(transport), std::move(arena)));
  (*result)->wants_arena_ = arena_bytes > 0;
  return Status();
}

SharedMemoryBackend::SharedMemoryBackend(std::unique_ptr<SharedMemoryTransport> transport,
                                         std::shared_ptr<SharedMemoryArena> arena)
    : transport_(std::move(transport)),
      arena_(std::move(arena)),
      segment_bytes_(transport_->slot_bytes()),
      direct_(transport_->rank(), transport_->size()) {}

std::string SharedMemoryBackend::Listen() {
  return transport_->Listen() + (arena_ == nullptr ? "" : kArenaMark + arena_->address());
}

Status SharedMemoryBackend::Probe(const std::vector<std::string>& blob_of_rank) {
  std::vector<std::string> rings, arenas;
  for (const std::string& blob : blob_of_rank) {
    const size_t mark = blob.find(kArenaMark);
    rings.push_back(blob.substr(0, mark));
    if (mark != std::string::npos) arenas.push_back(blob.substr(mark + kArenaMark.size()));
  }
  TFDEAR_RETURN_IF_ERROR(transport_->Map(rings));
  bool mapped = arenas.size() == blob_of_rank.size();
  for (int peer = 0; peer < size() && arena_ != nullptr && mapped; ++peer) {
    mapped = arena_->Map(peer, arenas[peer]).ok();
  }
  if (!mapped) arena_ = nullptr;
  return Status();
}

Status SharedMemoryBackend::Connect(const std::vector<std::string>& blob_of_rank) {
  TFDEAR_RETURN_IF_ERROR(Probe(blob_of_rank));
  // All ranks must have been given the same addresses, and have mapped them, before any goes on.
  TFDEAR_RETURN_IF_ERROR(
      Barrier(SignatureOfBlobs(blob_of_rank), std::numeric_limits<uint64_t>::max()));
  transport_->Unpublish();
  if (!wants_arena_) return Status();
  // Some ranks may have been given no addresses, or none for the arenas of others.
  int32_t without = arena_ == nullptr ? 1 : 0;
  TFDEAR_RETURN_IF_ERROR(AllReduce(&without, 1, DataType::kInt32, Signature("ranks without arenas"),
                                   std::numeric_limits<uint64_t>::max()));
  if (without > 0) arena_ = nullptr;
  if (arena_ != nullptr) arena_->Unpublish();
  return Status();
}

void SharedMemoryBackend::set_segment_bytes(size_t bytes) {
  // A multiple of every type's size.
  const size_t whole = bytes / sizeof(double) * sizeof(double);
  segment_bytes_ = std::clamp(whole, sizeof(double), transport_->slot_bytes());
}

Status SharedMemoryBackend::Begin(const char* operation, const Signature& signature,
                                  uint64_t sequence) {
  const uint64_t round = rounds_.Next(sequence);
  return transport_->Begin(DescribeCall(operation, signature, sequence),
                           KeyOfCall(operation, signature, sequence, round));
}

Status SharedMemoryBackend::ReduceScatter(void* data, const Shards& shards, DataType type,
                                          const Signature& signature, uint64_t sequence) {
  Shards ranges;
  TFDEAR_RETURN_IF_ERROR(ToByteRanges(data, shards, type, size(), &ranges));
  TFDEAR_RETURN_IF_ERROR(Begin("reduce_scatter", signature, sequence));
  return ScatterSums(static_cast<char*>(data), ranges, type);
}

Status SharedMemoryBackend::AllGather(void* data, const Shards& shards, DataType type,
                                      const Signature& signature, uint64_t sequence) {
  Shards ranges;
  TFDEAR_RETURN_IF_ERROR(ToByteRanges(data, shards, type, size(), &ranges));
  TFDEAR_RETURN_IF_ERROR(Begin("all_gather", signature, sequence));
  return Gather(static_cast<char*>(data), ranges);
}

Status SharedMemoryBackend::AllReduce(void* data, const Shards& shards, DataType type,
                                      const Signature& signature, uint64_t sequence) {
  Shards ranges;
  TFDEAR_RETURN_IF_ERROR(ToByteRanges(data, shards, type, size(), &ranges));
  TFDEAR_RETURN_IF_ERROR(Begin("all_reduce", signature, sequence));
  char* const bytes = static_cast<char*>(data);
  const size_t total = TotalOf(ranges);
  if (total <= segment_bytes_ && DirectExchange::IsSmall(total, size())) {
    RingChannel channel(transport_.get(), /*to_all=*/true);
    return direct_.AllReduce(&channel, bytes, ranges, type);
  }
  // Part by part: the second half finds in a cache what the first one left there.
  const size_t part_bytes = kSegmentsOfPart * segment_bytes_;
  size_t parts = 0;
  for (const Range& range : ranges) parts = std::max(parts, SegmentsOf(range, part_bytes));
  for (size_t i = 0; i < parts; ++i) {
    Shards part;
    for (const Range& range : ranges) part.push_back(SegmentOf(range, i, part_bytes));
    TFDEAR_RETURN_IF_ERROR(ScatterSums(bytes, part, type));
    TFDEAR_RETURN_IF_ERROR(Gather(bytes, part));
  }
  return Status();
}

Status SharedMemoryBackend::Reduce(void* data, size_t count, DataType type, int root,
                                   const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckRoot(root, size()));
  Shards ranges;
  TFDEAR_RETURN_IF_ERROR(ToByteRanges(data, ShardsOf(count, size()), type, size(), &ranges));
  TFDEAR_RETURN_IF_ERROR(Begin("reduce", signature, sequence));
  char* const bytes = static_cast<char*>(data);
  TFDEAR_RETURN_IF_ERROR(ScatterSums(bytes, ranges, type));
  std::vector<OutgoingPieces> sends(size());
  std::vector<IncomingPieces> receives(size());
  if (rank() != root) sends[root] = {{bytes + ranges[rank()].begin, ranges[rank()].size()}};
  for (int owner = 0; rank() == root && owner < size(); ++owner) {
    if (owner != root) receives[owner] = {{bytes + ranges[owner].begin, ranges[owner].size()}};
  }
  return AllToAll(sends, receives);
}

Status SharedMemoryBackend::ScatterSums(char* data, const Shards& shards, DataType type) {
  RingChannel channel(transport_.get(), /*to_all=*/false);
  return direct_.ReduceScatter(&channel, data, shards, type, segment_bytes_);
}

Status SharedMemoryBackend::Gather(char* data, const Shards& shards) {
  RingChannel channel(transport_.get(), /*to_all=*/true);
  return direct_.AllGather(&channel, data, shards, segment_bytes_);
}

Status SharedMemoryBackend::AllToAll(const std::vector<OutgoingPieces>& sends,
                                     const std::vector<IncomingPieces>& receives) {
  RingChannel channel(transport_.get(), /*to_all=*/false);
  return direct_.AllToAll(&channel, sends, receives, segment_bytes_);
}

Status SharedMemoryBackend::ReduceScatterShared(void* data, int host, const Shards& shards,
                                                DataType type, const Signature& signature,
                                                uint64_t sequence, char** sum) {
  *sum = nullptr;
  if (arena_ == nullptr) return ReduceScatter(data, shards, type, signature, sequence);
  TFDEAR_RETURN_IF_ERROR(CheckRoot(host, size()));
  Shards ranges;
  TFDEAR_RETURN_IF_ERROR(ToByteRanges(data, shards, type, size(), &ranges));
  TFDEAR_RETURN_IF_ERROR(Begin("reduce_scatter", signature, sequence));
  size_t bytes = 0;
  for (const Range& range : ranges) bytes = std::max(bytes, range.end);
  std::vector<char*> data_of_rank;
  // Counted before any peer can read it, and so before any can give it back.
  const bool lends = rank() == host && arena_->OffsetOf(data) != 0;
  if (lends) arena_->Lend(static_cast<char*>(data), size() - 1);
  TFDEAR_RETURN_IF_ERROR(FindData(data, bytes, &data_of_rank));
  if (data_of_rank.empty()) {
    if (lends) arena_->Lend(static_cast<char*>(data), 0);
    return ScatterSums(static_cast<char*>(data), ranges, type);
  }
  SumInPlace(data_of_rank, host, ranges[rank()], type);
  // Peers read their shards of it, and then this rank's sum.
  transport_->CountSent(TotalOf(ranges));
  *sum = data_of_rank[host];
  return Status();
}

// Where the data of every rank are mapped here; nothing if those of some rank are not in its arena.
Status SharedMemoryBackend::FindData(void* data, size_t bytes, std::vector<char*>* data_of_rank) {
  std::vector<uint64_t> offsets(size());
  offsets[rank()] = arena_->OffsetOf(data);
  TFDEAR_RETURN_IF_ERROR(Gather(reinterpret_cast<char*>(offsets.data()),
                                ShardsOf(offsets.size() * sizeof(uint64_t), size())));
  data_of_rank->assign(size(), static_cast<char*>(data));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || offsets[peer] == 0) continue;
    (*data_of_rank)[peer] = arena_->At(peer, offsets[peer], bytes);
    if ((*data_of_rank)[peer] == nullptr) {
      FailureState* const failure = transport_->failure();
      return failure->Fail(Internal(failure->NameOf(peer), " announced data of ", bytes,
                                    " bytes at ", offsets[peer], ", outside of its memory"),
                           peer);
    }
  }
  if (std::count(offsets.begin(), offsets.end(), 0) > 0) data_of_rank->clear();
  return Status();
}

// In the order of the ranks, into the data of `host`.
void SharedMemoryBackend::SumInPlace(const std::vector<char*>& data_of_rank, int host, Range shard,
                                     DataType type) {
  alignas(64) char block[kBlockBytes];
  for (size_t begin = shard.begin; begin < shard.end; begin += kBlockBytes) {
    const size_t bytes = std::min(kBlockBytes, shard.end - begin);
    const size_t count = bytes / SizeOf(type);
    char* const target = data_of_rank[host] + begin;
    // The first two summands may change places.
    char* const sum = host <= 1 ? target : block;
    const int first = host <= 1 ? host : 0;
    if (sum != target) std::memcpy(sum, data_of_rank[first] + begin, bytes);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != first) SumInto(type, sum, data_of_rank[peer] + begin, count);
    }
    if (sum != target) std::memcpy(target, sum, bytes);
  }
}

Status SharedMemoryBackend::AllGatherV(const void* input, void* output,
                                       const std::vector<size_t>& bytes_of_rank,
                                       const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckLength("bytes_of_rank", bytes_of_rank.size(), size()));
  TFDEAR_RETURN_IF_ERROR(Begin("all_gather_v", signature, sequence));
  const std::vector<Range> ranges = ConsecutiveRanges(bytes_of_rank);
  const Range mine = ranges[rank()];
  char* const bytes = static_cast<char*>(output);
  if (mine.size() > 0 && bytes + mine.begin != input) {
    std::memcpy(bytes + mine.begin, input, mine.size());
  }
  return Gather(bytes, ranges);
}

Status SharedMemoryBackend::AllToAllPieces(const std::vector<OutgoingPieces>& sends,
                                           const std::vector<IncomingPieces>& receives,
                                           const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckPieces(sends, receives, rank(), size()));
  TFDEAR_RETURN_IF_ERROR(Begin("all_to_all_v", signature, sequence));
  return AllToAll(sends, receives);
}

Status SharedMemoryBackend::Broadcast(void* data, size_t bytes, int root,
                                      const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckRoot(root, size()));
  TFDEAR_RETURN_IF_ERROR(Begin("broadcast", signature, sequence));
  Shards shards(size(), Range{0, 0});
  shards[root] = Range{0, bytes};
  TFDEAR_RETURN_IF_ERROR(Gather(static_cast<char*>(data), shards));
  // The root hears nothing from the others: without this it would go on, and might end, while they
  // are in another collective.
  return rank() == root ? transport_->AwaitReaders() : Status();
}

Status SharedMemoryBackend::Barrier(const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(Begin("barrier", signature, sequence));
  if (size() == 1) return Status();
  TFDEAR_RETURN_IF_ERROR(transport_->Publish(SharedMemoryTransport::kAll, nullptr, 0));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const char* nothing = nullptr;
    TFDEAR_RETURN_IF_ERROR(transport_->Receive(peer, /*to_all=*/true, 0, &nothing));
    transport_->Release(peer, /*to_all=*/true);
  }
  return Status();
}

}  // namespace tfdear
