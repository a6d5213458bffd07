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
#include "custom_ops/engine/collectives/recursive_exchange.h"
#include "custom_ops/engine/transport/message_transport.h"
#include "custom_ops/engine/transport/sockets.h"

namespace tfdear {

// Collectives for host memory over TCP.
//
// Algorithms of ReduceScatter and AllGather, of which a large AllReduce is made:
//
// DirectExchange for groups of up to `direct_ranks` members, and for payloads up to 8 KiB among up
// to 8: one latency, and sums in the order of the ranks, so results do not depend on how values
// are put into buckets.
//
// RecursiveExchange for more ranks: as many bytes, a few latencies (log2(P) for a power of two),
// and sums that do not depend on the buckets, either. So neither a ring nor a tree could be faster,
// and there is nothing to choose by measurement. Where P has a factor above 7, for payloads up to
// 64 KiB: above, its fold would send up to twice the bytes.
//
// [Note: ring] For the rest, and where several ranks share each of several nodes: P - 1 latencies,
// but one neighbour each way, so that between nodes a byte crosses the network once. A shard is
// summed along the ring from the rank after its owner to the owner: that order depends on the
// shard, so for more than two ranks a result depends in its last bits on how values are put into
// buckets.
//
// All cut shards into segments, so that one is summed and sent on while the next arrives. A small
// AllReduce is one direct exchange, or one in each round. The choice is a function of the size
// alone, the same for all.
class TcpBackend : public CollectiveBackend {
 public:
  explicit TcpBackend(std::unique_ptr<MessageTransport> transport);

  // Over connections that are there, as many to each peer; segments take turns among them.
  // `timeout`: how long any wait for a peer may take.
  static Status Create(int rank, int size, std::chrono::milliseconds timeout, Sockets sockets,
                       std::unique_ptr<TcpBackend>* result);

  std::string Listen() override { return transport_->Listen(); }

  // At most three timeouts: the last connection may begin just before the end of the first one, and
  // another passes until all ranks have theirs.
  Status Connect(const std::vector<std::string>& blob_of_rank) override;

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  using CollectiveBackend::AllGather;
  using CollectiveBackend::AllReduce;
  using CollectiveBackend::ReduceScatter;
  Status ReduceScatter(void* data, const Shards& shards, DataType type, const Signature& signature,
                       uint64_t sequence) override;
  Status AllGather(void* data, const Shards& shards, DataType type, const Signature& signature,
                   uint64_t sequence) override;
  Status AllReduce(void* data, const Shards& shards, DataType type, const Signature& signature,
                   uint64_t sequence) override;
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
  Status SetConnections(size_t number) override { return transport_->SetConnections(number); }
  void Abort(const Status& cause) override { transport_->Abort(cause); }
  int waiting_for() const override { return transport_->waiting_for(); }
  int failed_peer() const override { return transport_->failure()->failed_peer(); }
  uint64_t bytes_sent() const override { return transport_->bytes_sent(); }
  void SetGiveWay(std::function<void()> give_way) override {
    transport_->set_give_way(std::move(give_way));
  }
  void NameRanks(const std::vector<int>& global_ranks) override {
    transport_->failure()->NameRanks(global_ranks);
  }

  // Length of a segment in bytes (default 512 KiB); equal on all ranks. For benchmarks.
  void set_segment_bytes(size_t bytes);
  // Largest group that exchanges large payloads directly (default 8); equal on all ranks. 0 is
  // right for groups with several members on each of several nodes.
  void set_direct_ranks(int ranks) { direct_ranks_ = ranks; }

 private:
  // A direct exchange has as many senders per receiver: more of them would collide in the switch.
  static constexpr int kMostDirectRanks = 8;

  // So that every connection has something of every shard to carry.
  size_t SegmentBytes(const Shards& shards) const;
  bool IsDirect(size_t bytes) const;
  bool IsRecursive(size_t bytes) const;
  int Peer(int offset) const { return ((rank() + offset) % size() + size()) % size(); }

  // On ranges of bytes.
  Status ScatterSums(Channel* channel, char* data, const Shards& shards, DataType type);
  Status Gather(Channel* channel, char* data, const Shards& shards);

  const std::unique_ptr<MessageTransport> transport_;
  size_t segment_bytes_;
  int direct_ranks_;
  DirectExchange direct_;
  RecursiveExchange recursive_;
  RoundCounter rounds_;
};

}  // namespace tfdear
