// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/norms/layer_norms.h"

#include <time.h>

#include <algorithm>
#include <cmath>

#include "custom_ops/engine/base/shard.h"

namespace tfdear {
namespace {

int64_t ThreadCpuMicros() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{1000000} * now.tv_sec + now.tv_nsec / 1000;
}

struct Part {
  int slot;
  Range range;  // Within the slot's tensor.
};

// What of the slots lies in a shard: a pure function of sizes, so all ranks know all parts.
std::vector<Part> PartsIn(Range shard, const std::vector<NormedSlot>& slots) {
  std::vector<Part> parts;
  for (size_t s = 0; s < slots.size(); ++s) {
    const size_t offset = slots[s].offset;
    const size_t begin = std::max(shard.begin, offset);
    const size_t end = std::min(shard.end, offset + slots[s].operands.layer.count);
    if (begin < end) parts.push_back({static_cast<int>(s), Range{begin - offset, end - offset}});
  }
  return parts;
}

}  // namespace

Status ExchangeLayerNorms(CollectiveBackend* backend, const std::string& text, uint64_t sequence,
                          const float* bucket, size_t count, std::vector<NormedSlot>* slots,
                          size_t* bytes_read, int64_t* cpu_micros) {
  const int size = backend->size();
  std::vector<std::vector<Part>> parts(size);
  std::vector<size_t> bytes(size);
  size_t total = 0;
  for (int rank = 0; rank < size; ++rank) {
    parts[rank] = PartsIn(ShardOf(count, rank, size), *slots);
    bytes[rank] = parts[rank].size() * 2 * sizeof(double);
    total += 2 * parts[rank].size();
  }

  std::vector<LayerPiece> pieces;
  *bytes_read = 0;
  for (const Part& part : parts[backend->rank()]) {
    const NormedSlot& slot = (*slots)[part.slot];
    const size_t begin = part.range.begin;
    LayerPiece piece = slot.operands.layer;
    piece.count = part.range.size();
    piece.gradient = bucket + slot.offset + begin;
    piece.weight += begin;
    const bool lamb = piece.kind == NormKind::kLamb;
    if (lamb) {
      piece.mean += begin;
      piece.square += begin;
    }
    *bytes_read += piece.count * sizeof(float) * (lamb ? 4 : 2);
    pieces.push_back(piece);
  }
  std::vector<double> mine(2 * pieces.size());
  const int64_t cpu_begin = ThreadCpuMicros();
  SumOfSquares(pieces, mine.data());
  *cpu_micros = ThreadCpuMicros() - cpu_begin;

  std::vector<double> all(total);
  if (total > 0) {
    TFDEAR_RETURN_IF_ERROR(
        backend->AllGatherV(mine.data(), all.data(), bytes, Signature(text + " norms"), sequence));
  }
  // In the order of the ranks, on every rank.
  std::vector<double> sums(2 * slots->size(), 0.0);
  const double* next = all.data();
  for (const auto& of_rank : parts) {
    for (const Part& part : of_rank) {
      sums[2 * part.slot] += *next++;
      sums[2 * part.slot + 1] += *next++;
    }
  }
  for (size_t s = 0; s < slots->size(); ++s) {
    (*slots)[s].norms = {static_cast<float>(std::sqrt(sums[2 * s])),
                         static_cast<float>(std::sqrt(sums[2 * s + 1]))};
  }
  return Status();
}

}  // namespace tfdear
