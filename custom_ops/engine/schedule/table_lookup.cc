// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/table_lookup.h"

#include "custom_ops/engine/base/injected_delay.h"

namespace tfdear {

TableLookup::TableLookup(std::shared_ptr<const LookupLayout> layout,
                         std::shared_ptr<FusionBufferPool> pool, EventRecord* events, Lane* lane,
                         int max_delay_ms)
    : layout_(std::move(layout)),
      pool_(std::move(pool)),
      events_(events),
      lane_(lane),
      max_delay_ms_(max_delay_ms),
      missing_ids_(static_cast<int>(layout_->tables.size())),
      missing_vectors_(static_cast<int>(layout_->tables.size())),
      own_ids_(layout_->tables.size()),
      tables_(layout_->tables.size()),
      owners_(layout_->tables.size()),
      vectors_(layout_->tables.size()) {}

void TableLookup::ContributeIds(int table, std::vector<int32_t> ids) {
  touched_ = true;
  {
    MutexLock lock(mutex_);
    own_ids_[table] = std::move(ids);
  }
  if (missing_ids_.fetch_sub(1) == 1) lane_->Advance();
}

void TableLookup::ContributeVectors(int table, const void* held, size_t element_bytes,
                                    std::shared_ptr<const void> owner) {
  {
    MutexLock lock(mutex_);
    LookedUp& looked_up = tables_[table];
    looked_up.partition = layout_->tables[table].partition;
    looked_up.columns = layout_->tables[table].columns;
    looked_up.ids = {all_ids_[table].data(), counts_[table]};
    looked_up.held = held;
    looked_up.element_bytes = element_bytes;
    owners_[table] = std::move(owner);
  }
  if (missing_vectors_.fetch_sub(1) == 1) lane_->Advance();
}

IdsOfRanks TableLookup::IdsThere(int table) {
  MutexLock lock(mutex_);
  return {all_ids_[table].data(), counts_[table]};
}

std::string TableLookup::Describe(const char* phase) const {
  std::string text = phase;
  for (const LookupLayout::Table& table : layout_->tables) {
    text += (text == phase ? " of " : ", ") + table.name + " " + table.partition.Describe();
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
  if (missing_vectors_.load() > 0) return false;
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

Status TableLookup::Gather(CollectiveBackend* backend, const Signature& signature,
                           uint64_t sequence) {
  const int64_t begin = EventRecord::NowMicros();
  std::vector<const int32_t*> ids;
  std::vector<int64_t> own_counts;
  std::vector<std::vector<int32_t>> own, all;
  std::vector<std::vector<int64_t>> counts;
  int64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    own.swap(own_ids_);
  }
  for (const auto& of_table : own) {
    ids.push_back(of_table.data());
    own_counts.push_back(static_cast<int64_t>(of_table.size()));
    bytes += own_counts.back() * static_cast<int64_t>(sizeof(int32_t));
  }
  TFDEAR_RETURN_IF_ERROR(GatherIds(backend, signature, sequence, ids, own_counts, &all, &counts));
  events_->Add({EventKind::kEmbeddingIds, number(), 0, bytes, begin, EventRecord::NowMicros()});
  MutexLock lock(mutex_);
  all_ids_ = std::move(all);
  counts_ = std::move(counts);
  rank_ = backend->rank();
  return Status();
}

Status TableLookup::Exchange(CollectiveBackend* backend, const Signature& signature,
                             uint64_t sequence) {
  const int64_t begin = EventRecord::NowMicros();
  std::vector<LookedUp> tables;
  {
    MutexLock lock(mutex_);
    tables = tables_;
  }
  std::vector<std::shared_ptr<FusionBuffer>> vectors(tables.size());
  int64_t bytes = 0;
  for (size_t t = 0; t < tables.size(); ++t) {
    const size_t size = static_cast<size_t>(tables[t].ids.counts[backend->rank()]) *
                        tables[t].columns * tables[t].element_bytes;
    TFDEAR_RETURN_IF_ERROR(pool_->Take(size, &vectors[t]));
    tables[t].result = vectors[t]->data();
    bytes += static_cast<int64_t>(size);
  }
  TFDEAR_RETURN_IF_ERROR(ExchangeVectors(backend, signature, sequence, tables));
  events_->Add({EventKind::kEmbeddingVectors, number(), 0, bytes, begin, EventRecord::NowMicros()});
  MutexLock lock(mutex_);
  vectors_ = std::move(vectors);
  owners_.clear();
  return Status();
}

Reduced TableLookup::Slice(int table) const {
  Reduced reduced;
  reduced.owner = vectors_[table];
  reduced.data = vectors_[table]->data();
  reduced.shape = {counts_[table][rank_], layout_->tables[table].columns};
  return reduced;
}

void TableLookup::WhenIdsThere(int table, IdsReceiver receiver) {
  Status status;
  std::vector<int32_t> ids;
  std::vector<int64_t> counts;
  {
    MutexLock lock(mutex_);
    if (!ids_phase_.done) {
      ids_phase_.receivers.emplace_back(table, std::move(receiver));
      return;
    }
    status = ids_phase_.status;
    if (status.ok()) {
      ids = all_ids_[table];
      counts = counts_[table];
    }
  }
  receiver(status, ids, counts);
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
  {
    MutexLock lock(mutex_);
    if (ids_phase_.done) return;
    ids_phase_.done = true;
    ids_phase_.status = status;
    ids_there_ = status.ok();
    receivers.swap(ids_phase_.receivers);
  }
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
  for (auto& [table, receiver] : receivers) WhenVectorsThere(table, std::move(receiver));
}

void TableLookup::Fail(const Status& cause) {
  FinishIds(cause);
  FinishVectors(cause);
}

}  // namespace tfdear
