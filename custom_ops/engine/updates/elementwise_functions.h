// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "custom_ops/engine/updates/elementwise_operation.h"

namespace tfdear {

// What an operation yields of numbers; a unary one does not look at `y`.
template <ElementwiseOperation kOperation>
[[gnu::always_inline]] inline float Compute(float x, float y) {
  using Operation = ElementwiseOperation;
  if constexpr (kOperation == Operation::kCopy) return x;
  if constexpr (kOperation == Operation::kNegate) return -x;
  if constexpr (kOperation == Operation::kSquareRoot) return std::sqrt(x);
  if constexpr (kOperation == Operation::kAdd) return x + y;
  if constexpr (kOperation == Operation::kSubtract) return x - y;
  if constexpr (kOperation == Operation::kMultiply) return x * y;
  if constexpr (kOperation == Operation::kDivide) return x / y;
  if constexpr (kOperation == Operation::kMaximum) return x > y || x != x ? x : y;
  if constexpr (kOperation == Operation::kMinimum) return x < y || x != x ? x : y;
  if constexpr (kOperation == Operation::kAbsolute) return std::fabs(x);
  if constexpr (kOperation == Operation::kSign) {
    return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? 0.0f : std::fabs(x);
  }
  if constexpr (kOperation == Operation::kPower) return std::pow(x, y);
  if constexpr (kOperation == Operation::kGreater) return x > y ? 1.0f : 0.0f;
  if constexpr (kOperation == Operation::kGreaterEqual) return x >= y ? 1.0f : 0.0f;
  if constexpr (kOperation == Operation::kEqual) return x == y ? 1.0f : 0.0f;
  if constexpr (kOperation == Operation::kNot) return x == 0 ? 1.0f : 0.0f;
  if constexpr (kOperation == Operation::kWhere) return x != 0 ? y : 0.0f;
  if constexpr (kOperation == Operation::kUnless) return x != 0 ? 0.0f : y;
  if constexpr (kOperation == Operation::kUnite) {
    uint32_t bits, others;
    std::memcpy(&bits, &x, sizeof bits);
    std::memcpy(&others, &y, sizeof others);
    bits |= others;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
  }
}

}  // namespace tfdear
