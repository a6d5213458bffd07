// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/record/waits.h"

#include "custom_ops/engine/base/communication_threads.h"

namespace tfdear {

int64_t Waits::Begin(const std::string& op, bool looks_ahead) {
  MutexLock lock(mutex_);
  ++changes_;
  if (!looks_ahead && waiting_++ == 0) {
    first_ = next_;
    begin_us_ = EventRecord::NowMicros();
    computation_us_ = ComputationMicros();
  }
  ops_.emplace_hint(ops_.end(), next_, Op{op, looks_ahead});
  return next_++;
}

void Waits::End(int64_t wait) {
  Event period{EventKind::kWait, 0, 0, 0, 0, 0};
  {
    MutexLock lock(mutex_);
    ++changes_;
    const auto ended = ops_.find(wait);
    const bool looks_ahead = ended->second.looks_ahead;
    ops_.erase(ended);
    if (looks_ahead || --waiting_ > 0) return;
    period.detail = next_ - first_;
    period.begin_us = begin_us_;
    period.end_us = EventRecord::NowMicros();
    // Most ops find what they wait for.
    if (period.end_us == period.begin_us) return;
    period.computation_us = ComputationMicros() - computation_us_;
  }
  events_->Add(period);
}

int64_t Waits::Read(std::vector<std::string>* ops) const {
  MutexLock lock(mutex_);
  ops->clear();
  for (const auto& [wait, op] : ops_) ops->push_back(op.name);
  return changes_;
}

}  // namespace tfdear
