// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#ifndef TFDEAR_ENGINE_SHARED_MEMORY_BACKEND_H_
#define TFDEAR_ENGINE_SHARED_MEMORY_BACKEND_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/collective_backend.h"
#include "custom_ops/engine/collective_call.h"
#include "custom_ops/engine/shared_memory_arena.h"
#include "custom_ops/engine/shared_memory_transport.h"

namespace tfdear {

// Collectives for host memory among ranks of one node, through shared memory.
//
// Everybody hands to the owner of a shard what it has for it, and the owner sums in the order of
// the ranks, straight from the others' memory; so results are those of GlooBackend's direct
// exchange, bit for bit, and do not depend on how values are put into buckets. What goes to all is
// published once. A small AllReduce is one exchange among all; Reduce is a reduce-scatter whose
// shards are then handed to the root, so that all ranks take part in the sum.
//
// [Note: rounds]
// Data pass through rings of a few MiB, in segments. In round i a rank publishes segment i of
// everything it has to give, then reads segment i of everything it is to get; it publishes some
// rounds ahead of what it reads, at most as many as its ring holds. So the rank that is furthest
// behind never waits for a slot that only a later round of another rank would free: no deadlock.
class SharedMemoryBackend : public CollectiveBackend {
 public:
  // `timeout`: how long Connect() and any wait for a peer may take. kUnavailable where the system
  // has no shared memory to give.
  // `arena_bytes`: addresses for fusion_memory() on every rank, 0 for none; equal on all ranks. If
  // one rank does not get them, all do without.
  static Status Create(int rank, int size, std::chrono::milliseconds timeout,
                       std::unique_ptr<SharedMemoryBackend>* result, size_t arena_bytes = 0);

  // Of the group of gradients: more than a step's gradients take on a machine of today.
  static constexpr size_t kArenaBytes = size_t{16} << 30;

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  std::string Listen() override;
  // Maps the peers' memory.
  Status Probe(const std::vector<std::string>& blob_of_rank) override;
  Status Connect(const std::vector<std::string>& blob_of_rank) override;

  using CollectiveBackend::AllGather;
  using CollectiveBackend::AllReduce;
  using CollectiveBackend::ReduceScatter;
  Status ReduceScatter(void* data, const Shards& shards, DataType type, const Signature& signature,
                       uint64_t sequence) override;
  Status AllGather(void* data, const Shards& shards, DataType type, const Signature& signature,
                   uint64_t sequence) override;
  Status AllReduce(void* data, const Shards& shards, DataType type, const Signature& signature,
                   uint64_t sequence) override;
  std::shared_ptr<FusionMemory> fusion_memory() const override { return arena_; }
  Status ReduceScatterShared(void* data, int host, const Shards& shards, DataType type,
                             const Signature& signature, uint64_t sequence, char** sum) override;
  Status Reduce(void* data, size_t count, DataType type, int root, const Signature& signature,
                uint64_t sequence) override;
  Status AllGatherV(const void* input, void* output, const std::vector<size_t>& bytes_of_rank,
                    const Signature& signature, uint64_t sequence) override;
  Status AllToAllV(const void* input, const std::vector<size_t>& send_bytes, void* output,
                   const std::vector<size_t>& recv_bytes, const Signature& signature,
                   uint64_t sequence) override;
  Status Broadcast(void* data, size_t bytes, int root, const Signature& signature,
                   uint64_t sequence) override;
  Status Barrier(const Signature& signature, uint64_t sequence) override;
  void Abort(const Status& cause) override { transport_->Abort(cause); }
  int waiting_for() const override { return transport_->waiting_for(); }
  int failed_peer() const override { return transport_->failed_peer(); }
  // What goes to all is published, and counted, once.
  uint64_t bytes_sent() const override { return transport_->bytes_sent(); }
  void NameRanks(const std::vector<int>& global_ranks) override {
    transport_->NameRanks(global_ranks);
  }

  // Length of a segment in bytes (default and most: a slot of the ring); equal on all ranks.
  void set_segment_bytes(size_t bytes);

 private:
  SharedMemoryBackend(std::unique_ptr<SharedMemoryTransport> transport,
                      std::shared_ptr<SharedMemoryArena> arena);

  Status Begin(const char* operation, const Signature& signature, uint64_t sequence);
  int Peer(int offset) const { return (rank() + offset + size()) % size(); }

  // See [Note: rounds]. `per_round`: messages that a rank publishes in a round at most.
  Status RunRounds(size_t rounds, size_t per_round, const std::function<Status(size_t)>& publish,
                   const std::function<Status(size_t)>& read);

  // On ranges of bytes.
  Status ScatterSums(char* data, const Shards& shards, DataType type);
  Status SumSegment(char* target, size_t bytes, DataType type);
  Status Gather(char* data, const Shards& shards);
  Status GatherOnRoot(char* data, const Shards& shards, int root);
  Status FindData(void* data, size_t bytes, std::vector<char*>* data_of_rank);
  void SumInPlace(const std::vector<char*>& data_of_rank, int host, Range shard, DataType type);
  Status SmallAllReduce(char* data, const Shards& shards, DataType type);

  const std::unique_ptr<SharedMemoryTransport> transport_;
  std::shared_ptr<SharedMemoryArena> arena_;  // Null also where it could not be had.
  bool wants_arena_ = false;                  // The same on all ranks.
  size_t segment_bytes_;
  std::vector<char> scratch_;  // kept between collectives
  RoundCounter rounds_;
};

}  // namespace tfdear

#endif  // TFDEAR_ENGINE_SHARED_MEMORY_BACKEND_H_
