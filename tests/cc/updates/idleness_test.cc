// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/idleness.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "custom_ops/engine/base/keep_denormals.h"
#include "tests/cc/updates/program_testing.h"

namespace tfdear {
namespace {

using Operation = ElementwiseOperation;

std::optional<Idleness> Prove(const UpdateProgram& update, bool slots_are_zero) {
  return ProveIdle(*update.program, update.scalars, 0, slots_are_zero);
}

TEST(IdlenessTest, OfOptimizers) {
  const std::set<std::string> always = {"sgd", "adagrad"};
  // Ftrl makes the weight anew from its slots.
  const std::set<std::string> never = {"ftrl"};
  for (const UpdateProgram& update : UpdatePrograms()) {
    SCOPED_TRACE(update.name);
    EXPECT_EQ(Prove(update, false).has_value(), always.count(update.name) > 0);
    EXPECT_EQ(Prove(update, true).has_value(), never.count(update.name) == 0);
  }
  EXPECT_FALSE(Prove(WeightDecay(), true));
  EXPECT_FALSE(Prove(MovingAverage(), true));
}

TEST(IdlenessTest, ADivisorThatIsNotKnownIsACondition) {
  const auto sgd = Prove(UpdateProgramNamed("sgd"), false);
  ASSERT_TRUE(sgd);
  EXPECT_FALSE(sgd->conditional || sgd->nonnegative_slots);
  // The accumulator, which may be zero: nothing is added to it.
  UpdateProgram update = UpdateProgramNamed("adagrad");
  const auto positive = Prove(update, false);
  ASSERT_TRUE(positive);
  EXPECT_FALSE(positive->conditional);
  EXPECT_TRUE(positive->nonnegative_slots);
  update.scalars[1] = 0.0f;
  const auto adagrad = Prove(update, false);
  ASSERT_TRUE(adagrad);
  EXPECT_TRUE(adagrad->conditional);
  EXPECT_EQ(adagrad->scalars, 2u);
}

TEST(IdlenessTest, DependsOnTheScalars) {
  UpdateProgram decay = WeightDecay();
  decay.scalars = {0.0f, 0.01f};  // Of a learning rate of 0.
  const auto proof = Prove(decay, false);
  ASSERT_TRUE(proof);
  EXPECT_TRUE(proof->conditional);  // Not of an infinite weight.
  UpdateProgram adam = UpdateProgramNamed("adam");
  adam.scalars[3] = 0.0f;  // 0 / 0
  EXPECT_FALSE(Prove(adam, true));
  adam.scalars[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(Prove(adam, true));
}

// What a table becomes, with a number, 1 and 0 as scalars.
std::optional<Idleness> ProveThat(const std::function<int(ProgramWriter&)>& write) {
  ProgramWriter writer(1, 3);
  writer.Assign(0, write(writer));
  return ProveIdle(*writer.Program(), {5.0f, 1.0f, 0.0f}, 0, false);
}

TEST(IdlenessTest, Rules) {
  constexpr int table = 1, number = 2, one = 3, zero = 4;
  auto writes = [&](Operation operation, int left, int right) {
    return ProveThat([=](ProgramWriter& w) { return w(operation, left, right); });
  };
  EXPECT_TRUE(writes(Operation::kAdd, table, zero));
  EXPECT_TRUE(writes(Operation::kAdd, zero, table));
  EXPECT_TRUE(writes(Operation::kSubtract, table, zero));
  EXPECT_TRUE(writes(Operation::kMultiply, table, one));
  EXPECT_TRUE(writes(Operation::kMultiply, one, table));
  EXPECT_TRUE(writes(Operation::kDivide, table, one));
  EXPECT_TRUE(writes(Operation::kMaximum, table, table));
  EXPECT_TRUE(writes(Operation::kWhere, number, table));
  EXPECT_TRUE(writes(Operation::kUnless, zero, table));
  EXPECT_TRUE(writes(Operation::kUnite, table, zero));
  for (const Operation operation :
       {Operation::kAdd, Operation::kMultiply, Operation::kDivide, Operation::kMaximum,
        Operation::kPower, Operation::kWhere, Operation::kUnite}) {
    EXPECT_FALSE(writes(operation, table, number)) << static_cast<int>(operation);
  }
  EXPECT_FALSE(writes(Operation::kSubtract, zero, table));
  EXPECT_FALSE(writes(Operation::kDivide, one, table));
  EXPECT_FALSE(writes(Operation::kMultiply, table, zero));
  // A zero of which the sign is not known is no divisor.
  EXPECT_FALSE(ProveThat([](ProgramWriter& w) {
    const int infinite = w.Divide(one, w.Multiply(table, zero));
    return w.Add(table, w(Operation::kMinimum, infinite, zero));
  }));
}

// How many instructions are left of an update; -1: all, or nothing is proved.
int Left(const UpdateProgram& update, const KnownVariables& known) {
  const FlushDenormals flush_denormals;
  const auto residue = FindResidue(update.program, update.scalars, known);
  if (!residue) return -1;
  EXPECT_EQ(residue->code.empty(), residue->program == nullptr);
  return static_cast<int>(residue->code.size() / 4);
}

TEST(ResidueTest, OfAdam) {
  const UpdateProgram adam = UpdateProgramNamed("adam");
  // The mean is variable 1, the square 2. What is left moves the square towards zero.
  EXPECT_EQ(Left(adam, {2, 4, 0, 0}), 4);
  EXPECT_EQ(Left(adam, {6, 0, 0, 0}), 0);
  EXPECT_EQ(Left(adam, {0, 4, 2, 2}), 4);
  // A mean that is tiny, but moves; a square that may be negative; a mean that is not tiny.
  EXPECT_EQ(Left(adam, {0, 4, 2, 0}), -1);
  EXPECT_EQ(Left(adam, {2, 0, 0, 0}), -1);
  EXPECT_GT(Left(adam, {0, 4, 0, 2}), 4);  // The weight moves.
  UpdateProgram fast = adam;
  fast.scalars[0] = 1.0f;  // Times a tiny mean it is a number.
  EXPECT_GT(Left(fast, {0, 4, 2, 2}), 4);
  fast.scalars[2] = 2.0f;  // The square would become negative.
  EXPECT_EQ(Left(fast, {2, 4, 0, 0}), -1);
  // Both squares decay, one of them to less than the other.
  EXPECT_GT(Left(UpdateProgramNamed("amsgrad"), {2, 12, 0, 0}), 4);
}

TEST(ResidueTest, OfOthers) {
  // Without a gradient no weight moves.
  const UpdateProgram rmsprop = UpdateProgramNamed("rmsprop");
  EXPECT_EQ(Left(rmsprop, {8, 2, 0, 0}), -1);  // Of the mean nothing is known.
  EXPECT_GT(Left(UpdateProgramNamed("adamax"), {2, 4, 0, 0}), 0);
  // No gradient times the learning rate.
  EXPECT_EQ(Left(UpdateProgramNamed("momentum"), {0, 0, 0, 0}), 5);
  EXPECT_EQ(Left(UpdateProgramNamed("momentum"), {2, 0, 0, 0}), 0);
  EXPECT_EQ(Left(WeightDecay(), {0, 0, 0, 0}), -1);
}

TEST(ResidueTest, AProgramThatWritesAVariableTwice) {
  ProgramWriter w(2, 0);
  w.Assign(1, w.Add(1, 2));
  w.Assign(1, w.Subtract(2, 2));
  EXPECT_EQ(Left({"twice", 1, {}, w.Program()}, {2, 0, 0, 0}), -1);
}

}  // namespace
}  // namespace tfdear
