// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#include "custom_ops/engine/queue/process_group.h"

#include <exception>
#include <new>
#include <utility>

#include "custom_ops/engine/base/communication_threads.h"
#include "custom_ops/engine/base/keep_denormals.h"
#include "custom_ops/engine/base/signal_mask.h"

namespace tfdear {

using Clock = std::chrono::steady_clock;

ProcessGroup::ProcessGroup(std::string name, std::vector<int> ranks,
                           std::unique_ptr<CollectiveBackend> backend)
    : name_(std::move(name)), ranks_(std::move(ranks)), backend_(std::move(backend)) {
  backend_->NameRanks(ranks_);
  ScopedHelperThreadSignals signals;
  thread_ = std::thread(&ProcessGroup::Loop, this);
}

ProcessGroup::~ProcessGroup() {
  bool idle;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    idle = queue_.empty() && current_ == nullptr;
  }
  changed_.notify_all();
  if (!idle) {
    Abort(Status(StatusCode::kAborted,
                 "process group '" + name_ + "' was destroyed while collectives were under way"));
  }
  thread_.join();
}

std::shared_ptr<Work> ProcessGroup::Run(SignaturePtr signature, Body body,
                                        std::shared_ptr<Work> after) {
  auto work = std::make_shared<Work>();
  Status refused;
  {
    MutexLock lock(mutex_);
    refused = cause_;
    if (refused.ok()) {
      queue_.push_back(
          Entry{std::move(signature), std::move(body), work, std::move(after), next_sequence_++});
    }
  }
  if (!refused.ok()) {
    work->Finish(refused);
  } else {
    changed_.notify_all();
  }
  return work;
}

void ProcessGroup::Abort(const Status& cause) {
  const Status reason =
      cause.ok() ? Status(StatusCode::kAborted, "aborted without a cause") : cause;
  {
    MutexLock lock(mutex_);
    if (!cause_.ok()) return;
    cause_ = reason;
  }
  changed_.notify_all();
  backend_->Abort(reason);
}

void ProcessGroup::Loop() {
  RegisterCommunicationThread();
  const KeepDenormals keep_denormals;  // Sums are formed here.
  MutexLock lock(mutex_);
  while (true) {
    while (!stopping_ && queue_.empty()) lock.Wait(&changed_);
    if (queue_.empty()) return;
    Status status;
    if (const std::shared_ptr<Work> after = std::move(queue_.front().after)) {
      // The entry stays in the queue: the group is not idle.
      lock.Unlock();
      status = after->Wait();
      lock.Lock();
    }
    Entry entry = std::move(queue_.front());
    queue_.pop_front();
    if (!cause_.ok()) status = cause_;
    if (status.ok()) {
      current_ = entry.signature;
      current_sequence_ = entry.sequence;
      current_start_ = Clock::now();
      lock.Unlock();
      status = RunEntry(entry);
      lock.Lock();
      current_.reset();
      if (status.ok()) ++finished_;
    }
    lock.Unlock();
    entry.work->Finish(status);
    // The body may own the last reference to objects whose destructors call this group.
    entry = Entry();
    lock.Lock();
  }
}

Status ProcessGroup::RunEntry(const Entry& entry) {
  Status status;
  // The engine's own code returns its errors; memory that is gone is told by an exception.
  try {
    status = entry.body(backend_.get(), entry.sequence);
  } catch (const std::bad_alloc&) {
    status = Status(StatusCode::kResourceExhausted,
                    entry.signature->text() + ": this rank has no memory left for it");
  } catch (const std::exception& error) {
    status = Status(StatusCode::kInternal, entry.signature->text() + ": " + error.what());
  }
  if (status.ok() || status.code() == StatusCode::kInvalidArgument) return status;
  return AwaitCause(status);
}

// See [Note: root cause].
Status ProcessGroup::AwaitCause(const Status& error) {
  Status cause;
  {
    MutexLock lock(mutex_);
    if (cause_.ok()) {
      const int peer = backend_->failed_peer();
      failed_peer_ = peer < 0 ? -1 : GlobalRank(peer);
      failure_ = Status(error.code(), "rank " + std::to_string(GlobalRank(backend_->rank())) +
                                          ", process group '" + name_ + "': " + error.message());
      const Clock::time_point start = Clock::now();
      // In a loop, since set_cause_grace() may change the deadline meanwhile.
      while (cause_.ok() && Clock::now() < start + cause_grace_) {
        lock.WaitUntil(&changed_, start + cause_grace_);
      }
    }
    if (cause_.ok()) cause_ = *failure_;
    cause = cause_;
  }
  // Only now: closing connections earlier would make the neighbours suspect this rank.
  backend_->Abort(cause);
  return cause;
}

std::optional<ProcessGroup::InFlight> ProcessGroup::Current() const {
  MutexLock lock(mutex_);
  if (current_ == nullptr) return std::nullopt;
  InFlight in_flight;
  in_flight.signature = current_->text();
  if (current_->details() != nullptr) in_flight.details = *current_->details();
  in_flight.sequence = current_sequence_;
  in_flight.seconds = std::chrono::duration<double>(Clock::now() - current_start_).count();
  in_flight.waiting_for = GlobalRank(backend_->waiting_for());
  return in_flight;
}

std::optional<Status> ProcessGroup::Failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

int ProcessGroup::failed_peer() const {
  MutexLock lock(mutex_);
  return failed_peer_;
}

ProcessGroup::Counters ProcessGroup::counters() const {
  Counters counters;
  counters.bytes_sent = backend_->bytes_sent();
  MutexLock lock(mutex_);
  counters.collectives = finished_;
  return counters;
}

void ProcessGroup::set_cause_grace(std::chrono::milliseconds grace) {
  {
    MutexLock lock(mutex_);
    cause_grace_ = grace;
  }
  changed_.notify_all();
}

int ProcessGroup::GlobalRank(int group_rank) const {
  const size_t index = static_cast<size_t>(group_rank);
  return group_rank >= 0 && index < ranks_.size() ? ranks_[index] : -1;
}

}  // namespace tfdear
