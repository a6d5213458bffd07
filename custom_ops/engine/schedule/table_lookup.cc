// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/table_lookup.h"

#include <algorithm>
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

void TableLookup::ContributeVectors(int table, const void* held, size_t element_bytes,
                                    std::shared_ptr<const void> owner, int64_t version) {
  {
    MutexLock lock(mutex_);
    OfTable& of_table = tables_[table];
    of_table.looked_up.partition = layout_->tables[table].partition;
    of_table.looked_up.columns = layout_->tables[table].columns;
    of_table.looked_up.ids = of_table.needed.View();
    if (of_table.all_bags != nullptr) of_table.looked_up.bags = of_table.all_bags->counts;
    of_table.looked_up.held = held;
    of_table.looked_up.element_bytes = element_bytes;
    of_table.owner = std::move(owner);
    of_table.version = version;
  }
  if (missing_vectors_.fetch_sub(1) == 1) lane_->Advance();
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

std::string TableLookup::Describe(const char* phase) const {
  std::string text = phase;
  if (is_ahead_) text += " ahead";
  const char* before = " of ";
  for (const LookupLayout::Table& table : layout_->tables) {
    text += before + table.name + " " + table.partition.Describe();
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
  const auto self = shared_from_this();
  if (gather) {
    const auto signature = std::make_shared<const Signature>(Describe("embedding_ids"));
    auto work =
        group->Run(signature, [self, signature](CollectiveBackend* backend, uint64_t sequence) {
          InjectDelay(self->max_delay_ms_);
          return self->Gather(backend, *signature, sequence);
        });
    reactions->push_back(
        [self, work] { work->OnDone([self](const Status& status) { self->FinishIds(status); }); });
  }
  if (vectors_ == 0) return true;
  if (missing_vectors_.load() > 0) return false;
  {
    // All ranks have agreed on that.
    MutexLock lock(mutex_);
    if (agreed_ == kNoIds) return true;
  }
  const auto signature = std::make_shared<const Signature>(Describe("embedding_vectors"));
  auto work =
      group->Run(signature, [self, signature](CollectiveBackend* backend, uint64_t sequence) {
        InjectDelay(self->max_delay_ms_);
        return self->Exchange(backend, *signature, sequence);
      });
  reactions->push_back([self, work] {
    work->OnDone([self](const Status& status) { self->FinishVectors(status); });
  });
  return true;
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
  return Status();
}

Status TableLookup::Exchange(CollectiveBackend* backend, const Signature& signature,
                             uint64_t sequence) {
  if (is_ahead_ && right_of_way_ != nullptr) right_of_way_->WaitForDense();
  const int64_t begin = EventRecord::NowMicros();
  std::vector<LookedUp> exchanged;
  std::vector<std::shared_ptr<FusionBuffer>> vectors;
  int64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (is_ahead_ && !layout_->tables[t].early) continue;
      exchanged.push_back(tables_[t].looked_up);
      LookedUp& table = exchanged.back();
      const size_t size = static_cast<size_t>(table.counts()[backend->rank()]) * table.columns *
                          table.element_bytes;
      vectors.emplace_back();
      TFDEAR_RETURN_IF_ERROR(pool_->Take(size, &vectors.back()));
      table.result = vectors.back()->data();
      bytes += static_cast<int64_t>(size);
    }
  }
  TFDEAR_RETURN_IF_ERROR(ExchangeVectors(
      backend, signature, sequence, exchanged, pool_.get(),
      RightOfWay::Around(is_ahead_ ? nullptr : right_of_way_, backend, signature, sequence)));
  events_->Add(
      {EventKind::kEmbeddingVectors, number(), is_ahead_, bytes, begin, EventRecord::NowMicros()});
  MutexLock lock(mutex_);
  size_t next = 0;
  for (size_t t = 0; t < tables_.size(); ++t) {
    const LookupLayout::Table& table = layout_->tables[t];
    if (is_ahead_ && !table.early) continue;
    tables_[t].vectors = std::move(vectors[next++]);
    if (table.counts != nullptr) {
      auto& count = is_ahead_ ? table.counts->early_vectors : table.counts->late_vectors;
      count += tables_[t].looked_up.counts()[rank_];
      auto& sent = is_ahead_ ? table.counts->early_vector_bytes : table.counts->late_vector_bytes;
      sent += static_cast<int64_t>(SentBytes(tables_[t].looked_up, rank_));
      if (agreed_ > kNothing) ++table.counts->foreseen_steps;
    }
    tables_[t].owner = nullptr;
    if (!is_ahead_ && agreed_ == kIdsAndVectors && layout_->tables[t].early) {
      TFDEAR_RETURN_IF_ERROR(AddEarlyVectors(static_cast<int>(t)));
    }
  }
  expected_ = nullptr;
  return Status();
}

Reduced TableLookup::Slice(int table) const {
  Reduced reduced;
  reduced.owner = tables_[table].vectors;
  reduced.data = tables_[table].vectors->data();
  const GatheredBags* const bags = tables_[table].all_bags.get();
  reduced.shape = {(bags == nullptr ? tables_[table].all.counts : bags->counts)[rank_],
                   layout_->tables[table].columns};
  return reduced;
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

void TableLookup::WhenVectorsThere(int table, Receiver receiver) {
  Status status;
  Reduced vectors;
  {
    MutexLock lock(mutex_);
    if (!vectors_phase_.done) {
      vectors_phase_.receivers.emplace_back(table, std::move(receiver));
      return;
    }
    status = vectors_phase_.status;
    if (status.ok()) vectors = Slice(table);
  }
  receiver(status, vectors);
}

void TableLookup::FinishIds(const Status& status) {
  std::vector<std::pair<int, IdsReceiver>> receivers;
  std::vector<std::pair<int64_t, GatheredIds>> wanted;
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
        wanted.emplace_back(layout_->tables[t].variable, tables_[t].all);
      }
    }
  }
  for (const auto& [variable, ids] : wanted) right_of_way_->RowsWanted(variable, ids);
  for (auto& [table, receiver] : receivers) WhenIdsThere(table, std::move(receiver));
  if (!status.ok()) FinishVectors(status);
}

void TableLookup::FinishVectors(const Status& status) {
  std::vector<std::pair<int, Receiver>> receivers;
  {
    MutexLock lock(mutex_);
    if (vectors_phase_.done) return;
    vectors_phase_.done = true;
    vectors_phase_.status = status;
    receivers.swap(vectors_phase_.receivers);
  }
  if (status.ok() && !is_ahead_ && right_of_way_ != nullptr) right_of_way_->LookupArrived(number());
  for (auto& [table, receiver] : receivers) WhenVectorsThere(table, std::move(receiver));
}

void TableLookup::Fail(const Status& cause) {
  FinishIds(cause);
  FinishVectors(cause);
  if (ahead_ != nullptr) ahead_->Fail(cause);
}

}  // namespace tfdear
