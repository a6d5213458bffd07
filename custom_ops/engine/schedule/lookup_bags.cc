// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Lookups of vectors that are pooled by the ranks that hold their columns. [Note: pooled vectors]
#include "custom_ops/engine/schedule/table_lookup.h"

namespace tfdear {

void TableLookup::ContributeBags(int table, Bags bags) {
  touched_ = true;
  {
    MutexLock lock(mutex_);
    tables_[table].bags = std::move(bags);
  }
  if (missing_ids_.fetch_sub(1) == 1) lane_->Advance();
}

std::shared_ptr<const GatheredBags> TableLookup::BagsThere(int table) {
  MutexLock lock(mutex_);
  return tables_[table].all_bags;
}

std::vector<int64_t> TableLookup::CountBags() {
  std::vector<int64_t> counts;
  for (size_t t = 0; t < tables_.size() && !is_ahead_; ++t) {
    if (layout_->tables[t].pooled_bytes == 0) continue;
    counts.push_back(static_cast<int64_t>(tables_[t].bags.sizes.size()));
    counts.push_back(static_cast<int64_t>(tables_[t].bags.positions.size()));
  }
  return counts;
}

Status TableLookup::GatherAllBags(CollectiveBackend* backend, const Signature& signature,
                                  uint64_t sequence, const std::vector<int64_t>& announced,
                                  int64_t* sent) {
  const size_t numbers = announced.size() / backend->size();
  std::vector<size_t> pooled;
  std::vector<TableOfBags> gathered;
  size_t next = 0;
  for (size_t t = 0; t < layout_->tables.size() && next < numbers; ++t) {
    const LookupLayout::Table& table = layout_->tables[t];
    if (table.pooled_bytes == 0) continue;
    TableOfBags of_table;
    for (int rank = 0; rank < backend->size(); ++rank) {
      of_table.counts.bags.push_back(announced[rank * numbers + next]);
      of_table.counts.tokens.push_back(announced[rank * numbers + next + 1]);
    }
    next += 2;
    bool pays = false;
    MutexLock lock(mutex_);
    of_table.counts.ids = tables_[t].all.counts;
    of_table.own = std::move(tables_[t].bags);
    TFDEAR_RETURN_IF_ERROR(
        PoolingPays(of_table.counts, table.partition, table.pooled_bytes, &pays));
    if (!pays) continue;
    pooled.push_back(t);
    gathered.push_back(std::move(of_table));
  }
  if (pooled.empty()) return Status();
  TFDEAR_RETURN_IF_ERROR(
      GatherBags(backend, Signature(signature.text() + " bags"), sequence, &gathered));
  MutexLock lock(mutex_);
  for (size_t i = 0; i < pooled.size(); ++i) {
    const TableOfBags& of_table = gathered[i];
    const auto bytes = static_cast<int64_t>(
        (of_table.own.sizes.size() + of_table.own.positions.size()) * sizeof(int32_t));
    *sent += bytes;
    RowCounts* const counts = layout_->tables[pooled[i]].counts.get();
    if (counts != nullptr) counts->id_bytes += bytes * (backend->size() - 1);
    tables_[pooled[i]].all_bags = std::make_shared<const GatheredBags>(std::move(gathered[i].all));
  }
  return Status();
}

}  // namespace tfdear
