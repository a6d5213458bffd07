// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#ifndef TFDEAR_ENGINE_SHARD_H_
#define TFDEAR_ENGINE_SHARD_H_

#include <cstddef>
#include <cstdint>

namespace tfdear {

// Half-open range of elements (or bytes, where the name says so).
struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

// The part of `count` elements that `rank` owns after a reduce-scatter. Shards are contiguous, in
// rank order, cover everything and differ in size by at most one element; with count < size some
// are empty.
inline Range ShardOf(size_t count, int rank, int size) {
  // 128 bits: rank * count may pass 2^64 although neither factor is near it.
  using Wide = unsigned __int128;
  auto boundary = [&](int r) {
    return static_cast<size_t>(static_cast<Wide>(count) * static_cast<unsigned>(r) /
                               static_cast<unsigned>(size));
  };
  return Range{boundary(rank), boundary(rank + 1)};
}

}  // namespace tfdear

#endif  // TFDEAR_ENGINE_SHARD_H_
