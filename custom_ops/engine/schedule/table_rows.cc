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
      states_(tables_.size()),
      prior_runs_(tables_.size(), TableRuns::Order::kBackward) {}

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
  if (lookup == nullptr) return Arrived(table);
  // A gradient that does not depend on the vectors may be there before the ids of other ranks; and
  // those of the next step tell which rows go first.
  const auto self = shared_from_this();
  auto arrived = [self, table](const Status& status, const auto&, const auto&) {
    return status.ok() ? self->Arrived(table) : self->Fail(status);
  };
  if (lookup->ahead() == nullptr) return lookup->WhenIdsThere(table_of_lookup, arrived);
  lookup->ahead()->WhenIdsThere(table_of_lookup, [self, lookup, table, table_of_lookup, arrived](
                                                     const Status& status, const GatheredIds& ids,
                                                     const GatheredIds& needed) {
    // The step ended before it told its next ids: all rows go at once.
    if (status.code() == StatusCode::kCancelled) {
      return lookup->WhenIdsThere(table_of_lookup, arrived);
    }
    if (status.ok()) self->Split(table, lookup.get(), table_of_lookup);
    arrived(status, ids, needed);
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
    const GatheredIds ids = CopyOf(ahead->IdsThere(static_cast<int>(t)));
    next.insert(next.end(), ids.ids.begin(), ids.ids.end());
  }
  auto split = CopyOf(lookup->IdsThere(table_of_lookup)).Split(IdPlaces(next));
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

void TableRows::Arrived(int table) {
  {
    MutexLock lock(mutex_);
    const size_t row_bytes = states_[table].given.RowBytes(tables_[table].type);
    prior_runs_.SetBytes(table, MostBytes(KnownIds(table, kPrior).counts, row_bytes));
    prior_runs_.SetReady(table);
  }
  prior_.lane()->Advance();
  if (missing_.fetch_sub(1) == 1) delayed_.lane()->Advance();
}

TableRows::Tables TableRows::SplitTables() const {
  Tables split;
  for (size_t t = 0; t < states_.size(); ++t) {
    if (states_[t].is_split) split.push_back(t);
  }
  return split;
}

std::string TableRows::Describe(Part part, const Tables& tables, int64_t number) {
  std::string text = part == kPrior ? "embedding_prior of '" : "embedding_delayed of '";
  text += name_ + "' of " + std::to_string(tables_.size());
  for (size_t t : tables) {
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
  return part == kPrior ? IssuePrior(number, group, reactions)
                        : IssueDelayed(number, group, reactions);
}

bool TableRows::IssuePrior(int64_t number, ProcessGroup* group, Ticket::Reactions* reactions) {
  while (true) {
    Tables next;
    {
      MutexLock lock(mutex_);
      next = prior_runs_.Take();
      if (next.empty()) return prior_runs_.done();
    }
    Run(kPrior, std::move(next), number, nullptr, group, reactions);
  }
}

bool TableRows::IssueDelayed(int64_t number, ProcessGroup* group, Ticket::Reactions* reactions) {
  if (missing_.load() > 0) return false;
  Tables split;
  RightOfWay::Held held;
  {
    MutexLock lock(mutex_);
    split = SplitTables();
    if (split.empty()) return true;
    if (right_of_way_ != nullptr) held = ToHoldBack();
  }
  if (held != nullptr) right_of_way_->Add(held);
  Run(kDelayed, std::move(split), number, std::move(held), group, reactions);
  return true;
}

void TableRows::Run(Part part, Tables tables, int64_t number, RightOfWay::Held held,
                    ProcessGroup* group, Ticket::Reactions* reactions) {
  std::shared_ptr<const Signature> signature;
  {
    MutexLock lock(mutex_);
    signature = std::make_shared<const Signature>(Describe(part, tables, number));
  }
  const auto self = shared_from_this();
  auto work = group->Run(signature, [self, part, tables, number, signature, held = std::move(held)](
                                        CollectiveBackend* backend, uint64_t sequence) {
    // In the thread of this lane, which has nothing else to send.
    if (held != nullptr) self->right_of_way_->WaitFor(held);
    InjectDelay(self->max_delay_ms_);
    return self->Exchange(part, tables, number, backend, *signature, sequence);
  });
  reactions->push_back([self, part, tables = std::move(tables), work] {
    work->OnDone(
        [self, part, tables](const Status& status) { self->Finish(part, tables, status); });
  });
}

void TableRows::WhenThere(int table, std::shared_ptr<TableLookup> lookup, int table_of_lookup,
                          const std::vector<int64_t>& writes, PartReceiver receiver) {
  Status failure;
  std::vector<Call> calls;
  std::vector<std::vector<int32_t>> parts;
  {
    MutexLock lock(mutex_);
    failure = failure_;
    if (failure.ok()) {
      parts = PartsOf(states_[table]);
      writes_.insert(writes_.end(), writes.begin(), writes.end());
      states_[table].receivers.push_back(receiver);
      if (states_[table].done[kPrior]) calls = CallsOf(table, kPrior, {receiver});
      if (states_[table].done[kDelayed]) {
        for (Call& call : CallsOf(table, kDelayed, {receiver})) calls.push_back(std::move(call));
      }
    }
  }
  if (!failure.ok()) return receiver.part(failure, kPrior, 1, Reduced());
  if (!parts.empty()) receiver.declare(parts);
  for (const Call& call : calls) call();
  if (lookup == nullptr || lookup->ahead() == nullptr) return;
  const auto self = shared_from_this();
  lookup->ahead()->WhenIdsThere(
      table_of_lookup,
      [self, lookup, table, table_of_lookup](const Status& status, const auto&, const auto&) {
        if (status.code() == StatusCode::kCancelled) return;
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

void TableRows::Finish(Part part, const Tables& tables, const Status& status) {
  if (!status.ok()) return Fail(status);
  std::vector<Call> calls;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    for (size_t t : tables) {
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
