// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Random histories: journals against dense updates of whole tables by the same programs.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "tests/cc/updates/journal_pair_testing.h"

namespace tfdear {
namespace {

class History {
 public:
  explicit History(unsigned seed) : random_(seed) {}

  void Run(const UpdateProgram& update) {
    const int64_t width = std::vector<int64_t>{1, 3, 16, 33, 600, 1500}[Below(6)];
    const int64_t rows = Below(width > 100 ? 6 : 40);
    const bool decays = Chance(4), averages = Chance(4), constant = Chance(2), odd = Chance(4);
    const int average = update.slots + 1;
    Table first(averages ? average + 1 : average);
    for (size_t array = 0; array < first.size(); ++array) {
      first[array] = Values(rows * width, odd);
      const bool is_slot = array > 0 && static_cast<int>(array) <= update.slots;
      if (is_slot && !Chance(4)) {
        std::fill(first[array].begin(), first[array].end(), update.first_slots);
      }
    }
    JournalPair pair(rows, width, std::move(first), 1 + Below(40));
    UpdateProgram step = update;
    // Conditional proofs.
    if (update.name == "adagrad" && Chance(2)) step.scalars[1] = 0.0f;
    for (int64_t steps = Below(60); steps > 0 && !::testing::Test::HasFailure(); --steps) {
      if (!constant) step.scalars[0] *= 0.95f;
      if (decays) pair.Append(WeightDecay(), {0}, {}, false);
      const std::vector<int64_t> touched = Some(rows);
      std::vector<float> gradient(rows * width);
      for (int64_t row : touched) {
        for (int64_t i = 0; i < width; ++i) gradient[row * width + i] = normal_(random_);
      }
      const int64_t change = pair.Append(step, ArraysOf(update), gradient);
      if (averages) pair.Append(MovingAverage(), {0, average}, {}, false);
      ApplyInParts(&pair, change, touched, gradient);
      ExpectOk(pair.journal.Complete(change));
      ASSERT_EQ(pair.journal.complete(), pair.journal.size());
      if (Chance(3)) {
        std::vector<int64_t> read = Some(rows);
        read.insert(read.end(), read.begin(), read.end());
        ExpectOk(pair.BringUpToDate(read));
        pair.ExpectUpToDate(read, pair.journal.size());
      }
    }
    ExpectOk(pair.journal.BringAllUpToDate(Pointers(&pair.table)));
    pair.ExpectUpToDate(Range(rows), pair.journal.size());
    EXPECT_EQ(pair.journal.kept(), 0);
  }

 private:
  void ApplyInParts(JournalPair* pair, int64_t change, const std::vector<int64_t>& rows,
                    const std::vector<float>& gradient) {
    for (size_t begin = 0; begin < rows.size();) {
      const size_t end = begin + 1 + Below(rows.size() - begin);
      const std::vector<int64_t> part(rows.begin() + begin, rows.begin() + end);
      pair->Apply(change, part, gradient);
      pair->ExpectUpToDate(part, change + 1);
      begin = end;
    }
  }

  int64_t Below(int64_t limit) {
    return std::uniform_int_distribution<int64_t>(0, limit - 1)(random_);
  }
  bool Chance(int of) { return Below(of) == 0; }

  // In any order, mostly few.
  std::vector<int64_t> Some(int64_t rows) {
    if (Chance(5) || rows == 0) return {};
    std::vector<int64_t> some = Range(rows);
    std::shuffle(some.begin(), some.end(), random_);
    some.resize(1 + Below(Chance(3) ? rows : std::min<int64_t>(rows, 4)));
    return some;
  }

  std::vector<float> Values(int64_t count, bool odd) {
    using Limits = std::numeric_limits<float>;
    const float others[] = {0.0f,          -0.0f,          Limits::denorm_min(),
                            Limits::max(), -1e-40f,        Limits::infinity(),
                            Limits::min(), -Limits::max(), Limits::quiet_NaN()};
    std::vector<float> values(count);
    for (float& value : values) value = odd && Chance(5) ? others[Below(9)] : normal_(random_);
    return values;
  }

  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

TEST(RowHistoryTest, EqualsDenseUpdates) {
  const auto programs = UpdatePrograms();
  for (unsigned seed = 0; seed < 1000 && !HasFailure(); ++seed) {
    const UpdateProgram& update = programs[seed % programs.size()];
    SCOPED_TRACE(update.name + ", seed " + std::to_string(seed));
    History(seed).Run(update);
  }
}

// Until slots hold nothing any more, or what no longer changes: less and less is computed of a
// change.
void MissManyChanges(const UpdateProgram& update, bool decays, bool odd) {
  constexpr int64_t kRows = 7, kWidth = 5;
  constexpr int kSteps = 1500;
  Table first(1 + update.slots, std::vector<float>(kRows * kWidth, update.first_slots));
  for (size_t i = 0; i < first[0].size(); ++i) first[0][i] = 0.125f * static_cast<float>(i) - 2.0f;
  if (odd) {  // Slots that no optimizer leaves.
    for (int slot = 1; slot <= update.slots; ++slot) {
      first[slot][0] = -1.0f;
      first[slot][kWidth] = std::numeric_limits<float>::infinity();
      first[slot][2 * kWidth] = 1e-37f;
      first[slot][3 * kWidth] = std::numeric_limits<float>::denorm_min();
      first[slot][4 * kWidth] = std::numeric_limits<float>::max();
    }
  }
  JournalPair pair(kRows, kWidth, first);
  UpdateProgram step = update;
  for (int number = 0; number < kSteps; ++number) {
    step.scalars[0] = update.scalars[0] * (1.0f + 1.0f / static_cast<float>(number + 1));
    if (decays) pair.Append(WeightDecay(), {0}, {}, false);
    std::vector<int64_t> touched;
    if (number < 4) touched = {number, 5};
    if (number == kSteps / 2) touched = {1};
    std::vector<float> gradient(kRows * kWidth);
    for (int64_t row : touched) {
      for (int64_t i = 0; i < kWidth; ++i) gradient[row * kWidth + i] = 0.5f - 0.25f * i;
    }
    const int64_t change = pair.Append(step, ArraysOf(update), gradient);
    pair.Apply(change, touched, gradient);
    ExpectOk(pair.journal.Complete(change));
    if (number == kSteps - 200) ExpectOk(pair.BringUpToDate({0, 2}));
  }
  ExpectOk(pair.BringUpToDate(Range(kRows)));
  pair.ExpectUpToDate(Range(kRows), pair.journal.size());
}

TEST(RowHistoryTest, RowsThatMissManyChanges) {
  for (const UpdateProgram& update : UpdatePrograms()) {
    for (const bool decays : {false, true}) {
      for (const bool odd : {false, true}) {
        SCOPED_TRACE(update.name + (decays ? " with decay" : "") + (odd ? ", odd slots" : ""));
        MissManyChanges(update, decays, odd);
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace tfdear
