// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#include "custom_ops/engine/base/sum.h"

#include <cmath>
#include <limits>
#include <random>

#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/base/signature.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

using sum_internal::FloatFromHalf;
using sum_internal::HalfFromFloat;

TEST(SumInto, AddsEveryTypeAndLengthAtAnyElementAlignment) {
  for (DataType type : AllDataTypes()) {
    for (size_t count : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 100}) {
      for (size_t shift : {0, 1, 3}) {  // elements
        auto left = MakeData(type, count + shift, [](size_t i) { return static_cast<int>(i); });
        auto right =
            MakeData(type, count + shift, [](size_t i) { return 50 - static_cast<int>(i % 90); });
        auto expected = MakeData(type, count + shift, [&](size_t i) {
          return static_cast<int>(i) + (i < shift ? 0 : 50 - static_cast<int>(i % 90));
        });
        const size_t offset = shift * SizeOf(type);
        SumInto(type, left.data() + offset, right.data() + offset, count);
        EXPECT_EQ(left, expected) << Name(type) << " count " << count << " shift " << shift;
      }
    }
  }
}

TEST(CopyScaled, MultipliesEveryFloatingTypeAndLengthAtAnyElementAlignment) {
  for (DataType type :
       {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (size_t count : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 100}) {
      for (size_t shift : {0, 1, 3}) {  // elements
        const auto source =
            MakeData(type, count + shift, [](size_t i) { return 4 * (int(i) - 20); });
        auto target = MakeData(type, count + shift, [](size_t) { return 77; });
        const auto expected =
            MakeData(type, count + shift, [&](size_t i) { return i < shift ? 77 : int(i) - 20; });
        const size_t offset = shift * SizeOf(type);
        CopyScaled(type, target.data() + offset, source.data() + offset, 0.25, count);
        EXPECT_EQ(target, expected) << Name(type) << " count " << count << " shift " << shift;
      }
    }
  }
}

TEST(CopyScaled, RoundsTheProductOnce) {
  const std::vector<double> third = {3.0};
  std::vector<double> product(1);
  CopyScaled(DataType::kFloat64, product.data(), third.data(), 1.0 / 3.0, 1);
  EXPECT_EQ(product[0], 3.0 * (1.0 / 3.0));
  const std::vector<float> single = {16777217.0f, std::numeric_limits<float>::quiet_NaN()};
  std::vector<float> floats(2);
  CopyScaled(DataType::kFloat32, floats.data(), single.data(), 0.1, 2);
  EXPECT_EQ(floats[0], 16777217.0f * 0.1f);
  EXPECT_TRUE(std::isnan(floats[1]));
  const std::vector<uint16_t> brains = {0x3f81, 0x7fc1};  // 1 + 2^-7, NaN
  std::vector<uint16_t> rounded(2);
  CopyScaled(DataType::kBFloat16, rounded.data(), brains.data(), 1.5, 2);
  EXPECT_EQ(rounded[0], 0x3fc2);  // 1.51171875 lies half-way: to even.
  EXPECT_EQ(rounded[1], 0x7fc1);
}

TEST(SumInto, IntegersWrapAround) {
  std::vector<int32_t> left(9, std::numeric_limits<int32_t>::max());
  const std::vector<int32_t> right(9, 1);
  SumInto(DataType::kInt32, left.data(), right.data(), left.size());
  EXPECT_EQ(left, std::vector<int32_t>(9, std::numeric_limits<int32_t>::min()));
}

TEST(SumInto, BFloat16RoundsToNearestEven) {
  // 1 + 2^-8 lies half-way between 1 and 1 + 2^-7 (to even: 1); 1 + 2^-7 + 2^-8 half-way to 1 +
  // 2^-6.
  std::vector<uint16_t> left = {0x3f80, 0x3f81, 0x3f80, 0x7f80, 0x7f7f,
                                0x7f80, 0xff80, 0x0001, 0x3f80};
  const std::vector<uint16_t> right = {0x3b80, 0x3b80, 0x3b81, 0x3f80, 0x7f7f,
                                       0xff80, 0xff80, 0x0001, 0xbf80};
  SumInto(DataType::kBFloat16, left.data(), right.data(), left.size());
  EXPECT_EQ(left[0], 0x3f80);
  EXPECT_EQ(left[1], 0x3f82);
  EXPECT_EQ(left[2], 0x3f81);
  EXPECT_EQ(left[3], 0x7f80);           // infinity + 1
  EXPECT_EQ(left[4], 0x7f80);           // overflow
  EXPECT_EQ(left[5] & 0x7fc0, 0x7fc0);  // infinity - infinity: NaN
  EXPECT_EQ(left[6], 0xff80);
  EXPECT_EQ(left[7], 0x0002);  // subnormal
  EXPECT_EQ(left[8], 0x0000);
}

TEST(SumInto, BFloat16KeepsNanWhoseRoundingWouldOverflow) {
  std::vector<uint16_t> left = {0x7fff};
  const std::vector<uint16_t> right = {0x0000};
  SumInto(DataType::kBFloat16, left.data(), right.data(), 1);
  EXPECT_EQ(left[0], 0x7fff);
}

TEST(Half, EveryFiniteValueSurvivesTheRoundTrip) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = FloatFromHalf(static_cast<uint16_t>(half));
    if (std::isnan(value)) {
      EXPECT_GT(half & 0x7fff, 0x7c00u);
      EXPECT_TRUE(std::isnan(FloatFromHalf(HalfFromFloat(value))));
    } else {
      ASSERT_EQ(HalfFromFloat(value), half);
    }
  }
  EXPECT_EQ(FloatFromHalf(0x3c00), 1.0f);
  EXPECT_EQ(FloatFromHalf(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(FloatFromHalf(0xfbff), -65504.0f);
}

TEST(Half, RoundsToNearestEvenBetweenAnyTwoNeighbours) {
  for (uint32_t half = 0; half < 0x7bff; ++half) {
    const double low = FloatFromHalf(static_cast<uint16_t>(half));
    const double high = FloatFromHalf(static_cast<uint16_t>(half + 1));
    const float middle = static_cast<float>((low + high) / 2);  // exact: float32 has 13 bits more
    ASSERT_EQ(HalfFromFloat(middle), half % 2 == 0 ? half : half + 1) << half;
    ASSERT_EQ(HalfFromFloat(std::nextafter(middle, 0.0f)), half) << half;
    ASSERT_EQ(HalfFromFloat(std::nextafter(middle, 1e9f)), half + 1) << half;
  }
  EXPECT_EQ(HalfFromFloat(65519.0f), 0x7bff);
  EXPECT_EQ(HalfFromFloat(65520.0f), 0x7c00);
}

TEST(Half, InstructionsAndPortableCodeAgree) {
  if (!sum_internal::HasHalfInstructions()) GTEST_SKIP() << "processor without F16C";
  std::mt19937 random(7);
  std::vector<uint16_t> left(100003), right(left.size());
  for (size_t i = 0; i < left.size(); ++i) {
    left[i] = static_cast<uint16_t>(random());
    right[i] = static_cast<uint16_t>(random());
    // Of two NaNs either may survive.
    if ((left[i] & 0x7fff) > 0x7c00 && (right[i] & 0x7fff) > 0x7c00) right[i] = 0;
  }
  auto portable = left;
  sum_internal::SumHalfPortable(portable.data(), right.data(), left.size());
  sum_internal::SumHalfInstructions(left.data(), right.data(), left.size());
  for (size_t i = 0; i < left.size(); ++i) ASSERT_EQ(left[i], portable[i]) << i;
}

TEST(ShardOf, CoversEverythingInOrderAndEvenly) {
  for (size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{64}, size_t{100003}, SIZE_MAX - 3}) {
    for (int size : {1, 2, 3, 4, 7, 64}) {
      size_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Range shard = ShardOf(count, rank, size);
        EXPECT_EQ(shard.begin, end);
        EXPECT_GE(shard.size(), count / size);
        EXPECT_LE(shard.size(), count / size + 1);
        end = shard.end;
      }
      EXPECT_EQ(end, count);
    }
  }
}

TEST(Signature, HashDependsOnTheTextAlone) {
  EXPECT_EQ(Signature("all_reduce a").hash(), Signature("all_reduce a").hash());
  EXPECT_NE(Signature("all_reduce a").hash(), Signature("all_reduce b").hash());
  EXPECT_EQ(Signature("").hash(), 0xcbf29ce484222325ull);  // FNV-1a, the same on every machine
}

}  // namespace
}  // namespace tfdear
