// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Lookups in tables that the ranks hold in parts.
#include <utility>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/engine.h"

namespace tfdear {

int64_t Engine::CreateLookup() {
  MutexLock lock(mutex_);
  lookups_.push_back(std::make_shared<LookupLayout>());
  lookups_used_.push_back(false);
  return static_cast<int64_t>(lookups_.size()) - 1;
}

Status Engine::AddLookupTable(int64_t lookup, LookupLayout::Table table) {
  MutexLock lock(mutex_);
  if (lookup < 0 || lookup >= static_cast<int64_t>(lookups_.size()) || lookups_used_[lookup]) {
    return Internal("lookup ", lookup, " does not exist or was changed after its first use");
  }
  lookups_[lookup]->tables.push_back(std::move(table));
  return Status();
}

Status Engine::OpenLookup(int64_t lookup, std::shared_ptr<TableLookup>* opened, Lane** its_lane) {
  std::shared_ptr<const LookupLayout> layout;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (lookup < 0 || lookup >= static_cast<int64_t>(lookups_.size())) {
      return InvalidArgument("there is no lookup ", lookup,
                             " in this process: a function that was traced under a DearStrategy "
                             "runs only in the process that traced it");
    }
    lookups_used_[lookup] = true;
    layout = lookups_[lookup];
  }
  *its_lane = lane(LaneKind::kEmbeddings);
  if (*its_lane == nullptr) return Internal("the engine was not started before its first use");
  *opened =
      std::make_shared<TableLookup>(layout, pool_, &events_, *its_lane, options_.max_delay_ms);
  (*its_lane)->Open(*opened);
  return Status();
}

}  // namespace tfdear
