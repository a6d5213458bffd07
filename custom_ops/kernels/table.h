// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/engine/updates/row_journal.h"
#include "custom_ops/engine/updates/rows_in_flight.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfdear {

// Which rows of a table this rank holds: those whose number is `offset`, modulo `stride`.
struct HeldRows {
  int64_t stride = 1;
  int64_t offset = 0;
};

// Rows of a gradient as they come from the ranks: several may be of one row of the table, and their
// order is that of the sum.
struct GradientRows {
  const float* values = nullptr;
  const int64_t* indices = nullptr;  // Of the whole table.
  int64_t count = 0;
  int64_t columns = 0;       // Of a row of `values`.
  int64_t first_column = 0;  // The one from which on they concern this rank.
};

using VariablePtr = tensorflow::core::RefCountPtr<tensorflow::Var>;

// What this rank holds of a sharded table, with its slots: variables that change by rows.
//
// A change is a program; a row gets it when the row is read or gets a gradient, or all rows do when
// the whole is read (`row_journal.h`). Thread safe. It does not keep the variables alive.
class Table {
 public:
  // A change in program order.
  struct Change {
    std::shared_ptr<const ElementwiseProgram> program;
    std::vector<VariablePtr> variables;  // The program's.
    std::vector<float> scalars;
    bool has_gradient = false;
    RowChange::Rows rows = RowChange::Rows::kAll;
  };

  // The table of this variable, which has this number in the engine.
  static absl::Status Of(tensorflow::OpKernelContext* context, const tensorflow::Tensor& handle,
                         int64_t number, std::shared_ptr<Table>* table);

  // The table with this number, or null; for who has no handle.
  static std::shared_ptr<Table> Find(int64_t number);

  // Notes a change; returns its number. If it has a gradient, reads of rows wait for that from here
  // on.
  absl::Status Append(Change change, int64_t* number);
  // Which rows get a gradient of a change, in each of its parts: said once to the journal, before
  // any part is applied, and then to the readers, for whom it may be said again.
  absl::Status Declare(int64_t change, const std::vector<std::vector<int32_t>>& parts,
                       HeldRows held);
  void TellReaders(int64_t change, const std::vector<std::vector<int32_t>>& parts) {
    in_flight_.Declare(change, parts);
  }
  // The gradient of a change, or a part of it; then, that all of it was applied; and, to readers,
  // that a part was.
  absl::Status Apply(int64_t change, const GradientRows& rows, HeldRows held);
  absl::Status Complete(int64_t change);
  void Finish(int64_t change, int part) { in_flight_.Finish(change, part, Status()); }
  // There will be no gradient: whoever reads rows fails with this cause, or, if the change was
  // given up before anything was sent, goes on without it.
  void Fail(int64_t change, const Status& cause);

  // Calls `done` once no gradient is in flight for any of these rows, by their numbers in the whole
  // table; `before`: of changes before this one.
  template <typename Id>
  void WhenIdle(const Id* ids, int64_t count, RowsInFlight::Done done,
                int64_t before = RowsInFlight::kAll) {
    in_flight_.WhenIdle(std::vector<int32_t>(ids, ids + count), std::move(done), before);
  }
  // Copies what this rank holds of rows, by their numbers in the whole table; rows of other ranks
  // are left out. No gradient may be in flight for them. `version`: of the table, as it is then.
  using MakeRows = std::function<absl::Status(int64_t rows, tensorflow::Tensor** result)>;
  absl::Status Read(const int32_t* ids, int64_t count, HeldRows held, const MakeRows& make,
                    int64_t* version);
  // Another one after everything that might change what a read finds.
  int64_t version();
  // This rank's shares of sums of what a program yields for the elements of the table, each of
  // which is up to date then (`row_sums.h`). `change`: of which that is; it is not made.
  absl::Status Sum(const Change& change, const GradientRows& rows, HeldRows held,
                   std::vector<double>* sums);
  // Copies rows [begin, end) of the table or one of its slots, after so many changes, or all (-1);
  // end is cut to what there is.
  absl::Status ReadRange(tensorflow::Var* variable, int64_t begin, int64_t end, int64_t changes,
                         const MakeRows& make);
  // How many changes there are, and how many of the first of them are complete.
  std::pair<int64_t, int64_t> Changes();
  // Makes up for all that rows missed: before the table or a slot is written. `forgets_noted`: what
  // is written are sums of gradients.
  absl::Status Settle(bool forgets_noted);

 private:
  // What concerns this rank of a gradient: its rows and columns, one row of every index.
  struct HeldGradient {
    std::vector<int64_t> rows;
    std::vector<float> values;
  };
  // All variables while they are locked: where their elements are.
  class Locked;
  class Registry;

  Table(const VariablePtr& variable, int64_t rows, int64_t width);
  static absl::Status Make(const VariablePtr& variable, std::shared_ptr<Table>* table);

  // The sum of the rows of each index, in the order of the ranks.
  absl::Status SumOf(const GradientRows& rows, HeldRows held, HeldGradient* sum);
  // The number of a variable among this table's; a new slot gets the next one.
  int ArrayOf(const tensorflow::Var* variable) TF_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t rows_;
  const int64_t width_;
  tensorflow::mutex mutex_;
  RowJournal journal_ TF_GUARDED_BY(mutex_);
  int64_t version_ TF_GUARDED_BY(mutex_) = 0;
  // The last one that was applied: fresh memory costs more than the sum.
  HeldGradient spare_ TF_GUARDED_BY(mutex_);
  RowsInFlight in_flight_;
  const tensorflow::core::WeakPtr<tensorflow::Var> variable_;
  // A slot's optimizer may be gone while rows still miss its changes.
  std::vector<VariablePtr> slots_ TF_GUARDED_BY(mutex_);
};

// What the attributes of an op say of a table.
struct TableOfOp {
  int64_t number = -1;  // Of its variable in the engine; -1: there is no table.
  HeldRows held;
  int64_t first_column = 0;
  RowChange::Rows rows = RowChange::Rows::kAll;  // That an op which changes it is for.

  absl::Status Read(tensorflow::OpKernelConstruction* context);
};

}  // namespace tfdear
