// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Bytes of a file as the state of compressed communication: refused, or a state that can be saved,
// comes back the same, and gives what was held back to the tensors it was held back of.

#include <memory>
#include <vector>

#include "custom_ops/engine/schedule/compression_state.h"
#include "tests/cc/fuzz/fuzzing.h"

namespace tfdear {
namespace {

void UseState(CompressionState& state) {
  TFDEAR_FUZZ_CHECK(state.steps >= 0);
  const double density = DensityAt(0.01, 0.25, 100, state.steps);
  TFDEAR_FUZZ_CHECK(density > 0 && density <= 0.25);
  for (size_t b = 0; b < state.plan().buckets.size(); ++b) {
    if (state.exchange(static_cast<int>(b))->residual.empty()) continue;
    for (int tensor : state.plan().buckets[b]) {
      TFDEAR_FUZZ_CHECK(state.tensors()[tensor].type == DataType::kFloat32);
    }
  }
  // As the engine does it: a state is used for a layout with these very tensors only, so their
  // memory is there. Here it has to be small.
  int64_t elements = 0;
  for (const TensorSpec& tensor : state.tensors()) {
    TFDEAR_FUZZ_CHECK(tensor.count >= -1);
    if (tensor.count > 100000 || elements > 1000000) return;
    elements += tensor.count;
  }
  for (int tensor = 0; tensor < static_cast<int>(state.tensors().size()); ++tensor) {
    if (state.tensors()[tensor].type != DataType::kFloat32) continue;
    const Bucket bucket = MakeBucket(state.tensors(), {tensor});
    std::vector<float> slots(bucket.count);
    state.AddHeldBack(bucket, /*members=*/2, slots.data());
  }
}

}  // namespace
}  // namespace tfdear

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfdear;
  FuzzInput input(data, size);
  const uint8_t mode = input.Take<uint8_t>();
  SparseExchangeOptions options;
  options.error_feedback = (mode & 1) == 0;
  options.momentum = (mode & 2) == 0 ? 0 : 0.5f;
  options.optimizer_has_momentum = (mode & 64) != 0 && options.momentum != 0;
  const int places = 1 + (mode >> 2) % 4;
  const int place = (mode >> 4) % places;
  const char* next = input.data();
  const char* const end = next + input.size();
  while (next != end) {
    const char* const begin = next;
    std::unique_ptr<CompressionState> state;
    if (!CompressionState::Load(&next, end, place, places, &state).ok()) return 0;
    state->Use(options);
    TFDEAR_FUZZ_CHECK(begin < next && next <= end);
    UseState(*state);
    std::vector<char> once, twice;
    state->Save(&once);
    const char* saved = once.data();
    std::unique_ptr<CompressionState> again;
    TFDEAR_FUZZ_CHECK(
        CompressionState::Load(&saved, saved + once.size(), place, places, &again).ok());
    TFDEAR_FUZZ_CHECK(saved == once.data() + once.size());
    again->Save(&twice);
    TFDEAR_FUZZ_CHECK(once == twice);
  }
  return 0;
}
