// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/fused_programs.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "custom_ops/engine/base/vector_clones.h"
#include "custom_ops/engine/updates/elementwise_functions.h"
#include "custom_ops/engine/updates/elementwise_operation.h"

namespace tfdear {
namespace {

using Number = int64_t;
constexpr Number kRoot = static_cast<Number>(ElementwiseOperation::kSquareRoot);
constexpr Number kAdd = static_cast<Number>(ElementwiseOperation::kAdd);
constexpr Number kSubtract = static_cast<Number>(ElementwiseOperation::kSubtract);
constexpr Number kMultiply = static_cast<Number>(ElementwiseOperation::kMultiply);
constexpr Number kDivide = static_cast<Number>(ElementwiseOperation::kDivide);

template <const auto& kCode, size_t kStep>
[[gnu::always_inline]] inline void Step(float* registers) {
  constexpr auto kOperation = static_cast<ElementwiseOperation>(kCode[4 * kStep]);
  registers[kCode[4 * kStep + 1]] =
      Compute<kOperation>(registers[kCode[4 * kStep + 2]], registers[kCode[4 * kStep + 3]]);
}

template <const auto& kCode, size_t... kSteps>
[[gnu::always_inline]] inline void Steps(float* registers, std::index_sequence<kSteps...>) {
  (Step<kCode, kSteps>(registers), ...);
}

template <const auto& kCode, int kVariables, int kScalars, size_t... kEach>
[[gnu::always_inline]] inline void Loop(const float* gradient, const float* const* given,
                                        float* const* targets, const float* scalars, size_t count,
                                        std::index_sequence<kEach...>) {
  constexpr size_t kInstructions = std::size(kCode) / 4;
  constexpr size_t kRegisters = 1 + kVariables + kScalars + kInstructions;
  const float* const sources[] = {given[kEach]...};
  float* const to[] = {targets[kEach]...};
  float numbers[kScalars];
  for (int i = 0; i < kScalars; ++i) numbers[i] = scalars[i];
  // Nothing is carried from one element to the next.
  _Pragma("GCC ivdep") for (size_t i = 0; i < count; ++i) {
    float registers[kRegisters];
    registers[0] = gradient[i];
    ((registers[1 + kEach] = sources[kEach][i]), ...);
    for (int j = 0; j < kScalars; ++j) registers[1 + kVariables + j] = numbers[j];
    Steps<kCode>(registers, std::make_index_sequence<kInstructions>());
    ((to[kEach][i] = registers[1 + kEach]), ...);
  }
}

// The register of the gradient is 0; variables follow, then scalars, then results.
#define TFDEAR_FUSED(Name, kVariables, kScalars, ...)                                         \
  constexpr Number k##Name##Code[] = {__VA_ARGS__};                                           \
  constexpr int k##Name##Variables = kVariables, k##Name##Scalars = kScalars;                 \
  TFDEAR_VECTOR_CLONES void Name(const float* gradient, const float* const* sources,          \
                                 float* const* targets, const float* scalars, size_t count) { \
    Loop<k##Name##Code, kVariables, kScalars>(gradient, sources, targets, scalars, count,     \
                                              std::make_index_sequence<kVariables>());        \
  }

TFDEAR_FUSED(Sgd, 1, 1, kMultiply, 3, 0, 2, kSubtract, 1, 1, 3)
TFDEAR_FUSED(Momentum, 2, 2, kMultiply, 5, 1, 3, kMultiply, 6, 0, 4, kSubtract, 1, 5, 6, kAdd, 2, 2,
             1)
TFDEAR_FUSED(Nesterov, 2, 2, kMultiply, 5, 1, 3, kMultiply, 6, 0, 4, kSubtract, 1, 5, 6, kMultiply,
             7, 1, 3, kMultiply, 8, 0, 4, kSubtract, 9, 7, 8, kAdd, 2, 2, 9)
TFDEAR_FUSED(Adam, 3, 4, kSubtract, 8, 0, 1, kMultiply, 9, 8, 4, kAdd, 1, 1, 9, kMultiply, 10, 0, 0,
             kSubtract, 11, 10, 2, kMultiply, 12, 11, 5, kAdd, 2, 2, 12, kMultiply, 13, 1, 6, kRoot,
             14, 2, 0, kAdd, 15, 14, 7, kDivide, 16, 13, 15, kSubtract, 3, 3, 16)
// What is left of Adam where there was no gradient for long: the squares decay.
TFDEAR_FUSED(AdamSquares, 1, 4, kSubtract, 6, 0, 1, kMultiply, 7, 6, 3, kAdd, 1, 1, 7)
TFDEAR_FUSED(WeightDecay, 1, 2, kMultiply, 4, 1, 2, kMultiply, 5, 4, 3, kSubtract, 1, 1, 5)
TFDEAR_FUSED(Adagrad, 2, 2, kMultiply, 5, 0, 0, kAdd, 1, 1, 5, kMultiply, 6, 3, 0, kAdd, 7, 1, 4,
             kRoot, 8, 7, 0, kDivide, 9, 6, 8, kSubtract, 2, 2, 9)
TFDEAR_FUSED(RmsProp, 2, 4, kMultiply, 7, 3, 1, kMultiply, 8, 0, 0, kMultiply, 9, 4, 8, kAdd, 1, 7,
             9, kAdd, 10, 1, 5, kMultiply, 11, 6, 0, kRoot, 12, 10, 0, kDivide, 13, 11, 12,
             kSubtract, 2, 2, 13)
TFDEAR_FUSED(RmsPropMomentum, 3, 5, kMultiply, 9, 4, 1, kMultiply, 10, 0, 0, kMultiply, 11, 5, 10,
             kAdd, 1, 9, 11, kAdd, 12, 1, 6, kMultiply, 13, 7, 0, kRoot, 14, 12, 0, kDivide, 15, 13,
             14, kMultiply, 16, 8, 2, kAdd, 2, 16, 15, kSubtract, 3, 3, 2)
#undef TFDEAR_FUSED

struct Fused {
  const Number* begin;
  const Number* end;
  int variables, scalars;
  FusedFunction function;
};
#define TFDEAR_FUSED(Name) \
  { std::begin(k##Name##Code), std::end(k##Name##Code), k##Name##Variables, k##Name##Scalars, Name }
const Fused kFused[] = {
    TFDEAR_FUSED(Sgd),     TFDEAR_FUSED(Momentum),    TFDEAR_FUSED(Nesterov),
    TFDEAR_FUSED(Adam),    TFDEAR_FUSED(AdamSquares), TFDEAR_FUSED(WeightDecay),
    TFDEAR_FUSED(Adagrad), TFDEAR_FUSED(RmsProp),     TFDEAR_FUSED(RmsPropMomentum),
};
#undef TFDEAR_FUSED

}  // namespace

FusedFunction FusedProgram(const std::vector<int64_t>& code, int variables, int scalars) {
  for (const Fused& fused : kFused) {
    if (fused.variables == variables && fused.scalars == scalars &&
        std::equal(fused.begin, fused.end, code.begin(), code.end())) {
      return fused.function;
    }
  }
  return nullptr;
}

std::vector<FusedCode> FusedCodes() {
  std::vector<FusedCode> codes;
  for (const Fused& fused : kFused) {
    codes.push_back({{fused.begin, fused.end}, fused.variables, fused.scalars});
  }
  return codes;
}

}  // namespace tfdear
