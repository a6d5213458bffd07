// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/step_kind.h"
#include "custom_ops/engine/schedule/bucket.h"

namespace tfdear {

// Which of the two levels sums are formed in: a level with one member does not exist.
struct Levels {
  bool intra = false;
  bool inter = false;
};

// What travels together and in which order: the collectives of one reduction, the same list on all
// ranks. A collective may be cut into chunks, which then are steps of their own.
struct Plan {
  struct Step {
    StepKind kind;
    int bucket = 0;
    int chunk = 0;
    int chunks = 1;
  };
  std::vector<std::vector<int>> buckets;  // Of tensors, in the order of their slots.
  std::vector<Step> steps;
  bool wait_for_all = false;  // Nothing is issued before all gradients are there.

  // A plan as numbers: wait_for_all, how many buckets, of each how many tensors and which, how many
  // steps, of each the number of its kind, bucket, chunk, chunks.
  static Status Decode(const std::vector<int64_t>& words, Plan* plan);
  std::vector<int64_t> Encode() const;

  // Whether every tensor is in one bucket, buckets hold one type, and the steps of each bucket
  // reduce it and then spread it, all of it, once, among all ranks. See [Note: chains of steps].
  Status Check(const std::vector<TensorSpec>& tensors, Levels levels = {}) const;
};

}  // namespace tfdear
