// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/record/event_record.h"

namespace tfdear {

// The ops that wait, for other ranks or for something of this one. A collective has a deadline; ops
// of a step that waited for each other would have none, so somebody looks here whether all of a
// step waits and nothing happens any more. Each period in which some op waits is an event: what the
// process did not compute in it, it lost to communication. Ops that look ahead make no period, as
// no layer waits for them. Thread safe.
class Waits {
 public:
  explicit Waits(EventRecord* events) : events_(events) {}

  // Returns the number of the wait.
  int64_t Begin(const std::string& op, bool looks_ahead = false);
  void End(int64_t wait);
  // The ops that wait now, those first that began first. Returns how often something here changed.
  int64_t Read(std::vector<std::string>* ops) const;

 private:
  EventRecord* const events_;
  mutable Mutex mutex_;
  int64_t changes_ TFDEAR_GUARDED_BY(mutex_) = 0;
  int64_t next_ TFDEAR_GUARDED_BY(mutex_) = 0;
  struct Op {
    std::string name;
    bool looks_ahead = false;
  };
  std::map<int64_t, Op> ops_ TFDEAR_GUARDED_BY(mutex_);
  int waiting_ TFDEAR_GUARDED_BY(mutex_) = 0;  // Those that do not look ahead.
  // Since when some op waits, by both clocks, and the first number that waited since.
  int64_t begin_us_ TFDEAR_GUARDED_BY(mutex_) = 0;
  int64_t computation_us_ TFDEAR_GUARDED_BY(mutex_) = 0;
  int64_t first_ TFDEAR_GUARDED_BY(mutex_) = 0;
};

}  // namespace tfdear
