// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/pending_updates.h"

#include <utility>

namespace tfdear {

PendingUpdates::Variable& PendingUpdates::Get(int64_t variable) {
  if (variables_.size() <= static_cast<size_t>(variable)) variables_.resize(variable + 1);
  if (variables_[variable] == nullptr) variables_[variable] = std::make_unique<Variable>();
  return *variables_[variable];
}

void PendingUpdates::RecordPass(int64_t id, const Variable& variable, int64_t since_us) {
  const int64_t now = EventRecord::NowMicros();
  if (since_us > 0) {
    events_->Add({EventKind::kAwait, variable.deferred, id, variable.applied, since_us, now});
  }
  events_->Add({EventKind::kRead, variable.deferred, id, variable.applied, now, now});
}

void PendingUpdates::Defer(const std::vector<int64_t>& variables) {
  MutexLock lock(mutex_);
  for (int64_t id : variables) ++Get(id).deferred;
  in_flight_ += variables.size();
}

void PendingUpdates::Finish(const std::vector<int64_t>& variables, const Status& status) {
  std::vector<std::pair<Reader, Status>> wake;
  {
    MutexLock lock(mutex_);
    if (first_error_.ok()) first_error_ = status;
    for (int64_t id : variables) {
      Variable& variable = Get(id);
      ++variable.applied;
      if (!status.ok() && variable.status.ok()) variable.status = status;
      if (variable.applied < variable.deferred) continue;
      for (Reader& reader : variable.readers) {
        RecordPass(id, variable, reader.since_us);
        wake.emplace_back(std::move(reader), variable.status);
      }
      variable.readers.clear();
    }
    in_flight_ -= variables.size();
    if (in_flight_ == 0) idle_.notify_all();
  }
  for (auto& [reader, result] : wake) reader.done(result);
}

void PendingUpdates::Await(int64_t id, std::function<void(const Status&)> done) {
  Status status;
  bool waits = false;
  {
    MutexLock lock(mutex_);
    Variable& variable = Get(id);
    waits = failure_.ok() && variable.applied < variable.deferred;
    if (waits) variable.readers.push_back({std::move(done), EventRecord::NowMicros()});
  }
  if (waits) {
    if (on_wait_ != nullptr) on_wait_(id);
    return;
  }
  {
    MutexLock lock(mutex_);
    Variable& variable = Get(id);
    // A variable that no update was ever put off on keeps reading after a failure, so that the
    // script can still report and save what it has.
    if (variable.deferred > 0) status = failure_.ok() ? variable.status : failure_;
    RecordPass(id, variable, 0);
  }
  done(status);
}

bool PendingUpdates::Idle(const std::vector<int64_t>& variables) {
  MutexLock lock(mutex_);
  for (int64_t id : variables) {
    const Variable& variable = Get(id);
    if (variable.applied < variable.deferred) return false;
    if (variable.deferred > 0 && (!failure_.ok() || !variable.status.ok())) return false;
  }
  for (int64_t id : variables) RecordPass(id, Get(id), 0);
  return true;
}

bool PendingUpdates::HasReaders(const std::vector<int64_t>& variables) {
  MutexLock lock(mutex_);
  if (waiting_for_all_ > 0) return true;
  for (int64_t id : variables) {
    if (!Get(id).readers.empty()) return true;
  }
  return false;
}

Status PendingUpdates::WaitAll(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  {
    MutexLock lock(mutex_);
    ++waiting_for_all_;
  }
  if (on_wait_ != nullptr) on_wait_(kAll);
  MutexLock lock(mutex_);
  while (in_flight_ > 0 && failure_.ok() && std::chrono::steady_clock::now() < deadline) {
    lock.WaitUntil(&idle_, deadline);
  }
  --waiting_for_all_;
  if (!failure_.ok()) return failure_;
  if (in_flight_ == 0) return first_error_;
  return Status(StatusCode::kDeadlineExceeded,
                TextOf(in_flight_, " variable updates were still in flight after ",
                       timeout.count() / 1000.0, " s"));
}

void PendingUpdates::Fail(const Status& cause) {
  std::vector<Reader> wake;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = cause;
    for (auto& variable : variables_) {
      if (variable == nullptr) continue;
      for (Reader& reader : variable->readers) wake.push_back(std::move(reader));
      variable->readers.clear();
    }
    idle_.notify_all();
  }
  for (Reader& reader : wake) reader.done(cause);
}

int64_t PendingUpdates::in_flight() const {
  MutexLock lock(mutex_);
  return in_flight_;
}

}  // namespace tfdear
