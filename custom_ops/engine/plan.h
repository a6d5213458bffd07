// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#ifndef TFDEAR_ENGINE_PLAN_H_
#define TFDEAR_ENGINE_PLAN_H_

#include <cstdint>
#include <vector>

#include "custom_ops/engine/bucket.h"
#include "custom_ops/engine/status.h"

namespace tfdear {

// When the two halves of an all-reduce run. The schedules differ in time, not in the result.
enum class Schedule : int {
  kDear = 0,        // Reduce-scatter under the backward pass, all-gather under the next forward.
  kWfbp = 1,        // All-reduce of every bucket as soon as it is full.
  kSequential = 2,  // All-reduces only when all gradients are there.
};

// How sums are formed.
enum class Algorithm : int {
  kShards = 0,  // Every rank sums its shard: reduce-scatter, all-gather.
  kTree = 1,    // One rank sums everything: reduce, broadcast.
  // Shards of a node's ranks are summed within the node, shards of those between the nodes.
  kLevels = 2,
};

enum class Phase : int {
  kReduceScatter = 0,
  kAllGather = 1,
  kAllReduce = 2,
  kSparseGather = 3,
  kReduce = 4,
  kBroadcast = 5,
  // The rank's node sums: everyone gets its shard of the node's sum, and in the end all shards.
  kIntraReduceScatter = 6,
  // On the rank's shard, among the ranks in the same place on all nodes.
  kInterReduceScatter = 7,
  kInterAllGather = 8,
  kIntraAllGather = 9,
  // In place of both phases between the nodes: sums of what each node selects (sparse_exchange.h).
  kSparseExchange = 10,
  // The same among all ranks, each of which selects from its own gradient.
  kSparseAllGather = 11,
};

const char* Name(Phase phase);
bool IsIntra(Phase phase);
bool IsInter(Phase phase);

// Which of the two levels sums are formed in: a level with one member does not exist.
struct Levels {
  bool intra = false;
  bool inter = false;
};

// Which buckets are exchanged sparsely. Only those of float32 can be.
struct SparseBuckets {
  int64_t at_least = -1;     // Elements of their tensors, without gaps; negative: none is.
  bool hierarchical = true;  // Sums of nodes are exchanged between the nodes; else ranks' own.
};

// What travels together and in which order: the collectives of one reduction, the same list on all
// ranks. A collective may be cut into chunks, which then are steps of their own.
struct Plan {
  struct Step {
    Phase phase = Phase::kAllReduce;
    int bucket = 0;
    int chunk = 0;
    int chunks = 1;
  };
  std::vector<std::vector<int>> buckets;  // Of tensors, in the order of their slots.
  std::vector<Step> steps;
  bool wait_for_all = false;  // Nothing is issued before all gradients are there.

  // Buckets of at most `bucket_bytes` (0: of about a sixteenth of the tensors' bytes, so that there
  // are several of any model) in the order of PlanFixedSize(); every reduce-scatter, then
  // every all-gather in the order of the next forward pass, or whatever the schedule does. `levels`
  // are those that exist, for kLevels and for sparse exchanges.
  static Plan Make(const std::vector<TensorSpec>& tensors, size_t bucket_bytes, Schedule schedule,
                   Algorithm algorithm, Levels levels = {}, SparseBuckets sparse_buckets = {});

  // A plan as numbers: wait_for_all, how many buckets, of each how many tensors and which, how many
  // steps, of each its four fields.
  static Status Decode(const std::vector<int64_t>& words, Plan* plan);
  std::vector<int64_t> Encode() const;

  // Whether every tensor is in one bucket, buckets hold one type, and the steps of each bucket
  // reduce it and then spread it, all of it, once, among all ranks. See [Note: chains of phases].
  Status Check(const std::vector<TensorSpec>& tensors, Levels levels = {}) const;
};

}  // namespace tfdear

#endif  // TFDEAR_ENGINE_PLAN_H_
