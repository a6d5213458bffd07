// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Programs against the same operations, one element after another.

#include "custom_ops/engine/updates/elementwise_program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace tfdear {
namespace {

enum { kCopy, kNegate, kSquareRoot, kAdd, kSubtract, kMultiply, kDivide };

// Momentum: registers 1 and 2 are momentum and weight, 3 and 4 the scalars.
const std::vector<int64_t> kMomentum = {
    kMultiply, 5, 1, 3,  // momentum * factor
    kMultiply, 6, 0, 4,  // gradient * rate
    kSubtract, 1, 5, 6,  // is the new momentum,
    kAdd,      2, 2, 1,  // by which the weight changes
};
constexpr float kFactor = 0.9f, kRate = 0.003f;

std::vector<float> Random(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

ElementwiseProgram Parsed(const std::vector<int64_t>& code, int variables, int scalars) {
  ElementwiseProgram program;
  const Status status = ElementwiseProgram::Parse(code, variables, scalars, &program);
  EXPECT_TRUE(status.ok()) << status.message();
  return program;
}

void ExpectSameBits(const std::vector<float>& left, const std::vector<float>& right) {
  ASSERT_EQ(left.size(), right.size());
  EXPECT_TRUE(left.empty() || std::memcmp(left.data(), right.data(), left.size() * 4) == 0);
}

TEST(ElementwiseProgramTest, MomentumOfEverySizeInPlaceAndNot) {
  const ElementwiseProgram program = Parsed(kMomentum, 2, 2);
  for (size_t count : {0, 1, 2, 1023, 1024, 1025, 5000}) {
    const auto gradient = Random(count, 1), momentum = Random(count, 2), weight = Random(count, 3);
    std::vector<float> new_momentum(count), new_weight(count);
    for (size_t i = 0; i < count; ++i) {
      // Each is rounded by itself.
      volatile float kept = momentum[i] * kFactor;
      volatile float step = gradient[i] * kRate;
      new_momentum[i] = kept - step;
      new_weight[i] = weight[i] + new_momentum[i];
    }
    auto in_place_momentum = momentum, in_place_weight = weight;
    program.Run(gradient.data(),
                {{in_place_momentum.data(), in_place_momentum.data()},
                 {in_place_weight.data(), in_place_weight.data()}},
                {kFactor, kRate}, count);
    ExpectSameBits(in_place_momentum, new_momentum);
    ExpectSameBits(in_place_weight, new_weight);

    std::vector<float> other_momentum(count), other_weight(count);
    const auto momentum_before = momentum, weight_before = weight;
    program.Run(gradient.data(),
                {{momentum.data(), other_momentum.data()}, {weight.data(), other_weight.data()}},
                {kFactor, kRate}, count);
    ExpectSameBits(other_momentum, new_momentum);
    ExpectSameBits(other_weight, new_weight);
    ExpectSameBits(momentum, momentum_before);
    ExpectSameBits(weight, weight_before);
  }
}

TEST(ElementwiseProgramTest, EveryOperation) {
  const size_t count = 2049;
  const auto gradient = Random(count, 1);
  auto weight = Random(count, 2);
  const auto before = weight;
  // weight = -(sqrt(g * g) / (w - s)) + g, by way of a copy.
  const ElementwiseProgram program = Parsed(
      {
          kMultiply, 3, 0,       0, kSquareRoot, 4, 3,    0, kSubtract, 5, 1,     2, kDivide, 6,
          4,         5, kNegate, 7, 6,           0, kAdd, 8, 7,         0, kCopy, 1, 8,       0,
      },
      1, 1);
  program.Run(gradient.data(), {{weight.data(), weight.data()}}, {4.0f}, count);
  for (size_t i = 0; i < count; ++i) {
    volatile float square = gradient[i] * gradient[i];
    volatile float difference = before[i] - 4.0f;
    volatile float quotient = std::sqrt(square) / difference;
    ASSERT_EQ(weight[i], -quotient + gradient[i]) << i;
  }
}

// Every operation, of arrays and numbers, of values of all kinds, one by one and vectorised.
TEST(ElementwiseOperationTest, OddValuesAndAllKindsOfOperands) {
  using Limits = std::numeric_limits<float>;
  using Operation = ElementwiseOperation;
  const std::vector<float> values = {0.0f,
                                     -0.0f,
                                     1.0f,
                                     -1.0f,
                                     2.5f,
                                     Limits::infinity(),
                                     -Limits::infinity(),
                                     Limits::quiet_NaN(),
                                     Limits::max(),
                                     Limits::min(),
                                     0.5f,
                                     -3.0f};
  auto expected = [](Operation operation, float x, float y) -> float {
    const bool any_nan = std::isnan(x) || std::isnan(y);
    switch (operation) {
      case Operation::kCopy:
        return x;
      case Operation::kNegate:
        return -x;
      case Operation::kSquareRoot:
        return std::sqrt(x);
      case Operation::kAdd:
        return x + y;
      case Operation::kSubtract:
        return x - y;
      case Operation::kMultiply:
        return x * y;
      case Operation::kDivide:
        return x / y;
      case Operation::kMaximum:
        return any_nan ? Limits::quiet_NaN() : x > y ? x : y;
      case Operation::kMinimum:
        return any_nan ? Limits::quiet_NaN() : x < y ? x : y;
      case Operation::kAbsolute:
        return std::fabs(x);
      case Operation::kSign:
        return std::isnan(x) ? x : static_cast<float>((x > 0) - (x < 0));
      case Operation::kPower:
        return std::pow(x, y);
      case Operation::kGreater:
        return x > y;
      case Operation::kGreaterEqual:
        return x >= y;
      case Operation::kEqual:
        return x == y;
      case Operation::kNot:
        return x == 0;
      case Operation::kWhere:
        return x != 0 ? y : 0.0f;
      case Operation::kUnless:
        return x != 0 ? 0.0f : y;
      case Operation::kUnite:
        break;  // Of a number and nothing, as a choice has them.
    }
    return y;
  };
  constexpr size_t count = 37;
  for (int number = 0; number < kElementwiseOperations; ++number) {
    const auto operation = static_cast<Operation>(number);
    for (float x : values) {
      for (float y : values) {
        if (operation == Operation::kUnite) x = 0.0f;
        const std::vector<float> left(count, x), right(count, y);
        for (const bool left_is_number : {false, true}) {
          for (const bool right_is_number : {false, true}) {
            std::vector<float> target(count, 7.0f);
            FunctionOf(operation, left_is_number, right_is_number)(target.data(), left.data(),
                                                                   right.data(), count);
            const float want = expected(operation, x, y);
            for (float value : target) {
              if (std::isnan(want)) {
                ASSERT_TRUE(std::isnan(value)) << number << " of " << x << " and " << y;
              } else {
                ASSERT_EQ(std::memcmp(&value, &want, sizeof value), 0)
                    << number << " of " << x << " and " << y << ": " << value;
              }
            }
          }
        }
      }
    }
  }
}

TEST(ElementwiseProgramTest, AChoiceLetsInfinitiesPass) {
  // weight = gradient > scalar ? gradient : weight
  const ElementwiseProgram program = Parsed(
      {
          12,
          3,
          0,
          2,
          16,
          4,
          3,
          0,
          17,
          5,
          3,
          1,
          18,
          1,
          4,
          5,
      },
      1, 1);
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> gradient = {infinity, -1.0f, 2.0f, -infinity};
  std::vector<float> weight = {1.0f, -infinity, 3.0f, -0.0f};
  program.Run(gradient.data(), {{weight.data(), weight.data()}}, {0.0f}, 4);
  ExpectSameBits(weight, {infinity, -infinity, 2.0f, -0.0f});
}

TEST(ElementwiseProgramTest, WhatIsOnlyReadAndNoGradient) {
  ElementwiseProgram program;
  // average = average * scalar + weight
  const std::vector<int64_t> code = {kMultiply, 4, 2, 3, kAdd, 2, 4, 1};
  EXPECT_FALSE(ElementwiseProgram::Parse(code, 2, 1, &program).ok());
  ASSERT_TRUE(ElementwiseProgram::Parse(code, 2, 1, &program, true).ok());
  EXPECT_FALSE(program.reads_gradient());
  const std::vector<float> weight(2000, 3.0f);
  std::vector<float> average(2000, 4.0f);
  program.Run(nullptr, {{weight.data(), nullptr}, {average.data(), average.data()}}, {0.5f}, 2000);
  ExpectSameBits(average, std::vector<float>(2000, 5.0f));
}

TEST(ElementwiseProgramTest, RefusesWhatIsNoProgram) {
  ElementwiseProgram program;
  for (const std::vector<int64_t>& code : {
           std::vector<int64_t>{},
           {kAdd, 1, 0},                       // half an instruction
           {kElementwiseOperations, 1, 0, 0},  // no such operation
           {-1, 1, 0, 0},                      //
           {kAdd, 1, 0, 3},                    // reads what nothing has written
           {kAdd, 1, -1, 0},                   //
           {kAdd, 0, 1, 1},                    // writes the gradient
           {kAdd, 2, 1, 1},                    // writes a scalar
           {kAdd, 4, 1, 1},                    // leaves a register out
           {int64_t{1} << 40, 1, 0, 0},
       }) {
    EXPECT_EQ(ElementwiseProgram::Parse(code, 1, 1, &program).code(), StatusCode::kInvalidArgument);
  }
  const std::vector<int64_t> whole = {kAdd, 3, 1, 2, kCopy, 1, 3, 0};
  EXPECT_TRUE(ElementwiseProgram::Parse(whole, 1, 1, &program).ok());
  // A second variable that is not written.
  EXPECT_FALSE(ElementwiseProgram::Parse({kAdd, 1, 1, 0}, 2, 0, &program).ok());
}

}  // namespace
}  // namespace tfdear
