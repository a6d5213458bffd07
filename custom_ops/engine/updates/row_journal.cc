// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/row_journal.h"

#include <algorithm>
#include <utility>

#include "custom_ops/engine/base/keep_denormals.h"
#include "custom_ops/engine/updates/row_values.h"

namespace tfdear {

RowJournal::RowJournal(int64_t rows, int64_t width, Rows mode, int64_t max_entries)
    : rows_(rows),
      width_(width),
      mode_(mode),
      max_entries_(max_entries),
      changes_(rows),
      tile_(width),
      zeros_(tile_.capacity() * width) {}

Status RowJournal::Append(RowChange change, int64_t* number) {
  const FlushDenormals flush_denormals;
  MutexLock lock(mutex_);
  TFDEAR_RETURN_IF_ERROR(entries_.Append(std::move(change), number));
  owed_ += rows_;
  return Status();
}

Status RowJournal::Declare(int64_t change, std::vector<int64_t> rows) {
  for (int64_t row : rows) TFDEAR_RETURN_IF_ERROR(CheckRow(row));
  MutexLock lock(mutex_);
  return entries_.Declare(change, std::move(rows));
}

Status RowJournal::Complete(int64_t change) {
  MutexLock lock(mutex_);
  TFDEAR_RETURN_IF_ERROR(entries_.Complete(change));
  Drop();
  return Status();
}

Status RowJournal::Abandon(int64_t change) {
  MutexLock lock(mutex_);
  TFDEAR_RETURN_IF_ERROR(entries_.Abandon(change));
  Drop();
  return Status();
}

Status RowJournal::Apply(int64_t change, const int64_t* rows, size_t count, const float* gradients,
                         const Arrays& arrays) {
  const FlushDenormals flush_denormals;
  MutexLock lock(mutex_);
  TFDEAR_RETURN_IF_ERROR(entries_.CheckKept(change));
  TFDEAR_RETURN_IF_ERROR(CheckArrays(arrays));
  TFDEAR_RETURN_IF_ERROR(NoteGradients(change, rows, count));
  entries_.NoteApplied(change);
  const JournalEntries::Entry& entry = entries_.at(change);
  int64_t first = change;  // What comes with the gradient.
  if (mode_ == Rows::kAll) {
    Replay(change, arrays);
  } else {
    behind_.clear();
    first = std::max(entries_.first(), entry.last_gradient + 1);
  }
  tile_.Start(arrays, first == change ? entry.change.arrays : entries_.arrays());
  for (size_t begin = 0; begin < count; begin += tile_.capacity()) {
    const size_t end = std::min(count, begin + tile_.capacity());
    for (size_t i = begin; i < end; ++i) tile_.Add(rows[i]);
    for (size_t i = end; i < std::min(count, end + tile_.capacity()); ++i) tile_.Prefetch(rows[i]);
    for (int64_t number = first; number < change; ++number) {
      RunOnTile(entries_.at(number).change, zeros_.data());
    }
    RunOnTile(entry.change, gradients + begin * width_);
    tile_.Finish();
  }
  Sweep(arrays);
  return Status();
}

Status RowJournal::BringUpToDate(const int64_t* rows, size_t count, int64_t changes,
                                 const Arrays& arrays) {
  const FlushDenormals flush_denormals;
  MutexLock lock(mutex_);
  if (changes < 0 || changes > entries_.complete()) {
    return InvalidArgument("rows cannot be brought up to date with the first ", changes,
                           " changes: the first ", entries_.complete(), " are complete");
  }
  TFDEAR_RETURN_IF_ERROR(CheckArrays(arrays));
  for (size_t i = 0; i < count; ++i) TFDEAR_RETURN_IF_ERROR(CheckRow(rows[i]));
  if (mode_ == Rows::kTouched) return Status();
  for (size_t i = 0; i < count; ++i) Note(rows[i], changes);
  Replay(changes, arrays);
  return Status();
}

Status RowJournal::BringUpToDate(const int64_t* rows, size_t count, const Arrays& arrays) {
  // Others may complete more meanwhile, which does no harm.
  return BringUpToDate(rows, count, complete(), arrays);
}

Status RowJournal::BringThroughAll(const int64_t* rows, size_t count, const Arrays& arrays) {
  const FlushDenormals flush_denormals;
  MutexLock lock(mutex_);
  TFDEAR_RETURN_IF_ERROR(CheckArrays(arrays));
  const int64_t changes = entries_.size();
  for (size_t i = 0; i < count; ++i) {
    TFDEAR_RETURN_IF_ERROR(CheckRow(rows[i]));
    const int64_t awaited = entries_.Awaited(rows[i], changes_[rows[i]], changes);
    if (awaited >= 0) {
      return InvalidArgument("the row ", rows[i],
                             " cannot be brought up to date: it may still get "
                             "a gradient of the change ",
                             awaited);
    }
  }
  if (mode_ == Rows::kTouched) return Status();
  for (size_t i = 0; i < count; ++i) Note(rows[i], changes);
  Replay(changes, arrays);
  return Status();
}

Status RowJournal::BringAllUpToDate(const Arrays& arrays) {
  const FlushDenormals flush_denormals;
  MutexLock lock(mutex_);
  TFDEAR_RETURN_IF_ERROR(CheckArrays(arrays));
  if (mode_ == Rows::kTouched) {
    // Rows get what they get at once; only changes that wait for a gradient are still needed.
    const int64_t last = entries_.complete() - 1;
    if (last < entries_.first()) return Status();
    const JournalEntries::Entry& entry = entries_.at(last);
    entries_.DropBefore((entry.change.has_gradient ? last : entry.last_gradient) + 1);
    return Status();
  }
  for (int64_t row = 0; row < rows_; ++row) Note(row, entries_.complete());
  Replay(entries_.complete(), arrays);
  cursor_ = 0;
  swept_ = entries_.complete();
  entries_.DropBefore(swept_);
  return Status();
}

int64_t RowJournal::size() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

int64_t RowJournal::complete() const {
  MutexLock lock(mutex_);
  return entries_.complete();
}

int64_t RowJournal::kept() const {
  MutexLock lock(mutex_);
  return entries_.size() - entries_.first();
}

int64_t RowJournal::made() const {
  MutexLock lock(mutex_);
  return made_;
}

Status RowJournal::CheckRow(int64_t row) const {
  if (row >= 0 && row < rows_) return Status();
  return InvalidArgument("there is no row ", row, ": rows are from 0 up to, but not including, ",
                         rows_);
}

Status RowJournal::CheckArrays(const Arrays& arrays) const {
  for (int array : entries_.arrays()) {
    if (static_cast<size_t>(array) < arrays.size() &&
        (arrays[array] != nullptr || rows_ * width_ == 0)) {
      continue;
    }
    return InvalidArgument("changes of rows use the array ", array,
                           ", which is not there: ", arrays.size(), " are");
  }
  return Status();
}

Status RowJournal::CheckGradient(int64_t change, int64_t row) const {
  TFDEAR_RETURN_IF_ERROR(CheckRow(row));
  if (changes_[row] > change) {
    return InvalidArgument("the row ", row, " has got its gradient of the change ", change,
                           " before, or a later one");
  }
  const auto& touched = entries_.at(change).touched;
  if (touched && !std::binary_search(touched->begin(), touched->end(), row)) {
    return InvalidArgument("the row ", row, " gets a gradient of the change ", change,
                           ", which was said not to touch it");
  }
  const int64_t awaited = entries_.Awaited(row, changes_[row], change);
  if (awaited < 0) return Status();
  return InvalidArgument("the row ", row, " cannot get its gradient of the change ", change,
                         " yet: it may miss one of the change ", awaited,
                         ", which is not complete");
}

Status RowJournal::NoteGradients(int64_t change, const int64_t* rows, size_t count) {
  if (entries_.at(change).is_complete) {
    return InvalidArgument("the change ", change, " is complete: it gets no more gradients");
  }
  for (size_t i = 0; i < count; ++i) {
    const Status status = CheckGradient(change, rows[i]);
    if (!status.ok()) {
      for (const Behind& noted : behind_) changes_[noted.row] = noted.changes;
      behind_.clear();
      return status;
    }
    Note(rows[i], change + 1);
  }
  // Most rows of a table in heavy use have missed nothing.
  behind_.erase(std::remove_if(behind_.begin(), behind_.end(),
                               [&](const Behind& noted) { return noted.changes == change; }),
                behind_.end());
  return Status();
}

void RowJournal::Note(int64_t row, int64_t changes) {
  if (changes_[row] >= changes) return;
  behind_.push_back({changes_[row], row});
  changes_[row] = changes;
}

void RowJournal::Sweep(const Arrays& arrays) {
  if (mode_ == Rows::kTouched) return;
  const int64_t complete = entries_.complete();
  const int64_t steps = std::min(owed_ / max_entries_, rows_);
  owed_ %= max_entries_;
  for (int64_t i = 0; i < steps; ++i) {
    Note(cursor_, complete);
    if (++cursor_ < rows_) continue;
    Replay(complete, arrays);
    entries_.DropBefore(swept_);
    swept_ = complete;
    cursor_ = 0;
  }
  Replay(complete, arrays);
}

void RowJournal::Drop() {
  if (mode_ == Rows::kTouched && entries_.complete() > 0) {
    // What came before the last change with gradients has no rows left to go to.
    const int64_t last = entries_.complete() - 1;
    if (last < entries_.first()) return;
    const JournalEntries::Entry& entry = entries_.at(last);
    entries_.DropBefore(entry.change.has_gradient ? last : entry.last_gradient);
  }
  if (rows_ == 0) entries_.DropBefore(entries_.complete());
}

}  // namespace tfdear
