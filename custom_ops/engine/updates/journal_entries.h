// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/updates/elementwise_program.h"
#include "custom_ops/engine/updates/idleness.h"

namespace tfdear {

// An element-wise change of a table and its slots.
struct RowChange {
  enum class Rows {
    // All: those that get no gradient of it get it with a gradient of zero.
    kAll,
    // Those that get a gradient, and, with a gradient of zero, those that changes of kNoted have
    // touched since the last change of this kind with gradients. One without gradients, as a decay
    // of weights, is for those of the next change with gradients, just before it.
    kTouched,
    // Those that get a gradient.
    kNoted,
  };

  // The same object for the same update in every step: by that, changes are known to be the same.
  std::shared_ptr<const ElementwiseProgram> program;
  // Which arrays the program's variables are: 0 is the table, others are its slots. Distinct.
  std::vector<int> arrays;
  std::vector<float> scalars;
  bool has_gradient = false;  // Else it is complete at once.
  Rows rows = Rows::kAll;
};

// The changes of a RowJournal in program order, numbered from 0, and how they repeat. Not
// thread-safe.
class JournalEntries {
 public:
  // Changes that follow one another, up to `end`, which grows as long as they are the newest.
  struct Run {
    int64_t end;
    std::vector<int> arrays;  // What they use, in ascending order.
  };

  // A run that leaves a row as it is, gradients aside, if the values in the row allow it.
  struct IdleRun {
    std::shared_ptr<Run> run;  // Null: the change is in none.
    std::optional<Idleness> proof;
  };

  struct Entry {
    RowChange change;
    bool is_complete;
    bool was_applied;  // To some rows.
    // The rows that get a gradient, in ascending order, if they are known before it is there.
    std::optional<std::vector<int64_t>> touched;
    int64_t last_gradient;  // The number of the last change before it with gradients; -1: none.
    // The first change after that one, up to this one, that is for the rows of the next change with
    // gradients; -1: there is none.
    int64_t first_waiting;
    // The same changes to the bit: once one of them has changed nothing, the others do not.
    std::shared_ptr<Run> identical;
    IdleRun idle;          // whatever the slots are
    IdleRun idle_at_zero;  // while all slots are zero
    // What was asked for last, and its answer.
    std::optional<KnownVariables> known;
    std::shared_ptr<const Residue> residue;
  };

  // The number is that of all changes before it. Call it under FlushDenormals.
  Status Append(RowChange change, int64_t* number);
  Status Complete(int64_t number);
  // Says which rows get a gradient of a change that is not complete.
  Status Declare(int64_t number, std::vector<int64_t> rows);
  // Makes a change that was not applied one that does nothing, and is complete.
  Status Abandon(int64_t number);
  void NoteApplied(int64_t number) { entries_[number - first_].was_applied = true; }
  void DropBefore(int64_t number);

  // Of a change that is kept: those from first() to size().
  const Entry& at(int64_t number) const { return entries_[number - first_]; }
  // What is left of a change that is kept, with a gradient of zero, where arrays hold what is known
  // of them, one bit for each; null: all of it. `fixed_by`: the change that left those as they are
  // that are fixed. Call it under FlushDenormals.
  const Residue* ResidueOf(int64_t number, const KnownVariables& arrays, int64_t fixed_by);
  int64_t first() const { return first_; }
  int64_t size() const { return first_ + static_cast<int64_t>(entries_.size()); }
  // How many of the first are complete.
  int64_t complete() const { return complete_; }
  // The first change from one to another, not including that, of which a row may still get a
  // gradient; -1: there is none.
  int64_t Awaited(int64_t row, int64_t from, int64_t to) const;
  Status CheckKept(int64_t number) const;

  // How many of those that are kept are for all rows.
  int64_t for_all() const { return for_all_; }
  // How many of the first `changes` changes concern a row that gets none of the gradients to come.
  int64_t Settled(int64_t changes) const;
  // The first of kTouched with gradients, of those that are kept, after a change; the last one
  // before a change. -1: there is none.
  int64_t UpdateAfter(int64_t number) const;
  int64_t UpdateBefore(int64_t number) const;

  // All that the changes that are kept use, in ascending order, and maybe others before them.
  const std::vector<int>& arrays() const { return arrays_; }

 private:
  int64_t first_ = 0;
  int64_t complete_ = 0;
  int64_t last_gradient_ = -1;
  int64_t first_waiting_ = -1;
  int64_t for_all_ = 0;
  std::deque<int64_t> updates_;  // Those of kTouched with gradients.
  std::vector<int> arrays_;
  std::deque<Entry> entries_;
  // Those of changes that are kept, or were: few, as most changes have one of another.
  std::vector<std::shared_ptr<const Residue>> residues_;
};

}  // namespace tfdear
