// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>

#include "custom_ops/engine/base/status.h"

namespace tfdear {

// Texts and numbers, one after another; numbers as std::to_string() writes them.
template <typename... Parts>
std::string TextOf(const Parts&... parts) {
  std::string text;
  auto append = [&text](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  };
  (append(parts), ...);
  return text;
}

// The most frequent errors, with messages in parts.
template <typename... Parts>
Status InvalidArgument(const Parts&... parts) {
  return Status(StatusCode::kInvalidArgument, TextOf(parts...));
}
template <typename... Parts>
Status Unavailable(const Parts&... parts) {
  return Status(StatusCode::kUnavailable, TextOf(parts...));
}
template <typename... Parts>
Status Internal(const Parts&... parts) {
  return Status(StatusCode::kInternal, TextOf(parts...));
}

}  // namespace tfdear
