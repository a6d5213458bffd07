// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/record/event_record.h"

#include <algorithm>
#include <chrono>

namespace tfdear {

const char* Name(EventKind kind) {
  static constexpr const char* kNames[] = {"contribute",
                                           "collective",
                                           "update",
                                           "await",
                                           "read",
                                           "step",
                                           "norms",
                                           "selection",
                                           "forward",
                                           "embedding_ids",
                                           "embedding_vectors",
                                           "embedding_prior",
                                           "embedding_delayed",
                                           "row_update",
                                           "embedding_split",
                                           "wait",
                                           "data_read",
                                           "data_prepare",
                                           "data_fetch",
                                           "data_serve",
                                           "data_wait"};
  const int step = static_cast<int>(kind) - static_cast<int>(EventKind::kFirstOfPlans);
  if (step < 0) return NameIn(kNames, kind);
  return step < kNumStepKinds ? kStepKinds[step].name : kUnknownName;
}

EventKind EventOf(const StepKind& kind) {
  return static_cast<EventKind>(static_cast<int>(EventKind::kFirstOfPlans) + NumberOf(kind));
}

EventRecord::EventRecord(size_t capacity) : ring_(capacity) {}

int64_t EventRecord::NowMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void EventRecord::Add(const Event& event) {
  {
    MutexLock lock(mutex_);
    ring_[added_ % ring_.size()] = event;
    ++added_;
  }
  const Observer observer = observer_.load(std::memory_order_acquire);
  if (observer != nullptr) observer(event);
}

std::vector<Event> EventRecord::Read(uint64_t* position, size_t limit) const {
  MutexLock lock(mutex_);
  const uint64_t oldest = added_ - std::min<uint64_t>(added_, ring_.size());
  uint64_t next = std::min(std::max(*position, oldest), added_);
  const uint64_t end = next + std::min<uint64_t>(limit, added_ - next);
  std::vector<Event> events;
  events.reserve(end - next);
  for (; next < end; ++next) events.push_back(ring_[next % ring_.size()]);
  *position = end;
  return events;
}

}  // namespace tfdear
