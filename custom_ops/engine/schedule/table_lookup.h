// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/collectives/bags.h"
#include "custom_ops/engine/collectives/vector_exchange.h"
#include "custom_ops/engine/memory/fusion_buffer.h"
#include "custom_ops/engine/queue/lane.h"
#include "custom_ops/engine/record/event_record.h"
#include "custom_ops/engine/record/table_counts.h"
#include "custom_ops/engine/schedule/reduced.h"
#include "custom_ops/engine/schedule/right_of_way.h"
#include "custom_ops/engine/schedule/table_runs.h"

namespace tfdear {

// What is looked up together: tables whose ids do not depend on each other's vectors.
struct LookupLayout {
  struct Table {
    TablePartition partition;
    int64_t columns = 0;    // Of whole vectors.
    std::string name;       // What the ranks may compare.
    int64_t variable = -1;  // The table's number.
    // Whether vectors that a step does not change are looked up for the next one while it runs.
    bool early = false;
    std::shared_ptr<RowCounts> counts;  // Null: nobody counts.
    // What an element of vectors takes that the holders of columns may pool; 0: they may not.
    size_t pooled_bytes = 0;
  };
  std::vector<Table> tables;
  bool looks_ahead = false;  // Whether a step knows the ids of the next one.
};

// One execution of it. First the ids of all ranks are gathered, of all tables at once; then every
// rank gives what it holds of their vectors, and gets whole ones of its own ids, of small tables
// at once and of large ones in turn (`table_runs.h`). Thread safe.
//
// [Note: looking ahead]
// A step that knows the next one's batch has a second ticket, of the same kind, which comes behind
// its own lookups: the ids that the next lookup is expected to have are gathered, and then the
// vectors of those that this step does not touch. The next lookup says whether its ids are those,
// and if they are on all ranks, gathers nothing and exchanges only the other vectors. If they are
// not, on any rank, it goes on as if nobody had looked ahead. So an expectation costs time if it is
// wrong, and never a bit. (EmbRace, section 4.2.2, looks ahead for the order of gradients; the
// early vectors are ours.)
//
// [Note: pooled vectors]
// A rank may use only sums of vectors, one for each of its bags (`bags.h`). Then the holders of
// columns can add up theirs, and one vector travels for a bag. With the numbers of their ids, ranks
// tell each other how many bags and tokens they have: all of them find what takes fewer bytes in
// this step, and only if sums do, the bags are gathered as well. The holders add up in the order in
// which the reader would, in the same type: no bit depends on who does. Such a table has no early
// vectors: what a step leaves as it is are ids, hardly ever all of a bag.
class TableLookup : public Ticket, public std::enable_shared_from_this<TableLookup> {
 public:
  // The ids of all ranks, and those of them whose vectors are still to be looked up.
  using IdsReceiver =
      std::function<void(const Status&, const GatheredIds& ids, const GatheredIds& needed)>;

  TableLookup(std::shared_ptr<const LookupLayout> layout, std::shared_ptr<FusionBufferPool> pool,
              EventRecord* events, Lane* lane, int max_delay_ms,
              RightOfWay* right_of_way = nullptr);

  // Makes the ticket that looks ahead of this one, if the layout has one; before it is opened.
  // `number`: the layout's, where the next lookup finds it.
  void LookAhead(int64_t number);
  int64_t layout_number() const { return layout_number_; }
  // Says what was expected of this lookup, before it is opened.
  void SetExpected(std::shared_ptr<TableLookup> expected) { expected_ = std::move(expected); }
  bool is_ahead() const { return is_ahead_; }
  // The ticket that looks ahead of this one; null: there is none.
  const std::shared_ptr<TableLookup>& ahead() const { return ahead_; }
  // The same, to be opened now: from here on it keeps this one until it has all ids.
  const std::shared_ptr<TableLookup>& TakeAhead();

  // This rank's ids in a table, each of them once. `early_vectors_valid`: whether those of the
  // table that were looked up early are still what a lookup now would find.
  void ContributeIds(int table, std::vector<int32_t> ids, bool early_vectors_valid = false);
  // Of one that looks ahead: there will be no next lookup, or nobody knows its ids.
  void ContributeNoIds(int table);
  // Of a table whose vectors may be pooled: this rank's bags of them. [Note: pooled vectors]
  void ContributeBags(int table, Bags bags);
  void WhenIdsThere(int table, IdsReceiver receiver);
  // Once ids are there, the bags of all ranks, whose sums travel; null: vectors of ids do.
  std::shared_ptr<const GatheredBags> BagsThere(int table);
  // Once they are there; they stay as long as the lookup.
  IdsOfRanks IdsThere(int table);
  // Of one that looks ahead, once ids are there: whether all ranks knew them.
  bool foresees();
  // The version of a table at which vectors were looked up early for this lookup; -1: never.
  int64_t ExpectedVersion(int table);
  // What this rank holds of the vectors of those ids that are needed, or of the sums of all bags
  // if these travel; `owner` keeps it.
  void ContributeVectors(int table, const void* held, size_t element_bytes,
                         std::shared_ptr<const void> owner, int64_t version = -1);
  // Calls the receiver with this rank's whole vectors, of its ids or of its bags.
  void WhenVectorsThere(int table, Receiver receiver);

  bool Issue(ProcessGroup* group, Reactions* reactions) override;
  // Also between ids and vectors: where ids are refused, as all ranks see the same ids, all
  // give up. If only this one does, the others find it in another collective.
  bool Untouched() const override {
    return !touched_.load() || (ids_there_.load() && missing_vectors_.load() == vectors_);
  }
  void Fail(const Status& cause) override;
  bool complete() const { return missing_ids_.load() == 0 && missing_vectors_.load() == 0; }
  const LookupLayout& layout() const { return *layout_; }

 private:
  // How much of what was expected holds; the ranks agree on the least.
  enum Known : int64_t { kNoIds = -1, kNothing = 0, kIds = 1, kIdsAndVectors = 2 };

  // The collective that gathers the ids of all tables, and who waits for it.
  struct IdsPhase {
    bool issued = false;  // Guarded by the lane's mutex.
    bool done = false;
    Status status;
    std::vector<std::pair<int, IdsReceiver>> receivers;
  };

  // What there is of one table.
  struct OfTable {
    std::vector<int32_t> own;
    bool unknown = false;  // Of one that looks ahead: there are no ids.
    bool early_vectors_valid = false;
    Bags bags;
    std::shared_ptr<const GatheredBags> all_bags;
    GatheredIds all;
    GatheredIds needed;  // Of these the vectors are exchanged.
    GatheredIds rest;    // Of one that looks ahead: the others, which the next lookup needs.
    LookedUp looked_up;
    std::shared_ptr<const void> owner;
    std::shared_ptr<FusionBuffer> vectors;
    int64_t version = -1;
    // Whether the vectors are there, or will not come, and who waits for that.
    bool done = false;
    Status status;
    std::vector<Receiver> receivers;
  };
  using Tables = std::vector<size_t>;

  Known KnownBefore() TFDEAR_REQUIRES(mutex_);
  Status Gather(CollectiveBackend* backend, const Signature& signature, uint64_t sequence);
  // How many bags this rank has, and how many tokens in them, of each table that may be pooled.
  std::vector<int64_t> CountBags() TFDEAR_REQUIRES(mutex_);
  // Gathers the bags of those tables whose sums are to travel, by what CountBags() said on each
  // rank; `sent`: how many bytes of them this rank has.
  Status GatherAllBags(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                       const std::vector<int64_t>& announced, int64_t* sent);
  void SetNeeded() TFDEAR_REQUIRES(mutex_);
  // Whether vectors of a table are exchanged: of one that looks ahead, early ones.
  bool Exchanges(size_t table) const { return !is_ahead_ || layout_->tables[table].early; }
  // Says what there is to exchange, once ids are there.
  void SetRuns() TFDEAR_REQUIRES(mutex_);
  // The tables of the next exchange; none: it cannot begin yet, or all have begun.
  Tables NextRun() TFDEAR_REQUIRES(mutex_);
  void IssueIds(ProcessGroup* group, Reactions* reactions);
  void IssueVectors(ProcessGroup* group, Tables tables, Reactions* reactions);
  Status Exchange(const Tables& tables, CollectiveBackend* backend, const Signature& signature,
                  uint64_t sequence);
  // Puts the vectors of a table that came early among those that came now.
  Status AddEarlyVectors(int table) TFDEAR_REQUIRES(mutex_);
  void FinishIds(const Status& status);
  void FinishVectors(const Tables& tables, const Status& status);
  Tables AllTables() const;
  std::string Describe(const char* phase, const Tables& tables) const;
  Reduced Slice(int table) const TFDEAR_REQUIRES(mutex_);

  const std::shared_ptr<const LookupLayout> layout_;
  const std::shared_ptr<FusionBufferPool> pool_;
  EventRecord* const events_;
  Lane* const lane_;
  const int max_delay_ms_;
  RightOfWay* const right_of_way_;
  bool is_ahead_ = false;
  int64_t layout_number_ = -1;
  int vectors_;  // Of how many tables vectors are exchanged.
  std::shared_ptr<TableLookup> ahead_;
  std::shared_ptr<TableLookup> current_;  // Of one that looks ahead, until ids are there.
  std::shared_ptr<TableLookup> expected_;
  std::atomic<bool> touched_{false};
  std::atomic<bool> ids_there_{false};
  std::atomic<int> missing_ids_;
  std::atomic<int> missing_vectors_;

  Mutex mutex_;
  IdsPhase ids_phase_ TFDEAR_GUARDED_BY(mutex_);
  TableRuns runs_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<OfTable> tables_ TFDEAR_GUARDED_BY(mutex_);
  Known agreed_ TFDEAR_GUARDED_BY(mutex_) = kNothing;
  int rank_ TFDEAR_GUARDED_BY(mutex_) = 0;
};

}  // namespace tfdear
