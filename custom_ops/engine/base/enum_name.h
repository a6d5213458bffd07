// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace tfdear {

inline constexpr char kUnknownName[] = "unknown";

// The name of an enumerator, from a table in the order of their numbers.
template <typename Enum, size_t kCount>
constexpr const char* NameIn(const char* const (&names)[kCount], Enum value) {
  const auto number = static_cast<size_t>(value);
  return number < kCount ? names[number] : kUnknownName;
}

}  // namespace tfdear
