// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/base/id_places.h"

#include <random>
#include <unordered_map>

#include "gtest/gtest.h"

namespace tfdear {
namespace {

TEST(IdPlaces, AreThoseOfAMap) {
  std::mt19937_64 random(7);
  for (size_t most : {0, 1, 2, 7, 8, 9, 1000}) {
    for (int64_t range : {int64_t{3}, int64_t{1000}, int64_t{1} << 40}) {
      IdPlaces places(most);
      std::unordered_map<int64_t, int64_t> expected;
      for (size_t i = 0; i < most; ++i) {
        // Also ids that are a power of two apart.
        const int64_t id = static_cast<int64_t>(random() % range) * (i % 2 == 0 ? 1 : 1024);
        const auto [place, is_new] = expected.try_emplace(id, i);
        EXPECT_EQ(places.Add(id, static_cast<int64_t>(i)), std::make_pair(place->second, is_new));
      }
      for (const auto& [id, place] : expected) {
        EXPECT_TRUE(places.Contains(id));
        EXPECT_EQ(places.Contains(id + 1), expected.count(id + 1) > 0);
      }
    }
  }
}

TEST(IdPlaces, OfAListInWhichIdsAreSeveralTimes) {
  const IdPlaces places(std::vector<int32_t>{5, 0, 5, 7});
  for (int64_t id : {0, 5, 7}) EXPECT_TRUE(places.Contains(id));
  for (int64_t id : {-1, 1, 6, 8}) EXPECT_FALSE(places.Contains(id));
  EXPECT_FALSE(IdPlaces(std::vector<int32_t>()).Contains(0));
}

}  // namespace
}  // namespace tfdear
