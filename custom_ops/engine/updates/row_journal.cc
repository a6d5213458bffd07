// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/row_journal.h"

#include <algorithm>
#include <map>
#include <utility>

#include "custom_ops/engine/base/keep_denormals.h"
#include "custom_ops/engine/updates/row_values.h"

namespace tfdear {

using Rows = RowChange::Rows;

RowJournal::RowJournal(int64_t rows, int64_t width, int64_t max_entries)
    : rows_(rows),
      width_(width),
      max_entries_(max_entries),
      changes_(rows),
      tile_(width),
      zeros_(tile_.capacity() * width) {}

Status RowJournal::Append(RowChange change, int64_t* number) {
  const FlushDenormals flush_denormals;
  MutexLock lock(mutex_);
  TFDEAR_RETURN_IF_ERROR(entries_.Append(std::move(change), number));
  if (entries_.for_all() > 0) owed_ += rows_;
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
  if (!noted_.empty()) {  // An update that a row is owed comes first.
    TakeBack();
    MakeOwed(rows, count, change, arrays);
    TFDEAR_RETURN_IF_ERROR(NoteGradients(change, rows, count));
  }
  Make(change, rows, count, gradients, arrays);
  const Rows kind = entries_.at(change).change.rows;
  for (size_t i = 0; i < count && kind == Rows::kNoted; ++i) noted_[rows[i]] = change;
  for (size_t i = 0; i < count && kind == Rows::kTouched && !noted_.empty(); ++i) {
    noted_.erase(rows[i]);
  }
  MakeAllOwed(arrays);
  Sweep(arrays);
  return Status();
}

void RowJournal::Make(int64_t change, const int64_t* rows, size_t count, const float* gradients,
                      const Arrays& arrays) {
  const JournalEntries::Entry& entry = entries_.at(change);
  // What comes with the gradient.
  const int64_t first = entry.first_waiting < 0 ? change : entry.first_waiting;
  // Most rows of a table in heavy use have missed nothing.
  behind_.erase(std::remove_if(behind_.begin(), behind_.end(),
                               [&](const Behind& noted) { return noted.changes >= first; }),
                behind_.end());
  Replay(first, arrays);
  tile_.Start(arrays, first == change ? entry.change.arrays : entries_.arrays());
  for (size_t begin = 0; begin < count; begin += tile_.capacity()) {
    const size_t end = std::min(count, begin + tile_.capacity());
    for (size_t i = begin; i < end; ++i) tile_.Add(rows[i]);
    for (size_t i = end; i < std::min(count, end + tile_.capacity()); ++i) tile_.Prefetch(rows[i]);
    for (int64_t number = first; number < change; ++number) {
      RunOnTile(entries_.at(number).change, zeros_.data());
    }
    RunOnTile(entry.change, gradients == nullptr ? zeros_.data() : gradients + begin * width_);
    tile_.Finish();
  }
}

void RowJournal::MakeOwed(const int64_t* rows, size_t count, int64_t changes,
                          const Arrays& arrays) {
  std::map<int64_t, std::vector<int64_t>> owed;
  for (size_t i = 0; i < count && !noted_.empty(); ++i) {
    const auto noted = noted_.find(rows[i]);
    if (noted == noted_.end()) continue;
    const int64_t update = entries_.UpdateAfter(noted->second);
    if (update < 0 || update >= changes) continue;
    owed[update].push_back(rows[i]);
    noted_.erase(noted);
  }
  for (const auto& [update, of_update] : owed) {
    for (int64_t row : of_update) Note(row, update + 1);
    Make(update, of_update.data(), of_update.size(), nullptr, arrays);
  }
}

void RowJournal::MakeAllOwed(const Arrays& arrays) {
  const int64_t last = entries_.UpdateBefore(entries_.complete());
  if (noted_.empty() || last <= made_owed_) return;
  std::vector<int64_t> rows;
  for (const auto& [row, change] : noted_) {
    if (change < last) rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end());
  MakeOwed(rows.data(), rows.size(), entries_.complete(), arrays);
  made_owed_ = last;
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
  Bring(rows, count, changes, arrays);
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
  Bring(rows, count, changes, arrays);
  return Status();
}

void RowJournal::Bring(const int64_t* rows, size_t count, int64_t changes, const Arrays& arrays) {
  MakeOwed(rows, count, changes, arrays);
  if (entries_.for_all() == 0) return;
  const int64_t settled = entries_.Settled(changes);
  for (size_t i = 0; i < count; ++i) Note(rows[i], settled);
  Replay(settled, arrays);
}

Status RowJournal::BringAllUpToDate(const Arrays& arrays) {
  const FlushDenormals flush_denormals;
  MutexLock lock(mutex_);
  TFDEAR_RETURN_IF_ERROR(CheckArrays(arrays));
  MakeAllOwed(arrays);
  const int64_t settled = entries_.Settled(entries_.complete());
  if (entries_.for_all() > 0) {
    for (int64_t row = 0; row < rows_; ++row) Note(row, settled);
    Replay(settled, arrays);
  }
  cursor_ = 0;
  swept_ = settled;
  entries_.DropBefore(settled);
  return Status();
}

void RowJournal::ForgetNoted() {
  MutexLock lock(mutex_);
  noted_.clear();
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
      TakeBack();
      return status;
    }
    Note(rows[i], change + 1);
  }
  return Status();
}

void RowJournal::TakeBack() {
  for (const Behind& noted : behind_) changes_[noted.row] = noted.changes;
  behind_.clear();
}

void RowJournal::Note(int64_t row, int64_t changes) {
  // What is dropped was for others.
  const int64_t has = std::max(changes_[row], entries_.first());
  if (has >= changes) return;
  behind_.push_back({has, row});
  changes_[row] = changes;
}

void RowJournal::Sweep(const Arrays& arrays) {
  if (entries_.for_all() == 0) return;
  const int64_t complete = entries_.Settled(entries_.complete());
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
  if (entries_.for_all() == 0 && entries_.complete() > entries_.first()) {
    // What came before the last change with gradients has no rows left to go to, but for an update
    // that is owed.
    const int64_t last = entries_.complete() - 1;
    const JournalEntries::Entry& entry = entries_.at(last);
    int64_t needed = entry.change.has_gradient ? last : entry.last_gradient;
    const int64_t owed = noted_.empty() ? -1 : entries_.UpdateAfter(made_owed_);
    if (owed >= 0) {
      const int64_t waiting = entries_.at(owed).first_waiting;
      needed = std::min(needed, waiting < 0 ? owed : waiting);
    }
    entries_.DropBefore(needed);
  }
  if (rows_ == 0) entries_.DropBefore(entries_.complete());
}

}  // namespace tfdear
