// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/table_rows.h"

#include <algorithm>

#include "custom_ops/engine/base/injected_delay.h"

namespace tfdear {
namespace {

std::vector<int32_t> Different(const GatheredIds& ids) {
  std::vector<int32_t> different = ids.ids;
  std::sort(different.begin(), different.end());
  different.erase(std::unique(different.begin(), different.end()), different.end());
  return different;
}

size_t RowBytes(const TableRows::Rows& rows, DataType type) {
  size_t bytes = SizeOf(type);
  for (size_t d = 1; d < rows.shape.size(); ++d) bytes *= static_cast<size_t>(rows.shape[d]);
  return bytes;
}

GatheredIds Copy(const IdsOfRanks& ids) {
  int64_t count = 0;
  for (int64_t of_rank : ids.counts) count += of_rank;
  return {std::vector<int32_t>(ids.ids, ids.ids + count), ids.counts};
}

}  // namespace

TableRows::TableRows(std::string name, std::vector<Table> tables,
                     std::shared_ptr<FusionBufferPool> pool, EventRecord* events, Lane* prior,
                     Lane* delayed, int max_delay_ms, RightOfWay* right_of_way, bool beside_dense)
    : name_(std::move(name)),
      tables_(std::move(tables)),
      pool_(std::move(pool)),
      events_(events),
      max_delay_ms_(max_delay_ms),
      right_of_way_(right_of_way),
      beside_dense_(beside_dense),
      prior_(this, kPrior, prior),
      delayed_(this, kDelayed, delayed),
      missing_(static_cast<int>(tables_.size())),
      states_(tables_.size()) {}

void TableRows::Open() {
  prior_.lane()->Open(ticket(kPrior));
  delayed_.lane()->Open(ticket(kDelayed));
}

bool TableRows::Withdraw() {
  const bool prior = prior_.lane()->Withdraw(&prior_);
  return delayed_.lane()->Withdraw(&delayed_) && prior;
}

void TableRows::Contribute(int table, Rows rows) {
  touched_ = true;
  const std::shared_ptr<TableLookup> lookup = rows.lookup;
  const int table_of_lookup = rows.table_of_lookup;
  {
    MutexLock lock(mutex_);
    states_[table].given = std::move(rows);
  }
  if (lookup == nullptr) return Arrived();
  // A gradient that does not depend on the vectors may be there before the ids of other ranks; and
  // those of the next step tell which rows go first.
  const auto self = shared_from_this();
  TableLookup* const last = lookup->ahead() != nullptr ? lookup->ahead().get() : lookup.get();
  last->WhenIdsThere(table_of_lookup, [self, lookup, table, table_of_lookup](
                                          const Status& status, const auto&, const auto&) {
    if (!status.ok()) return self->Fail(status);
    self->Split(table, lookup.get(), table_of_lookup);
    self->Arrived();
  });
}

void TableRows::Split(int table, TableLookup* lookup, int table_of_lookup) {
  TableLookup* const ahead = lookup->ahead().get();
  if (ahead == nullptr || !ahead->foresees()) return;
  const int64_t begin = EventRecord::NowMicros();
  {
    MutexLock lock(mutex_);
    if (states_[table].is_split) return;
  }
  std::vector<int32_t> next;
  const auto& tables = lookup->layout().tables;
  for (size_t t = 0; t < tables.size(); ++t) {
    if (tables[t].variable != tables[table_of_lookup].variable) continue;
    const GatheredIds ids = Copy(ahead->IdsThere(static_cast<int>(t)));
    next.insert(next.end(), ids.ids.begin(), ids.ids.end());
  }
  auto split = Copy(lookup->IdsThere(table_of_lookup)).Split(IdPlaces(next));
  const auto ids = static_cast<int64_t>(split.first.ids.size() + split.second.ids.size());
  std::vector<PartReceiver> receivers;
  std::vector<std::vector<int32_t>> parts;
  {
    MutexLock lock(mutex_);
    State& state = states_[table];
    if (state.is_split) return;
    state.is_split = true;
    state.split = std::move(split);
    parts = PartsOf(state);
    receivers = state.receivers;
  }
  events_->Add(
      {EventKind::kEmbeddingSplit, prior_.number(), 0, ids, begin, EventRecord::NowMicros()});
  for (const PartReceiver& receiver : receivers) receiver.declare(parts);
}

void TableRows::Arrived() {
  if (missing_.fetch_sub(1) != 1) return;
  prior_.lane()->Advance();
  delayed_.lane()->Advance();
}

bool TableRows::AnySplit() const {
  return std::any_of(states_.begin(), states_.end(),
                     [](const State& state) { return state.is_split; });
}

std::string TableRows::Describe(Part part, int64_t number) {
  std::string text = part == kPrior ? "embedding_prior of '" : "embedding_delayed of '";
  text += name_ + "' of " + std::to_string(tables_.size());
  for (size_t t = 0; t < tables_.size(); ++t) {
    text += ", " + tables_[t].partition->Describe();
    if (states_[t].given.lookup != nullptr) text += " of ids that were looked up";
    if (states_[t].is_split) text += " in two parts";
  }
  return WithTicket(text, number);
}

RightOfWay::Held TableRows::ToHoldBack() {
  auto held = std::make_shared<RightOfWay::Rows>();
  for (const State& state : states_) {
    if (!state.is_split) continue;
    const TableLookup& lookup = *state.given.lookup;
    held->lookup = std::max(held->lookup, lookup.number());
    held->tables.emplace_back(lookup.layout().tables[state.given.table_of_lookup].variable,
                              state.split.second);
  }
  held->writes = writes_;
  return held;
}

bool TableRows::Issue(Part part, int64_t number, ProcessGroup* group,
                      Ticket::Reactions* reactions) {
  if (missing_.load() > 0) return false;
  std::shared_ptr<const Signature> signature;
  RightOfWay::Held held;
  {
    MutexLock lock(mutex_);
    if (part == kDelayed) {
      if (!AnySplit()) return true;
      if (right_of_way_ != nullptr) held = ToHoldBack();
    }
    signature = std::make_shared<const Signature>(Describe(part, number));
  }
  if (held != nullptr) right_of_way_->Add(held);
  auto work = group->Run(signature, [self = shared_from_this(), part, number, signature, held](
                                        CollectiveBackend* backend, uint64_t sequence) {
    // In the thread of this lane, which has nothing else to send.
    if (held != nullptr) self->right_of_way_->WaitFor(held);
    InjectDelay(self->max_delay_ms_);
    return self->Exchange(part, number, backend, *signature, sequence);
  });
  reactions->push_back([self = shared_from_this(), part, work] {
    work->OnDone([self, part](const Status& status) { self->Finish(part, status); });
  });
  return true;
}

Status TableRows::TakePart(int table, Part part, Rows* rows, GatheredIds* known) {
  const State& state = states_[table];
  const Rows& given = state.given;
  *rows = given;
  if (given.lookup != nullptr) *known = Copy(given.lookup->IdsThere(given.table_of_lookup));
  if (!state.is_split) return Status();
  *known = part == kPrior ? state.split.first : state.split.second;
  const GatheredIds& prior = state.split.first;
  const IdPlaces first(prior.ids);
  const auto* const numbers = reinterpret_cast<const int64_t*>(given.numbers->data());
  const size_t row_bytes = RowBytes(given, tables_[table].type);
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

Status TableRows::Exchange(Part part, int64_t number, CollectiveBackend* backend,
                           const Signature& signature, uint64_t sequence) {
  const int64_t begin = EventRecord::NowMicros();
  std::vector<size_t> places;
  std::vector<Rows> given;
  std::vector<GatheredIds> known_ids;
  {
    MutexLock lock(mutex_);
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (part == kDelayed && !states_[t].is_split) continue;
      places.push_back(t);
      given.emplace_back();
      known_ids.emplace_back();
      TFDEAR_RETURN_IF_ERROR(TakePart(static_cast<int>(t), part, &given.back(), &known_ids.back()));
    }
  }
  std::vector<Rows> got(given.size());
  std::vector<IdsOfRanks> known(given.size());
  std::vector<PartitionedRows> parts;
  size_t bytes = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    const Table& table = tables_[places[i]];
    const size_t row_bytes = RowBytes(given[i], table.type);
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
    RowCounts* const counts = tables_[places[i]].counts.get();
    if (counts == nullptr) continue;
    auto& sent = part == kPrior ? counts->prior_bytes : counts->delayed_bytes;
    sent += static_cast<int64_t>(SentBytes(parts[i], backend->rank(), backend->size()));
  }
  const EventKind kind = part == kPrior ? EventKind::kEmbeddingPrior : EventKind::kEmbeddingDelayed;
  events_->Add({kind, number, 0, static_cast<int64_t>(bytes), begin, EventRecord::NowMicros()});
  MutexLock lock(mutex_);
  for (size_t i = 0; i < got.size(); ++i) {
    Reduced& reduced = states_[places[i]].got[part];
    reduced.owner = got[i].values;
    reduced.data = got[i].values->data();
    reduced.shape = got[i].shape;
    reduced.indices_owner = got[i].numbers;
    reduced.indices = reinterpret_cast<int64_t*>(got[i].numbers->data());
    reduced.since_us = EventRecord::NowMicros();
  }
  return Status();
}

void TableRows::WhenThere(int table, std::shared_ptr<TableLookup> lookup, int table_of_lookup,
                          const std::vector<int64_t>& writes, PartReceiver receiver) {
  Status failure;
  std::vector<Call> calls;
  {
    MutexLock lock(mutex_);
    failure = failure_;
    if (failure.ok()) {
      writes_.insert(writes_.end(), writes.begin(), writes.end());
      states_[table].receivers.push_back(receiver);
      if (states_[table].done[kPrior]) calls = CallsOf(table, kPrior, {receiver});
      if (states_[table].done[kDelayed]) {
        for (Call& call : CallsOf(table, kDelayed, {receiver})) calls.push_back(std::move(call));
      }
    }
  }
  if (!failure.ok()) return receiver.part(failure, kPrior, 1, Reduced());
  for (const Call& call : calls) call();
  if (lookup == nullptr || lookup->ahead() == nullptr) return;
  const auto self = shared_from_this();
  lookup->ahead()->WhenIdsThere(
      table_of_lookup,
      [self, lookup, table, table_of_lookup](const Status& status, const auto&, const auto&) {
        if (!status.ok()) return self->Fail(status);
        self->Split(table, lookup.get(), table_of_lookup);
      });
}

std::vector<TableRows::Call> TableRows::CallsOf(int table, Part part,
                                                std::vector<PartReceiver> receivers) const {
  const State& state = states_[table];
  const int number = state.is_split ? kParts : 1;
  std::vector<Call> calls;
  for (PartReceiver& receiver : receivers) {
    calls.push_back([receiver = std::move(receiver), part, number, got = state.got[part],
                     parts = PartsOf(state)] {
      if (!parts.empty()) receiver.declare(parts);
      receiver.part(Status(), part, number, got);
    });
  }
  return calls;
}

std::vector<std::vector<int32_t>> TableRows::PartsOf(const State& state) {
  if (!state.is_split) return {};
  return {Different(state.split.first), Different(state.split.second)};
}

void TableRows::Finish(Part part, const Status& status) {
  if (!status.ok()) return Fail(status);
  std::vector<Call> calls;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    for (size_t t = 0; t < states_.size(); ++t) {
      if (part == kDelayed && !states_[t].is_split) continue;
      states_[t].done[part] = true;
      for (Call& call : CallsOf(static_cast<int>(t), part, states_[t].receivers)) {
        calls.push_back(std::move(call));
      }
    }
  }
  for (const Call& call : calls) call();
}

void TableRows::Fail(const Status& cause) {
  std::vector<PartReceiver> receivers;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = cause;
    for (State& state : states_) {
      const bool is_done = state.done[kPrior] && (state.done[kDelayed] || !state.is_split);
      if (is_done) continue;
      receivers.insert(receivers.end(), state.receivers.begin(), state.receivers.end());
      state.receivers.clear();
    }
  }
  for (const PartReceiver& receiver : receivers) receiver.part(cause, kPrior, 1, Reduced());
}

}  // namespace tfdear
