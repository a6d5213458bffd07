// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#include "custom_ops/engine/shared_memory_backend.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "custom_ops/engine/reduce.h"

namespace tfdear {
namespace {

// Up to here a sum of everything on all ranks is faster than two steps on shards.
constexpr size_t kSmallBytes = 8 * 1024;
constexpr int kSmallRanks = 16;

// In blobs, before the address of the arena.
const std::string kArenaMark = " arena ";

// Summed at once from all ranks: stays in the fastest cache.
constexpr size_t kBlockBytes = 8 * 1024;

// Segment `index` of a range; empty behind its end.
Range SegmentOf(Range range, size_t index, size_t segment_bytes) {
  const size_t begin = std::min(range.begin + index * segment_bytes, range.end);
  return Range{begin, std::min(begin + segment_bytes, range.end)};
}

size_t SegmentsOf(size_t bytes, size_t segment_bytes) {
  return (bytes + segment_bytes - 1) / segment_bytes;
}

size_t MostSegments(const std::vector<Range>& ranges, size_t segment_bytes) {
  size_t most = 0;
  for (const Range& range : ranges) most = std::max(most, SegmentsOf(range.size(), segment_bytes));
  return most;
}

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
      segment_bytes_(transport_->slot_bytes()) {}

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
  // All ranks must have been given the same addresses, and have mapped them, before anyone goes on.
  std::string everybody = "connect";
  for (const std::string& blob : blob_of_rank) everybody += "\n" + blob;
  const Signature addresses(everybody);
  TFDEAR_RETURN_IF_ERROR(Barrier(Signature("connect " + std::to_string(addresses.hash())),
                                 std::numeric_limits<uint64_t>::max()));
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

Status SharedMemoryBackend::RunRounds(size_t rounds, size_t per_round,
                                      const std::function<Status(size_t)>& publish,
                                      const std::function<Status(size_t)>& read) {
  const size_t ahead = std::min(rounds, transport_->slots() / per_round);
  for (size_t i = 0; i < ahead; ++i) TFDEAR_RETURN_IF_ERROR(publish(i));
  for (size_t i = 0; i < rounds; ++i) {
    TFDEAR_RETURN_IF_ERROR(read(i));
    if (i + ahead < rounds) TFDEAR_RETURN_IF_ERROR(publish(i + ahead));
  }
  return Status();
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
  if (TotalOf(ranges) <= std::min(kSmallBytes, segment_bytes_) && size() <= kSmallRanks) {
    return SmallAllReduce(bytes, ranges, type);
  }
  TFDEAR_RETURN_IF_ERROR(ScatterSums(bytes, ranges, type));
  return Gather(bytes, ranges);
}

Status SharedMemoryBackend::Reduce(void* data, size_t count, DataType type, int root,
                                   const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckRoot(root, size()));
  Shards ranges;
  TFDEAR_RETURN_IF_ERROR(ToByteRanges(data, ShardsOf(count, size()), type, size(), &ranges));
  TFDEAR_RETURN_IF_ERROR(Begin("reduce", signature, sequence));
  TFDEAR_RETURN_IF_ERROR(ScatterSums(static_cast<char*>(data), ranges, type));
  return GatherOnRoot(static_cast<char*>(data), ranges, root);
}

Status SharedMemoryBackend::ScatterSums(char* data, const Shards& shards, DataType type) {
  if (size() == 1) return Status();
  const Range mine = shards[rank()];
  auto publish = [&](size_t i) {
    // Everybody starts with another owner.
    for (int offset = 1; offset < size(); ++offset) {
      const Range segment = SegmentOf(shards[Peer(offset)], i, segment_bytes_);
      if (segment.size() == 0) continue;
      TFDEAR_RETURN_IF_ERROR(
          transport_->Publish(Peer(offset), data + segment.begin, segment.size()));
    }
    return Status();
  };
  auto read = [&](size_t i) {
    const Range segment = SegmentOf(mine, i, segment_bytes_);
    return segment.size() == 0 ? Status() : SumSegment(data + segment.begin, segment.size(), type);
  };
  return RunRounds(MostSegments(shards, segment_bytes_), size() - 1, publish, read);
}

Status SharedMemoryBackend::SumSegment(char* target, size_t bytes, DataType type) {
  const size_t count = bytes / SizeOf(type);
  // In the order of the ranks: the own values on top of the sum of those before this rank (two
  // summands may change places), then those after.
  const bool many_before = rank() > 1;
  if (many_before && scratch_.size() < bytes) scratch_.resize(bytes);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) {
      if (many_before) SumInto(type, target, scratch_.data(), count);
      continue;
    }
    const char* values = nullptr;
    TFDEAR_RETURN_IF_ERROR(transport_->Receive(peer, /*to_all=*/false, bytes, &values));
    if (peer > rank() || !many_before) {
      SumInto(type, target, values, count);
    } else if (peer == 0) {
      std::memcpy(scratch_.data(), values, bytes);
    } else {
      SumInto(type, scratch_.data(), values, count);
    }
    transport_->Release(peer, /*to_all=*/false);
  }
  return Status();
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
  // Before anybody can read it, so that nobody gives it back earlier.
  const bool lends = rank() == host && arena_->OffsetOf(data) != 0;
  if (lends) arena_->Lend(static_cast<char*>(data), size() - 1);
  TFDEAR_RETURN_IF_ERROR(FindData(data, bytes, &data_of_rank));
  if (data_of_rank.empty()) {
    if (lends) arena_->Lend(static_cast<char*>(data), 0);
    return ScatterSums(static_cast<char*>(data), ranges, type);
  }
  SumInPlace(data_of_rank, host, ranges[rank()], type);
  // The others take their shards, and then the sum of this one.
  transport_->CountSent(TotalOf(ranges));
  *sum = data_of_rank[host];
  return Status();
}

// Where the data of all ranks are mapped here; empty if some rank's cannot be.
Status SharedMemoryBackend::FindData(void* data, size_t bytes, std::vector<char*>* data_of_rank) {
  const uint64_t own = arena_->OffsetOf(data);
  TFDEAR_RETURN_IF_ERROR(transport_->Publish(SharedMemoryTransport::kAll, &own, sizeof(own)));
  bool all = own != 0;
  data_of_rank->assign(size(), static_cast<char*>(data));
  for (int offset = 1; offset < size(); ++offset) {
    const int peer = Peer(offset);
    const char* message = nullptr;
    TFDEAR_RETURN_IF_ERROR(transport_->Receive(peer, /*to_all=*/true, sizeof(uint64_t), &message));
    uint64_t place;
    std::memcpy(&place, message, sizeof(place));
    transport_->Release(peer, /*to_all=*/true);
    if (place == 0) {
      all = false;
      continue;
    }
    (*data_of_rank)[peer] = arena_->At(peer, place, bytes);
    if ((*data_of_rank)[peer] == nullptr) {
      return transport_->Fail(
          Status(StatusCode::kInternal, transport_->NameOf(peer) + " announced data of " +
                                            std::to_string(bytes) + " bytes at " +
                                            std::to_string(place) + ", outside of its memory"),
          peer);
    }
  }
  if (!all) data_of_rank->clear();
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

Status SharedMemoryBackend::Gather(char* data, const Shards& shards) {
  if (size() == 1) return Status();
  auto publish = [&](size_t i) {
    const Range segment = SegmentOf(shards[rank()], i, segment_bytes_);
    if (segment.size() == 0) return Status();
    return transport_->Publish(SharedMemoryTransport::kAll, data + segment.begin, segment.size());
  };
  auto read = [&](size_t i) {
    for (int offset = 1; offset < size(); ++offset) {
      const int peer = Peer(-offset);
      const Range segment = SegmentOf(shards[peer], i, segment_bytes_);
      if (segment.size() == 0) continue;
      const char* values = nullptr;
      TFDEAR_RETURN_IF_ERROR(transport_->Receive(peer, /*to_all=*/true, segment.size(), &values));
      std::memcpy(data + segment.begin, values, segment.size());
      transport_->Release(peer, /*to_all=*/true);
    }
    return Status();
  };
  return RunRounds(MostSegments(shards, segment_bytes_), 1, publish, read);
}

Status SharedMemoryBackend::GatherOnRoot(char* data, const Shards& shards, int root) {
  if (size() == 1) return Status();
  auto publish = [&](size_t i) {
    const Range segment = SegmentOf(shards[rank()], i, segment_bytes_);
    if (rank() == root || segment.size() == 0) return Status();
    return transport_->Publish(root, data + segment.begin, segment.size());
  };
  auto read = [&](size_t i) {
    for (int peer = 0; peer < size() && rank() == root; ++peer) {
      const Range segment = SegmentOf(shards[peer], i, segment_bytes_);
      if (peer == root || segment.size() == 0) continue;
      const char* values = nullptr;
      TFDEAR_RETURN_IF_ERROR(transport_->Receive(peer, /*to_all=*/false, segment.size(), &values));
      std::memcpy(data + segment.begin, values, segment.size());
      transport_->Release(peer, /*to_all=*/false);
    }
    return Status();
  };
  return RunRounds(MostSegments(shards, segment_bytes_), 1, publish, read);
}

Status SharedMemoryBackend::SmallAllReduce(char* data, const Shards& shards, DataType type) {
  const size_t bytes = TotalOf(shards);
  if (size() == 1 || bytes == 0) return Status();
  if (scratch_.size() < 2 * bytes) scratch_.resize(2 * bytes);
  char* const own = scratch_.data();
  char* const sum = own + bytes;
  // The shards may be pieces of the data: they travel side by side.
  auto each_shard = [&](auto move) {
    size_t offset = 0;
    for (const Range& shard : shards) {
      if (shard.size() > 0) move(offset, data + shard.begin, shard.size());
      offset += shard.size();
    }
  };
  each_shard(
      [&](size_t offset, char* shard, size_t size) { std::memcpy(own + offset, shard, size); });
  TFDEAR_RETURN_IF_ERROR(transport_->Publish(SharedMemoryTransport::kAll, own, bytes));
  for (int peer = 0; peer < size(); ++peer) {
    const char* values = own;
    if (peer != rank()) {
      TFDEAR_RETURN_IF_ERROR(transport_->Receive(peer, /*to_all=*/true, bytes, &values));
    }
    if (peer == 0) {
      std::memcpy(sum, values, bytes);
    } else {
      SumInto(type, sum, values, bytes / SizeOf(type));
    }
    if (peer != rank()) transport_->Release(peer, /*to_all=*/true);
  }
  each_shard(
      [&](size_t offset, char* shard, size_t size) { std::memcpy(shard, sum + offset, size); });
  return Status();
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

Status SharedMemoryBackend::AllToAllV(const void* input, const std::vector<size_t>& send_bytes,
                                      void* output, const std::vector<size_t>& recv_bytes,
                                      const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckExchange(send_bytes, recv_bytes, rank(), size()));
  TFDEAR_RETURN_IF_ERROR(Begin("all_to_all_v", signature, sequence));
  const char* const from = static_cast<const char*>(input);
  char* const to = static_cast<char*>(output);
  const std::vector<Range> sends = ConsecutiveRanges(send_bytes);
  const std::vector<Range> receives = ConsecutiveRanges(recv_bytes);
  const Range mine = sends[rank()];
  if (mine.size() > 0) std::memcpy(to + receives[rank()].begin, from + mine.begin, mine.size());
  if (size() == 1) return Status();
  auto publish = [&](size_t i) {
    for (int offset = 1; offset < size(); ++offset) {
      const Range segment = SegmentOf(sends[Peer(offset)], i, segment_bytes_);
      if (segment.size() == 0) continue;
      TFDEAR_RETURN_IF_ERROR(
          transport_->Publish(Peer(offset), from + segment.begin, segment.size()));
    }
    return Status();
  };
  auto read = [&](size_t i) {
    for (int offset = 1; offset < size(); ++offset) {
      const int peer = Peer(-offset);
      const Range segment = SegmentOf(receives[peer], i, segment_bytes_);
      if (segment.size() == 0) continue;
      const char* values = nullptr;
      TFDEAR_RETURN_IF_ERROR(transport_->Receive(peer, /*to_all=*/false, segment.size(), &values));
      std::memcpy(to + segment.begin, values, segment.size());
      transport_->Release(peer, /*to_all=*/false);
    }
    return Status();
  };
  // Rounds differ in number between ranks, since ranks do not know what others exchange; a rank
  // takes part in all that concern it.
  const size_t rounds =
      std::max(MostSegments(sends, segment_bytes_), MostSegments(receives, segment_bytes_));
  return RunRounds(rounds, size() - 1, publish, read);
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
