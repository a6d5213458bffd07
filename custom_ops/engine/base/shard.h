// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

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

// Chunk `chunk` of `chunks` of every rank's shard: a collective on large data can be cut into
// collectives on these, in any number, and each half of an all-reduce in its own.
inline std::vector<Range> ShardsOf(size_t count, int size, int chunk = 0, int chunks = 1) {
  std::vector<Range> shards;
  shards.reserve(size);
  for (int rank = 0; rank < size; ++rank) {
    const Range shard = ShardOf(count, rank, size);
    const Range part = ShardOf(shard.size(), chunk, chunks);
    shards.push_back(Range{shard.begin + part.begin, shard.begin + part.end});
  }
  return shards;
}

}  // namespace tfdear
