// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#include "custom_ops/engine/queue/process_group.h"

#include <exception>
#include <new>
#include <utility>

#include "custom_ops/engine/base/communication_threads.h"
#include "custom_ops/engine/base/helper_thread.h"
#include "custom_ops/engine/base/keep_denormals.h"
#include "custom_ops/engine/base/signal_mask.h"

namespace tfdear {

using Clock = std::chrono::steady_clock;

// See [Note: two in flight].
constexpr size_t kMostInFlight = 2;

ProcessGroup::ProcessGroup(std::string name, std::vector<int> ranks,
                           std::unique_ptr<CollectiveBackend> backend)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      rank_(backend->rank()),
      size_(backend->size()),
      backend_(std::move(backend)) {
  backend_->NameRanks(ranks_);
  ScopedHelperThreadSignals signals;
  thread_ = std::thread(&ProcessGroup::Loop, this);
}

ProcessGroup::~ProcessGroup() { Close(); }

void ProcessGroup::Close() {
  bool idle;
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    idle = queue_.empty() && started_.empty();
    // What comes from now on would find no thread.
    if (idle && cause_.ok()) {
      cause_ = Status(StatusCode::kAborted, "process group '" + name_ + "' was closed");
    }
  }
  changed_.notify_all();
  if (!idle) {
    Abort(Status(StatusCode::kAborted,
                 "process group '" + name_ + "' was closed while collectives were under way"));
  }
  thread_.join();
  {
    MutexLock lock(mutex_);
    all_started_ = true;
  }
  changed_.notify_all();
  if (preparation_thread_.joinable()) preparation_thread_.join();
  if (completion_thread_.joinable()) completion_thread_.join();
  std::shared_ptr<CollectiveBackend> closed;  // Freed without the mutex.
  {
    MutexLock lock(mutex_);
    bytes_sent_ = backend_->bytes_sent();
    closed.swap(backend_);
  }
}

std::shared_ptr<Work> ProcessGroup::Run(SignaturePtr signature, Body body,
                                        std::shared_ptr<Work> after, Preparation preparation) {
  auto work = std::make_shared<Work>();
  Status refused;
  {
    MutexLock lock(mutex_);
    refused = cause_;
    if (refused.ok()) {
      auto entry = std::make_shared<Entry>();
      entry->signature = std::move(signature);
      entry->body = std::move(body);
      entry->work = work;
      entry->after = std::move(after);
      entry->sequence = next_sequence_++;
      if (preparation != nullptr) {
        entry->preparation = std::move(preparation);
        if (HasPreparationThread()) {
          entry->prepared = std::make_shared<Work>();
          unprepared_.push_back(entry);
        }
      }
      queue_.push_back(std::move(entry));
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
  std::shared_ptr<CollectiveBackend> backend;
  {
    MutexLock lock(mutex_);
    if (!cause_.ok()) return;
    cause_ = reason;
    backend = backend_;
  }
  changed_.notify_all();
  if (backend != nullptr) backend->Abort(reason);
}

void ProcessGroup::Loop() {
  RegisterCommunicationThread();
  const KeepDenormals keep_denormals;  // Sums are formed here.
  MutexLock lock(mutex_);
  while (true) {
    while (queue_.empty() ? !stopping_ : started_.size() >= kMostInFlight) lock.Wait(&changed_);
    if (queue_.empty()) return;
    Status status;
    if (const std::shared_ptr<Work> after = queue_.front()->after) {
      // The entry stays in the queue: the group is not idle.
      lock.Unlock();
      status = after->Wait();
      lock.Lock();
    }
    std::shared_ptr<Entry> entry = std::move(queue_.front());
    queue_.pop_front();
    if (!cause_.ok()) status = cause_;
    if (!status.ok() && entry->prepared != nullptr) {
      // It may still use what goes with the entry.
      lock.Unlock();
      (void)entry->prepared->Wait();
      lock.Lock();
    }
    if (status.ok()) {
      entry->start = Clock::now();
      started_.push_back(entry);
      lock.Unlock();
      status = RunEntry(*entry);
      auto completion = status.ok() ? backend_->Completion() : nullptr;
      lock.Lock();
      if (completion != nullptr && HasCompletionThread()) {
        entry->completion = std::move(completion);
        changed_.notify_all();
        continue;
      }
      if (completion != nullptr) {
        lock.Unlock();
        status = CauseOf(completion->Wait());
        lock.Lock();
      }
      started_.pop_back();
      if (status.ok()) ++finished_;
    }
    lock.Unlock();
    entry->work->Finish(status);
    // The body may own the last reference to objects whose destructors call this group.
    entry.reset();
    lock.Lock();
  }
}

bool ProcessGroup::HasCompletionThread() {
  if (completion_thread_.joinable()) return true;
  return StartHelperThread([this] { CompletionLoop(); }, &completion_thread_).ok();
}

// Apart from the thread that starts collectives: that one may wait for work of another group, which
// may wait for work of this one.
void ProcessGroup::CompletionLoop() {
  RegisterCommunicationThread();
  MutexLock lock(mutex_);
  while (true) {
    while (started_.empty() ? !all_started_ : started_.front()->completion == nullptr) {
      lock.Wait(&changed_);
    }
    if (started_.empty()) return;
    std::shared_ptr<Entry> entry = started_.front();
    lock.Unlock();
    const Status status = CauseOf(entry->completion->Wait());
    lock.Lock();
    started_.pop_front();
    if (status.ok()) ++finished_;
    lock.Unlock();
    changed_.notify_all();
    entry->work->Finish(status);
    entry.reset();
    lock.Lock();
  }
}

bool ProcessGroup::HasPreparationThread() {
  if (preparation_thread_.joinable()) return true;
  return StartHelperThread([this] { PreparationLoop(); }, &preparation_thread_).ok();
}

// In the order of the queue: a preparation waits only for others before it, and for what its
// collective waits for anyway.
void ProcessGroup::PreparationLoop() {
  RegisterCommunicationThread();
  const KeepDenormals keep_denormals;
  MutexLock lock(mutex_);
  while (true) {
    while (unprepared_.empty() && !all_started_) lock.Wait(&changed_);
    if (unprepared_.empty()) return;
    std::shared_ptr<Entry> entry = std::move(unprepared_.front());
    unprepared_.pop_front();
    lock.Unlock();
    Status status = entry->after == nullptr ? Status() : entry->after->Wait();
    if (status.ok()) status = Guarded(*entry, entry->preparation);
    entry->prepared->Finish(status);
    entry.reset();  // As in Loop().
    lock.Lock();
  }
}

Status ProcessGroup::RunEntry(const Entry& entry) {
  Status status;
  if (entry.prepared != nullptr) {
    status = entry.prepared->Wait();
  } else if (entry.preparation != nullptr) {
    status = Guarded(entry, entry.preparation);
  }
  if (status.ok()) {
    status = Guarded(entry, [&] { return entry.body(backend_.get(), entry.sequence); });
  }
  return CauseOf(status);
}

Status ProcessGroup::Guarded(const Entry& entry, const std::function<Status()>& call) {
  // The engine's own code returns its errors; memory that is gone is told by an exception.
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted,
                  entry.signature->text() + ": this rank has no memory left for it");
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, entry.signature->text() + ": " + error.what());
  }
}

// See [Note: root cause].
Status ProcessGroup::CauseOf(const Status& error) {
  if (error.ok() || error.code() == StatusCode::kInvalidArgument) return error;
  Status cause;
  {
    MutexLock lock(mutex_);
    if (cause_.ok() && !failure_) {
      const int peer = backend_->failed_peer();
      failed_peer_ = peer < 0 ? -1 : GlobalRank(peer);
      failure_ = Status(error.code(), "rank " + std::to_string(GlobalRank(rank_)) +
                                          ", process group '" + name_ + "': " + error.message());
    }
    const Clock::time_point start = Clock::now();
    // In a loop, since set_cause_grace() may change the deadline meanwhile.
    while (cause_.ok() && Clock::now() < start + cause_grace_) {
      lock.WaitUntil(&changed_, start + cause_grace_);
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
  if (started_.empty()) return std::nullopt;
  const Entry& first = *started_.front();
  InFlight in_flight;
  in_flight.signature = first.signature->text();
  if (first.signature->details() != nullptr) in_flight.details = *first.signature->details();
  in_flight.sequence = first.sequence;
  in_flight.seconds = std::chrono::duration<double>(Clock::now() - first.start).count();
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
  MutexLock lock(mutex_);
  counters.bytes_sent = backend_ == nullptr ? bytes_sent_ : backend_->bytes_sent();
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
