// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/schedule/bucket.h"
#include "custom_ops/engine/schedule/plan.h"
#include "custom_ops/engine/schedule/table_rows.h"

namespace tfdear {

// What one traced all-reduce moves, under one plan: shared by the executions that follow the plan.
struct ReductionLayout {
  std::string name;
  std::vector<TensorSpec> tensors;
  std::vector<Bucket> buckets;
  struct Place {
    int bucket;
    int slot;
  };
  std::vector<Place> place_of_tensor;
  // The tensors whose rows go to the ranks that hold them, which have no steps; and of every tensor
  // which of them it is, or -1.
  std::vector<TableRows::Table> tables;
  std::vector<int> table_of_tensor;
  struct Step : Plan::Step {
    std::shared_ptr<const Signature> signature;  // Null for buckets sized at run time.
    int waits_for = -1;  // The step before it in its chain, if that runs in another group.
    // What else its group's thread does. Before the first step of a bucket of float32: adds what
    // sparse exchanges held back. After the last one: takes the norms that its tensors want.
    bool adds_held_back = false;
    bool takes_norms = false;
    bool brings_sum = false;  // Of the kind that ends its chain.
  };
  std::vector<Step> steps;  // The order in which the collectives are issued, the same on all ranks.
  std::vector<std::shared_ptr<const std::string>> details;  // Of each bucket, for signatures.
  std::vector<int> last_steps;  // Of each bucket: how many steps bring its sum.
  // Of each bucket: whether all kinds of its steps are cut into the same number of chunks. Each
  // chunk then has a chain of its own, and the shards between the nodes are shards of the chunk.
  std::vector<bool> chunks_alike;
  bool wait_for_all = false;

  // How many tensors of a bucket want norms.
  int NormedIn(int bucket) const;
  // Words for the collective of a step: what an error shows and what must agree between ranks.
  std::string Describe(const Plan::Step& step, size_t count) const;

  // The plan must hold for the tensors (Plan::Check).
  static std::shared_ptr<const ReductionLayout> Make(std::string name,
                                                     std::vector<TensorSpec> tensors, Plan plan);
};

}  // namespace tfdear
