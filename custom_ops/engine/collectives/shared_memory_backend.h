// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/collectives/collective_backend.h"
#include "custom_ops/engine/collectives/direct_exchange.h"
#include "custom_ops/engine/memory/shared_memory_arena.h"
#include "custom_ops/engine/transport/shared_memory/shared_memory_transport.h"

namespace tfdear {

// Collectives for host memory among ranks of one node, through shared memory.
//
// All of them are direct exchanges, bit for bit those of TcpBackend; so results do not depend on
// how values are put into buckets. Reduce is a reduce-scatter whose shards are then handed to the
// root, so that all ranks take part in the sum. See also [Note: sums without copies].
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
  Status AllToAllPieces(const std::vector<OutgoingPieces>& sends,
                        const std::vector<IncomingPieces>& receives, const Signature& signature,
                        uint64_t sequence) override;
  Status Broadcast(void* data, size_t bytes, int root, const Signature& signature,
                   uint64_t sequence) override;
  Status Barrier(const Signature& signature, uint64_t sequence) override;
  void Abort(const Status& cause) override { transport_->Abort(cause); }
  int waiting_for() const override { return transport_->waiting_for(); }
  int failed_peer() const override { return transport_->failure()->failed_peer(); }
  // What goes to all is published, and counted, once.
  uint64_t bytes_sent() const override { return transport_->bytes_sent(); }
  void NameRanks(const std::vector<int>& global_ranks) override {
    transport_->failure()->NameRanks(global_ranks);
  }

  // Length of a segment in bytes (default and most: a slot of the ring); equal on all ranks.
  void set_segment_bytes(size_t bytes);

 private:
  SharedMemoryBackend(std::unique_ptr<SharedMemoryTransport> transport,
                      std::shared_ptr<SharedMemoryArena> arena);

  Status Begin(const char* operation, const Signature& signature, uint64_t sequence);

  // On ranges of bytes.
  Status ScatterSums(char* data, const Shards& shards, DataType type);
  Status Gather(char* data, const Shards& shards);
  Status AllToAll(const std::vector<OutgoingPieces>& sends,
                  const std::vector<IncomingPieces>& receives);
  Status FindData(void* data, size_t bytes, std::vector<char*>* data_of_rank);
  void SumInPlace(const std::vector<char*>& data_of_rank, int host, Range shard, DataType type);

  const std::unique_ptr<SharedMemoryTransport> transport_;
  std::shared_ptr<SharedMemoryArena> arena_;  // Null also where it could not be had.
  bool wants_arena_ = false;                  // The same on all ranks.
  size_t segment_bytes_;
  DirectExchange direct_;
  RoundCounter rounds_;
};

}  // namespace tfdear
