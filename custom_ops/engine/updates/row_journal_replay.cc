// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// How rows are brought up to date. (What they are owed: row_journal.cc.)

#include <algorithm>
#include <functional>

#include "custom_ops/engine/updates/row_journal.h"
#include "custom_ops/engine/updates/row_values.h"

namespace tfdear {
namespace {

// A row joins others and leaves them: not for less than this many changes.
constexpr int64_t kWorthSkipping = 4;
// How often the rows of a tile are looked at, in changes: the longer nothing came of it, the less.
constexpr int64_t kBetweenLooks = 16;
constexpr int64_t kMostBetweenLooks = 128;

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

void RowJournal::Replay(int64_t changes, const Arrays& arrays) {
  if (entries_.for_all() == 0) behind_.clear();
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
    // Else it is for rows with a gradient of it, which these have not.
    const bool for_all = entry.change.rows == RowChange::Rows::kAll;
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
    const bool look = for_all && IsWorthALook(entry, next, since_join, since_look, changes);
    if (look) tile_.Remember();
    if (since_join == 0) {
      is_ordinary_ = false;
      if (changes - next > kBetweenLooks) LookAtTile(-1);
    }
    if (look) {
      RunOnTile(entry.change, zeros_.data());
    } else if (for_all) {
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
  // For lambdas, of which the analysis of locks does not know that they run here.
  const RowTile* const tile = &tile_;
  for (size_t place = tile_.size(); place-- > 0;) {
    int64_t end = next;
    auto values = [&](int array) { return tile->values(array, place); };
    const std::vector<int>& arrays = made.change.arrays;
    const bool unchanged = std::all_of(arrays.begin(), arrays.end(), [&](int array) {
      return tile->IsAsRemembered(array, place);
    });
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
  RowTile* const tile = &tile_;
  const size_t count = tile_.elements();
  const std::vector<int>& arrays = entries_.arrays();
  // What is left as it is must be what arithmetic would leave as it is.
  is_ordinary_ = std::all_of(arrays.begin(), arrays.end(),
                             [&](int array) { return AreOrdinary(tile->data(array), count); });
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

}  // namespace tfdear
