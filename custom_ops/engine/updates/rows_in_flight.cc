// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/rows_in_flight.h"

#include <algorithm>
#include <utility>

namespace tfdear {

void RowsInFlight::Begin(int64_t change) {
  MutexLock lock(mutex_);
  Part everything;
  everything.all_rows = true;
  changes_[change].parts.push_back(std::move(everything));
  begun_ = std::max(begun_, change + 1);
}

void RowsInFlight::Declare(int64_t change, std::vector<std::vector<int32_t>> parts) {
  std::vector<Waiting> idle;
  {
    MutexLock lock(mutex_);
    const auto found = changes_.find(change);
    if (found == changes_.end() || found->second.declared) return;
    found->second.declared = true;
    found->second.parts.clear();
    for (std::vector<int32_t>& rows : parts) {
      std::sort(rows.begin(), rows.end());
      Part part;
      part.rows = std::move(rows);
      found->second.parts.push_back(std::move(part));
    }
    idle = TakeIdle();
  }
  for (const Waiting& each : idle) each.done(Status());
}

void RowsInFlight::Finish(int64_t change, int part, const Status& status) {
  std::vector<Waiting> wake;
  {
    MutexLock lock(mutex_);
    const auto found = changes_.find(change);
    if (found == changes_.end()) return;
    std::vector<Part>& parts = found->second.parts;
    if (status.ok()) {
      parts[part].done = true;
      if (std::all_of(parts.begin(), parts.end(), [](const Part& each) { return each.done; })) {
        changes_.erase(found);
      }
      wake = TakeIdle();
    } else {
      if (failure_.ok()) failure_ = status;
      changes_.erase(found);
      wake.swap(waiting_);
    }
  }
  for (const Waiting& each : wake) each.done(status);
}

void RowsInFlight::FinishAll(int64_t change) {
  std::vector<Waiting> idle;
  {
    MutexLock lock(mutex_);
    if (changes_.erase(change) > 0) idle = TakeIdle();
  }
  for (const Waiting& each : idle) each.done(Status());
}

void RowsInFlight::WhenIdle(std::vector<int32_t> rows, Done done, int64_t before) {
  Status failure;
  {
    MutexLock lock(mutex_);
    failure = failure_;
    Waiting waiting{std::min(begun_, before), std::move(rows), std::move(done)};
    if (failure.ok() && !IsIdle(waiting)) {
      waiting_.push_back(std::move(waiting));
      return;
    }
    done = std::move(waiting.done);
  }
  done(failure);
}

bool RowsInFlight::IsIdle(const Waiting& waiting) const {
  if (waiting.rows.empty()) return true;
  for (const auto& [number, change] : changes_) {
    if (number >= waiting.changes) break;
    for (const Part& part : change.parts) {
      if (part.done) continue;
      if (part.all_rows) return false;
      for (int32_t row : waiting.rows) {
        if (std::binary_search(part.rows.begin(), part.rows.end(), row)) return false;
      }
    }
  }
  return true;
}

std::vector<RowsInFlight::Waiting> RowsInFlight::TakeIdle() {
  const auto first = std::partition(waiting_.begin(), waiting_.end(),
                                    [&](const Waiting& waiting)
                                        TFDEAR_REQUIRES(mutex_) { return !IsIdle(waiting); });
  std::vector<Waiting> idle(std::make_move_iterator(first),
                            std::make_move_iterator(waiting_.end()));
  waiting_.erase(first, waiting_.end());
  return idle;
}

}  // namespace tfdear
