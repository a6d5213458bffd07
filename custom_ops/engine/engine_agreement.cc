// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// The plans of layouts, and how ranks come to have the same.
#include <utility>

#include "custom_ops/engine/engine.h"
#include "custom_ops/engine/schedule/plan_agreement.h"

namespace tfdear {

// Executions until ranks talk again about plans when rank 0 had nothing to say yet.
constexpr int64_t kAskAgain = 2;

// [Note: agreement on plans]
// Every rank must cut the same gradients into the same buckets, and send them in the same order.
// Rank 0 measures and decides; the others hear of it at executions that all ranks know beforehand:
// there, opening a reduction includes a broadcast from rank 0 of its plan (or that it keeps the old
// one) and of the number of executions until the next such broadcast. It goes through the control
// lane, so it never queues behind gradients, and only the opening waits for it, not the forward
// pass. Between agreements no rank says a word about plans.
void Engine::Agree(int64_t layout, Opened opened) {
  std::shared_ptr<SingleCollective> collective;
  Lane* lane = nullptr;
  std::string name;
  Status status;
  {
    MutexLock lock(mutex_);
    LayoutEntry* entry = nullptr;
    status = Find(layout, /*open_to_change=*/false, &entry);
    if (status.ok()) name = entry->name;
  }
  if (status.ok()) status = OpenCollective(LaneKind::kControl, &collective, &lane);
  if (!status.ok()) return opened(status, nullptr, nullptr);
  auto message = std::make_shared<PlanAgreement>();
  auto body = [this, layout, message](CollectiveBackend* backend, const Signature& signature,
                                      uint64_t sequence) {
    if (backend->rank() == 0) {
      MutexLock lock(mutex_);
      LayoutEntry* entry = nullptr;
      TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/false, &entry));
      message->plan.swap(entry->agreement.plan);
      message->interval = entry->agreement.interval > 0 ? entry->agreement.interval : kAskAgain;
      entry->agreement.interval = 0;
    }
    return BroadcastAgreement(backend, signature, sequence, message.get());
  };
  // `collective` is kept until the end: nobody else holds it once it was issued.
  collective->Start(std::make_shared<Signature>("broadcast of the plan of '" + name + "'"),
                    std::move(body),
                    [this, layout, message, collective, opened](const Status& status) {
                      Status agreed = status;
                      if (agreed.ok()) agreed = Adopt(layout, message->plan, message->interval);
                      if (!agreed.ok()) return opened(agreed, nullptr, nullptr);
                      OpenNow(layout, opened);
                    });
}

Status Engine::Adopt(int64_t layout, const std::vector<int64_t>& words, int64_t interval) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/false, &entry));
  entry->agreement.execution = entry->executions - 1 + interval;
  if (words.empty()) return Status();
  Plan plan;
  TFDEAR_RETURN_IF_ERROR(Plan::Decode(words, &plan));
  TFDEAR_RETURN_IF_ERROR(plan.Check(entry->tensors, Existing()));
  entry->plan = plan;
  entry->current = ReductionLayout::Make(entry->name, entry->tensors, std::move(plan));
  return Status();
}

Status Engine::SetPlan(int64_t layout, const std::vector<int64_t>& words) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/true, &entry));
  Plan plan;
  TFDEAR_RETURN_IF_ERROR(Plan::Decode(words, &plan));
  TFDEAR_RETURN_IF_ERROR(plan.Check(entry->tensors, Existing()));
  entry->plan = std::move(plan);
  return Status();
}

Status Engine::Propose(int64_t layout, const std::vector<int64_t>& plan, int64_t next_agreement) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/false, &entry));
  if (next_agreement < 1) {
    return Status(StatusCode::kInvalidArgument,
                  "expected at least one execution until the next agreement, received " +
                      std::to_string(next_agreement));
  }
  if (!plan.empty()) {
    // Here, where the mistake was made, and not on all ranks.
    Plan decoded;
    TFDEAR_RETURN_IF_ERROR(Plan::Decode(plan, &decoded));
    TFDEAR_RETURN_IF_ERROR(decoded.Check(entry->tensors, Existing()));
  }
  entry->agreement.plan = plan;
  entry->agreement.interval = next_agreement;
  return Status();
}

std::vector<int64_t> Engine::PlanOf(int64_t layout, int64_t* executions) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  if (!Find(layout, /*open_to_change=*/false, &entry).ok()) return {};
  *executions = entry->executions;
  return entry->current == nullptr ? std::vector<int64_t>() : entry->plan.Encode();
}

}  // namespace tfdear
