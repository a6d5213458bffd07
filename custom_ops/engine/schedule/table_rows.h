// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/collectives/partitioned_rows.h"
#include "custom_ops/engine/memory/fusion_buffer.h"
#include "custom_ops/engine/queue/lane.h"
#include "custom_ops/engine/record/event_record.h"
#include "custom_ops/engine/schedule/reduced.h"
#include "custom_ops/engine/schedule/right_of_way.h"
#include "custom_ops/engine/schedule/table_lookup.h"
#include "custom_ops/engine/schedule/table_runs.h"

namespace tfdear {

// The rows of one step's gradients of partitioned tables, on their way to the ranks that hold them.
// Small tables travel together, large ones in turn, those of the last layers first
// (`table_runs.h`). Thread safe.
//
// [Note: prior and delayed rows]
// Where the step looks ahead (`table_lookup.h`) rows travel in two parts: prior rows are those of
// ids that any rank looks up in the next step, delayed rows the others. Each part is a ticket in a
// lane of its own, so that delayed rows can go behind the next step's lookups (`right_of_way.h`),
// and prior rows before them. All ranks know the ids of this step and of the next, so all split
// alike. (EmbRace, Algorithm 1.)
class TableRows : public std::enable_shared_from_this<TableRows> {
 public:
  enum Part : int { kPrior = 0, kDelayed = 1 };
  static constexpr int kParts = 2;

  struct Table {
    std::shared_ptr<const TablePartition> partition;
    DataType type = DataType::kFloat32;
    std::shared_ptr<RowCounts> counts;  // Null: nobody counts.
  };
  // Rows of one table and their numbers; the first dimension counts them.
  struct Rows {
    std::shared_ptr<FusionBuffer> values;
    std::shared_ptr<FusionBuffer> numbers;
    std::vector<int64_t> shape;
    // If they are those of the ids of one table in a lookup, in their order, on all ranks: which.
    std::shared_ptr<TableLookup> lookup;
    int table_of_lookup = 0;

    size_t RowBytes(DataType type) const;
  };
  // Who gets what this rank holds of a table's rows. After an error nothing else comes.
  struct PartReceiver {
    // The ids in each part, of all ranks: as soon as they are known, and again before each part.
    // Where rows come in one part it is not called.
    std::function<void(const std::vector<std::vector<int32_t>>& parts)> declare;
    // The rows of all ranks, in their order: one of `parts` parts.
    std::function<void(const Status&, int part, int parts, const Reduced& rows)> part;
  };

  // `beside_dense`: whether there are dense gradients that may have to give way.
  TableRows(std::string name, std::vector<Table> tables, std::shared_ptr<FusionBufferPool> pool,
            EventRecord* events, Lane* prior, Lane* delayed, int max_delay_ms,
            RightOfWay* right_of_way, bool beside_dense);

  // Takes the next places in both lanes.
  void Open();
  // Withdraws both; false if one cannot be.
  bool Withdraw();
  void Fail(const Status& cause);

  // Gives this rank's rows of a table, once.
  void Contribute(int table, Rows rows);
  // `lookup`: the one that Contribute() will name, or null; `writes`: the variables that wait.
  void WhenThere(int table, std::shared_ptr<TableLookup> lookup, int table_of_lookup,
                 const std::vector<int64_t>& writes, PartReceiver receiver);

 private:
  class PartTicket : public Ticket {
   public:
    PartTicket(TableRows* rows, Part part, Lane* lane) : rows_(rows), part_(part), lane_(lane) {}
    bool Issue(ProcessGroup* group, Reactions* reactions) override {
      return rows_->Issue(part_, number(), group, reactions);
    }
    bool Untouched() const override { return rows_->Untouched(); }
    void Fail(const Status& cause) override { rows_->Fail(cause); }
    Lane* lane() const { return lane_; }

   private:
    TableRows* const rows_;  // Which it is a part of.
    const Part part_;
    Lane* const lane_;
  };

  struct State {
    Rows given;
    // The ids of all ranks in each part, once they are known.
    bool is_split = false;
    std::pair<GatheredIds, GatheredIds> split;
    Reduced got[kParts];
    bool done[kParts] = {false, false};
    std::vector<PartReceiver> receivers;
  };

  std::shared_ptr<Ticket> ticket(Part part) {
    return {shared_from_this(), part == kPrior ? &prior_ : &delayed_};
  }
  bool Untouched() const { return !touched_.load(); }
  bool Issue(Part part, int64_t number, ProcessGroup* group, Ticket::Reactions* reactions);
  // A table's rows are there, and the ids that say which of them are in which part.
  void Arrived(int table);
  // Splits a table's rows, the ids of this step and the next being there.
  void Split(int table, TableLookup* lookup, int table_of_lookup);
  using Tables = std::vector<size_t>;
  // Those that have delayed rows.
  Tables SplitTables() const TFDEAR_REQUIRES(mutex_);
  bool IssuePrior(int64_t number, ProcessGroup* group, Ticket::Reactions* reactions);
  bool IssueDelayed(int64_t number, ProcessGroup* group, Ticket::Reactions* reactions);
  void Run(Part part, Tables tables, int64_t number, RightOfWay::Held held, ProcessGroup* group,
           Ticket::Reactions* reactions);
  std::string Describe(Part part, const Tables& tables, int64_t number) TFDEAR_REQUIRES(mutex_);
  RightOfWay::Held ToHoldBack() TFDEAR_REQUIRES(mutex_);
  // The ids of all ranks in one part, where they are known.
  IdsOfRanks KnownIds(size_t table, Part part) TFDEAR_REQUIRES(mutex_);
  // This rank's rows of one part, and those ids of all ranks.
  Status TakePart(size_t table, Part part, Rows* rows, GatheredIds* known) TFDEAR_REQUIRES(mutex_);
  Status Exchange(Part part, const Tables& tables, int64_t number, CollectiveBackend* backend,
                  const Signature& signature, uint64_t sequence);
  void Finish(Part part, const Tables& tables, const Status& status);
  // What hands a part of a table out.
  using Call = std::function<void()>;
  std::vector<Call> CallsOf(int table, Part part, std::vector<PartReceiver> receivers) const
      TFDEAR_REQUIRES(mutex_);
  static std::vector<std::vector<int32_t>> PartsOf(const State& state);

  const std::string name_;
  const std::vector<Table> tables_;
  const std::shared_ptr<FusionBufferPool> pool_;
  EventRecord* const events_;
  const int max_delay_ms_;
  RightOfWay* const right_of_way_;
  const bool beside_dense_;
  PartTicket prior_, delayed_;
  std::atomic<bool> touched_{false};
  std::atomic<int> missing_;

  Mutex mutex_;
  std::vector<State> states_ TFDEAR_GUARDED_BY(mutex_);
  TableRuns prior_runs_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<int64_t> writes_ TFDEAR_GUARDED_BY(mutex_);
  Status failure_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
