// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Lookups in tables that the ranks hold in parts.
#include <utility>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/engine.h"

namespace tfdear {

int64_t Engine::CreateLookup() {
  MutexLock lock(mutex_);
  lookups_.emplace_back();
  lookups_.back().layout = std::make_shared<LookupLayout>();
  return static_cast<int64_t>(lookups_.size()) - 1;
}

Status Engine::FindLookup(int64_t lookup, LookupEntry** entry) {
  if (lookup < 0 || lookup >= static_cast<int64_t>(lookups_.size()) || lookups_[lookup].used) {
    return Internal("lookup ", lookup, " does not exist or was changed after its first use");
  }
  if (lookups_[lookup].layout == nullptr) return InvalidArgument(kOfClosedStrategy);
  *entry = &lookups_[lookup];
  return Status();
}

Status Engine::AddLookupTable(int64_t lookup, LookupLayout::Table table) {
  MutexLock lock(mutex_);
  LookupEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(FindLookup(lookup, &entry));
  table.counts = table_counts_.Of(table.variable);
  entry->layout->tables.push_back(std::move(table));
  return Status();
}

Status Engine::LookAhead(int64_t lookup) {
  MutexLock lock(mutex_);
  LookupEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(FindLookup(lookup, &entry));
  entry->layout->looks_ahead = true;
  return Status();
}

Status Engine::FindLookupTable(int64_t lookup, int table, LookupLayout::Table** found) {
  LookupEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(FindLookup(lookup, &entry));
  auto& tables = entry->layout->tables;
  if (table < 0 || table >= static_cast<int>(tables.size())) {
    return Internal("lookup ", lookup, " has no table ", table);
  }
  *found = &tables[table];
  return Status();
}

Status Engine::LookUpEarly(int64_t lookup, int table) {
  MutexLock lock(mutex_);
  LookupLayout::Table* found = nullptr;
  TFDEAR_RETURN_IF_ERROR(FindLookupTable(lookup, table, &found));
  if (found->pooled_bytes > 0) {
    return Internal("vectors of ", found->name, " may be pooled, and none of them comes early");
  }
  if (found->early) return Internal(found->name, " is looked up early already");
  found->early = true;
  return Status();
}

Status Engine::MayPool(int64_t lookup, int table, size_t element_bytes) {
  MutexLock lock(mutex_);
  LookupLayout::Table* found = nullptr;
  TFDEAR_RETURN_IF_ERROR(FindLookupTable(lookup, table, &found));
  if (found->partition.by_row()) {
    return Internal(found->name, " is held by rows, of which no rank has those of a whole bag");
  }
  found->pooled_bytes = element_bytes;
  return Status();
}

Status Engine::OpenLookup(int64_t lookup, std::shared_ptr<TableLookup>* opened, Lane** its_lane) {
  std::shared_ptr<Lane> found;  // Kept by the ticket, once it is opened.
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    found = LaneOf(LaneKind::kEmbeddings);
    if (found == nullptr) return NotStarted();
    if (lookup < 0 || lookup >= static_cast<int64_t>(lookups_.size())) {
      return InvalidArgument("there is no lookup ", lookup,
                             " in this process: a function that was traced under a DearStrategy "
                             "runs only in the process that traced it");
    }
    LookupEntry& entry = lookups_[lookup];
    if (entry.layout == nullptr) return InvalidArgument(kOfClosedStrategy);
    entry.used = true;
    *opened = std::make_shared<TableLookup>(entry.layout, pool_, &events_, found.get(),
                                            options_.max_delay_ms, right_of_way());
    (*opened)->LookAhead(lookup);
    (*opened)->SetExpected(std::move(entry.ahead));
    entry.ahead = nullptr;
  }
  found->Open(*opened);
  *its_lane = found.get();
  return Status();
}

Status Engine::OpenLookAhead(TableLookup* lookup, std::shared_ptr<TableLookup>* opened,
                             Lane** its_lane) {
  *opened = lookup->TakeAhead();
  if (*opened == nullptr) return Internal("a lookup that does not look ahead was asked to");
  std::shared_ptr<Lane> found;
  {
    MutexLock lock(mutex_);
    found = LaneOf(LaneKind::kEmbeddings);
    if (found == nullptr) return NotStarted();
    LookupEntry& entry = lookups_[lookup->layout_number()];
    if (entry.layout == nullptr) return InvalidArgument(kOfClosedStrategy);
    entry.ahead = *opened;
  }
  found->Open(*opened);
  *its_lane = found.get();
  return Status();
}

}  // namespace tfdear
