// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/base/work.h"
#include "custom_ops/engine/collectives/pieces.h"
#include "custom_ops/engine/memory/fusion_memory.h"

namespace tfdear {

// Collectives among the `size()` members of one process group, over one transport. Ranks here are
// group ranks, 0 .. size() - 1.
//
// Contract:
// - Collectives are called from one thread at a time, in the same order on all members, with equal
//   signature and sequence; sequence grows (several collectives may share one).
// - A call puts its collective into the backend's queue, whose collectives run one after another.
//   Completion() tells when it is over; until then the data belong to the backend. A backend of
//   host memory may do all of it in the call.
// - Every wait for a peer ends within the backend's timeout. Errors are final: after one, this and
//   every later collective fails. Connections then stay open until Abort(), so that the members
//   that did nothing wrong do not take this one for lost.
// - Sums are the same bit for bit on all ranks, and ReduceScatter followed by AllGather gives the
//   same bits as AllReduce.
// - Data are in memory of the backend's device.
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // What this rank has to publish: printable text. The caller brings every rank's blob to all.
  virtual std::string Listen() = 0;

  // Whether this rank can reach all its peers, as far as it can tell without waiting for them.
  // Members that agree on it beforehand can choose another backend where one of them cannot.
  virtual Status Probe(const std::vector<std::string>& blob_of_rank) {
    (void)blob_of_rank;
    return Status();
  }

  // Connects to all peers (blob_of_rank[i] is rank i's) and returns when all ranks are connected.
  // Names the peer that did not answer.
  virtual Status Connect(const std::vector<std::string>& blob_of_rank) = 0;

  virtual Device device() const { return Device::kHost; }

  // Over when all calls before it are, with the first error; null: they are over, as always where
  // calls block. It ends in any case: within the timeout, and promptly after Abort().
  virtual std::shared_ptr<Work> Completion() { return nullptr; }

  void WhenComplete(std::function<void()> callback) {
    if (auto completion = Completion()) {
      completion->OnDone([callback = std::move(callback)](const Status&) { callback(); });
    } else {
      callback();
    }
  }

  // MessageTransport::SetConnections(), where there are connections.
  virtual Status SetConnections(size_t number) {
    (void)number;
    return Status();
  }

  // Calls after this one use data that are there when `ready` is over, which ends in any case. A
  // backend with a queue lets that wait, not the caller.
  virtual Status WaitFor(const std::shared_ptr<Work>& ready) { return ready->Wait(); }

  // `shards`: the elements that belong to each rank, equal on all ranks; they do not overlap.
  // Elements outside of all shards are left alone.
  using Shards = std::vector<Range>;

  // In place: afterwards this rank's shard holds the sum; the other shards are undefined.
  virtual Status ReduceScatter(void* data, const Shards& shards, DataType type,
                               const Signature& signature, uint64_t sequence) = 0;

  // In place: every rank contributes its shard and receives the others'.
  virtual Status AllGather(void* data, const Shards& shards, DataType type,
                           const Signature& signature, uint64_t sequence) = 0;

  // In place: afterwards all shards hold the sum.
  virtual Status AllReduce(void* data, const Shards& shards, DataType type,
                           const Signature& signature, uint64_t sequence) = 0;

  // Where data of its collectives should lie: memory of its device, or memory that all members can
  // reach, for ReduceScatterShared(). Null: anywhere in host memory, which then is so on all
  // members.
  virtual std::shared_ptr<FusionMemory> fusion_memory() const { return nullptr; }

  // [Note: sums without copies]
  // Members whose data lie in memory that all of them map need not send anything. Every owner of a
  // shard sums it straight from the others' data and writes it into the data of one of them, the
  // `host`, whose values in that shard nobody else reads. So the host's data become the sum of all
  // shards in one place, and an all-gather has nothing to move: a Barrier() tells that all owners
  // are done. Every other member then reads the host's memory, which is lent to it until it calls
  // GiveBack(), and may use its own data again.
  //
  // If the data of all members are in fusion_memory(), `*sum` is the host's data, mapped here, in
  // which this rank's shard is summed. Else `*sum` is null and this was ReduceScatter(), on all
  // members. May be called for one part of the data after another, with the same host.
  virtual Status ReduceScatterShared(void* data, int host, const Shards& shards, DataType type,
                                     const Signature& signature, uint64_t sequence, char** sum) {
    (void)host;
    *sum = nullptr;
    return ReduceScatter(data, shards, type, signature, sequence);
  }

  // The same for `count` elements in shards of equal size, ShardOf(count, rank, size).
  Status ReduceScatter(void* data, size_t count, DataType type, const Signature& signature,
                       uint64_t sequence) {
    return ReduceScatter(data, ShardsOf(count, size()), type, signature, sequence);
  }
  Status AllGather(void* data, size_t count, DataType type, const Signature& signature,
                   uint64_t sequence) {
    return AllGather(data, ShardsOf(count, size()), type, signature, sequence);
  }
  Status AllReduce(void* data, size_t count, DataType type, const Signature& signature,
                   uint64_t sequence) {
    return AllReduce(data, ShardsOf(count, size()), type, signature, sequence);
  }

  // In place, along a tree: afterwards data on `root` holds the sum; elsewhere it is undefined.
  // Broadcast() from the same root is its other half.
  virtual Status Reduce(void* data, size_t count, DataType type, int root,
                        const Signature& signature, uint64_t sequence) = 0;

  // Output is the ranks' inputs in rank order; bytes_of_rank is equal on all ranks. Input may be
  // this rank's part of output, else the two must not overlap.
  virtual Status AllGatherV(const void* input, void* output,
                            const std::vector<size_t>& bytes_of_rank, const Signature& signature,
                            uint64_t sequence) = 0;

  // Input is send_bytes[j] bytes for each rank j, in rank order; output is recv_bytes[j] bytes from
  // each rank j, in rank order. send_bytes[j] here equals recv_bytes[rank] on j. No overlap.
  Status AllToAllV(const void* input, const std::vector<size_t>& send_bytes, void* output,
                   const std::vector<size_t>& recv_bytes, const Signature& signature,
                   uint64_t sequence);
  // The same where data lie in pieces: entry j of `sends` goes to rank j, entry j of `receives`
  // comes from there. Between two ranks both name pieces of the same sizes in the same order. What
  // a rank has for itself is copied, unless it names nothing there.
  virtual Status AllToAllPieces(const std::vector<OutgoingPieces>& sends,
                                const std::vector<IncomingPieces>& receives,
                                const Signature& signature, uint64_t sequence) = 0;

  // In place: afterwards data on every rank is what it was on `root`.
  virtual Status Broadcast(void* data, size_t bytes, int root, const Signature& signature,
                           uint64_t sequence) = 0;

  // Returns after every rank has called it.
  virtual Status Barrier(const Signature& signature, uint64_t sequence) = 0;

  // From any thread: the running collective and all later ones fail with `cause`, promptly; closes
  // the connections. The first cause stays.
  virtual void Abort(const Status& cause) = 0;

  // The rank whose message the running collective waits for now; -1 if none.
  virtual int waiting_for() const = 0;

  // The rank blamed for the first error (closed its connection, or stayed silent); -1 if none.
  virtual int failed_peer() const { return -1; }

  // Bytes of payload handed to the transport so far, without its headers.
  virtual uint64_t bytes_sent() const = 0;

  // What to call the members in messages: the global rank of each group rank. Called once, before
  // the first collective; without it messages use group ranks.
  virtual void NameRanks(const std::vector<int>& global_ranks) { (void)global_ranks; }

  // What to call between two segments of a collective, where a backend cuts data into such and they
  // share a line with others: it may wait a while for what goes first. Before the first collective.
  virtual void SetGiveWay(std::function<void()> give_way) { (void)give_way; }
};

}  // namespace tfdear
