// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#ifndef TFDEAR_TESTS_CC_STEP_TESTING_H_
#define TFDEAR_TESTS_CC_STEP_TESTING_H_

#include <memory>
#include <vector>

#include "custom_ops/engine/engine.h"
#include "tests/cc/engine_testing.h"

namespace tfdear {

// One step of dense float32 tensors, in which rank r gives r + 1 everywhere. Returns the first
// element of each sum.
inline std::vector<float> Step(Engine* engine, const std::vector<TensorSpec>& tensors,
                               int64_t layout, int rank) {
  std::shared_ptr<Reduction> reduction;
  Lane* lane = nullptr;
  TFDEAR_EXPECT_OK(engine->Open(layout, &reduction, &lane));
  std::vector<float> sums;
  if (reduction == nullptr) return sums;
  Received received;
  received.ListenTo(reduction.get());
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const std::vector<float> gradient(tensors[tensor].count, static_cast<float>(rank + 1));
    TFDEAR_EXPECT_OK(
        reduction->Contribute(static_cast<int>(tensor), gradient.data(), {tensors[tensor].count}));
  }
  EXPECT_TRUE(received.WaitFor(static_cast<int>(tensors.size())));
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const auto result = received.Get(static_cast<int>(tensor));
    TFDEAR_EXPECT_OK(result.status);
    if (result.status.ok()) sums.push_back(static_cast<const float*>(result.sum.data)[0]);
  }
  return sums;
}

}  // namespace tfdear

#endif  // TFDEAR_TESTS_CC_STEP_TESTING_H_
