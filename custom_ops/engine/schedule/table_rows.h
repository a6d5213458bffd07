// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
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
#include "custom_ops/engine/schedule/table_lookup.h"

namespace tfdear {

// The rows of one step's gradients of partitioned tables, on their way to the ranks that hold them.
// All tables travel in one exchange, in a lane of their own. Thread safe.
class TableRows : public Ticket, public std::enable_shared_from_this<TableRows> {
 public:
  struct Table {
    std::shared_ptr<const TablePartition> partition;
    DataType type = DataType::kFloat32;
  };
  // Rows of one table and their numbers; the first dimension counts them.
  struct Rows {
    std::shared_ptr<FusionBuffer> values;
    std::shared_ptr<FusionBuffer> numbers;
    std::vector<int64_t> shape;
    // If they are those of the ids of one table in a lookup, in their order, on all ranks: which.
    std::shared_ptr<TableLookup> lookup;
    int table_of_lookup = 0;
  };

  TableRows(std::string name, std::vector<Table> tables, std::shared_ptr<FusionBufferPool> pool,
            EventRecord* events, Lane* lane, int max_delay_ms);

  // Gives this rank's rows of a table, once.
  void Contribute(int table, Rows rows);
  // Calls the receiver with what this rank holds of the rows of all ranks, in their order.
  void WhenThere(int table, Receiver receiver);

  bool Issue(ProcessGroup* group, Reactions* reactions) override;
  bool Untouched() const override { return missing_.load() == static_cast<int>(tables_.size()); }
  void Fail(const Status& cause) override { Finish(cause); }

 private:
  void Arrived();
  Status Exchange(CollectiveBackend* backend, const Signature& signature, uint64_t sequence);
  void Finish(const Status& status);
  Reduced Slice(int table) const TFDEAR_REQUIRES(mutex_);

  const std::string name_;
  const std::vector<Table> tables_;
  const std::shared_ptr<FusionBufferPool> pool_;
  EventRecord* const events_;
  Lane* const lane_;
  const int max_delay_ms_;
  std::atomic<int> missing_;

  Mutex mutex_;
  // First what this rank gives, then what it gets; those that run the exchange have them alone.
  std::vector<Rows> rows_ TFDEAR_GUARDED_BY(mutex_);
  bool done_ TFDEAR_GUARDED_BY(mutex_) = false;
  int64_t done_us_ TFDEAR_GUARDED_BY(mutex_) = 0;
  Status status_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<std::pair<int, Receiver>> receivers_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
