// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/engine/schedule/reduced.h"
#include "custom_ops/kernels/table.h"

namespace tfdear {

// An update of a table that was put off: a change whose gradient comes later, in one part or in
// several, each of which another thread may bring.
class UpdateOfRows {
 public:
  // Takes the next place among the table's changes.
  static absl::Status Begin(std::shared_ptr<Table> table, Table::Change change,
                            const TableOfOp& place, std::shared_ptr<UpdateOfRows>* update);

  // Says which rows are in each part; counts once.
  void Declare(const std::vector<std::vector<int32_t>>& parts);
  // Calls `done` when the changes before have come to these rows: in a step two may be under way.
  void WhenReady(const Reduced& rows, RowsInFlight::Done done) {
    table_->WhenIdle(rows.indices, rows.shape[0], std::move(done), change_);
  }
  // Applies one of `parts` parts. `last`: whether all were applied then.
  absl::Status Apply(int part, int parts, const Reduced& rows, bool* last);
  void Fail(const Status& cause) { table_->Fail(change_, cause); }
  // True once: for who ends it.
  bool End() { return !ended_.exchange(true); }

 private:
  UpdateOfRows(std::shared_ptr<Table> table, const TableOfOp& place)
      : table_(std::move(table)), place_(place) {}

  const std::shared_ptr<Table> table_;
  const TableOfOp place_;
  int64_t change_ = -1;
  std::once_flag declared_;
  absl::Status declaration_;
  std::atomic<int> applied_{0};
  std::atomic<bool> ended_{false};
};

}  // namespace tfdear
