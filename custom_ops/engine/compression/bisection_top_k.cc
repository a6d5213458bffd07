// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/compression/bisection_top_k.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "custom_ops/engine/base/sum.h"
#include "custom_ops/engine/base/vector_clones.h"

namespace tfdear {
namespace {

constexpr size_t kBlock = 65536;  // elements; sums of blocks are added in order

// Elements [begin, end) of a list.
struct Run {
  size_t Overlap(size_t first, size_t count) const {
    const size_t low = std::max(begin, first);
    const size_t high = std::min(end, first + count);
    return high > low ? high - low : 0;
  }
  bool Contains(size_t i) const { return begin <= i && i < end; }

  size_t begin;
  size_t end;
};

// What the elements of a block, or of all blocks before it, are.
struct Counts {
  size_t above = 0;  // |x| >= upper threshold
  size_t band = 0;   // lower threshold <= |x| < upper threshold
  size_t nans = 0;
};

TFDEAR_VECTOR_CLONES size_t CountFrom(const float* x, size_t count, float threshold) {
  uint32_t found = 0;
  for (size_t i = 0; i < count; ++i) found += std::fabs(x[i]) >= threshold ? 1 : 0;
  return found;
}

TFDEAR_VECTOR_CLONES void SumAndMax(const float* x, size_t count, double* sum, float* max) {
  constexpr size_t kLanes = 16;
  double sums[kLanes] = {};
  float most[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const float magnitude = std::fabs(x[i + j]);
      sums[j] += magnitude;
      most[j] = magnitude > most[j] ? magnitude : most[j];
    }
  }
  for (; i < count; ++i) {
    sums[0] += std::fabs(x[i]);
    most[0] = std::max(most[0], std::fabs(x[i]));
  }
  *sum = 0;
  *max = 0;
  for (size_t j = 0; j < kLanes; ++j) {
    *sum += sums[j];
    *max = std::max(*max, most[j]);
  }
}

// The vector in blocks, which threads share.
class Blocks {
 public:
  Blocks(const float* x, size_t d, int threads, const ParallelFor& parallel_for)
      : x_(x), d_(d), tasks_(std::max(threads, 1)), parallel_for_(parallel_for) {}

  size_t count() const { return (d_ + kBlock - 1) / kBlock; }

  // body(block, first element, number of elements)
  void ForEach(const std::function<void(size_t, const float*, size_t)>& body) const {
    const auto task = [&](int i) {
      for (size_t block = count() * i / tasks_; block < count() * (i + 1) / tasks_; ++block) {
        body(block, x_ + block * kBlock, std::min(kBlock, d_ - block * kBlock));
      }
    };
    if (parallel_for_) return parallel_for_(tasks_, task);
    for (int i = 0; i < tasks_; ++i) task(i);
  }

  size_t CountFrom(float threshold) const {
    std::vector<size_t> counts(count());
    ForEach([&](size_t block, const float* x, size_t n) {
      counts[block] = tfdear::CountFrom(x, n, threshold);
    });
    return std::accumulate(counts.begin(), counts.end(), size_t{0});
  }

 private:
  const float* const x_;
  const size_t d_;
  const int tasks_;
  const ParallelFor& parallel_for_;
};

std::vector<float> ToFloats(DataType type, const void* x, size_t d) {
  const uint16_t* const words = static_cast<const uint16_t*>(x);
  std::vector<float> floats(d);
  for (size_t i = 0; i < d; ++i) {
    if (type == DataType::kFloat16) {
      floats[i] = sum_internal::FloatFromHalf(words[i]);
    } else {
      const uint32_t bits = static_cast<uint32_t>(words[i]) << 16;
      std::memcpy(&floats[i], &bits, sizeof(bits));
    }
  }
  return floats;
}

}  // namespace

void BisectionTopK(DataType type, const void* x, size_t d, size_t k, int samplings, uint64_t seed,
                   int threads, const ParallelFor& parallel_for, void* values, uint32_t* indices) {
  if (k == 0) return;
  std::vector<float> converted;
  if (type != DataType::kFloat32) converted = ToFloats(type, x, d);
  const float* const floats =
      type == DataType::kFloat32 ? static_cast<const float*>(x) : converted.data();
  const Blocks blocks(floats, d, threads, parallel_for);

  std::vector<double> sums(blocks.count());
  std::vector<float> maxima(blocks.count());
  blocks.ForEach([&](size_t block, const float* from, size_t n) {
    SumAndMax(from, n, &sums[block], &maxima[block]);
  });
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  const float mean = static_cast<float>(sum / static_cast<double>(d));
  const float maximum = *std::max_element(maxima.begin(), maxima.end());

  // The names of the paper: k1 elements are from thres1 on, k2 from thres2 on; k1 <= k < k2.
  double l = 0;
  double r = 1;
  size_t k1 = 0;
  size_t k2 = d;
  float thres1 = std::numeric_limits<float>::infinity();
  float thres2 = 0;
  for (int i = 0; i < samplings; ++i) {
    const double ratio = l + (r - l) / 2;
    const float threshold = mean + static_cast<float>(ratio) * (maximum - mean);
    const size_t found = blocks.CountFrom(threshold);
    if (found <= k) {
      r = ratio;
      if (found > k1) {
        k1 = found;
        thres1 = threshold;
      }
    } else {
      l = ratio;
      if (found < k2) {
        k2 = found;
        thres2 = threshold;
      }
    }
  }

  const auto is_above = [&](float value) { return k1 > 0 && std::fabs(value) >= thres1; };
  const auto is_in_band = [&](float value) {
    return !is_above(value) && std::fabs(value) >= thres2;
  };
  std::vector<Counts> before(blocks.count() + 1);
  blocks.ForEach([&](size_t block, const float* from, size_t n) {
    Counts& counts = before[block + 1];
    counts.above = k1 > 0 ? CountFrom(from, n, thres1) : 0;
    counts.band = CountFrom(from, n, thres2) - counts.above;
    for (size_t i = 0; i < n; ++i) counts.nans += std::isnan(from[i]) ? 1 : 0;
  });
  for (size_t block = 0; block < blocks.count(); ++block) {
    before[block + 1].above += before[block].above;
    before[block + 1].band += before[block].band;
    before[block + 1].nans += before[block].nans;
  }
  const size_t from_band = std::min(k - k1, before.back().band);
  const size_t places = before.back().band - from_band + 1;
  const size_t place = std::mt19937_64(seed)() % places;
  const Run band = {place, place + from_band};
  const Run nans = {0, k - k1 - from_band};

  blocks.ForEach([&](size_t block, const float* from, size_t n) {
    Counts seen = before[block];
    size_t written = seen.above + band.Overlap(0, seen.band) + nans.Overlap(0, seen.nans);
    const Counts& end = before[block + 1];
    if (written == end.above + band.Overlap(0, end.band) + nans.Overlap(0, end.nans)) return;
    for (size_t i = 0; i < n; ++i) {
      const bool selected = is_above(from[i]) ||
                            (is_in_band(from[i]) && band.Contains(seen.band++)) ||
                            (std::isnan(from[i]) && nans.Contains(seen.nans++));
      if (!selected) continue;
      const size_t index = block * kBlock + i;
      const size_t bytes = SizeOf(type);
      std::memcpy(static_cast<char*>(values) + written * bytes,
                  static_cast<const char*>(x) + index * bytes, bytes);
      indices[written++] = static_cast<uint32_t>(index);
    }
  });
}

}  // namespace tfdear
