// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/row_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "tests/cc/updates/program_testing.h"

namespace tfdear {
namespace {

// Yields the squares of a table, and of what a step of momentum makes of its slot.
std::shared_ptr<const ElementwiseProgram> Squares() {
  ProgramWriter w(4, 1);
  w.Assign(2, w.Square(w.variable(0)));
  w.Assign(1, w.Add(w.Multiply(w.variable(1), w.scalar(0)), ProgramWriter::gradient));
  w.Assign(3, w.Square(w.variable(1)));
  return w.Program();
}

TEST(RowSumsTest, AddsUpWhatEveryElementYields) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const int64_t rows : {0, 1, 5, 300}) {
    for (const int64_t width : {0, 1, 3, 64, 1500}) {
      std::vector<float> table(rows * width), slot(rows * width);
      for (float& value : table) value = normal(random);
      for (float& value : slot) value = normal(random);
      // Every third row, from the last one on.
      std::vector<int64_t> touched;
      for (int64_t row = rows - 1; row >= 0; row -= 3) touched.push_back(row);
      std::vector<float> gradient(touched.size() * width);
      for (float& value : gradient) value = normal(random);
      std::vector<float> dense(rows * width);
      for (size_t i = 0; i < touched.size(); ++i) {
        std::copy_n(gradient.data() + i * width, width, dense.data() + touched[i] * width);
      }
      double first = 0, second = 0;
      for (int64_t i = 0; i < rows * width; ++i) {
        first += static_cast<double>(table[i]) * table[i];
        const double moved = slot[i] * 0.5 + dense[i];
        second += moved * moved;
      }
      const std::vector<float> table_before = table, slot_before = slot;
      std::vector<double> sums;
      SumOverRows(*Squares(), {table.data(), slot.data()}, {0.5f}, rows, width,
                  {touched.data(), touched.size(), gradient.data()}, &sums);
      ASSERT_EQ(sums.size(), 2u);
      EXPECT_NEAR(sums[0], first, 1e-6 * first);
      EXPECT_NEAR(sums[1], second, 1e-6 * second);
      EXPECT_EQ(table, table_before);
      EXPECT_EQ(slot, slot_before);
    }
  }
}

TEST(RowSumsTest, TheOrderOfTheGradientsRowsMakesNoDifference) {
  constexpr int64_t kRows = 40, kWidth = 7;
  std::vector<float> table(kRows * kWidth, 0.1f), slot(kRows * kWidth, 0.3f);
  std::vector<int64_t> touched(kRows), reversed(kRows);
  std::iota(touched.begin(), touched.end(), 0);
  std::vector<float> gradient(kRows * kWidth), of_reversed(kRows * kWidth);
  for (int64_t row = 0; row < kRows; ++row) {
    reversed[kRows - 1 - row] = row;
    for (int64_t i = 0; i < kWidth; ++i) {
      gradient[row * kWidth + i] = 1.0f / static_cast<float>(row + i + 1);
      of_reversed[(kRows - 1 - row) * kWidth + i] = gradient[row * kWidth + i];
    }
  }
  std::vector<double> sums, others;
  SumOverRows(*Squares(), {table.data(), slot.data()}, {0.5f}, kRows, kWidth,
              {touched.data(), touched.size(), gradient.data()}, &sums);
  SumOverRows(*Squares(), {table.data(), slot.data()}, {0.5f}, kRows, kWidth,
              {reversed.data(), reversed.size(), of_reversed.data()}, &others);
  EXPECT_EQ(sums, others);
}

}  // namespace
}  // namespace tfdear
