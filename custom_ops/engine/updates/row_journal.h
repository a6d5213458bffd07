// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/updates/elementwise_program.h"
#include "custom_ops/engine/updates/journal_entries.h"
#include "custom_ops/engine/updates/row_tile.h"

namespace tfdear {

// What the updates of an embedding table owe to its rows.
//
// A dense update changes every row in every step: where no gradient came, momentum decays, Adam
// moves, weights decay. Here a step costs what the rows cost that it touches. The others get their
// change, with a gradient of zero, when they are brought up to date: before they are read, before
// their next gradient. Each row knows how many changes it has got. So the result is that of the
// dense updates, bit for bit but for the signs of zeros. Runs of changes that would do nothing to a
// row are passed over at once (`idleness.h`).
//
// Other changes are for some rows only (`RowChange::Rows`): a table of which updates change but the
// rows that they touch has such updates, and it may have averages that follow in every row.
//
// A table and its slots, the arrays, belong to the caller, who numbers them: 0 is the table. All
// are [rows, width] of float32, row-major, and nobody else uses them during a call. Calls may come
// from several threads; one is done after another. Denormals are flushed, as by TensorFlow's
// threads. Nothing is changed by a call that fails.
class RowJournal {
 public:
  using Arrays = RowTile::Arrays;

  static constexpr int64_t kMaxEntries = 8192;

  // Keeps about twice `max_entries` changes at most: calls of Apply() bring further rows up to date
  // by and by, and changes that all rows have got are dropped.
  RowJournal(int64_t rows, int64_t width, int64_t max_entries = kMaxEntries);

  // Adds a change, which comes after all others, and returns its number. Touches no row.
  Status Append(RowChange change, int64_t* number);

  // Says which rows get a gradient of a change, once, before any does. The others need not wait for
  // it: they may have the change, with a gradient of zero, at once.
  Status Declare(int64_t change, std::vector<int64_t> rows);

  // Applies gradients ([count, width]) of a change to rows, each of which gets its gradient once.
  // A change's gradients may come in several parts, in any order. What a row missed before comes
  // first: of those changes it must have its gradients, or get none.
  Status Apply(int64_t change, const int64_t* rows, size_t count, const float* gradients,
               const Arrays& arrays);

  // Says that all gradients of a change were applied: other rows get it with a gradient of zero.
  Status Complete(int64_t change);

  // Says that a change, of which no gradient was applied, is not to be made at all.
  Status Abandon(int64_t change);

  // Brings rows, which may repeat, up to date with the first `changes` changes, which must be
  // complete, or with all before the first that is not.
  Status BringUpToDate(const int64_t* rows, size_t count, int64_t changes, const Arrays& arrays);
  Status BringUpToDate(const int64_t* rows, size_t count, const Arrays& arrays);
  // With all changes: of those that are not complete the rows must have their gradients, or get
  // none.
  Status BringThroughAll(const int64_t* rows, size_t count, const Arrays& arrays);
  // The same for all rows. Changes that all rows have got are dropped: if none is kept then, the
  // arrays may be others, with other numbers, from there on.
  Status BringAllUpToDate(const Arrays& arrays);
  // Says that what changes of kNoted did to rows is gone: no update is for them on that account.
  void ForgetNoted();

  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  // How many changes were added, how many of the first are complete, and how many are still kept.
  int64_t size() const;
  int64_t complete() const;
  int64_t kept() const;
  // How many times a program has changed a row.
  int64_t made() const;

 private:
  // A row that has got the first `changes` changes.
  struct Behind {
    int64_t changes;
    int64_t row;
    bool operator>(const Behind& other) const { return changes > other.changes; }
  };

  Status CheckRow(int64_t row) const;
  Status CheckArrays(const Arrays& arrays) const TFDEAR_REQUIRES(mutex_);
  // Whether a row may get its gradient of a change now.
  Status CheckGradient(int64_t change, int64_t row) const TFDEAR_REQUIRES(mutex_);
  // Checks the rows of a change's gradients, notes them, and takes them as having the change.
  Status NoteGradients(int64_t change, const int64_t* rows, size_t count) TFDEAR_REQUIRES(mutex_);
  // Takes that back.
  void TakeBack() TFDEAR_REQUIRES(mutex_);
  // Makes a change for rows that were noted, and before it what they missed. `gradients`: null:
  // zero.
  void Make(int64_t change, const int64_t* rows, size_t count, const float* gradients,
            const Arrays& arrays) TFDEAR_REQUIRES(mutex_);
  // Makes updates before `changes` that rows are owed since earlier changes have touched them.
  void MakeOwed(const int64_t* rows, size_t count, int64_t changes, const Arrays& arrays)
      TFDEAR_REQUIRES(mutex_);
  // The same for all rows, of updates that are complete.
  void MakeAllOwed(const Arrays& arrays) TFDEAR_REQUIRES(mutex_);
  // Brings rows up to date with the first `changes` changes.
  void Bring(const int64_t* rows, size_t count, int64_t changes, const Arrays& arrays)
      TFDEAR_REQUIRES(mutex_);
  // Notes a row that has less than the first `changes` changes, and takes it as having them.
  void Note(int64_t row, int64_t changes) TFDEAR_REQUIRES(mutex_);
  // Brings what was noted up to date with the first `changes` changes.
  void Replay(int64_t changes, const Arrays& arrays) TFDEAR_REQUIRES(mutex_);
  // The same for a heap of a few rows, the one most behind at its front.
  void ReplayTile(std::vector<Behind>* behind, int64_t changes, const Arrays& arrays)
      TFDEAR_REQUIRES(mutex_);
  // Takes rows out of the tile that a run leaves as they are. `next`: the change to be made next;
  // the tile remembers what was before the last one.
  void Leave(int64_t next, int64_t changes, std::vector<Behind>* behind) TFDEAR_REQUIRES(mutex_);
  void RunOnTile(const RowChange& change, const float* gradients) TFDEAR_REQUIRES(mutex_);
  // Makes a change with a gradient of zero, or what is left of it by what is known of the tile.
  void MakeIdly(int64_t number) TFDEAR_REQUIRES(mutex_);
  // Looks what is in the tile, and, if a change was made since they were remembered,
  // which slots that has left as they were; -1: none was.
  void LookAtTile(int64_t made) TFDEAR_REQUIRES(mutex_);
  // Brings further rows up to date, so that changes can be dropped.
  void Sweep(const Arrays& arrays) TFDEAR_REQUIRES(mutex_);
  void Drop() TFDEAR_REQUIRES(mutex_);

  const int64_t rows_;
  const int64_t width_;
  const int64_t max_entries_;

  mutable Mutex mutex_;
  JournalEntries entries_ TFDEAR_GUARDED_BY(mutex_);
  // How many changes each row has got, or need not get.
  std::vector<int64_t> changes_ TFDEAR_GUARDED_BY(mutex_);
  // The last change of kNoted that touched a row, of the rows to which no update has come since.
  std::unordered_map<int64_t, int64_t> noted_ TFDEAR_GUARDED_BY(mutex_);
  // All rows that were owed updates up to this one have got them.
  int64_t made_owed_ TFDEAR_GUARDED_BY(mutex_) = -1;
  // Rows in front of the cursor have at least the first `swept_` changes.
  int64_t cursor_ TFDEAR_GUARDED_BY(mutex_) = 0;
  int64_t swept_ TFDEAR_GUARDED_BY(mutex_) = 0;
  // How far the cursor has to go, in 1 / max_entries_ rows.
  int64_t owed_ TFDEAR_GUARDED_BY(mutex_) = 0;
  int64_t made_ TFDEAR_GUARDED_BY(mutex_) = 0;

  // Memory of calls.
  RowTile tile_ TFDEAR_GUARDED_BY(mutex_);
  KnownVariables known_ TFDEAR_GUARDED_BY(mutex_);  // Of the slots in the tile, by array.
  int64_t fixed_by_ TFDEAR_GUARDED_BY(mutex_) = -1;
  bool is_ordinary_ TFDEAR_GUARDED_BY(mutex_) = false;  // What is in the tile.
  ElementwiseProgram::Scratch scratch_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<ElementwiseProgram::Array> variables_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<float> zeros_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<Behind> behind_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
