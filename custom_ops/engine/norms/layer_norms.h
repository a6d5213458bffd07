// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/collectives/collective_backend.h"
#include "custom_ops/engine/norms/sum_of_squares.h"

namespace tfdear {

// [Note: Parallel norms]
// LARS and LAMB scale the step of every layer by two norms. All ranks hold the weights, and, when a
// bucket is summed, the gradients; so each of P ranks can take the sums of squares over one P-th of
// the bucket, its shard, and all get the few numbers of each other. That costs no wait of its own:
// it is part of the last step that the bucket travels in, which the update waits for anyway. The
// optimizer says in advance, when its update is put off, what its norms are taken of.

// What the norms of one tensor of a bucket are taken of.
struct LayerOperands {
  // Of the whole tensor; the gradient is in the bucket. Valid and unchanged as long as `owner` is
  // held.
  LayerPiece layer;
  std::shared_ptr<const void> owner;
};

// The norms of a layer's weights, and of its gradient or step.
using LayerNorms = std::array<float, 2>;

// A tensor in a summed bucket that norms are wanted of.
struct NormedSlot {
  size_t offset = 0;  // Of its first element in the bucket.
  LayerOperands operands;
  LayerNorms norms = {0, 0};
};

// Computes and exchanges the norms of a bucket of `count` elements. Called by all ranks of the
// group as part of one collective; `slots` in the order of their offsets, alike on all ranks but
// for the contents. Norms are the same bits everywhere. `bytes_read`: what this rank had to read;
// `cpu_micros`: the processor time it took.
Status ExchangeLayerNorms(CollectiveBackend* backend, const std::string& text, uint64_t sequence,
                          const float* bucket, size_t count, std::vector<NormedSlot>* slots,
                          size_t* bytes_read, int64_t* cpu_micros);

}  // namespace tfdear
