// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/work.h"
#include "custom_ops/engine/compression/sparse_exchange.h"
#include "custom_ops/engine/schedule/bucket.h"
#include "custom_ops/engine/schedule/plan.h"

namespace tfdear {

// How gradients are compressed.
struct Compression {
  SparseExchangeOptions exchange;
  bool hierarchical = true;  // Sums of nodes are exchanged between the nodes; else ranks' own.
  // Whether the momentum of `exchange` is that of the layout's optimizer.
  bool momentum_of_optimizer = false;
  // Executions of a layout in which the density falls exponentially from `first_density`.
  int64_t warm_up_steps = 0;
  double first_density = 0.25;
  bool only_optimizers_warm_up = false;  // And not other sums.
};

// The density of a layout's execution number `step` (from 0) that is exchanged sparsely.
double DensityAt(double density, double first_density, int64_t warm_up_steps, int64_t step);

// What the sparse exchanges of one layout keep from step to step on this rank, under one plan. When
// the plan changes, or another layout begins to bring gradients of the same variables, what was
// held back goes into this rank's next contribution. (If that step is given up before it
// contributed anything, it is lost, like the gradients of the step.)
//
// Bodies of steps use it on the thread of the group that the exchanges run in, or, before them and
// each its bucket alone, on the thread of the group's preparations; everything else happens while
// no exchange of this state runs (see last_exchange).
class CompressionState {
 public:
  // The rank holds part `place` of `places` of every bucket when it is exchanged.
  CompressionState(std::vector<TensorSpec> tensors, Plan plan, const SparseExchangeOptions& options,
                   int place, int places);

  SparseExchange* exchange(int bucket) { return &exchanges_[bucket]; }
  int places() const { return places_; }
  Range shard(int bucket) const { return ShardOf(buckets_[bucket].count, place_, places_); }

  // Adds what was held back of these tensors to their slots in a bucket of another plan, which will
  // be summed over `members` that hold the same part. `tensors`: which of another layout's tensors
  // they are there; -1: none. Empty: the layout is the same.
  void AddHeldBack(const Bucket& bucket, int members, float* data,
                   const std::vector<int>& tensors = {}) const;

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const Plan& plan() const { return plan_; }

  // As bytes, for a checkpoint: for this rank's place in a job of this shape. `tensors`: as above;
  // what is held back of those that are none there is left out.
  void Save(std::vector<char>* out, const std::vector<int>& tensors = {}) const;
  // Reads one state from *next on and moves *next behind it. Before it exchanges anything it has to
  // hear of its options.
  static Status Load(const char** next, const char* end, int place, int places,
                     std::unique_ptr<CompressionState>* state);
  void Use(const SparseExchangeOptions& options);

  int64_t steps = 0;  // Executions that were exchanged sparsely.
  // The exchange that was submitted last, of all buckets; those before it are over when it is.
  std::shared_ptr<Work> last_exchange;
  // The same of one bucket.
  std::shared_ptr<Work> last_exchange_of(int bucket) const { return last_of_bucket_[bucket]; }
  void Submitted(int bucket, const std::shared_ptr<Work>& exchange) {
    last_exchange = last_of_bucket_[bucket] = exchange;
  }

 private:
  // The elements of a bucket's shard that are the tensor's in this slot.
  Range PartOf(int bucket, size_t slot) const;
  // The elements of a bucket's shard that belong to tensors which are none there.
  std::vector<Range> LeftOut(int bucket, const std::vector<int>& tensors) const;

  const std::vector<TensorSpec> tensors_;
  const Plan plan_;
  const int place_;
  const int places_;
  std::vector<Bucket> buckets_;
  std::vector<SparseExchange> exchanges_;  // Of every bucket.
  std::vector<std::shared_ptr<Work>> last_of_bucket_;
};

}  // namespace tfdear
