// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "custom_ops/engine/base/status.h"

namespace tfdear {

// Who may want to know when the bytes of an exchange begin to flow, and when they have: it calls
// the exchange that it is given. Null: nobody.
using AroundExchange = std::function<Status(const std::function<Status()>& exchange)>;

// Bytes that travel between two ranks and lie together on both.
template <typename Byte>
struct Piece {
  Byte* data = nullptr;
  size_t bytes = 0;
};
using OutgoingPieces = std::vector<Piece<const char>>;
using IncomingPieces = std::vector<Piece<char>>;

// Whether pieces travel each by itself: where the copies that bring them together would take longer
// than so many messages. Both sides know how many there are, and their bytes.
inline bool TravelApart(size_t bytes, size_t pieces) {
  constexpr size_t kLeastBytes = 32 * 1024;
  return bytes >= pieces * kLeastBytes;
}

}  // namespace tfdear
