// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Numbers of a peer or a file as a plan: refused, or a plan that a reduction can be made of.

#include <set>
#include <utility>
#include <vector>

#include "custom_ops/engine/schedule/plan.h"
#include "custom_ops/engine/schedule/reduction.h"
#include "tests/cc/fuzz/fuzzing.h"

namespace tfdear {
namespace {

// The input as words: small ones, which make plans that hold more often, or any.
std::vector<int64_t> WordsOf(FuzzInput input, bool small) {
  std::vector<int64_t> words;
  while (input.size() > 0) {
    words.push_back(small ? input.Take<int8_t>() : input.Take<int64_t>());
  }
  return words;
}

// As many tensors as the plan has, of sizes and types by `seed`.
std::vector<TensorSpec> TensorsFor(const Plan& plan, uint8_t seed) {
  std::vector<TensorSpec> tensors;
  for (const auto& bucket : plan.buckets) {
    for (size_t i = 0; i < bucket.size(); ++i) {
      TensorSpec tensor;
      const bool special = (seed & 1) != 0 && tensors.size() % 3 == 1;
      tensor.sparse = special && (seed & 2) != 0;
      tensor.count = special ? -1 : static_cast<int64_t>(5 + tensors.size() % 40);
      tensor.type = (seed & 4) != 0 ? DataType::kFloat64 : DataType::kFloat32;
      tensors.push_back(tensor);
    }
  }
  return tensors;
}

// What Check() promises of a plan that holds.
void CheckPlan(const Plan& plan, size_t tensors) {
  std::set<int> placed;
  for (const auto& bucket : plan.buckets) placed.insert(bucket.begin(), bucket.end());
  TFDEAR_FUZZ_CHECK(placed.size() == tensors);
  std::set<int> with_steps;
  std::set<std::pair<std::pair<int, int>, int>> seen;
  for (const Plan::Step& step : plan.steps) {
    with_steps.insert(step.bucket);
    TFDEAR_FUZZ_CHECK(0 <= step.chunk && step.chunk < step.chunks);
    TFDEAR_FUZZ_CHECK(seen.insert({{NumberOf(step.kind), step.bucket}, step.chunk}).second);
  }
  TFDEAR_FUZZ_CHECK(with_steps.size() == plan.buckets.size());
}

}  // namespace
}  // namespace tfdear

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfdear;
  FuzzInput input(data, size);
  const uint8_t seed = input.Take<uint8_t>();
  const std::vector<int64_t> words = WordsOf(input, (seed & 8) != 0);
  Plan plan;
  if (!Plan::Decode(words, &plan).ok()) return 0;
  TFDEAR_FUZZ_CHECK(plan.Encode() == words);
  const std::vector<TensorSpec> tensors = TensorsFor(plan, seed);
  const Levels levels{(seed & 16) != 0, (seed & 32) != 0};
  if (!plan.Check(tensors, levels).ok()) return 0;
  CheckPlan(plan, tensors.size());
  ReductionLayout::Make("fuzz", tensors, plan);
  return 0;
}
