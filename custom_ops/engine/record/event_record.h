// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/engine/base/step_kind.h"
#include "custom_ops/engine/base/thread_annotations.h"

namespace tfdear {

enum class EventKind : int {
  kContribute,        // A gradient was copied into its bucket: progress of the backward pass.
  kCollective,        // Any collective outside the gradients' lane.
  kUpdate,            // A deferred update function ran.
  kAwait,             // A read was held back until the updates in flight on its variable were done.
  kRead,              // A read passed: progress of the forward pass.
  kStep,              // A reduction of gradients was opened: its step began. Instantaneous.
  kNorms,             // The norms of a bucket's layers were computed and exchanged.
  kSelection,         // The elements of a bucket that are sent were selected.
  kForward,           // All that a variable's layer has as input was computed. Instantaneous.
  kEmbeddingIds,      // The ids that the ranks look up were gathered.
  kEmbeddingVectors,  // The vectors of ids came from the ranks that hold them.
  kEmbeddingPrior,    // Rows of gradients went to the ranks that hold them,
  kEmbeddingDelayed,  // and those that the next step does not need.
  kRowUpdate,         // Rows of a table were updated.
  kEmbeddingSplit,    // Ids were split by what the next step, or this one, needs.
  kWait,              // Ops waited for the engine: from the first that had to until none did.
  kDataRead,          // Raw records of a cache were read,
  kDataPrepare,       // and examples made of them.
  kDataFetch,         // Examples came from another node,
  kDataServe,         // and went to one.
  kDataWait,          // A batch waited for its examples.
  kFirstOfPlans,  // From here on: a step of a plan for gradients was on the line (begin to end).
};

EventKind EventOf(const StepKind& kind);
const char* Name(EventKind kind);

// One thing that happened. Meaning of `subject`: the bucket of a collective of gradients, the lane
// of any other, the tensor of a contribution, the variable of an update, a read or a forward
// computation, the layout of a step. Of ids, vectors and their split: 1 if they are the next
// step's. Of fetched examples: the rank that was asked. `ticket` is the place of its reduction in
// the order of collectives; for reads, how many updates had been put off and `detail` how many of
// them had been applied when the read passed. Else `detail` is the payload of a collective in
// bytes, the bucket of a contribution, how many variables an update writes, the number of buckets
// of a step, the bytes that this rank read for its part of norms, the ids that were split, the ops
// that waited, the elements that were selected, the records or examples that were read, prepared or
// waited for, the bytes of those that were fetched or served. `computation_us`, for collectives of
// gradients and for waits: processor time that the process spent on anything but communication
// meanwhile; for norms: what this rank's part of them took.
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
//
// Readers do not disturb each other: each keeps the number of the next event it wants to see.
class EventRecord {
 public:
  using Observer = void (*)(const Event&);

  explicit EventRecord(size_t capacity = size_t{1} << 17);

  static int64_t NowMicros();  // Steady clock.

  void Add(const Event& event);
  // Up to `limit` events from number `*position` on (0: the first since the start), oldest first.
  // Moves `*position` behind the last of them: what it moved beyond the number of events returned
  // had been overwritten.
  std::vector<Event> Read(uint64_t* position, size_t limit = SIZE_MAX) const;
  // Called with every later event, by the thread that adds it; must be quick and not add events.
  // Null for none.
  void set_observer(Observer observer) { observer_.store(observer, std::memory_order_release); }

 private:
  std::atomic<Observer> observer_{nullptr};
  mutable Mutex mutex_;
  std::vector<Event> ring_ TFDEAR_GUARDED_BY(mutex_);
  uint64_t added_ TFDEAR_GUARDED_BY(mutex_) = 0;
};

}  // namespace tfdear
