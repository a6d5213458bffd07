// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/memory/fusion_buffer.h"
#include "custom_ops/engine/norms/layer_norms.h"

namespace tfdear {

// The sum of one tensor over the ranks. `data` aliases the fusion buffer; `owner` keeps it.
struct Reduced {
  std::shared_ptr<FusionBuffer> owner;
  void* data = nullptr;
  std::vector<int64_t> shape;
  // Sparse tensors only: the rows of all ranks, in the order of the ranks, and their indices; of a
  // partitioned table, what this rank holds of them.
  std::shared_ptr<FusionBuffer> indices_owner;
  int64_t* indices = nullptr;
  LayerNorms norms = {0, 0};  // Where they were asked for.
  int64_t since_us = 0;       // When it was there, on the clock of the event record.
};

// Gets a sum when it is there, or the reason why it is not.
using Receiver = std::function<void(const Status&, const Reduced&)>;

}  // namespace tfdear
