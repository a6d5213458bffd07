// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// What travels of the rows of tables' gradients.
#include <algorithm>

#include "custom_ops/engine/schedule/table_rows.h"

namespace tfdear {

size_t TableRows::Rows::RowBytes(DataType type) const {
  size_t bytes = SizeOf(type);
  for (size_t d = 1; d < shape.size(); ++d) bytes *= static_cast<size_t>(shape[d]);
  return bytes;
}

IdsOfRanks TableRows::KnownIds(size_t table, Part part) {
  const State& state = states_[table];
  if (state.is_split) return (part == kPrior ? state.split.first : state.split.second).View();
  if (state.given.lookup == nullptr) return {};
  return state.given.lookup->IdsThere(state.given.table_of_lookup);
}

Status TableRows::TakePart(size_t table, Part part, Rows* rows, GatheredIds* known) {
  const State& state = states_[table];
  const Rows& given = state.given;
  *rows = given;
  *known = CopyOf(KnownIds(table, part));
  if (!state.is_split) return Status();
  const GatheredIds& prior = state.split.first;
  const IdPlaces first(prior.ids);
  const auto* const numbers = reinterpret_cast<const int64_t*>(given.numbers->data());
  const size_t row_bytes = given.RowBytes(tables_[table].type);
  std::vector<int64_t> taken;
  for (int64_t i = 0; i < given.shape[0]; ++i) {
    const bool is_prior = first.Contains(numbers[i]);
    if (is_prior == (part == kPrior)) taken.push_back(i);
  }
  rows->shape[0] = static_cast<int64_t>(taken.size());
  if (const auto& counts = given.lookup->layout().tables[given.table_of_lookup].counts) {
    (part == kPrior ? counts->prior_rows : counts->delayed_rows) += rows->shape[0];
  }
  TFDEAR_RETURN_IF_ERROR(pool_->Take(taken.size() * row_bytes, &rows->values));
  TFDEAR_RETURN_IF_ERROR(pool_->Take(taken.size() * sizeof(int64_t), &rows->numbers));
  char* to = rows->values->data();
  auto* to_number = reinterpret_cast<int64_t*>(rows->numbers->data());
  for (int64_t row : taken) {
    to = std::copy_n(given.values->data() + row * row_bytes, row_bytes, to);
    *to_number++ = numbers[row];
  }
  return Status();
}

Status TableRows::Exchange(Part part, const Tables& tables, int64_t number,
                           CollectiveBackend* backend, const Signature& signature,
                           uint64_t sequence) {
  const int64_t begin = EventRecord::NowMicros();
  std::vector<Rows> given(tables.size());
  std::vector<GatheredIds> known_ids(tables.size());
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < tables.size(); ++i) {
      TFDEAR_RETURN_IF_ERROR(TakePart(tables[i], part, &given[i], &known_ids[i]));
    }
  }
  std::vector<Rows> got(given.size());
  std::vector<IdsOfRanks> known(given.size());
  std::vector<PartitionedRows> parts;
  size_t bytes = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    const Table& table = tables_[tables[i]];
    const size_t row_bytes = given[i].RowBytes(table.type);
    bytes += static_cast<size_t>(given[i].shape[0]) * row_bytes;
    parts.push_back({table.partition.get(),
                     reinterpret_cast<const int64_t*>(given[i].numbers->data()),
                     {given[i].values->data(), given[i].shape[0], row_bytes},
                     [this, &got, i, type = table.type](size_t rows, size_t kept_bytes,
                                                        void** numbers, void** values) {
                       TFDEAR_RETURN_IF_ERROR(pool_->Take(rows * sizeof(int64_t), &got[i].numbers));
                       TFDEAR_RETURN_IF_ERROR(pool_->Take(rows * kept_bytes, &got[i].values));
                       got[i].shape = {static_cast<int64_t>(rows),
                                       static_cast<int64_t>(kept_bytes / SizeOf(type))};
                       *numbers = got[i].numbers->data();
                       *values = got[i].values->data();
                       return Status();
                     }});
    if (given[i].lookup != nullptr) {
      known[i] = known_ids[i].View();
      parts.back().known = &known[i];
    }
  }
  const bool urgent = part == kPrior && beside_dense_;
  TFDEAR_RETURN_IF_ERROR(ExchangePartitionedRows(
      backend, signature, sequence, parts, pool_.get(),
      RightOfWay::Around(urgent ? right_of_way_ : nullptr, backend, signature, sequence)));
  for (size_t i = 0; i < parts.size(); ++i) {
    RowCounts* const counts = tables_[tables[i]].counts.get();
    if (counts == nullptr) continue;
    auto& sent = part == kPrior ? counts->prior_bytes : counts->delayed_bytes;
    sent += static_cast<int64_t>(SentBytes(parts[i], backend->rank(), backend->size()));
  }
  const EventKind kind = part == kPrior ? EventKind::kEmbeddingPrior : EventKind::kEmbeddingDelayed;
  events_->Add({kind, number, 0, static_cast<int64_t>(bytes), begin, EventRecord::NowMicros()});
  MutexLock lock(mutex_);
  for (size_t i = 0; i < got.size(); ++i) {
    Reduced& reduced = states_[tables[i]].got[part];
    reduced.owner = got[i].values;
    reduced.data = got[i].values->data();
    reduced.shape = got[i].shape;
    reduced.indices_owner = got[i].numbers;
    reduced.indices = reinterpret_cast<int64_t*>(got[i].numbers->data());
    reduced.since_us = EventRecord::NowMicros();
  }
  return Status();
}

}  // namespace tfdear
