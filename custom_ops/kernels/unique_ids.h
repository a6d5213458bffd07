// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "custom_ops/engine/base/id_places.h"

namespace tfdear {

// The different ids of a batch, in the order in which they come. `positions`, unless it is null:
// where each of the batch is among them. Returns the place of the first that is not in [0, rows),
// or -1.
template <typename Id>
int64_t FindUnique(const Id* ids, int64_t count, int64_t rows, std::vector<int32_t>* unique,
                   int32_t* positions) {
  IdPlaces places(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = static_cast<int64_t>(ids[i]);
    if (id < 0 || id >= rows) return i;
    const auto [place, is_new] = places.Add(id, static_cast<int64_t>(unique->size()));
    if (is_new) unique->push_back(static_cast<int32_t>(id));
    if (positions != nullptr) positions[i] = static_cast<int32_t>(place);
  }
  return -1;
}

}  // namespace tfdear
