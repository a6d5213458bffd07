// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Journals against dense updates of whole tables by the same programs.

#include "custom_ops/engine/updates/row_journal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "custom_ops/engine/base/keep_denormals.h"
#include "tests/cc/updates/program_testing.h"

namespace tfdear {
namespace {

using Table = std::vector<std::vector<float>>;  // The arrays.

RowJournal::Arrays Pointers(Table* table) {
  RowJournal::Arrays arrays;
  for (auto& array : *table) arrays.push_back(array.data());
  return arrays;
}

// The same, but for the sign of a zero and what a NaN has in it.
bool Same(float left, float right) {
  if (std::isnan(left) || std::isnan(right)) return std::isnan(left) && std::isnan(right);
  return (left == 0 && right == 0) || std::memcmp(&left, &right, sizeof left) == 0;
}

void ExpectSame(const Table& left, const Table& right, int64_t begin, int64_t end,
                const std::string& what) {
  for (size_t array = 0; array < left.size(); ++array) {
    for (int64_t i = begin; i < end; ++i) {
      ASSERT_TRUE(Same(left[array][i], right[array][i]))
          << what << ": array " << array << ", element " << i << ": " << left[array][i]
          << " and not " << right[array][i];
    }
  }
}

void ExpectOk(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }

// A table under a journal, and beside it the dense one after every change.
class Pair {
 public:
  Pair(int64_t rows, int64_t width, int64_t max_entries, Table first)
      : rows_(rows),
        width_(width),
        table(std::move(first)),
        journal(rows, width, RowJournal::Rows::kAll, max_entries),
        dense_{table} {}

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
    update.program->Run(gradient.data(), variables, update.scalars, rows_ * width_);
    dense_.push_back(std::move(next));
    return number;
  }

  void Apply(int64_t change, const std::vector<int64_t>& rows, const std::vector<float>& gradient) {
    std::vector<float> values;
    for (int64_t row : rows) {
      values.insert(values.end(), gradient.begin() + row * width_,
                    gradient.begin() + (row + 1) * width_);
    }
    ExpectOk(journal.Apply(change, rows.data(), rows.size(), values.data(), Pointers(&table)));
  }

  // Compares rows with what they were after the first `changes` changes.
  void ExpectUpToDate(const std::vector<int64_t>& rows, int64_t changes, const std::string& what) {
    for (int64_t row : rows) {
      ExpectSame(table, dense_[changes], row * width_, (row + 1) * width_, what);
    }
  }

 private:
  const int64_t rows_, width_;

 public:
  Table table;
  RowJournal journal;

 private:
  std::vector<Table> dense_;
};

class Histories {
 public:
  explicit Histories(unsigned seed) : random_(seed) {}

  void Run(const UpdateProgram& update) {
    const int64_t rows = Below(40), width = std::vector<int64_t>{1, 3, 16, 33, 600}[Below(5)];
    const bool decays = Chance(4), averages = Chance(4), constant = Chance(2), odd = Chance(4);
    const int slots = update.slots + (averages ? 1 : 0);
    Table first(1 + slots);
    for (int array = 0; array <= slots; ++array) {
      first[array] = Values(rows * width, odd);
      if (array > 0 && array <= update.slots && !Chance(4)) {
        std::fill(first[array].begin(), first[array].end(), update.first_slots);
      }
    }
    Pair pair(rows, width, 1 + Below(40), std::move(first));
    std::vector<int> arrays(1 + update.slots);
    std::iota(arrays.begin(), arrays.end(), 0);
    UpdateProgram step = update;
    const int64_t steps = Below(60);
    for (int64_t i = 0; i < steps; ++i) {
      if (!constant) step.scalars[0] *= 0.95f;
      if (decays) pair.Append(WeightDecay(), {0}, {}, false);
      std::vector<int64_t> touched = Some(rows);
      std::vector<float> gradient(rows * width);
      for (int64_t row : touched) {
        for (int64_t j = 0; j < width; ++j) gradient[row * width + j] = normal_(random_);
      }
      const int64_t change = pair.Append(step, arrays, gradient);
      const int64_t next =
          averages ? pair.Append(MovingAverage(), {0, update.slots + 1}, {}, false) : change;
      // In parts.
      size_t begin = 0;
      while (begin < touched.size()) {
        const size_t end = begin + 1 + Below(touched.size() - begin);
        pair.Apply(change, {touched.begin() + begin, touched.begin() + end}, gradient);
        pair.ExpectUpToDate({touched.begin() + begin, touched.begin() + end}, change + 1,
                            update.name);
        begin = end;
      }
      ExpectOk(pair.journal.Complete(change));
      ASSERT_EQ(pair.journal.complete(), next + 1);
      if (rows > 0 && Chance(3)) {
        std::vector<int64_t> read = Some(rows);
        read.insert(read.end(), read.begin(), read.end());
        ExpectOk(pair.journal.BringUpToDate(read.data(), read.size(), Pointers(&pair.table)));
        pair.ExpectUpToDate(read, next + 1, update.name);
      }
      if (::testing::Test::HasFailure()) return;
    }
    ExpectOk(pair.journal.BringAllUpToDate(Pointers(&pair.table)));
    std::vector<int64_t> all(rows);
    std::iota(all.begin(), all.end(), 0);
    pair.ExpectUpToDate(all, pair.journal.size(), update.name);
  }

 private:
  int64_t Below(int64_t limit) {
    return std::uniform_int_distribution<int64_t>(0, limit - 1)(random_);
  }
  bool Chance(int of) { return Below(of) == 0; }

  // In any order, mostly few.
  std::vector<int64_t> Some(int64_t rows) {
    if (Chance(5) || rows == 0) return {};
    std::vector<int64_t> all(rows);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random_);
    all.resize(1 + Below(Chance(3) ? rows : std::min<int64_t>(rows, 4)));
    return all;
  }

  std::vector<float> Values(int64_t count, bool odd) {
    using Limits = std::numeric_limits<float>;
    const float others[] = {0.0f,
                            -0.0f,
                            Limits::denorm_min(),
                            -Limits::denorm_min(),
                            Limits::max(),
                            Limits::infinity(),
                            Limits::quiet_NaN(),
                            Limits::min(),
                            1e30f};
    std::vector<float> values(count);
    for (float& value : values) value = odd && Chance(5) ? others[Below(9)] : normal_(random_);
    return values;
  }

  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

TEST(RowJournalTest, RandomHistoriesEqualDenseUpdates) {
  const auto programs = UpdatePrograms();
  for (unsigned i = 0; i < 1000 && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    Histories(i).Run(programs[i % programs.size()]);
  }
}

}  // namespace
}  // namespace tfdear
