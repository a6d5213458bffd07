// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/row_journal.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "custom_ops/engine/base/keep_denormals.h"
#include "custom_ops/engine/base/vector_clones.h"

namespace tfdear {
namespace {

// A row joins others and leaves them: not for less than this many changes.
constexpr int64_t kWorthSkipping = 4;
// How often the rows of a tile are looked at, in changes: the longer nothing came of it, the less.
constexpr int64_t kBetweenLooks = 16;
constexpr int64_t kMostBetweenLooks = 128;

inline uint32_t Magnitude(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffffu;
}

TFDEAR_VECTOR_CLONES bool AreZero(const float* values, size_t count) {
  uint32_t any = 0;
  for (size_t i = 0; i < count; ++i) any |= Magnitude(values[i]);
  return any == 0;
}

// Neither NaN nor denormal: what adds nothing and multiplies by one leaves their bits.
TFDEAR_VECTOR_CLONES bool AreOrdinary(const float* values, size_t count) {
  uint32_t others = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = Magnitude(values[i]);
    others |= static_cast<uint32_t>(magnitude - 1 < 0x007fffffu);
    others |= static_cast<uint32_t>(magnitude > 0x7f800000u);
  }
  return others == 0;
}

TFDEAR_VECTOR_CLONES bool AreNonnegative(const float* values, size_t count) {
  uint32_t others = 0;
  for (size_t i = 0; i < count; ++i) others |= static_cast<uint32_t>(!(values[i] >= 0));
  return others == 0;
}

// Finite and without a sign.
TFDEAR_VECTOR_CLONES bool AreTame(const float* values, size_t count) {
  uint32_t most = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    most = std::max(most, bits);
  }
  return most < 0x7f800000u;
}

TFDEAR_VECTOR_CLONES bool AreTiny(const float* values, size_t count) {
  uint32_t most = 0;
  for (size_t i = 0; i < count; ++i) most = std::max(most, Magnitude(values[i]));
  return most <= Magnitude(kTiny);
}

bool IsWorthIt(int64_t number, int64_t end, int64_t changes) {
  return end >= changes || end - number >= kWorthSkipping;
}

// Whether to look what a change does to rows of which some have joined `since_join` changes ago.
bool IsWorthALook(const JournalEntries::Entry& entry, int64_t number, int64_t since_join,
                  int64_t since_look, int64_t changes) {
  if (changes - number <= kWorthSkipping) return false;
  if (since_look >= std::clamp(since_join / 8, kBetweenLooks, kMostBetweenLooks)) return true;
  auto is_conditional = [&](const JournalEntries::IdleRun& idle) {
    return idle.run != nullptr && idle.proof->conditional &&
           IsWorthIt(number + 1, idle.run->end, changes);
  };
  // Where the first one changes no more than the sign of a zero, the second changes nothing.
  return since_join < 2 && (is_conditional(entry.idle) || is_conditional(entry.idle_at_zero));
}

// How many changes a row can be said to have that has the first `number`: those of an idle run that
// what it holds allows are no others. `values(array)`: what it holds.
template <typename Values>
int64_t EndOfIdleRun(const JournalEntries::Entry& entry, int64_t number, int64_t changes,
                     size_t width, Values values) {
  for (const auto* idle : {&entry.idle, &entry.idle_at_zero}) {
    if (idle->run == nullptr || idle->proof->conditional) continue;
    if (!IsWorthIt(number, idle->run->end, changes)) continue;
    const bool zero_slots = idle == &entry.idle_at_zero;
    const std::vector<int>& arrays = idle->run->arrays;
    const bool allowed = std::all_of(arrays.begin(), arrays.end(), [&](int array) {
      const float* const row = values(array);
      if (array != 0 && zero_slots) return AreZero(row, width);
      if (array != 0 && idle->proof->nonnegative_slots && !AreNonnegative(row, width)) return false;
      return AreOrdinary(row, width);
    });
    if (allowed) return std::min(idle->run->end, changes);
  }
  return number;
}

}  // namespace

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

void RowJournal::Replay(int64_t changes, const Arrays& arrays) {
  // Rows that have missed about the same go together.
  std::sort(behind_.begin(), behind_.end(), [](const Behind& left, const Behind& right) {
    return left.changes != right.changes ? left.changes < right.changes : left.row < right.row;
  });
  tile_.Start(arrays, entries_.arrays());
  std::vector<Behind> part;
  for (size_t begin = 0; begin < behind_.size(); begin += tile_.capacity()) {
    const size_t end = std::min(behind_.size(), begin + tile_.capacity());
    // Sorted, so a heap already.
    part.assign(behind_.begin() + begin, behind_.begin() + end);
    for (const Behind& row : part) tile_.Prefetch(row.row);
    ReplayTile(&part, changes, arrays);
  }
  behind_.clear();
}

void RowJournal::ReplayTile(std::vector<Behind>* behind, int64_t changes, const Arrays& arrays) {
  int64_t next = 0;
  int64_t since_join = 0, since_look = 0;
  while (true) {
    if (tile_.size() == 0) {
      if (behind->empty()) return;
      next = behind->front().changes;
    }
    const JournalEntries::Entry& entry = entries_.at(next);
    while (!behind->empty() && behind->front().changes == next) {
      const int64_t row = behind->front().row;
      std::pop_heap(behind->begin(), behind->end(), std::greater<Behind>());
      behind->pop_back();
      const int64_t end = EndOfIdleRun(entry, next, changes, width_,
                                       [&](int array) { return arrays[array] + row * width_; });
      if (end == next) {
        tile_.Add(row);
        since_join = 0;
        since_look = 1;
      } else if (end < changes) {
        behind->push_back({end, row});
        std::push_heap(behind->begin(), behind->end(), std::greater<Behind>());
      }
    }
    if (tile_.size() == 0) continue;
    const bool look = IsWorthALook(entry, next, since_join, since_look, changes);
    if (look) tile_.Remember();
    if (since_join == 0) {
      is_ordinary_ = false;
      if (changes - next > kBetweenLooks) LookAtTile(-1);
    }
    if (look) {
      RunOnTile(entry.change, zeros_.data());
    } else {
      MakeIdly(next);
    }
    ++next;
    ++since_join;
    since_look = look ? 1 : since_look + 1;
    if (next == changes) {
      tile_.Finish();
      return;
    }
    if (!look) continue;
    LookAtTile(next - 1);
    Leave(next, changes, behind);
  }
}

void RowJournal::Leave(int64_t next, int64_t changes, std::vector<Behind>* behind) {
  const JournalEntries::Entry& made = entries_.at(next - 1);
  const RowTile& tile = tile_;
  for (size_t place = tile_.size(); place-- > 0;) {
    int64_t end = next;
    auto values = [&](int array) { return tile.values(array, place); };
    const std::vector<int>& arrays = made.change.arrays;
    const bool unchanged = std::all_of(
        arrays.begin(), arrays.end(), [&](int array) { return tile.IsAsRemembered(array, place); });
    if (unchanged) {
      end = std::max(end, std::min(made.identical->end, changes));
      if (made.idle.run != nullptr && made.idle.proof->conditional) {
        end = std::max(end, std::min(made.idle.run->end, changes));
      }
      const auto& at_zero = made.idle_at_zero;
      if (at_zero.run != nullptr && at_zero.proof->conditional &&
          std::all_of(arrays.begin(), arrays.end(),
                      [&](int array) { return array == 0 || AreZero(values(array), width_); })) {
        end = std::max(end, std::min(at_zero.run->end, changes));
      }
    }
    if (!IsWorthIt(next, end, changes)) {
      end = EndOfIdleRun(entries_.at(next), next, changes, width_, values);
    }
    if (end == next || !IsWorthIt(next, end, changes)) continue;
    const int64_t row = tile_.row(place);
    tile_.Remove(place);
    if (end == changes) continue;
    behind->push_back({end, row});
    std::push_heap(behind->begin(), behind->end(), std::greater<Behind>());
  }
}

void RowJournal::RunOnTile(const RowChange& change, const float* gradients) {
  made_ += static_cast<int64_t>(tile_.size());
  variables_.clear();
  for (int array : change.arrays) variables_.push_back({tile_.data(array), tile_.data(array)});
  change.program->Run(gradients, variables_, change.scalars, tile_.elements(), &scratch_);
}

void RowJournal::MakeIdly(int64_t number) {
  const RowChange& change = entries_.at(number).change;
  const Residue* const residue =
      is_ordinary_ ? entries_.ResidueOf(number, known_, fixed_by_) : nullptr;
  if (residue == nullptr) {
    for (int array : change.arrays) {
      const uint64_t others = ~(uint64_t{1} << array);
      for (uint64_t KnownVariables::*kind : {&KnownVariables::zero, &KnownVariables::tame,
                                             &KnownVariables::tiny, &KnownVariables::fixed}) {
        known_.*kind &= others;
      }
    }
    return RunOnTile(change, zeros_.data());
  }
  made_ += static_cast<int64_t>(tile_.size());
  if (residue->program == nullptr) return;
  variables_.clear();
  for (int variable : residue->variables) {
    float* const values = tile_.data(change.arrays[variable]);
    variables_.push_back({values, values});
  }
  residue->program->Run(zeros_.data(), variables_, change.scalars, tile_.elements(), &scratch_);
}

void RowJournal::LookAtTile(int64_t made) {
  known_ = {};
  fixed_by_ = made;
  const size_t count = tile_.elements();
  const std::vector<int>& arrays = entries_.arrays();
  // What is left as it is must be what arithmetic would leave as it is.
  is_ordinary_ = std::all_of(arrays.begin(), arrays.end(),
                             [&](int array) { return AreOrdinary(tile_.data(array), count); });
  for (int array : arrays) {
    if (array == 0) continue;
    const float* const values = tile_.data(array);
    const uint64_t bit = uint64_t{1} << array;
    if (AreZero(values, count)) {
      known_.zero |= bit;
      continue;
    }
    if (AreTame(values, count)) known_.tame |= bit;
    if (AreTiny(values, count)) known_.tiny |= bit;
    if (made >= 0 && tile_.IsAsRemembered(array)) known_.fixed |= bit;
  }
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
