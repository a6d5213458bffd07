// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#ifndef TFDEAR_ENGINE_EVENT_RECORD_H_
#define TFDEAR_ENGINE_EVENT_RECORD_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace tfdear {

enum class EventKind : int {
  kContribute,     // A gradient was copied into its bucket: progress of the backward pass.
  kReduceScatter,  // A collective was on the line (begin to end).
  kAllGather,
  kAllReduce,
  kSparseGather,
  kCollective,  // Any collective outside the gradients' lane.
  kUpdate,      // A deferred update function ran.
  kAwait,       // A read was held back until the updates in flight on its variable were done.
  kRead,        // A read passed: progress of the forward pass.
};

const char* Name(EventKind kind);

// One thing that happened. Meaning of `subject`: the bucket of a collective, the tensor of a
// contribution, the variable of an update or a read. `ticket` is the place of its reduction in the
// order of collectives; for reads, how many updates had been put off and `detail` how many of them
// had been applied when the read passed. `computation_us`, for collectives of gradients: processor
// time that the process spent on anything but communication meanwhile.
struct Event {
  EventKind kind;
  int64_t ticket;
  int64_t subject;
  int64_t detail;
  int64_t begin_us;
  int64_t end_us;
  int64_t computation_us = 0;
};

// The last events of this rank, in a ring of fixed size: always on, because the summary of overlap
// and every question after a failure start from it. Thread safe.
class EventRecord {
 public:
  explicit EventRecord(size_t capacity = size_t{1} << 17);

  static int64_t NowMicros();  // Steady clock.

  void Add(const Event& event);
  // Oldest first; forgets them.
  std::vector<Event> Drain();
  uint64_t overwritten() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Event> ring_;
  size_t next_ = 0;
  size_t filled_ = 0;
  uint64_t overwritten_ = 0;
};

}  // namespace tfdear

#endif  // TFDEAR_ENGINE_EVENT_RECORD_H_
