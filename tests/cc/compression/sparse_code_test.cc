// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/compression/sparse_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

namespace tfdear {
namespace {

struct Pairs {
  std::vector<uint32_t> indices;
  std::vector<float> values;
};

// The k largest of d draws.
template <typename Draw>
Pairs Largest(size_t d, size_t k, const Draw& draw) {
  std::vector<std::pair<float, uint32_t>> all(d);
  for (size_t i = 0; i < d; ++i) all[i] = {draw(), static_cast<uint32_t>(i)};
  std::nth_element(all.begin(), all.begin() + k, all.end(), [](const auto& a, const auto& b) {
    return std::fabs(a.first) > std::fabs(b.first);
  });
  all.resize(k);
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  Pairs pairs;
  for (const auto& [value, index] : all) {
    pairs.indices.push_back(index);
    pairs.values.push_back(value);
  }
  return pairs;
}

std::vector<char> Encode(const Pairs& pairs, size_t d, ValueFormat format) {
  std::vector<char> bytes;
  EncodeSparse(pairs.indices.data(), pairs.values.data(), pairs.indices.size(), d, format, &bytes);
  EXPECT_LE(bytes.size(), SparseCodeBound(pairs.indices.size(), d, format));
  return bytes;
}

// Encodes, decodes, compares bit by bit; returns bytes per pair over the 8 of plain pairs.
double RoundTrip(const Pairs& pairs, size_t d, ValueFormat format = ValueFormat::kFloat32) {
  const std::vector<char> bytes = Encode(pairs, d, format);
  Pairs decoded;
  const Status status =
      DecodeSparse(bytes.data(), bytes.size(), d, &decoded.indices, &decoded.values);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(decoded.indices, pairs.indices);
  std::vector<float> expected = pairs.values;
  if (format == ValueFormat::kBFloat16) {
    for (float& value : expected) value = RoundToBFloat16(value);
  }
  EXPECT_EQ(decoded.values.size(), expected.size());
  EXPECT_TRUE(expected.empty() ||
              std::memcmp(decoded.values.data(), expected.data(), 4 * expected.size()) == 0);
  return static_cast<double>(bytes.size()) / (8.0 * static_cast<double>(pairs.indices.size()));
}

Pairs Random(size_t d, size_t k, std::mt19937* random) {
  std::uniform_int_distribution<uint32_t> bits;
  std::vector<bool> chosen(d);
  for (size_t left = k; left > 0;) {
    const size_t at = bits(*random) % d;
    if (!chosen[at]) chosen[at] = true, --left;
  }
  Pairs pairs;
  for (size_t i = 0; i < d; ++i) {
    if (!chosen[i]) continue;
    const uint32_t word = bits(*random);  // Any float at all.
    float value;
    std::memcpy(&value, &word, 4);
    pairs.indices.push_back(static_cast<uint32_t>(i));
    pairs.values.push_back(value);
  }
  return pairs;
}

TEST(SparseCodeTest, AnyBitsOfAnySizeComeBack) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    const size_t d = 1 + random() % 700;
    const size_t k = round % 5 == 0 ? d : random() % (d + 1);
    const Pairs pairs = Random(d, k, &random);
    RoundTrip(pairs, d);
    RoundTrip(pairs, d, ValueFormat::kBFloat16);
  }
  const Pairs none;
  RoundTrip(none, 0);
  RoundTrip(none, 5);
}

TEST(SparseCodeTest, SpecialValuesComeBack) {
  using Limits = std::numeric_limits<float>;
  float payload;
  const uint32_t bits = 0xffa00001u;  // A signalling NaN with a payload.
  std::memcpy(&payload, &bits, 4);
  Pairs pairs;
  pairs.values = {0.0f,
                  -0.0f,
                  Limits::infinity(),
                  -Limits::infinity(),
                  Limits::quiet_NaN(),
                  payload,
                  Limits::denorm_min(),
                  -Limits::denorm_min(),
                  Limits::max(),
                  Limits::lowest(),
                  Limits::min(),
                  1.0f};
  for (size_t i = 0; i < pairs.values.size(); ++i) {
    pairs.indices.push_back(static_cast<uint32_t>(i * i));
  }
  RoundTrip(pairs, 1000);
  RoundTrip(pairs, 1000, ValueFormat::kBFloat16);
  for (size_t i = 0; i < 2000; ++i) {  // Zeros and few others, as after a few steps without data.
    pairs.indices.push_back(static_cast<uint32_t>(1000 + i));
    pairs.values.push_back(i % 100 == 0 ? static_cast<float>(i) : 0.0f);
  }
  EXPECT_LT(RoundTrip(pairs, 4000), 0.55);
}

TEST(SparseCodeTest, LargeGapsAndTheLastIndex) {
  Pairs pairs;
  pairs.indices = {0, 1, 0x7fffffffu, 0xfffffffeu, 0xffffffffu};
  pairs.values = {1, 2, 3, 4, 5};
  RoundTrip(pairs, size_t{1} << 32);
}

TEST(SparseCodeTest, GradientsTakeAtMostElevenTwentieths) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const auto gauss = [&] { return normal(random); };
  const auto laplace = [&] {
    return (random() % 2 ? 1 : -1) * -std::log1p(-std::generate_canonical<float, 24>(random));
  };
  const size_t d = 1 << 20;
  for (const double density : {0.01, 0.001}) {
    const auto k = static_cast<size_t>(density * d);
    const Pairs pairs = Largest(d, k, gauss);
    const double ratio = RoundTrip(pairs, d);
    const double short_ratio = RoundTrip(pairs, d, ValueFormat::kBFloat16);
    std::printf("normal, density %g: %.4f; bfloat16 %.4f\n", density, ratio, short_ratio);
    EXPECT_LE(ratio, density == 0.01 ? 0.55 : 0.6);
    EXPECT_LE(short_ratio, 0.35);
  }
  EXPECT_LE(RoundTrip(Largest(d, d / 100, laplace), d), 0.55);
  // Tensors of one bucket on scales of their own.
  int draws = 0;
  const auto mixed = [&] { return normal(random) * std::ldexp(1.0f, -(draws++ >> 17)); };
  EXPECT_LE(RoundTrip(Largest(d, d / 100, mixed), d), 0.56);
}

TEST(SparseCodeTest, HeavyTailsTakeAtMostThreeQuarters) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::cauchy_distribution<float> cauchy;
  const size_t d = 300007;
  const auto lognormal = [&](float sigma) {
    return [&random, &normal, sigma] {
      return (random() % 2 ? 1.0f : -1.0f) * std::exp(sigma * normal(random));
    };
  };
  for (const size_t k : {d / 100, d / 1000, d / 10000}) {
    // Indices of rarer elements are longer: 3.3 bits for every factor of ten.
    const double most = k == d / 100 ? 0.75 : 0.86;
    EXPECT_LE(RoundTrip(Largest(d, k, [&] { return cauchy(random); }), d), most);
    EXPECT_LE(RoundTrip(Largest(d, k, lognormal(4)), d), most);
    EXPECT_LE(RoundTrip(Largest(d, k, lognormal(8)), d), most);
    EXPECT_LE(RoundTrip(Random(d, k, &random), d), most);
  }
  // All at one end: what is coded follows the gaps, not the density.
  Pairs pairs;
  for (uint32_t i = 0; i < 3000; ++i) {
    pairs.indices.push_back(i);
    pairs.values.push_back(normal(random));
  }
  EXPECT_LE(RoundTrip(pairs, size_t{1} << 31), 0.75);
}

TEST(SparseCodeTest, RoundsToTheNearestBFloat16) {
  EXPECT_EQ(RoundToBFloat16(1.0f), 1.0f);
  EXPECT_EQ(RoundToBFloat16(1.0f + 1.0f / 256), 1.0f);               // A tie, to even.
  EXPECT_EQ(RoundToBFloat16(1.0f + 3.0f / 256), 1.0f + 4.0f / 256);  // A tie, to even.
  EXPECT_EQ(RoundToBFloat16(-1.005f), -1.0078125f);
  EXPECT_EQ(RoundToBFloat16(-0.0f), -0.0f);
  const float largest = std::numeric_limits<float>::max();
  EXPECT_TRUE(std::isfinite(RoundToBFloat16(largest)));
  EXPECT_TRUE(std::isfinite(RoundToBFloat16(-largest)));
  EXPECT_TRUE(std::isinf(RoundToBFloat16(std::numeric_limits<float>::infinity())));
  float nan;
  const uint32_t bits = 0x7f800001u;
  std::memcpy(&nan, &bits, 4);
  EXPECT_TRUE(std::isnan(RoundToBFloat16(nan)));
}

// Decodes a copy that ends where its allocation ends, so that a sanitizer sees every step too far.
Status DecodeCopy(const std::vector<char>& bytes, size_t d, Pairs* decoded) {
  const std::vector<char> copy(bytes.begin(), bytes.end());
  return DecodeSparse(copy.data(), copy.size(), d, &decoded->indices, &decoded->values);
}

TEST(SparseCodeTest, CorruptBytesAreAnErrorOrAscendingIndices) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  const size_t d = 5003;
  int errors = 0;
  for (const ValueFormat format : {ValueFormat::kFloat32, ValueFormat::kBFloat16}) {
    const std::vector<char> good =
        Encode(Largest(d, 200, [&] { return normal(random); }), d, format);
    for (size_t size = 0; size < good.size(); ++size) {
      Pairs decoded;
      const Status status = DecodeCopy({good.begin(), good.begin() + size}, d, &decoded);
      ASSERT_FALSE(status.ok()) << size;
      EXPECT_NE(status.message().find("corrupt"), std::string::npos);
    }
    for (int round = 0; round < 20000; ++round) {
      std::vector<char> bytes = good;
      for (int change = 0; change < 1 + round % 3; ++change) {
        const size_t at = round % 2 ? random() % 12 : random() % bytes.size();
        bytes[at] = static_cast<char>(random());
      }
      Pairs decoded;
      const Status status = DecodeCopy(bytes, d, &decoded);
      if (!status.ok()) {
        ++errors;
        continue;
      }
      for (size_t i = 0; i < decoded.indices.size(); ++i) {
        ASSERT_LT(decoded.indices[i], d);
        if (i > 0) {
          ASSERT_GT(decoded.indices[i], decoded.indices[i - 1]);
        }
      }
    }
    Pairs decoded;
    EXPECT_FALSE(DecodeCopy(good, 100, &decoded).ok());  // Of a shorter vector.
  }
  EXPECT_GT(errors, 1000);
}

}  // namespace
}  // namespace tfdear
