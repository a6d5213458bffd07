// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/table_rows.h"

#include "custom_ops/engine/base/injected_delay.h"

namespace tfdear {

TableRows::TableRows(std::string name, std::vector<Table> tables,
                     std::shared_ptr<FusionBufferPool> pool, EventRecord* events, Lane* lane,
                     int max_delay_ms)
    : name_(std::move(name)),
      tables_(std::move(tables)),
      pool_(std::move(pool)),
      events_(events),
      lane_(lane),
      max_delay_ms_(max_delay_ms),
      missing_(static_cast<int>(tables_.size())),
      rows_(tables_.size()) {}

void TableRows::Contribute(int table, Rows rows) {
  const std::shared_ptr<TableLookup> lookup = rows.lookup;
  const int table_of_lookup = rows.table_of_lookup;
  {
    MutexLock lock(mutex_);
    rows_[table] = std::move(rows);
  }
  if (lookup == nullptr) return Arrived();
  // A gradient that does not depend on the vectors may be there before the ids of other ranks.
  lookup->WhenIdsThere(table_of_lookup,
                       [self = shared_from_this()](const Status& status, const auto&, const auto&) {
                         if (!status.ok()) return self->Finish(status);
                         self->Arrived();
                       });
}

void TableRows::Arrived() {
  if (missing_.fetch_sub(1) == 1) lane_->Advance();
}

bool TableRows::Issue(ProcessGroup* group, Reactions* reactions) {
  if (missing_.load() > 0) return false;
  std::string text = "embedding_prior of '" + name_ + "' of " + std::to_string(tables_.size());
  {
    MutexLock lock(mutex_);
    for (size_t t = 0; t < tables_.size(); ++t) {
      text += ", " + tables_[t].partition->Describe();
      if (rows_[t].lookup != nullptr) text += " of ids that were looked up";
    }
  }
  const auto signature = std::make_shared<const Signature>(WithTicket(text, number()));
  auto work = group->Run(signature, [self = shared_from_this(), signature](
                                        CollectiveBackend* backend, uint64_t sequence) {
    InjectDelay(self->max_delay_ms_);
    return self->Exchange(backend, *signature, sequence);
  });
  reactions->push_back([self = shared_from_this(), work] {
    work->OnDone([self](const Status& status) { self->Finish(status); });
  });
  return true;
}

Status TableRows::Exchange(CollectiveBackend* backend, const Signature& signature,
                           uint64_t sequence) {
  const int64_t begin = EventRecord::NowMicros();
  std::vector<Rows> given;
  {
    MutexLock lock(mutex_);
    given = rows_;
  }
  std::vector<Rows> got(given.size());
  std::vector<PartitionedRows> parts;
  std::vector<IdsOfRanks> known(given.size());
  size_t bytes = 0;
  for (size_t t = 0; t < given.size(); ++t) {
    const auto& shape = given[t].shape;
    size_t row_bytes = SizeOf(tables_[t].type);
    for (size_t d = 1; d < shape.size(); ++d) row_bytes *= static_cast<size_t>(shape[d]);
    bytes += static_cast<size_t>(shape[0]) * row_bytes;
    parts.push_back({tables_[t].partition.get(),
                     reinterpret_cast<const int64_t*>(given[t].numbers->data()),
                     {given[t].values->data(), shape[0], row_bytes},
                     [this, &got, t, type = tables_[t].type](size_t rows, size_t kept_bytes,
                                                             void** numbers, void** values) {
                       TFDEAR_RETURN_IF_ERROR(pool_->Take(rows * sizeof(int64_t), &got[t].numbers));
                       TFDEAR_RETURN_IF_ERROR(pool_->Take(rows * kept_bytes, &got[t].values));
                       got[t].shape = {static_cast<int64_t>(rows),
                                       static_cast<int64_t>(kept_bytes / SizeOf(type))};
                       *numbers = got[t].numbers->data();
                       *values = got[t].values->data();
                       return Status();
                     }});
    if (given[t].lookup != nullptr) {
      known[t] = given[t].lookup->IdsThere(given[t].table_of_lookup);
      parts.back().known = &known[t];
    }
  }
  TFDEAR_RETURN_IF_ERROR(ExchangePartitionedRows(backend, signature, sequence, parts));
  events_->Add({EventKind::kEmbeddingPrior, number(), 0, static_cast<int64_t>(bytes), begin,
                EventRecord::NowMicros()});
  MutexLock lock(mutex_);
  rows_ = std::move(got);
  return Status();
}

Reduced TableRows::Slice(int table) const {
  const Rows& rows = rows_[table];
  Reduced reduced;
  reduced.owner = rows.values;
  reduced.data = rows.values->data();
  reduced.shape = rows.shape;
  reduced.indices_owner = rows.numbers;
  reduced.indices = reinterpret_cast<int64_t*>(rows.numbers->data());
  reduced.since_us = done_us_;
  return reduced;
}

void TableRows::WhenThere(int table, Receiver receiver) {
  Status status;
  Reduced reduced;
  {
    MutexLock lock(mutex_);
    if (!done_) {
      receivers_.emplace_back(table, std::move(receiver));
      return;
    }
    status = status_;
    if (status.ok()) reduced = Slice(table);
  }
  receiver(status, reduced);
}

void TableRows::Finish(const Status& status) {
  std::vector<std::pair<int, Receiver>> receivers;
  std::vector<Reduced> slices;
  {
    MutexLock lock(mutex_);
    if (done_) return;
    done_ = true;
    done_us_ = EventRecord::NowMicros();
    status_ = status;
    receivers.swap(receivers_);
    for (const auto& [table, receiver] : receivers) {
      slices.push_back(status.ok() ? Slice(table) : Reduced());
    }
  }
  for (size_t i = 0; i < receivers.size(); ++i) receivers[i].second(status, slices[i]);
}

}  // namespace tfdear
