// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Bytes of a peer as its bags: refused, or bags of ids that it has, as many as it announced.

#include <cstring>
#include <vector>

#include "custom_ops/engine/collectives/bags.h"
#include "tests/cc/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfdear;
  FuzzInput input(data, size);
  const int64_t ids = input.Take<uint8_t>();
  const size_t announced = input.Take<uint8_t>();
  std::vector<int32_t> sent;
  while (input.size() > 0) {
    sent.push_back(input.Take<int8_t>());
    if (sent.back() == INT8_MAX) sent.back() = input.Take<int32_t>();
  }
  const size_t bags = std::min(announced, sent.size());
  const size_t tokens = sent.size() - bags;
  GatheredBags all;
  all.counts = {3};
  if (!all.Add(sent.data(), bags, tokens, 100, ids).ok()) return 0;
  TFDEAR_FUZZ_CHECK(all.total() == 3 + static_cast<int64_t>(bags));
  TFDEAR_FUZZ_CHECK(all.positions.size() == tokens && all.bag_of.size() == tokens);
  for (size_t i = 0; i < tokens; ++i) {
    TFDEAR_FUZZ_CHECK(all.positions[i] >= 100 && all.positions[i] < 100 + ids);
    TFDEAR_FUZZ_CHECK(all.bag_of[i] >= 3 && all.bag_of[i] < all.total());
    TFDEAR_FUZZ_CHECK(i == 0 || all.bag_of[i - 1] <= all.bag_of[i]);
  }
  return 0;
}
