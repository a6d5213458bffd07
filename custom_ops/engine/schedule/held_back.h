// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/collectives/partitioned_rows.h"

namespace tfdear {

// What travels last: rows of gradients that the next step does not need.
//
// They are held back until the vectors of the next step have arrived, so that they travel under its
// computation, or until somebody here or there needs one of them. Ranks cannot tell each other that
// they wait, and a rank may wait for rows while no next step comes: so nothing is held back for
// longer than kLongest. Thread safe.
class HeldBack {
 public:
  static constexpr std::chrono::milliseconds kLongest{1000};

  struct Rows {
    int64_t lookup = -1;  // The ticket of the lookup of their step.
    // Of each table: its variable, and the ids of all ranks.
    std::vector<std::pair<int64_t, GatheredIds>> tables;
    std::vector<int64_t> writes;  // The variables whose reads wait for them.
  };
  using Held = std::shared_ptr<const Rows>;

  // Rows that are ready to be sent, but for this.
  void Add(Held rows);
  // Waits until they may go: in the thread that sends them.
  void WaitFor(const Held& rows);

  // The vectors of a lookup have arrived.
  void LookupArrived(int64_t lookup);
  // A lookup in a table needs rows, on some rank.
  void RowsWanted(int64_t variable, const GatheredIds& ids);
  // A read of a variable waits here.
  void VariableWanted(int64_t variable);
  // Whatever is held back now may go.
  void Release();

 private:
  // Releases those for which this holds.
  template <typename Predicate>
  void ReleaseIf(Predicate may_go);

  Mutex mutex_;
  std::condition_variable changed_;
  std::vector<Held> held_ TFDEAR_GUARDED_BY(mutex_);
  int64_t arrived_ TFDEAR_GUARDED_BY(mutex_) = -1;
};

}  // namespace tfdear
