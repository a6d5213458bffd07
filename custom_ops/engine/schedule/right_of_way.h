// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/collectives/partitioned_rows.h"

namespace tfdear {

// What goes first on the line, where lanes share it. (EmbRace, section 4.2.)
//
// [Note: right of way]
// 1. Rows that the next step needs, and the vectors that its layers wait for: urgent.
// 2. Dense gradients. Between two segments they give way while urgent bytes flow.
// 3. Vectors that are looked up early, and rows that the next step does not need. They wait until
//    the dense sums that the forward pass needs are there, and so travel while the line would rest:
//    behind the last gather, before the first gradients. Rows wait for the vectors of the next step
//    before that, or until somebody here or there needs one of them.
//
// Ranks cannot tell each other that they wait, and what is urgent may wait for a rank that waits
// for what is held back. So nothing waits here for longer than kLongest, and what has begun is not
// stopped: nobody waits in a circle. Thread safe.
class RightOfWay {
 public:
  static constexpr std::chrono::milliseconds kLongest{1000};

  // `is_wanted` tells whether a read waits now for any of these variables: rows that become ready
  // only then are not held back.
  explicit RightOfWay(std::function<bool(const std::vector<int64_t>&)> is_wanted = nullptr)
      : is_wanted_(std::move(is_wanted)) {}

  struct Rows {
    int64_t lookup = -1;  // The ticket of the lookup of their step.
    // Of each table: its variable, and the ids of all ranks.
    std::vector<std::pair<int64_t, GatheredIds>> tables;
    std::vector<int64_t> writes;  // The variables whose reads wait for them.
  };
  using Held = std::shared_ptr<const Rows>;

  // While one lives, urgent bytes flow: all ranks take part in the exchange.
  class Urgent {
   public:
    explicit Urgent(RightOfWay* right_of_way);
    ~Urgent();
    Urgent(const Urgent&) = delete;
    Urgent& operator=(const Urgent&) = delete;

   private:
    RightOfWay* const right_of_way_;
  };
  // For exchanges in which urgent bytes flow: once all ranks of the group take part. Null where
  // there is no right of way.
  static AroundExchange Around(RightOfWay* right_of_way, CollectiveBackend* backend,
                               const Signature& signature, uint64_t sequence);
  // Waits while urgent bytes flow: in the thread that sends dense gradients, between segments.
  void GiveWay();

  // The dense sums of a step, by its ticket, are under way: from its first collective to its last.
  void DenseBegan(int64_t ticket);
  void DenseEnded(int64_t ticket);
  // Waits for those that were under way when the step's vectors arrived: in the thread that sends
  // early ones. Not for the step's own: what looks up next waits behind early vectors.
  void WaitForDense();

  // Rows that are ready to be sent, but for this.
  void Add(Held rows);
  // Waits until they may go: in the thread that sends them.
  void WaitFor(const Held& rows);

  // The vectors of a lookup have arrived.
  void LookupArrived(int64_t lookup);
  // A lookup in a table needs rows, on some rank: now, and until its vectors have arrived.
  void RowsWanted(int64_t lookup, int64_t variable, std::vector<int32_t> ids);
  // A read of a variable waits here.
  void VariableWanted(int64_t variable);
  // Whatever is held back now may go.
  void Release();
  // Forgets all tickets, whose numbers are about to be used again; none of them is under way.
  void Reset();

 private:
  // Rows, and the dense sums that they still wait for once the next vectors are there.
  struct Waiting {
    Held rows;
    bool next_arrived = false;
    std::set<int64_t> dense;
  };

  // Rows of a table that a lookup waits for.
  struct Wanted {
    int64_t lookup;
    int64_t variable;
    std::vector<int32_t> ids;
  };

  static bool AreOf(int64_t variable, const IdPlaces& ids, const Rows& rows);
  void NextArrived(Waiting* waiting) TFDEAR_REQUIRES(mutex_);
  // Lets those go for which this holds.
  template <typename Predicate>
  void ReleaseIf(Predicate may_go) TFDEAR_REQUIRES(mutex_);

  const std::function<bool(const std::vector<int64_t>&)> is_wanted_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::vector<Waiting> held_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<Wanted> wanted_ TFDEAR_GUARDED_BY(mutex_);
  int64_t arrived_ TFDEAR_GUARDED_BY(mutex_) = -1;
  std::set<int64_t> dense_ TFDEAR_GUARDED_BY(mutex_);    // Under way.
  std::set<int64_t> forward_ TFDEAR_GUARDED_BY(mutex_);  // Of these, what the forward pass needs.
  int64_t releases_ TFDEAR_GUARDED_BY(mutex_) = 0;
  int urgent_ TFDEAR_GUARDED_BY(mutex_) = 0;
};

}  // namespace tfdear
