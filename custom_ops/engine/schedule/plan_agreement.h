// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/collectives/collective_backend.h"

namespace tfdear {

// What rank 0 says where the ranks agree on a plan.
struct PlanAgreement {
  std::vector<int64_t> plan;  // Encoded; empty: the plan stays.
  int64_t interval = 0;       // Executions until the next agreement.
};

// Everybody has rank 0's afterwards, checked as far as it sizes anything. Plan::Decode and
// Plan::Check say whether the plan itself holds.
Status BroadcastAgreement(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                          PlanAgreement* agreement);

}  // namespace tfdear
