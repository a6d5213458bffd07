// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// The vectors of a lookup: those that are exchanged, and those that came early.
#include <algorithm>

#include "custom_ops/engine/base/injected_delay.h"
#include "custom_ops/engine/schedule/table_lookup.h"

namespace tfdear {

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
    runs_.SetReady(table);
  }
  missing_vectors_.fetch_sub(1);
  lane_->Advance();
}

void TableLookup::SetRuns() {
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (!Exchanges(t)) runs_.SetReady(t);
    const OfTable& table = tables_[t];
    const auto& counts = table.all_bags == nullptr ? table.needed.counts : table.all_bags->counts;
    // As of float32, whatever they travel in. Nobody waits for early vectors: these go at once.
    const size_t of_vector = layout_->tables[t].columns * sizeof(float);
    runs_.SetBytes(t, is_ahead_ ? 0 : MostBytes(counts, of_vector));
  }
}

TableLookup::Tables TableLookup::NextRun() {
  Tables run = runs_.Take();
  if (agreed_ == kNoIds) return {};  // All ranks have agreed on that.
  run.erase(
      std::remove_if(run.begin(), run.end(), [this](size_t table) { return !Exchanges(table); }),
      run.end());
  return run;
}

void TableLookup::IssueVectors(ProcessGroup* group, Tables tables, Reactions* reactions) {
  const auto self = shared_from_this();
  const auto signature = std::make_shared<const Signature>(Describe("embedding_vectors", tables));
  auto work = group->Run(signature,
                         [self, tables, signature](CollectiveBackend* backend, uint64_t sequence) {
                           InjectDelay(self->max_delay_ms_);
                           return self->Exchange(tables, backend, *signature, sequence);
                         });
  reactions->push_back([self, tables = std::move(tables), work] {
    work->OnDone([self, tables](const Status& status) { self->FinishVectors(tables, status); });
  });
}

Status TableLookup::Exchange(const Tables& tables, CollectiveBackend* backend,
                             const Signature& signature, uint64_t sequence) {
  if (is_ahead_ && right_of_way_ != nullptr) right_of_way_->WaitForDense();
  const int64_t begin = EventRecord::NowMicros();
  std::vector<LookedUp> exchanged;
  std::vector<std::shared_ptr<FusionBuffer>> vectors;
  int64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    for (size_t t : tables) {
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
  for (size_t i = 0; i < tables.size(); ++i) {
    OfTable& of_table = tables_[tables[i]];
    const LookupLayout::Table& table = layout_->tables[tables[i]];
    of_table.vectors = std::move(vectors[i]);
    if (table.counts != nullptr) {
      auto& count = is_ahead_ ? table.counts->early_vectors : table.counts->late_vectors;
      count += of_table.looked_up.counts()[rank_];
      auto& sent = is_ahead_ ? table.counts->early_vector_bytes : table.counts->late_vector_bytes;
      sent += static_cast<int64_t>(SentBytes(of_table.looked_up, rank_));
      if (agreed_ > kNothing) ++table.counts->foreseen_steps;
    }
    of_table.owner = nullptr;
    if (!is_ahead_ && agreed_ == kIdsAndVectors && table.early) {
      TFDEAR_RETURN_IF_ERROR(AddEarlyVectors(static_cast<int>(tables[i])));
    }
  }
  return Status();
}

void TableLookup::WhenVectorsThere(int table, Receiver receiver) {
  Status status;
  Reduced vectors;
  {
    MutexLock lock(mutex_);
    OfTable& of_table = tables_[table];
    if (!of_table.done) {
      of_table.receivers.push_back(std::move(receiver));
      return;
    }
    status = of_table.status;
    if (status.ok()) vectors = Slice(table);
  }
  receiver(status, vectors);
}

void TableLookup::FinishVectors(const Tables& tables, const Status& status) {
  std::vector<std::pair<int, Receiver>> receivers;
  bool is_last = false;
  {
    MutexLock lock(mutex_);
    for (size_t t : tables) {
      OfTable& of_table = tables_[t];
      if (of_table.done) continue;
      of_table.done = true;
      of_table.status = status;
      for (Receiver& receiver : of_table.receivers) {
        receivers.emplace_back(static_cast<int>(t), std::move(receiver));
      }
      of_table.receivers.clear();
    }
    is_last = std::all_of(tables_.begin(), tables_.end(),
                          [](const OfTable& of_table) { return of_table.done; });
    if (is_last && status.ok()) expected_ = nullptr;
  }
  if (is_last && status.ok() && !is_ahead_ && right_of_way_ != nullptr) {
    right_of_way_->LookupArrived(number());
  }
  for (auto& [table, receiver] : receivers) WhenVectorsThere(table, std::move(receiver));
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

Status TableLookup::AddEarlyVectors(int number_of_table) {
  OfTable& table = tables_[number_of_table];
  MutexLock lock(expected_->mutex_);
  const OfTable& expected = expected_->tables_[number_of_table];
  if (expected.looked_up.element_bytes != table.looked_up.element_bytes) {
    return Internal("vectors of ", layout_->tables[number_of_table].name,
                    " were looked up early in another type");
  }
  const size_t bytes = table.looked_up.columns * table.looked_up.element_bytes;
  const int64_t count = table.all.counts[rank_];
  std::shared_ptr<FusionBuffer> merged;
  TFDEAR_RETURN_IF_ERROR(pool_->Take(count * bytes, &merged));
  const int32_t* const own = table.all.Of(rank_);
  const int32_t* late_id = table.needed.Of(rank_);
  const int32_t* const late_end = late_id + table.needed.counts[rank_];
  const char* late = table.vectors->data();
  const char* early = expected.vectors->data();
  char* to = merged->data();
  for (int64_t i = 0; i < count; ++i) {
    const bool is_late = late_id != late_end && *late_id == own[i];
    if (is_late) ++late_id;
    const char*& from = is_late ? late : early;
    to = std::copy_n(from, bytes, to);
    from += bytes;
  }
  table.vectors = std::move(merged);
  return Status();
}

}  // namespace tfdear
