// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/fused_programs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "custom_ops/engine/base/keep_denormals.h"
#include "custom_ops/engine/updates/elementwise_program.h"

namespace tfdear {
namespace {

std::vector<float> Values(std::mt19937* random, size_t count) {
  using Limits = std::numeric_limits<float>;
  const float odd[] = {0.0f,           -0.0f,         Limits::denorm_min(), Limits::max(),
                       -Limits::max(), Limits::min(), Limits::infinity(),   -1e-37f,
                       1e-20f};
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = (*random)() % 8 == 0 ? odd[(*random)() % 9] : normal(*random);
  }
  return values;
}

// What a program leaves, one instruction after another on whole arrays.
void RunStepByStep(const FusedCode& fused, const std::vector<float>& gradient,
                   std::vector<std::vector<float>>* variables, const std::vector<float>& scalars) {
  const size_t count = gradient.size();
  std::vector<std::vector<float>> registers = {gradient};
  registers.insert(registers.end(), variables->begin(), variables->end());
  for (float scalar : scalars) registers.push_back(std::vector<float>(count, scalar));
  for (size_t i = 0; i < fused.code.size(); i += 4) {
    const auto target = static_cast<size_t>(fused.code[i + 1]);
    if (target == registers.size()) registers.emplace_back(count);
    FunctionOf(static_cast<ElementwiseOperation>(fused.code[i]), false, false)(
        registers[target].data(), registers[fused.code[i + 2]].data(),
        registers[fused.code[i + 3]].data(), count);
  }
  for (size_t i = 0; i < variables->size(); ++i) (*variables)[i] = registers[1 + i];
}

TEST(FusedProgramsTest, LeaveTheBitsOfTheirInstructions) {
  const FlushDenormals flush_denormals;
  std::mt19937 random(3);
  for (const FusedCode& fused : FusedCodes()) {
    ElementwiseProgram program;
    const Status status =
        ElementwiseProgram::Parse(fused.code, fused.variables, fused.scalars, &program);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(program.is_fused());
    for (const size_t count : {0, 1, 7, 64, 1000, 3001}) {
      const auto gradient = Values(&random, count);
      std::vector<std::vector<float>> variables;
      for (int i = 0; i < fused.variables; ++i) variables.push_back(Values(&random, count));
      const auto scalars = Values(&random, fused.scalars);
      std::vector<std::vector<float>> expected = variables, elsewhere = variables;
      RunStepByStep(fused, gradient, &expected, scalars);
      std::vector<ElementwiseProgram::Array> copies, in_place;
      for (size_t i = 0; i < variables.size(); ++i) {
        copies.push_back({variables[i].data(), elsewhere[i].data()});
      }
      program.Run(gradient.data(), copies, scalars, count);
      for (auto& variable : variables) in_place.push_back({variable.data(), variable.data()});
      program.Run(gradient.data(), in_place, scalars, count);
      for (size_t i = 0; i < variables.size(); ++i) {
        for (size_t j = 0; j < count; ++j) {
          if (std::isnan(expected[i][j])) {  // Which one is not said.
            EXPECT_TRUE(std::isnan(variables[i][j]) && std::isnan(elsewhere[i][j]));
            continue;
          }
          EXPECT_EQ(std::memcmp(&variables[i][j], &expected[i][j], sizeof(float)), 0);
          EXPECT_EQ(std::memcmp(&elsewhere[i][j], &expected[i][j], sizeof(float)), 0);
        }
      }
    }
  }
}

TEST(FusedProgramsTest, OtherProgramsAreNot) {
  FusedCode other = FusedCodes().front();
  EXPECT_EQ(FusedProgram(other.code, other.variables, other.scalars + 1), nullptr);
  std::swap(other.code[2], other.code[3]);
  EXPECT_EQ(FusedProgram(other.code, other.variables, other.scalars), nullptr);
  EXPECT_EQ(FusedProgram({}, 0, 0), nullptr);
}

}  // namespace
}  // namespace tfdear
