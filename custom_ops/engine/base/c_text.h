// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "custom_ops/engine/base/errors.h"

namespace tfdear {

// How the C functions hand text to their callers: what fits, with a zero at the end.
inline void CopyText(const std::string& text, char* out, int capacity) {
  if (out == nullptr || capacity <= 0) return;
  const size_t length = std::min(text.size(), static_cast<size_t>(capacity - 1));
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
}

// 0, or the error's number with its message in `error`.
inline int Report(const Status& status, char* error, int error_size) {
  if (status.ok()) return 0;
  CopyText(status.message(), error, error_size);
  return 1 + static_cast<int>(status.code());
}

}  // namespace tfdear
