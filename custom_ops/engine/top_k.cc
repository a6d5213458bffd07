// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#include "custom_ops/engine/top_k.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "custom_ops/engine/shard.h"

namespace tfdear {
namespace {

constexpr int kBinBits = 11;
constexpr size_t kBins = size_t{1} << kBinBits;

constexpr size_t kLine = 32;  // elements of at least two bytes

constexpr double kLeastSlack = 1.5;
constexpr double kMostSlack = 8;

constexpr uint32_t kAboveAll = 0x7fffffffu;  // a magnitude that none exceeds
constexpr size_t kOverflow = SIZE_MAX;

// More candidates than this are not worth keeping: the guess was bad.
size_t CapacityFor(size_t k) { return std::max<size_t>(4 * k, 16384); }

int MagnitudeBits(DataType type) { return type == DataType::kFloat32 ? 31 : 15; }

uint32_t InfinityOf(DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return 0x7c00u;
    case DataType::kBFloat16:
      return 0x7f80u;
    default:
      return 0x7f800000u;
  }
}

// The magnitude that stands for all NaNs.
uint32_t NanOf(DataType type) { return InfinityOf(type) + 1; }

uint32_t MagnitudeOf(uint32_t bits, DataType type) {
  const uint32_t sign = type == DataType::kFloat32 ? 0x80000000u : 0x8000u;
  return std::min(bits & ~sign, NanOf(type));
}

// Scatters sample positions, always in the same way.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// The bin that holds the k-th largest, counted from the last; `*k` becomes its rank within the bin.
size_t BinOf(const uint32_t* histogram, size_t* k) {
  size_t bin = kBins - 1;
  while (histogram[bin] < *k) *k -= histogram[bin--];
  return bin;
}

}  // namespace

namespace top_k_internal {

uint32_t KthLargest(uint32_t* keys, size_t count, size_t k) {
  std::vector<uint32_t> histogram(kBins);
  while (true) {
    // The bins span what the keys span: an outlier costs one round, whatever its size.
    uint32_t low = keys[0];
    uint32_t high = keys[0];
    for (size_t i = 0; i < count; ++i) {
      low = std::min(low, keys[i]);
      high = std::max(high, keys[i]);
    }
    if (low == high) return low;
    const int width = 32 - __builtin_clz(high - low);
    const int shift = std::max(0, width - kBinBits);
    std::fill(histogram.begin(), histogram.end(), 0);
    for (size_t i = 0; i < count; ++i) ++histogram[(keys[i] - low) >> shift];
    const size_t bin = BinOf(histogram.data(), &k);
    if (shift == 0) return low + static_cast<uint32_t>(bin);
    size_t kept = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t key = keys[i];
      keys[kept] = key;
      kept += (key - low) >> shift == bin ? 1 : 0;
    }
    count = kept;
  }
}

}  // namespace top_k_internal

// Writes selected elements in the vector's type.
class TopK::Writer {
 public:
  Writer(DataType type, void* values, uint32_t* indices, float* residual)
      : type_(type), values_(values), indices_(indices), residual_(residual) {}

  void Write(uint32_t index, uint32_t bits) {
    if (type_ == DataType::kFloat32) {
      static_cast<uint32_t*>(values_)[count_] = bits;
      if (residual_ != nullptr) residual_[index] = 0;
    } else {
      static_cast<uint16_t*>(values_)[count_] = static_cast<uint16_t>(bits);
    }
    indices_[count_++] = index;
  }

 private:
  const DataType type_;
  void* const values_;
  uint32_t* const indices_;
  float* const residual_;
  size_t count_ = 0;
};

uint32_t TopK::Vector::Magnitude(size_t i) const {
  uint32_t bits = 0;
  if (type == DataType::kFloat32) {
    float value = static_cast<const float*>(data)[i];
    if (to_add != nullptr) value += to_add[i];
    std::memcpy(&bits, &value, sizeof(bits));
  } else {
    bits = static_cast<const uint16_t*>(data)[i];
  }
  return MagnitudeOf(bits, type);
}

TopK::TopK(int threads, ParallelFor parallel_for, top_k_internal::Tuning tuning)
    : threads_(std::max(threads, 1)),
      parallel_for_(std::move(parallel_for)),
      tuning_(tuning),
      slack_(kLeastSlack) {}

void TopK::Select(DataType type, const void* x, size_t d, size_t k, void* values,
                  uint32_t* indices) {
  Vector vector = {type, x, d, nullptr, nullptr};
  Run(&vector, k, values, indices);
}

void TopK::SelectWithFeedback(const float* x, float* residual, size_t d, size_t k, float* values,
                              uint32_t* indices) {
  Vector vector = {DataType::kFloat32, residual, d, residual, x};
  Run(&vector, k, values, indices);
}

void TopK::Run(Vector* vector, size_t k, void* values, uint32_t* indices) {
  if (vector->type != last_type_ || vector->size != last_d_ || k != last_k_) next_ = Guess();
  last_type_ = vector->type;
  last_d_ = vector->size;
  last_k_ = k;
  if (k == 0) {
    if (vector->to_add != nullptr) Filter(kAboveAll, vector, k);
    return;
  }
  if (next_.valid) {
    if (Try(next_, vector, k, values, indices)) return;
    slack_ = std::min(1.5 * slack_, kMostSlack);
  }
  const Guess sampled = GuessFromSample(*vector, k);
  if (sampled.valid && Try(sampled, vector, k, values, indices)) return;
  // The limit is the k-th magnitude: this cannot fail.
  Try(ExactGuess(*vector, k), vector, k, values, indices);
}

TopK::Guess TopK::GuessFromSample(const Vector& vector, size_t k) {
  const size_t d = vector.size;
  keys_.clear();
  if (d <= tuning_.sample_all_below) {
    for (size_t i = 0; i < d; ++i) keys_.push_back(vector.Magnitude(i));
    return {top_k_internal::KthLargest(keys_.data(), d, k), true, true};
  }
  // One place, chosen at random, in each of many equal parts: no order of the elements can hide the
  // large ones. Four neighbours each, which cost no more than one.
  constexpr size_t kNeighbours = 4;
  const size_t places = std::min<size_t>(std::max<size_t>(d / 64, 128), 8192);
  for (size_t i = 0; i < places; ++i) {
    const Range part = ShardOf(d, static_cast<int>(i), static_cast<int>(places));
    const size_t begin = part.begin + Mix(i) % (part.size() - kNeighbours + 1);
    for (size_t j = begin; j < begin + kNeighbours; ++j) keys_.push_back(vector.Magnitude(j));
  }
  // Of the sample, about this many belong to the k largest; the rank is four deviations more.
  const double expected = static_cast<double>(k) * keys_.size() / d;
  const size_t rank = static_cast<size_t>(expected + 4 * std::sqrt(expected) + 3);
  if (rank > keys_.size()) return Guess();
  const uint32_t limit = top_k_internal::KthLargest(keys_.data(), keys_.size(), rank);
  return {limit, true, true};
}

TopK::Guess TopK::ExactGuess(const Vector& vector, size_t k) {
  const int slabs = SlabsOf(vector.size);
  std::vector<std::vector<uint32_t>> histograms(slabs);
  uint32_t prefix = 0;  // of the k-th magnitude, as far as it is known
  size_t rank = k;      // among those that share it
  for (int known = 0, bits = MagnitudeBits(vector.type); known < bits;) {
    const int shift = std::max(bits - known - kBinBits, 0);
    const int digit = bits - known - shift;
    ForSlabs(vector.size, [&](int slab, size_t begin, size_t end) {
      histograms[slab].assign(kBins, 0);
      uint32_t* const histogram = histograms[slab].data();
      const uint32_t mask = (1u << digit) - 1;
      for (size_t i = begin; i < end; ++i) {
        const uint32_t rest = vector.Magnitude(i) >> shift;
        if (rest >> digit == prefix) ++histogram[rest & mask];
      }
    });
    for (int slab = 1; slab < slabs; ++slab) {
      for (size_t bin = 0; bin < kBins; ++bin) histograms[0][bin] += histograms[slab][bin];
    }
    prefix = prefix << digit | static_cast<uint32_t>(BinOf(histograms[0].data(), &rank));
    known += digit;
  }
  return {prefix, true, true};
}

bool TopK::Try(const Guess& guess, Vector* vector, size_t k, void* values, uint32_t* indices) {
  const size_t passed = Filter(guess.limit, vector, k);
  if (passed == kOverflow) return false;
  Writer writer(vector->type, values, indices, vector->residual);
  if (passed >= k) {
    const uint32_t kth = SelectAmongCandidates(vector->type, k, &writer);
    Learn(guess.limit, passed, kth, k);
    return true;
  }
  if (!guess.tied || !AddTies(*vector, guess.limit, k - passed, &writer)) return false;
  Learn(guess.limit, passed, guess.limit, k);
  return true;
}

size_t TopK::Filter(uint32_t limit, Vector* vector, size_t k) {
  // The filter does not know that all NaNs are equal.
  if (limit >= NanOf(vector->type)) limit = kAboveAll;
  candidates_.resize(SlabsOf(vector->size));
  ForSlabs(vector->size, [&](int slab, size_t begin, size_t end) {
    Candidates* const candidates = &candidates_[slab];
    candidates->Reserve(std::min(end - begin, CapacityFor(k)));
    if (vector->to_add != nullptr) {
      FilterMagnitudeOfSum(tuning_.instructions, vector->to_add, vector->residual, begin, end,
                           limit, candidates);
    } else {
      FilterMagnitude(tuning_.instructions, vector->type, vector->data, begin, end, limit,
                      candidates);
    }
  });
  vector->to_add = nullptr;
  size_t passed = 0;
  for (const Candidates& candidates : candidates_) {
    if (candidates.overflowed()) return kOverflow;
    passed += candidates.count;
  }
  return passed;
}

uint32_t TopK::SelectAmongCandidates(DataType type, size_t k, Writer* writer) {
  keys_.clear();
  for (const Candidates& candidates : candidates_) {
    for (size_t i = 0; i < candidates.count; ++i) {
      keys_.push_back(MagnitudeOf(candidates.bits[i], type));
    }
  }
  const uint32_t kth = top_k_internal::KthLargest(keys_.data(), keys_.size(), k);
  size_t ties = k;  // selected elements of the k-th magnitude: what those above it leave
  for (const Candidates& candidates : candidates_) {
    for (size_t i = 0; i < candidates.count; ++i) {
      ties -= MagnitudeOf(candidates.bits[i], type) > kth ? 1 : 0;
    }
  }
  for (const Candidates& candidates : candidates_) {
    for (size_t i = 0; i < candidates.count; ++i) {
      const uint32_t magnitude = MagnitudeOf(candidates.bits[i], type);
      if (magnitude < kth || (magnitude == kth && ties == 0)) continue;
      if (magnitude == kth) --ties;
      writer->Write(candidates.indices[i], candidates.bits[i]);
    }
  }
  return kth;
}

bool TopK::AddTies(const Vector& vector, uint32_t magnitude, size_t wanted, Writer* writer) {
  ties_.resize(SlabsOf(vector.size));
  ForSlabs(vector.size, [&](int slab, size_t begin, size_t end) {
    ties_[slab].Reserve(std::min(end - begin, wanted));
    FindMagnitude(vector.type, vector.data, begin, end, magnitude, wanted, &ties_[slab]);
  });
  size_t found = 0;
  for (const Candidates& ties : ties_) found += ties.count;
  if (found < wanted) return false;
  for (size_t slab = 0; slab < ties_.size(); ++slab) {
    const Candidates& above = candidates_[slab];
    const Candidates& ties = ties_[slab];
    size_t next = 0;
    for (size_t i = 0; i < ties.count && wanted > 0; ++i, --wanted) {
      for (; next < above.count && above.indices[next] < ties.indices[i]; ++next) {
        writer->Write(above.indices[next], above.bits[next]);
      }
      writer->Write(ties.indices[i], ties.bits[i]);
    }
    for (; next < above.count; ++next) writer->Write(above.indices[next], above.bits[next]);
  }
  return true;
}

void TopK::Learn(uint32_t limit, size_t passed, uint32_t kth, size_t k) {
  if (passed < k) {
    // Few ties are chance: another step's k-th magnitude is another.
    next_ = {limit, true, k - passed > 1 + k / 16};
    return;
  }
  // A line through two points of the tail, in the bits of the magnitude, which grow like its
  // logarithm: `passed` elements are above `limit`, and k from the k-th on.
  const double factor =
      passed > k ? std::log(slack_) / std::log(static_cast<double>(passed) / k) : kMostSlack;
  const double below = (kth - limit) * std::min(factor, kMostSlack);
  next_ = {kth - static_cast<uint32_t>(std::min<double>(kth, std::max(below, 1.0))), false, true};
  slack_ = std::max(kLeastSlack, 0.98 * slack_);
}

int TopK::SlabsOf(size_t d) const {
  const size_t most = std::max<size_t>(d / tuning_.min_slab, 1);
  return static_cast<int>(std::min<size_t>(threads_, most));
}

void TopK::ForSlabs(size_t d, const std::function<void(int, size_t, size_t)>& body) {
  const int slabs = SlabsOf(d);
  const auto task = [&](int slab) {
    // Whole cache lines: no two threads write to one, and no load crosses one.
    const Range lines = ShardOf((d + kLine - 1) / kLine, slab, slabs);
    body(slab, lines.begin * kLine, std::min(lines.end * kLine, d));
  };
  if (parallel_for_ && slabs > 1) return parallel_for_(slabs, task);
  for (int slab = 0; slab < slabs; ++slab) task(slab);
}

}  // namespace tfdear
