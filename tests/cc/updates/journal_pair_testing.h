// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/keep_denormals.h"
#include "custom_ops/engine/updates/row_journal.h"
#include "tests/cc/updates/program_testing.h"

namespace tfdear {

using Table = std::vector<std::vector<float>>;  // The arrays.

inline RowJournal::Arrays Pointers(Table* table) {
  RowJournal::Arrays arrays;
  for (auto& array : *table) arrays.push_back(array.data());
  return arrays;
}

inline void ExpectOk(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }

inline std::vector<int64_t> Range(int64_t end) {
  std::vector<int64_t> numbers(end);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

inline std::vector<int> ArraysOf(const UpdateProgram& update) {
  std::vector<int> arrays(1 + update.slots);
  std::iota(arrays.begin(), arrays.end(), 0);
  return arrays;
}

// The same, but for the sign of a zero and what a NaN has in it.
inline bool Same(float left, float right) {
  if (std::isnan(left) || std::isnan(right)) return std::isnan(left) && std::isnan(right);
  uint32_t bits, others;
  std::memcpy(&bits, &left, sizeof bits);
  std::memcpy(&others, &right, sizeof others);
  return bits == others || ((bits | others) & 0x7fffffffu) == 0;
}

// A table under a journal, and beside it the dense one after every change.
class JournalPair {
 public:
  JournalPair(int64_t rows, int64_t width, Table first,
              int64_t max_entries = RowJournal::kMaxEntries)
      : rows_(rows),
        width_(width),
        dense_{first},
        table(std::move(first)),
        journal(rows, width, max_entries) {}

  int64_t Append(const UpdateProgram& update, const std::vector<int>& arrays,
                 const std::vector<float>& gradient, bool has_gradient = true) {
    int64_t number = -1;
    const Status status =
        journal.Append({update.program, arrays, update.scalars, has_gradient}, &number);
    EXPECT_TRUE(status.ok()) << status.message();
    const FlushDenormals flush_denormals;
    Table next = dense_.back();
    std::vector<ElementwiseProgram::Array> variables;
    for (int array : arrays) variables.push_back({next[array].data(), next[array].data()});
    update.program->Run(has_gradient ? gradient.data() : nullptr, variables, update.scalars,
                        rows_ * width_);
    dense_.push_back(std::move(next));
    return number;
  }

  // `gradient`: of the whole table.
  Status TryApply(int64_t change, const std::vector<int64_t>& rows,
                  const std::vector<float>& gradient) {
    std::vector<float> values;
    for (int64_t row : rows) {
      values.insert(values.end(), gradient.begin() + row * width_,
                    gradient.begin() + (row + 1) * width_);
    }
    return journal.Apply(change, rows.data(), rows.size(), values.data(), Pointers(&table));
  }
  void Apply(int64_t change, const std::vector<int64_t>& rows, const std::vector<float>& gradient) {
    ExpectOk(TryApply(change, rows, gradient));
  }

  Status BringUpToDate(const std::vector<int64_t>& rows) {
    return journal.BringUpToDate(rows.data(), rows.size(), Pointers(&table));
  }

  // Compares rows with what they were after the first `changes` changes.
  void ExpectUpToDate(const std::vector<int64_t>& rows, int64_t changes) {
    for (size_t array = 0; array < table.size(); ++array) {
      for (int64_t row : rows) {
        for (int64_t i = row * width_; i < (row + 1) * width_; ++i) {
          const float value = table[array][i], expected = dense_[changes][array][i];
          if (Same(value, expected)) continue;
          FAIL() << "array " << array << ", row " << row << ": " << value << " and not "
                 << expected;
        }
      }
    }
  }

 private:
  const int64_t rows_, width_;
  std::vector<Table> dense_;

 public:
  Table table;
  RowJournal journal;
};

}  // namespace tfdear
