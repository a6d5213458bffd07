// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/plan_agreement.h"

#include "custom_ops/engine/collectives/row_exchange.h"

namespace tfdear {
namespace {

// No plan comes near; executions are counted up to far beyond it.
constexpr size_t kMostBytes = size_t{1} << 27;
constexpr int64_t kMostExecutions = int64_t{1} << 40;

}  // namespace

Status BroadcastAgreement(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                          PlanAgreement* agreement) {
  int64_t header[2] = {static_cast<int64_t>(agreement->plan.size()), agreement->interval};
  TFDEAR_RETURN_IF_ERROR(backend->Broadcast(header, sizeof(header), 0, signature, sequence));
  size_t numbers = 0;
  TFDEAR_RETURN_IF_ERROR(
      CheckedTotal({header[0]}, sizeof(int64_t), signature.text(), &numbers, kMostBytes));
  if (header[1] < 1 || header[1] > kMostExecutions) {
    return Internal(signature.text(), ": rank 0 announced the next agreement after ", header[1],
                    " executions, expected 1 to ", kMostExecutions);
  }
  agreement->plan.resize(numbers);
  agreement->interval = header[1];
  return backend->Broadcast(agreement->plan.data(), numbers * sizeof(int64_t), 0, signature,
                            sequence);
}

}  // namespace tfdear
