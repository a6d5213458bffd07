// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/table_lookup.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "custom_ops/engine/base/injected_delay.h"

namespace tfdear {

TableLookup::TableLookup(std::shared_ptr<const LookupLayout> layout,
                         std::shared_ptr<FusionBufferPool> pool, EventRecord* events, Lane* lane,
                         int max_delay_ms, RightOfWay* right_of_way)
    : layout_(std::move(layout)),
      pool_(std::move(pool)),
      events_(events),
      lane_(lane),
      max_delay_ms_(max_delay_ms),
      right_of_way_(right_of_way),
      vectors_(static_cast<int>(layout_->tables.size())),
      missing_ids_(vectors_),
      missing_vectors_(vectors_),
      runs_(layout_->tables.size(), TableRuns::Order::kForward),
      tables_(layout_->tables.size()) {
  for (const LookupLayout::Table& table : layout_->tables) missing_ids_ += table.pooled_bytes > 0;
}

void TableLookup::LookAhead(int64_t number) {
  layout_number_ = number;
  if (!layout_->looks_ahead) return;
  ahead_ =
      std::make_shared<TableLookup>(layout_, pool_, events_, lane_, max_delay_ms_, right_of_way_);
  ahead_->is_ahead_ = true;
  ahead_->missing_ids_ = vectors_;  // It has no bags.
  const auto& tables = layout_->tables;
  ahead_->vectors_ = static_cast<int>(std::count_if(
      tables.begin(), tables.end(), [](const LookupLayout::Table& table) { return table.early; }));
  ahead_->missing_vectors_ = ahead_->vectors_;
}

const std::shared_ptr<TableLookup>& TableLookup::TakeAhead() {
  if (ahead_ != nullptr) {
    MutexLock lock(ahead_->mutex_);
    if (!ahead_->ids_phase_.done) ahead_->current_ = shared_from_this();
  }
  return ahead_;
}

void TableLookup::ContributeIds(int table, std::vector<int32_t> ids, bool early_vectors_valid) {
  touched_ = true;
  {
    MutexLock lock(mutex_);
    tables_[table].own = std::move(ids);
    tables_[table].early_vectors_valid = early_vectors_valid;
  }
  if (missing_ids_.fetch_sub(1) == 1) lane_->Advance();
}

void TableLookup::ContributeNoIds(int table) {
  {
    MutexLock lock(mutex_);
    tables_[table].unknown = true;
  }
  ContributeIds(table, {});
}

IdsOfRanks TableLookup::IdsThere(int table) {
  MutexLock lock(mutex_);
  return tables_[table].all.View();
}

bool TableLookup::foresees() {
  MutexLock lock(mutex_);
  return agreed_ != kNoIds;
}

int64_t TableLookup::ExpectedVersion(int table) {
  if (expected_ == nullptr) return -1;
  MutexLock lock(expected_->mutex_);
  return expected_->tables_[table].version;
}

TableLookup::Tables TableLookup::AllTables() const {
  Tables all(layout_->tables.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

std::string TableLookup::Describe(const char* phase, const Tables& tables) const {
  std::string text = phase;
  if (is_ahead_) text += " ahead";
  const char* before = " of ";
  for (size_t table : tables) {
    const LookupLayout::Table& described = layout_->tables[table];
    text += before + described.name + " " + described.partition.Describe();
    before = ", ";
  }
  return WithTicket(text, number());
}

bool TableLookup::Issue(ProcessGroup* group, Reactions* reactions) {
  bool gather = false;
  {
    MutexLock lock(mutex_);
    if (!ids_phase_.issued) {
      if (missing_ids_.load() > 0) return false;
      ids_phase_.issued = gather = true;
    }
  }
  if (gather) IssueIds(group, reactions);
  if (vectors_ == 0) return true;
  while (true) {
    Tables next;
    {
      MutexLock lock(mutex_);
      next = NextRun();
      if (next.empty()) return runs_.done();
    }
    IssueVectors(group, std::move(next), reactions);
  }
}

void TableLookup::IssueIds(ProcessGroup* group, Reactions* reactions) {
  const auto self = shared_from_this();
  const auto signature = std::make_shared<const Signature>(Describe("embedding_ids", AllTables()));
  auto work =
      group->Run(signature, [self, signature](CollectiveBackend* backend, uint64_t sequence) {
        InjectDelay(self->max_delay_ms_);
        return self->Gather(backend, *signature, sequence);
      });
  reactions->push_back(
      [self, work] { work->OnDone([self](const Status& status) { self->FinishIds(status); }); });
}

TableLookup::Known TableLookup::KnownBefore() {
  if (is_ahead_) {
    const bool unknown = std::any_of(tables_.begin(), tables_.end(),
                                     [](const OfTable& table) { return table.unknown; });
    return unknown ? kNoIds : kNothing;
  }
  if (expected_ == nullptr) return kNothing;
  MutexLock lock(expected_->mutex_);
  if (!expected_->ids_phase_.status.ok() || expected_->agreed_ == kNoIds) return kNothing;
  Known known = expected_->vectors_ > 0 ? kIdsAndVectors : kIds;
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (tables_[t].own != expected_->tables_[t].own) return kNothing;
    if (layout_->tables[t].early && !tables_[t].early_vectors_valid) known = kIds;
  }
  return known;
}

void TableLookup::SetNeeded() {
  if (!is_ahead_) {
    for (size_t t = 0; t < tables_.size(); ++t) {
      const bool is_early = agreed_ == kIdsAndVectors && layout_->tables[t].early;
      tables_[t].needed = tables_[t].all;
      if (!is_early) continue;
      MutexLock lock(expected_->mutex_);
      tables_[t].needed = expected_->tables_[t].rest;
    }
    return;
  }
  const int64_t begin = EventRecord::NowMicros();
  int64_t split = 0;
  for (size_t t = 0; t < tables_.size(); ++t) {
    OfTable& table = tables_[t];
    std::vector<int32_t> now;
    if (layout_->tables[t].early && current_ != nullptr) {
      MutexLock lock(current_->mutex_);
      // A table may be looked up in several times.
      for (size_t other = 0; other < tables_.size(); ++other) {
        if (layout_->tables[other].variable != layout_->tables[t].variable) continue;
        const std::vector<int32_t>& ids = current_->tables_[other].all.ids;
        now.insert(now.end(), ids.begin(), ids.end());
      }
      std::tie(table.rest, table.needed) = table.all.Split(IdPlaces(now));
      split += static_cast<int64_t>(table.all.ids.size());
    } else {
      table.rest = table.all;
      table.needed.counts.assign(table.all.counts.size(), 0);
    }
  }
  if (split == 0) return;
  events_->Add(
      {EventKind::kEmbeddingSplit, number(), is_ahead_, split, begin, EventRecord::NowMicros()});
}

Status TableLookup::Gather(CollectiveBackend* backend, const Signature& signature,
                           uint64_t sequence) {
  const int64_t begin = EventRecord::NowMicros();
  std::vector<std::vector<int32_t>> own;
  std::vector<int64_t> bags, bags_of_all;
  Known known;
  {
    MutexLock lock(mutex_);
    known = KnownBefore();
    for (const OfTable& table : tables_) own.push_back(table.own);
    bags = CountBags();
  }
  int64_t agreed = kNothing;
  std::vector<GatheredIds> all(own.size());
  for (GatheredIds& ids : all) ids.counts.assign(backend->size(), 0);
  TFDEAR_RETURN_IF_ERROR(
      GatherIds(backend, signature, sequence, own, known, &agreed, &all, bags, &bags_of_all));
  int64_t bytes = 0;
  for (size_t t = 0; t < own.size() && agreed == kNothing; ++t) {
    const auto of_table = static_cast<int64_t>(own[t].size() * sizeof(int32_t));
    bytes += of_table;
    RowCounts* const counts = layout_->tables[t].counts.get();
    if (counts != nullptr) counts->id_bytes += of_table * (backend->size() - 1);
  }
  {
    MutexLock lock(mutex_);
    agreed_ = static_cast<Known>(agreed);
    rank_ = backend->rank();
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (agreed > kNothing) {
        MutexLock of_expected(expected_->mutex_);
        tables_[t].all = expected_->tables_[t].all;
      } else {
        tables_[t].all = std::move(all[t]);
      }
    }
  }
  int64_t of_bags = 0;
  TFDEAR_RETURN_IF_ERROR(GatherAllBags(backend, signature, sequence, bags_of_all, &of_bags));
  events_->Add({EventKind::kEmbeddingIds, number(), is_ahead_, bytes + of_bags, begin,
                EventRecord::NowMicros()});
  MutexLock lock(mutex_);
  SetNeeded();
  SetRuns();
  return Status();
}

void TableLookup::WhenIdsThere(int table, IdsReceiver receiver) {
  Status status;
  GatheredIds all, needed;
  {
    MutexLock lock(mutex_);
    if (!ids_phase_.done) {
      ids_phase_.receivers.emplace_back(table, std::move(receiver));
      return;
    }
    status = ids_phase_.status;
    if (status.ok()) {
      all = tables_[table].all;
      needed = tables_[table].needed;
    }
  }
  receiver(status, all, needed);
}

void TableLookup::FinishIds(const Status& status) {
  std::vector<std::pair<int, IdsReceiver>> receivers;
  std::vector<std::pair<int64_t, std::vector<int32_t>>> wanted;
  {
    MutexLock lock(mutex_);
    if (ids_phase_.done) return;
    ids_phase_.done = true;
    ids_phase_.status = status;
    ids_there_ = status.ok();
    current_ = nullptr;
    receivers.swap(ids_phase_.receivers);
    // What was expected is not held back.
    if (status.ok() && !is_ahead_ && agreed_ == kNothing && right_of_way_ != nullptr) {
      for (size_t t = 0; t < tables_.size(); ++t) {
        wanted.emplace_back(layout_->tables[t].variable, tables_[t].all.ids);
      }
    }
  }
  for (auto& [variable, ids] : wanted) {
    right_of_way_->RowsWanted(number(), variable, std::move(ids));
  }
  for (auto& [table, receiver] : receivers) WhenIdsThere(table, std::move(receiver));
  if (!status.ok()) FinishVectors(AllTables(), status);
}

void TableLookup::Fail(const Status& cause) {
  FinishIds(cause);
  FinishVectors(AllTables(), cause);
  if (ahead_ != nullptr) ahead_->Fail(cause);
}

}  // namespace tfdear
