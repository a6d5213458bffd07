// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/base/thread_annotations.h"

namespace tfdear {

// Which rows of a table wait for gradients: a lookup waits for what is in flight on its rows, and
// for nothing else. A change may get its gradients in several parts, which come in any order; until
// they are declared it is one part, of all rows. Thread safe; no call blocks.
class RowsInFlight {
 public:
  using Done = std::function<void(const Status&)>;
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

  void Begin(int64_t change);
  // Says which rows each part has, before any of them is there; other rows get no gradient. What is
  // said again counts for nothing.
  void Declare(int64_t change, std::vector<std::vector<int32_t>> parts);
  // A part of a change is there. With an error all that waits, now or later, fails.
  void Finish(int64_t change, int part, const Status& status);
  // Nothing of a change will come, and nobody waits for it.
  void FinishAll(int64_t change);
  // Calls `done` once none of these rows waits for a gradient of a change that has begun: at once,
  // or in the thread that brings the last one. It waits for the changes so far, or for those of
  // them before a given one.
  void WhenIdle(std::vector<int32_t> rows, Done done, int64_t before = kAll);

 private:
  struct Part {
    bool all_rows = false;
    std::vector<int32_t> rows;  // In ascending order.
    bool done = false;
  };
  struct Waiting {
    int64_t changes;  // Those before this one are waited for.
    std::vector<int32_t> rows;
    Done done;
  };

  struct Change {
    bool declared = false;
    std::vector<Part> parts;
  };

  bool IsIdle(const Waiting& waiting) const TFDEAR_REQUIRES(mutex_);
  // Those that need not wait any more.
  std::vector<Waiting> TakeIdle() TFDEAR_REQUIRES(mutex_);

  Mutex mutex_;
  int64_t begun_ TFDEAR_GUARDED_BY(mutex_) = 0;  // One more than the last change that has begun.
  std::map<int64_t, Change> changes_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<Waiting> waiting_ TFDEAR_GUARDED_BY(mutex_);
  Status failure_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
