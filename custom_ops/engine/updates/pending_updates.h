// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/record/event_record.h"

namespace tfdear {

// The rule at the heart of deferred updates: every read of a variable waits for the updates in
// flight on it. Variables are named by small integers, counted from 0 in order of creation.
// Thread safe; no call blocks but WaitAll.
class PendingUpdates {
 public:
  static constexpr int64_t kAll = -1;  // What WaitAll waits for.

  // `on_wait` is called, from any thread, with every variable that a reader begins to wait for.
  explicit PendingUpdates(EventRecord* events, std::function<void(int64_t)> on_wait = nullptr)
      : events_(events), on_wait_(std::move(on_wait)) {}

  // An update that writes these variables was put off.
  void Defer(const std::vector<int64_t>& variables);
  // That update is done. An error stays with the variables: every later read of them fails.
  void Finish(const std::vector<int64_t>& variables, const Status& status);
  // Calls `done` once nothing is in flight on the variable: at once in the caller's thread, or in
  // the thread that finishes the last update.
  void Await(int64_t variable, std::function<void(const Status&)> done);
  // True if reads of all these variables may pass now, without an error; they then count as passed.
  bool Idle(const std::vector<int64_t>& variables);
  // True while somebody waits for any of these variables.
  bool HasReaders(const std::vector<int64_t>& variables);
  // Waits until nothing is in flight on any variable; the error of the first update that failed,
  // if any did.
  Status WaitAll(std::chrono::milliseconds timeout);
  // Every read that waits now or later fails with this cause.
  void Fail(const Status& cause);
  int64_t in_flight() const;

 private:
  struct Reader {
    std::function<void(const Status&)> done;
    int64_t since_us;
  };
  struct Variable {
    int64_t deferred = 0;
    int64_t applied = 0;
    Status status;
    std::vector<Reader> readers;
  };

  Variable& Get(int64_t variable) TFDEAR_REQUIRES(mutex_);
  void RecordPass(int64_t id, const Variable& variable, int64_t since_us);

  EventRecord* const events_;
  const std::function<void(int64_t)> on_wait_;
  mutable Mutex mutex_;
  std::condition_variable idle_;
  std::vector<std::unique_ptr<Variable>> variables_ TFDEAR_GUARDED_BY(mutex_);
  int64_t in_flight_ TFDEAR_GUARDED_BY(mutex_) = 0;
  int waiting_for_all_ TFDEAR_GUARDED_BY(mutex_) = 0;
  Status failure_ TFDEAR_GUARDED_BY(mutex_);      // Of everything.
  Status first_error_ TFDEAR_GUARDED_BY(mutex_);  // Of one update.
};

}  // namespace tfdear
