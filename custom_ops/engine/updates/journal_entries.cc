// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/journal_entries.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tfdear {
namespace {

using Run = JournalEntries::Run;
using IdleRun = JournalEntries::IdleRun;

// Far above what optimizers have; a number of an array allocates memory.
constexpr int kMaxArrays = 64;
// Beyond it some are found anew, once for each change.
constexpr size_t kMaxResidues = 64;

std::vector<int> Union(const std::vector<int>& left, std::vector<int> right) {
  right.insert(right.end(), left.begin(), left.end());
  std::sort(right.begin(), right.end());
  right.erase(std::unique(right.begin(), right.end()), right.end());
  return right;
}

bool SameBits(float left, float right) { return std::memcmp(&left, &right, sizeof left) == 0; }

bool SameProgram(const RowChange& left, const RowChange& right) {
  return left.program == right.program && left.arrays == right.arrays;
}

bool Identical(const RowChange& left, const RowChange& right) {
  return SameProgram(left, right) && left.scalars.size() == right.scalars.size() &&
         std::equal(left.scalars.begin(), left.scalars.end(), right.scalars.begin(), SameBits);
}

// Whether what proves one change idle proves the next one idle.
bool SameProof(const RowChange& left, const Idleness& proof, const RowChange& right,
               const Idleness& next) {
  if (proof.conditional != next.conditional) return false;
  if (proof.nonnegative_slots != next.nonnegative_slots) return false;
  if (!proof.conditional) return true;
  if (!SameProgram(left, right) || proof.scalars != next.scalars) return false;
  for (size_t i = 0; i < left.scalars.size(); ++i) {
    const bool matters = proof.scalars >> i & 1;
    if (matters && !SameBits(left.scalars[i], right.scalars[i])) return false;
  }
  return true;
}

// Which variables another change leaves as they are, if a change did so with those in `known`.
uint64_t FixedBy(const RowChange& change, const RowChange& other, const KnownVariables& known) {
  if (!SameProgram(change, other) || other.program->sources().empty()) return 0;
  uint64_t same_scalars = 0, fixed = 0;
  for (size_t i = 0; i < other.scalars.size(); ++i) {
    const bool same = SameBits(change.scalars[i], other.scalars[i]);
    same_scalars |= static_cast<uint64_t>(same) << i;
  }
  for (size_t i = 0; i < other.arrays.size(); ++i) {
    const auto& sources = other.program->sources()[i];
    // Not those that depend on others: what these hold may be another thing by then.
    const uint64_t itself = uint64_t{1} << i;
    if ((sources.variables & ~itself) == 0 && (sources.scalars & ~same_scalars) == 0) {
      fixed |= known.fixed & itself;
    }
  }
  return fixed;
}

// A run of its own, or the one before, which has one change more then.
std::shared_ptr<Run> Join(bool goes_on, const std::shared_ptr<Run>& before, int64_t number,
                          const std::vector<int>& arrays) {
  if (!goes_on) return std::make_shared<Run>(Run{number + 1, Union(arrays, {})});
  before->end = number + 1;
  if (!std::includes(before->arrays.begin(), before->arrays.end(), arrays.begin(), arrays.end())) {
    before->arrays = Union(arrays, before->arrays);
  }
  return before;
}

}  // namespace

Status JournalEntries::CheckKept(int64_t number) const {
  if (number >= first_ && number < size()) return Status();
  return InvalidArgument("a journal of rows has no change ", number, ". It has those from ", first_,
                         " up to, but not including, ", size());
}

Status JournalEntries::Append(RowChange change, int64_t* number) {
  const ElementwiseProgram* program = change.program.get();
  if (program == nullptr || change.arrays.size() != static_cast<size_t>(program->variables()) ||
      change.scalars.size() != static_cast<size_t>(program->scalars())) {
    return InvalidArgument("a change of rows does not fit its program: it has ",
                           change.arrays.size(), " arrays and ", change.scalars.size(), " scalars");
  }
  if (!change.has_gradient && program->reads_gradient()) {
    return InvalidArgument("a change of rows without gradients reads them");
  }
  const std::vector<int> used = Union(change.arrays, {});
  if (used.size() != change.arrays.size() ||
      (!used.empty() && (used.front() < 0 || used.back() >= kMaxArrays))) {
    return InvalidArgument("the arrays of a change of rows are not distinct numbers below ",
                           kMaxArrays);
  }

  Entry entry;
  entry.is_complete = !change.has_gradient;
  entry.was_applied = false;
  entry.last_gradient = last_gradient_;
  entry.change = std::move(change);
  const RowChange& added = entry.change;
  *number = size();
  const Entry* before = entries_.empty() ? nullptr : &entries_.back();
  const bool identical = before != nullptr && Identical(before->change, added);
  entry.identical = Join(identical, identical ? before->identical : nullptr, *number, used);
  const auto table = std::find(added.arrays.begin(), added.arrays.end(), 0);
  const int table_variable =
      table == added.arrays.end() ? -1 : static_cast<int>(table - added.arrays.begin());
  for (IdleRun Entry::*kind : {&Entry::idle, &Entry::idle_at_zero}) {
    IdleRun& idle = entry.*kind;
    idle.proof = identical ? (before->*kind).proof
                           : ProveIdle(*program, added.scalars, table_variable,
                                       kind == &Entry::idle_at_zero);
    if (!idle.proof) continue;
    const IdleRun* last = before == nullptr ? nullptr : &(before->*kind);
    const bool goes_on = last != nullptr && last->proof &&
                         SameProof(before->change, *last->proof, added, *idle.proof);
    idle.run = Join(goes_on, goes_on ? last->run : nullptr, *number, used);
  }
  const bool waits = added.rows != RowChange::Rows::kAll && !added.has_gradient;
  if (waits && first_waiting_ < 0) first_waiting_ = *number;
  entry.first_waiting = first_waiting_;
  if (added.has_gradient) {
    last_gradient_ = *number;
    first_waiting_ = -1;
    if (added.rows == RowChange::Rows::kTouched) updates_.push_back(*number);
  }
  if (added.rows == RowChange::Rows::kAll) ++for_all_;
  if (complete_ == *number && entry.is_complete) ++complete_;
  arrays_ = Union(used, arrays_);
  entries_.push_back(std::move(entry));
  return Status();
}

Status JournalEntries::Declare(int64_t number, std::vector<int64_t> rows) {
  TFDEAR_RETURN_IF_ERROR(CheckKept(number));
  Entry& entry = entries_[number - first_];
  if (entry.is_complete || entry.was_applied || entry.touched.has_value()) {
    return InvalidArgument("the rows that the change of rows ", number,
                           " touches are declared once, before any of them gets its gradient");
  }
  std::sort(rows.begin(), rows.end());
  entry.touched = std::move(rows);
  return Status();
}

Status JournalEntries::Complete(int64_t number) {
  TFDEAR_RETURN_IF_ERROR(CheckKept(number));
  entries_[number - first_].is_complete = true;
  entries_[number - first_].touched.reset();
  while (complete_ < size() && at(complete_).is_complete) ++complete_;
  return Status();
}

Status JournalEntries::Abandon(int64_t number) {
  TFDEAR_RETURN_IF_ERROR(CheckKept(number));
  Entry& entry = entries_[number - first_];
  if (entry.is_complete || entry.was_applied) {
    return InvalidArgument("the change of rows ", number,
                           " cannot be abandoned: it is complete, or was applied to some of them");
  }
  // Runs that it is in still pass over it, but it says nothing of them. Rows that were noted wait
  // for the next one.
  RowChange::Rows rows = entry.change.rows;
  if (rows == RowChange::Rows::kTouched) {
    rows = RowChange::Rows::kNoted;
    updates_.erase(std::find(updates_.begin(), updates_.end(), number));
  }
  entry.change = {std::make_shared<ElementwiseProgram>(), {}, {}, true, rows};
  entry.identical = std::make_shared<Run>(Run{number + 1, {}});
  entry.idle = entry.idle_at_zero = {};
  entry.known.reset();
  return Complete(number);
}

const Residue* JournalEntries::ResidueOf(int64_t number, const KnownVariables& arrays,
                                         int64_t fixed_by) {
  Entry& entry = entries_[number - first_];
  const RowChange& change = entry.change;
  KnownVariables known;
  for (size_t i = 0; i < change.arrays.size(); ++i) {
    known.zero |= (arrays.zero >> change.arrays[i] & 1) << i;
    known.tame |= (arrays.tame >> change.arrays[i] & 1) << i;
    known.tiny |= (arrays.tiny >> change.arrays[i] & 1) << i;
    known.fixed |= (arrays.fixed >> change.arrays[i] & 1) << i;
  }
  if (known.fixed != 0) known.fixed = FixedBy(at(fixed_by).change, change, known);
  if (entry.known && *entry.known == known) return entry.residue.get();
  entry.known = known;
  entry.residue = nullptr;
  std::optional<Residue> found = FindResidue(change.program, change.scalars, known);
  if (!found) return nullptr;
  for (const auto& residue : residues_) {
    if (residue->of == found->of && residue->code == found->code &&
        residue->variables == found->variables) {
      entry.residue = residue;
      return residue.get();
    }
  }
  if (residues_.size() >= kMaxResidues) residues_.clear();
  residues_.push_back(std::make_shared<const Residue>(*std::move(found)));
  entry.residue = residues_.back();
  return entry.residue.get();
}

int64_t JournalEntries::Awaited(int64_t row, int64_t from, int64_t to) const {
  for (int64_t number = std::max(from, complete_); number < to; ++number) {
    const Entry& entry = at(number);
    if (entry.is_complete) continue;
    const bool touches =
        !entry.touched || std::binary_search(entry.touched->begin(), entry.touched->end(), row);
    if (touches) return number;
  }
  return -1;
}

int64_t JournalEntries::Settled(int64_t changes) const {
  if (changes <= first_ || changes > size()) return changes;
  const Entry& last = at(changes - 1);
  const bool waits = !last.change.has_gradient && last.first_waiting >= 0;
  return waits ? last.first_waiting : changes;
}

int64_t JournalEntries::UpdateAfter(int64_t number) const {
  const auto found = std::upper_bound(updates_.begin(), updates_.end(), number);
  return found == updates_.end() ? -1 : *found;
}

int64_t JournalEntries::UpdateBefore(int64_t number) const {
  const auto found = std::lower_bound(updates_.begin(), updates_.end(), number);
  return found == updates_.begin() ? -1 : *(found - 1);
}

void JournalEntries::DropBefore(int64_t number) {
  while (first_ < number && !entries_.empty()) {
    if (entries_.front().change.rows == RowChange::Rows::kAll) --for_all_;
    if (!updates_.empty() && updates_.front() == first_) updates_.pop_front();
    entries_.pop_front();
    ++first_;
  }
  if (entries_.empty()) {
    arrays_.clear();
    residues_.clear();
  }
}

}  // namespace tfdear
