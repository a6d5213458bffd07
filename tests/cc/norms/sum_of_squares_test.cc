// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Sums of squares of layers against plain loops in float64.

#include "custom_ops/engine/norms/sum_of_squares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace tfdear {
namespace {

constexpr AdamStep kStep = {0.1f, 0.001f, 0.3f, 0.002f, 1e-6f, 0.01f};

struct Layer {
  explicit Layer(size_t count, unsigned seed = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto* values : {&gradient, &weight, &mean, &square}) {
      for (size_t i = 0; i < count; ++i) values->push_back(normal(random));
    }
    for (float& value : square) value *= value;
  }

  LayerPiece Piece(NormKind kind) const {
    return {kind, gradient.size(), gradient.data(), weight.data(), mean.data(), square.data(),
            kStep};
  }

  std::vector<float> gradient, weight, mean, square;
};

double SquareOf(double value) { return value * value; }

std::vector<double> Expected(const Layer& layer, NormKind kind) {
  std::vector<double> sums(2, 0.0);
  for (size_t i = 0; i < layer.weight.size(); ++i) {
    const double w = layer.weight[i], g = layer.gradient[i];
    const double m = layer.mean[i] + (g - layer.mean[i]) * kStep.mean_rate;
    const double v = layer.square[i] + (g * g - layer.square[i]) * kStep.square_rate;
    const double step =
        m / kStep.mean_correction / (std::sqrt(v / kStep.square_correction) + kStep.epsilon) +
        kStep.weight_decay * w;
    sums[0] += SquareOf(w);
    sums[1] += SquareOf(kind == NormKind::kLars ? g : step);
  }
  return sums;
}

TEST(SumOfSquaresTest, EverySizeMatchesPlainLoops) {
  for (size_t count : {0, 1, 2, 31, 32, 33, 63, 64, 95, 1000, 4097, 100003}) {
    const Layer layer(count);
    for (NormKind kind : {NormKind::kLars, NormKind::kLamb}) {
      double sums[2];
      SumOfSquares({layer.Piece(kind)}, sums);
      const auto expected = Expected(layer, kind);
      EXPECT_NEAR(sums[0], expected[0], 1e-13 * expected[0]) << count;
      // Steps are made in float32.
      EXPECT_NEAR(sums[1], expected[1], (kind == NormKind::kLars ? 1e-13 : 1e-6) * expected[1])
          << count;
    }
  }
}

TEST(SumOfSquaresTest, PiecesAreIndependentAndAddUp) {
  const Layer layer(1001);
  LayerPiece head = layer.Piece(NormKind::kLamb), tail = head;
  head.count = 333;
  tail.count -= 333;
  tail.gradient += 333;
  tail.weight += 333;
  tail.mean += 333;
  tail.square += 333;
  double sums[6], whole[2];
  SumOfSquares({head, layer.Piece(NormKind::kLars), tail}, sums);
  SumOfSquares({layer.Piece(NormKind::kLamb)}, whole);
  EXPECT_NEAR(sums[0] + sums[4], whole[0], 1e-12 * whole[0]);
  EXPECT_NEAR(sums[1] + sums[5], whole[1], 1e-6 * whole[1]);
  EXPECT_DOUBLE_EQ(sums[2], whole[0]);
}

// The largest float's square is beyond float32, and small ones beside large ones still count.
TEST(SumOfSquaresTest, NothingOverflowsOrIsLost) {
  Layer layer(64);
  for (float& value : layer.gradient) value = std::numeric_limits<float>::max();
  for (float& value : layer.weight) value = 1e-4f;
  layer.weight[0] = 1e3f;
  double sums[2];
  SumOfSquares({layer.Piece(NormKind::kLars)}, sums);
  EXPECT_DOUBLE_EQ(sums[1], 64 * SquareOf(std::numeric_limits<float>::max()));
  EXPECT_NEAR(sums[0] - 1e6, 63 * SquareOf(1e-4f), 1e-9);
}

TEST(SumOfSquaresTest, NotANumberIsNotHidden) {
  Layer layer(40);
  layer.gradient[7] = std::numeric_limits<float>::quiet_NaN();
  double sums[2];
  SumOfSquares({layer.Piece(NormKind::kLars)}, sums);
  EXPECT_TRUE(std::isnan(sums[1]));
  EXPECT_FALSE(std::isnan(sums[0]));
}

}  // namespace
}  // namespace tfdear
