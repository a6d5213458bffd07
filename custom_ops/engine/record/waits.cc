// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/record/waits.h"

namespace tfdear {

int64_t Waits::Begin(const std::string& op) {
  MutexLock lock(mutex_);
  ++changes_;
  ops_.emplace_hint(ops_.end(), next_, op);
  return next_++;
}

void Waits::End(int64_t wait) {
  MutexLock lock(mutex_);
  ++changes_;
  ops_.erase(wait);
}

int64_t Waits::Read(std::vector<std::string>* ops) const {
  MutexLock lock(mutex_);
  ops->clear();
  for (const auto& [wait, op] : ops_) ops->push_back(op);
  return changes_;
}

}  // namespace tfdear
