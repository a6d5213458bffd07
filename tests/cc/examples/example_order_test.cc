// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_order.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace tfdear {
namespace {

std::vector<uint64_t> OrderOf(uint64_t seed, uint64_t epoch, uint64_t examples) {
  const ExampleOrder order(seed, epoch, examples);
  std::vector<uint64_t> numbers;
  for (uint64_t position = 0; position < examples; ++position) {
    numbers.push_back(order.At(position));
  }
  return numbers;
}

TEST(ExampleOrder, EveryExampleComesOnce) {
  for (uint64_t examples = 0; examples < 300; ++examples) {
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<uint64_t> numbers = OrderOf(examples, epoch, examples);
      std::sort(numbers.begin(), numbers.end());
      for (uint64_t i = 0; i < examples; ++i) ASSERT_EQ(numbers[i], i) << examples << " examples";
    }
  }
  for (uint64_t examples : {1000u, 1003u, 65536u, 65537u, 1281167u}) {
    std::vector<uint64_t> numbers = OrderOf(7, 1, examples);
    std::sort(numbers.begin(), numbers.end());
    for (uint64_t i = 0; i < examples; ++i) ASSERT_EQ(numbers[i], i) << examples << " examples";
  }
}

// Training that is resumed with another version of the library goes on in the same order.
TEST(ExampleOrder, StaysWhatItIs) {
  EXPECT_EQ(OrderOf(0, 0, 10), (std::vector<uint64_t>{7, 3, 8, 1, 2, 4, 0, 9, 6, 5}));
  EXPECT_EQ(OrderOf(1, 2, 10), (std::vector<uint64_t>{0, 4, 9, 8, 2, 1, 7, 6, 3, 5}));
  const ExampleOrder large(42, 3, uint64_t{1} << 40);
  EXPECT_EQ(large.At(0), 247531449504u);
  EXPECT_EQ(large.At((uint64_t{1} << 40) - 1), 316179480056u);
}

TEST(ExampleOrder, AllOrdersOfAFewExamplesOccur) {
  std::vector<std::vector<uint64_t>> orders;
  for (uint64_t epoch = 0; epoch < 1000; ++epoch) orders.push_back(OrderOf(5, epoch, 4));
  std::sort(orders.begin(), orders.end());
  for (const auto& order : orders) {
    // 1000 / 24 = 42 times each; less than 15 or more than 80 would be six standard deviations.
    const auto [first, last] = std::equal_range(orders.begin(), orders.end(), order);
    EXPECT_GT(last - first, 15);
    EXPECT_LT(last - first, 80);
  }
  EXPECT_EQ(std::unique(orders.begin(), orders.end()) - orders.begin(), 24);
}

}  // namespace
}  // namespace tfdear
