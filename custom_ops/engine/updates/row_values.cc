// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/row_values.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "custom_ops/engine/base/vector_clones.h"
#include "custom_ops/engine/updates/idleness.h"

namespace tfdear {
namespace {

inline uint32_t Magnitude(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffffu;
}

}  // namespace

TFDEAR_VECTOR_CLONES bool AreZero(const float* values, size_t count) {
  uint32_t any = 0;
  for (size_t i = 0; i < count; ++i) any |= Magnitude(values[i]);
  return any == 0;
}

TFDEAR_VECTOR_CLONES bool AreOrdinary(const float* values, size_t count) {
  uint32_t others = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = Magnitude(values[i]);
    others |= static_cast<uint32_t>(magnitude - 1 < 0x007fffffu);
    others |= static_cast<uint32_t>(magnitude > 0x7f800000u);
  }
  return others == 0;
}

TFDEAR_VECTOR_CLONES bool AreNonnegative(const float* values, size_t count) {
  uint32_t others = 0;
  for (size_t i = 0; i < count; ++i) others |= static_cast<uint32_t>(!(values[i] >= 0));
  return others == 0;
}

TFDEAR_VECTOR_CLONES bool AreTame(const float* values, size_t count) {
  uint32_t most = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    most = std::max(most, bits);
  }
  return most < 0x7f800000u;
}

TFDEAR_VECTOR_CLONES bool AreTiny(const float* values, size_t count) {
  uint32_t most = 0;
  for (size_t i = 0; i < count; ++i) most = std::max(most, Magnitude(values[i]));
  return most <= Magnitude(kTiny);
}

}  // namespace tfdear
