// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Changes that are for some rows only, beside what they are for each row by itself.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>

#include "tests/cc/updates/journal_pair_testing.h"

namespace tfdear {
namespace {

using Rows = RowChange::Rows;

constexpr int64_t kRows = 12, kWidth = 3;
// The arrays of these tests.
constexpr int kTable = 0, kVelocity = 1, kAverage = 2, kSums = 3;

UpdateProgram Accumulate() {
  ProgramWriter w(1, 0);
  w.Assign(0, w.Add(w.variable(0), ProgramWriter::gradient));
  return {"accumulate", 0, {}, w.Program()};
}

// Momentum, with the sums of earlier gradients, which it sets to zero.
UpdateProgram UpdateWithSums() {
  ProgramWriter w(3, 2);
  w.Assign(1, w.Subtract(w.Multiply(w.variable(1), w.scalar(1)),
                         w.Multiply(w.Add(ProgramWriter::gradient, w.variable(2)), w.scalar(0))));
  w.Assign(0, w.Add(w.variable(0), w.variable(1)));
  w.Assign(2, w.Subtract(w.variable(2), w.variable(2)));
  return {"update", 2, {0.1f, 0.9f}, w.Program()};
}

// A journal, and each row by itself.
class TouchedRows {
 public:
  explicit TouchedRows(int64_t max_entries = 8)
      : table(4, std::vector<float>(kRows * kWidth)), journal(kRows, kWidth, max_entries) {
    for (size_t i = 0; i < table[0].size(); ++i) table[0][i] = 1.0f + 0.25f * i;
    expected = table;
  }

  // Appends a change, and makes it for the rows beside.
  int64_t Append(const UpdateProgram& update, const std::vector<int>& arrays, Rows kind,
                 const std::set<int64_t>& rows, bool has_gradient, float gradient = 0) {
    int64_t number = -1;
    ExpectOk(journal.Append({update.program, arrays, update.scalars, has_gradient, kind}, &number));
    if (kind != Rows::kAll && !has_gradient) {
      waiting_.push_back({update, arrays});
      return number;
    }
    std::set<int64_t> all = rows;
    if (kind == Rows::kTouched) {
      all.insert(noted_.begin(), noted_.end());
      noted_.clear();
    }
    if (kind == Rows::kNoted) noted_.insert(rows.begin(), rows.end());
    for (int64_t row = 0; row < kRows; ++row) {
      if (kind != Rows::kAll && all.count(row) == 0) continue;
      if (kind != Rows::kAll) {
        for (const auto& [before, its_arrays] : waiting_) Run(before, its_arrays, row, 0);
      }
      Run(update, arrays, row, rows.count(row) ? gradient : 0);
    }
    if (has_gradient) waiting_.clear();
    return number;
  }

  void Apply(int64_t change, const std::vector<int64_t>& rows, float gradient) {
    const std::vector<float> values(rows.size() * kWidth, gradient);
    ExpectOk(journal.Apply(change, rows.data(), rows.size(), values.data(), Pointers(&table)));
  }

  void ExpectRows(const std::vector<int64_t>& rows, int step) {
    for (size_t array = 0; array < table.size(); ++array) {
      for (int64_t row : rows) {
        for (int64_t i = row * kWidth; i < (row + 1) * kWidth; ++i) {
          ASSERT_TRUE(Same(table[array][i], expected[array][i]))
              << "step " << step << ", array " << array << ", row " << row << ": "
              << table[array][i] << " and not " << expected[array][i];
        }
      }
    }
  }

  Table table, expected;
  RowJournal journal;

 private:
  void Run(const UpdateProgram& update, const std::vector<int>& arrays, int64_t row,
           float gradient) {
    const FlushDenormals flush_denormals;
    const std::vector<float> gradients(kWidth, gradient);
    std::vector<ElementwiseProgram::Array> variables;
    for (int array : arrays) {
      float* const values = expected[array].data() + row * kWidth;
      variables.push_back({values, values});
    }
    update.program->Run(gradients.data(), variables, update.scalars, kWidth);
  }

  std::set<int64_t> noted_;
  std::vector<std::pair<UpdateProgram, std::vector<int>>> waiting_;
};

TEST(TouchedRowsTest, OthersStay) {
  const UpdateProgram update = UpdateWithSums(), decay = WeightDecay();
  TouchedRows rows(4);
  for (int step = 0; step < 30; ++step) {
    const std::vector<int64_t> touched = {step % 4, 9 - step % 3};
    for (int i = 0; i < 2; ++i) rows.Append(decay, {kTable}, Rows::kTouched, {}, false);
    const int64_t change = rows.Append(update, {kTable, kVelocity, kSums}, Rows::kTouched,
                                       {touched.begin(), touched.end()}, true, 0.5f);
    rows.Apply(change, touched, 0.5f);
    ExpectOk(rows.journal.Complete(change));
    ExpectOk(rows.journal.BringUpToDate(touched.data(), 2, Pointers(&rows.table)));
    rows.ExpectRows(Range(kRows), step);
    EXPECT_LE(rows.journal.kept(), 4);
  }
  const int64_t made = rows.journal.made();
  ExpectOk(rows.journal.BringAllUpToDate(Pointers(&rows.table)));
  rows.ExpectRows(Range(kRows), 30);
  EXPECT_EQ(rows.journal.made(), made);
  EXPECT_EQ(rows.journal.kept(), 0);
}

// Accumulates for some steps; averages follow in all rows, or there are none. A part of each
// gradient comes only after the changes of the next step.
void ExpectRandomSteps(unsigned seed, int accumulated, bool averages, bool late) {
  const UpdateProgram update = UpdateWithSums(), accumulate = Accumulate();
  const UpdateProgram decay = WeightDecay(), average = MovingAverage();
  constexpr int64_t kMaxEntries = 8;
  std::mt19937 random(seed);
  auto some = [&](std::vector<int64_t> rows, size_t most) {
    std::shuffle(rows.begin(), rows.end(), random);
    rows.resize(std::min(rows.size(), random() % (most + 1)));
    return rows;
  };
  struct Late {
    int64_t change;
    std::vector<int64_t> rows;
    float gradient;
  };
  std::optional<Late> before;
  TouchedRows rows(kMaxEntries);
  auto finish = [&] {
    if (!before) return;
    rows.Apply(before->change, before->rows, before->gradient);
    ExpectOk(rows.journal.Complete(before->change));
    before.reset();
  };
  for (int step = 0; step < 120; ++step) {
    const std::vector<int64_t> touched = some(Range(kRows - 1), 4);
    const std::set<int64_t> set(touched.begin(), touched.end());
    const float gradient = 0.25f * static_cast<float>(random() % 9) - 1;
    const bool updates = (step + 1) % accumulated == 0;
    auto is_late = [&](int64_t row) {
      return before && std::count(before->rows.begin(), before->rows.end(), row) > 0;
    };
    auto read = [&](const std::vector<int64_t>& from) {
      const std::vector<int64_t> some_rows = some(from, 3);
      ExpectOk(
          rows.journal.BringThroughAll(some_rows.data(), some_rows.size(), Pointers(&rows.table)));
      rows.ExpectRows(some_rows, step);
    };
    std::vector<int64_t> ready;
    for (int64_t row = 0; row < kRows; ++row) {
      if (!is_late(row)) ready.push_back(row);
    }
    int64_t change;
    if (updates) {
      rows.Append(decay, {kTable}, Rows::kTouched, {}, false);
      read(ready);
      change = rows.Append(update, {kTable, kVelocity, kSums}, Rows::kTouched, set, true, gradient);
    } else {
      change = rows.Append(accumulate, {kSums}, Rows::kNoted, set, true, gradient);
    }
    if (averages) rows.Append(average, {kTable, kAverage}, Rows::kAll, {}, false);
    ExpectOk(rows.journal.Declare(change, touched));
    // Rows that wait for the step before come after it.
    Late now = {change, {}, gradient};
    std::vector<int64_t> first;
    for (int64_t row : touched) {
      (is_late(row) || (late && random() % 2) ? now.rows : first).push_back(row);
    }
    rows.Apply(change, first, gradient);
    for (int64_t row : now.rows)
      ready.erase(std::remove(ready.begin(), ready.end(), row), ready.end());
    read(ready);
    finish();
    before = now;
    if (!late || random() % 4 == 0) finish();
    if (!before && random() % 3 == 0) {
      const std::vector<int64_t> complete = some(Range(kRows), 3);
      ExpectOk(rows.journal.BringUpToDate(complete.data(), complete.size(), Pointers(&rows.table)));
      rows.ExpectRows(complete, step);
    }
    if (!before && random() % 16 == 0) {
      ExpectOk(rows.journal.BringAllUpToDate(Pointers(&rows.table)));
      EXPECT_EQ(rows.journal.kept(), 0);
      rows.ExpectRows(Range(kRows), step);
    }
    const int64_t changes = averages ? 3 : 2;  // Of a step, at most.
    EXPECT_LE(rows.journal.kept(),
              averages ? 2 * kMaxEntries + 4 * changes : changes * (accumulated + 2));
  }
  finish();
  ExpectOk(rows.journal.BringAllUpToDate(Pointers(&rows.table)));
  rows.ExpectRows(Range(kRows), 120);
}

TEST(TouchedRowsTest, RowsThatWereNotedGetTheNextUpdate) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    for (bool late : {false, true}) ExpectRandomSteps(seed, 1 + seed % 4, false, late);
  }
}

TEST(TouchedRowsTest, AveragesFollowInAllRows) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    for (bool late : {false, true}) ExpectRandomSteps(seed, 1 + seed % 4, true, late);
  }
}

TEST(TouchedRowsTest, AfterAnUpdateThatWasAbandonedTheNextOneIsForRowsThatWereNoted) {
  const UpdateProgram update = UpdateWithSums(), accumulate = Accumulate();
  TouchedRows rows;
  const int64_t noted = rows.Append(accumulate, {kSums}, Rows::kNoted, {3}, true, 0.5f);
  rows.Apply(noted, {3}, 0.5f);
  ExpectOk(rows.journal.Complete(noted));
  int64_t abandoned = -1;
  ExpectOk(rows.journal.Append(
      {update.program, {kTable, kVelocity, kSums}, update.scalars, true, Rows::kTouched},
      &abandoned));
  ExpectOk(rows.journal.Abandon(abandoned));
  ExpectOk(rows.journal.BringAllUpToDate(Pointers(&rows.table)));
  rows.ExpectRows(Range(kRows), 0);
  const int64_t change =
      rows.Append(update, {kTable, kVelocity, kSums}, Rows::kTouched, {1}, true, 2.0f);
  rows.Apply(change, {1}, 2.0f);
  ExpectOk(rows.journal.Complete(change));
  ExpectOk(rows.journal.BringAllUpToDate(Pointers(&rows.table)));
  rows.ExpectRows(Range(kRows), 1);
}

}  // namespace
}  // namespace tfdear
