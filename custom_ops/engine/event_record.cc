// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/event_record.h"

#include <chrono>

namespace tfdear {

const char* Name(EventKind kind) {
  switch (kind) {
    case EventKind::kContribute:
      return "contribute";
    case EventKind::kReduceScatter:
      return "reduce_scatter";
    case EventKind::kAllGather:
      return "all_gather";
    case EventKind::kAllReduce:
      return "all_reduce";
    case EventKind::kSparseGather:
      return "sparse_gather";
    case EventKind::kCollective:
      return "collective";
    case EventKind::kUpdate:
      return "update";
    case EventKind::kAwait:
      return "await";
    case EventKind::kRead:
      return "read";
  }
  return "unknown";
}

EventRecord::EventRecord(size_t capacity) : ring_(capacity) {}

int64_t EventRecord::NowMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void EventRecord::Add(const Event& event) {
  std::lock_guard<std::mutex> lock(mutex_);
  ring_[next_] = event;
  next_ = (next_ + 1) % ring_.size();
  if (filled_ < ring_.size()) {
    ++filled_;
  } else {
    ++overwritten_;
  }
}

std::vector<Event> EventRecord::Drain() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Event> events;
  events.reserve(filled_);
  const size_t first = (next_ + ring_.size() - filled_) % ring_.size();
  for (size_t i = 0; i < filled_; ++i) events.push_back(ring_[(first + i) % ring_.size()]);
  filled_ = 0;
  return events;
}

uint64_t EventRecord::overwritten() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return overwritten_;
}

}  // namespace tfdear
