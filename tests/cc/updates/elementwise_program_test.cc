// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Programs against the same operations, one element after another.

#include "custom_ops/engine/updates/elementwise_program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
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
