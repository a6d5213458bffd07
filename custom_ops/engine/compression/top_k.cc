// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/compression/top_k.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/base/vector_clones.h"

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
size_t CapacityFor(size_t k) { return std::max<size_t>(8 * k, 16384); }

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

uint32_t SignOf(DataType type) { return type == DataType::kFloat32 ? 0x80000000u : 0x8000u; }

uint32_t MagnitudeOf(uint32_t bits, DataType type) {
  return std::min(bits & ~SignOf(type), NanOf(type));
}

// The bin that holds the k-th largest, counted from the last; `*k` becomes its rank within the bin.
size_t BinOf(const uint32_t* histogram, size_t* k) {
  size_t bin = kBins - 1;
  while (histogram[bin] < *k) *k -= histogram[bin--];
  return bin;
}

// magnitudes[i] of bits[i], i < count.
TFDEAR_VECTOR_CLONES void ToMagnitudes(const uint32_t* bits, size_t count, uint32_t sign,
                                       uint32_t nan, uint32_t* magnitudes) {
  for (size_t i = 0; i < count; ++i) magnitudes[i] = std::min(bits[i] & ~sign, nan);
}

TFDEAR_VECTOR_CLONES void Span(const uint32_t* keys, size_t count, uint32_t* low, uint32_t* high) {
  uint32_t least = keys[0];
  uint32_t most = keys[0];
  for (size_t i = 0; i < count; ++i) {
    least = std::min(least, keys[i]);
    most = std::max(most, keys[i]);
  }
  *low = least;
  *high = most;
}

// How many bits have a magnitude above one, and how many just that.
TFDEAR_VECTOR_CLONES void Compare(const uint32_t* bits, size_t count, uint32_t sign, uint32_t nan,
                                  uint32_t magnitude, size_t* above, size_t* equal) {
  uint32_t found_above = 0;
  uint32_t found_equal = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t key = std::min(bits[i] & ~sign, nan);
    found_above += key > magnitude ? 1 : 0;
    found_equal += key == magnitude ? 1 : 0;
  }
  *above = found_above;
  *equal = found_equal;
}

// Keeps of the candidates what is above a magnitude, and the first `ties` that have just that.
void Compact(uint32_t sign, uint32_t nan, uint32_t magnitude, size_t ties, Candidates* candidates) {
  uint32_t* const indices = candidates->indices.get();
  uint32_t* const bits = candidates->bits.get();
  size_t kept = 0;
  for (size_t i = 0; i < candidates->count; ++i) {  // without branches: nobody could predict them
    const uint32_t key = std::min(bits[i] & ~sign, nan);
    const size_t tied = key == magnitude && ties > 0 ? 1 : 0;
    indices[kept] = indices[i];
    bits[kept] = bits[i];
    kept += tied | (key > magnitude ? 1 : 0);
    ties -= tied;
  }
  candidates->count = kept;
}

}  // namespace

namespace top_k_internal {

uint32_t KthLargest(uint32_t* keys, size_t count, size_t k) {
  std::vector<uint32_t> histogram(kBins);
  while (true) {
    // The bins span what the keys span: an outlier costs one round, whatever its size.
    uint32_t low;
    uint32_t high;
    Span(keys, count, &low, &high);
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

// Where the selected elements go, in the vector's type. Several threads may write, each to places
// of its own.
class TopK::Output {
 public:
  Output(DataType type, void* values, uint32_t* indices, float* residual)
      : type_(type), values_(values), indices_(indices), residual_(residual) {}

  void Write(size_t place, const Candidates& selected) {
    if (selected.count == 0) return;
    std::copy_n(selected.indices.get(), selected.count, indices_ + place);
    if (type_ == DataType::kFloat32) {
      std::copy_n(selected.bits.get(), selected.count, static_cast<uint32_t*>(values_) + place);
    } else {
      std::copy_n(selected.bits.get(), selected.count, static_cast<uint16_t*>(values_) + place);
    }
    if (residual_ == nullptr) return;
    for (size_t i = 0; i < selected.count; ++i) residual_[selected.indices[i]] = 0;
  }

  // Both, in ascending order of the indices; returns the place after the last.
  size_t WriteMerged(size_t place, const Candidates& left, const Candidates& right) {
    size_t l = 0;
    size_t r = 0;
    for (; l < left.count || r < right.count; ++place) {
      const bool from_left =
          r == right.count || (l < left.count && left.indices[l] < right.indices[r]);
      from_left ? WriteOne(place, left, l++) : WriteOne(place, right, r++);
    }
    return place;
  }

 private:
  void WriteOne(size_t place, const Candidates& from, size_t i) {
    indices_[place] = from.indices[i];
    if (type_ == DataType::kFloat32) {
      static_cast<uint32_t*>(values_)[place] = from.bits[i];
    } else {
      static_cast<uint16_t*>(values_)[place] = static_cast<uint16_t>(from.bits[i]);
    }
    if (residual_ != nullptr) residual_[from.indices[i]] = 0;
  }

  const DataType type_;
  void* const values_;
  uint32_t* const indices_;
  float* const residual_;
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
  if (next_.valid && Try(next_, vector, k, values, indices)) return;
  const Guess sampled = GuessFromSample(*vector, k);
  if (sampled.valid && Try(sampled, vector, k, values, indices)) return;
  // As sums that are stored, so that every reader sees the same magnitudes: the filter keeps
  // denormals, a thread of TensorFlow's that adds up may not.
  if (vector->to_add != nullptr) Filter(kAboveAll, vector, k);
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
  const size_t places = std::min<size_t>(std::max<size_t>(d / 256, 128), 8192);
  const size_t part = d / places;
  for (size_t i = 0; i < places; ++i) {
    const size_t begin = i * part + ((MixBits(i) >> 32) * (part - kNeighbours + 1) >> 32);
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
  Output output(vector->type, values, indices, vector->residual);
  if (passed >= k) {
    const uint32_t kth = SelectAmongCandidates(vector->type, passed, k, &output);
    Learn(guess.limit, passed, kth, k);
    return true;
  }
  if (!guess.tied || !AddTies(*vector, guess.limit, k - passed, &output)) {
    // A limit that is too high costs another pass: the next are lower for a while.
    slack_ = std::min(1.5 * slack_, kMostSlack);
    return false;
  }
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

uint32_t TopK::SelectAmongCandidates(DataType type, size_t passed, size_t k, Output* output) {
  const uint32_t sign = SignOf(type);
  const uint32_t nan = NanOf(type);
  const size_t slabs = candidates_.size();
  if (keys_.size() < passed) keys_.resize(passed);
  std::vector<size_t> begins(slabs + 1);  // of the slabs' candidates among all
  for (size_t slab = 0; slab < slabs; ++slab) {
    begins[slab + 1] = begins[slab] + candidates_[slab].count;
  }
  ForCandidates(passed, [&](int slab) {
    ToMagnitudes(candidates_[slab].bits.get(), candidates_[slab].count, sign, nan,
                 keys_.data() + begins[slab]);
  });
  const uint32_t kth = top_k_internal::KthLargest(keys_.data(), passed, k);

  std::vector<size_t> above(slabs);
  std::vector<size_t> equal(slabs);
  ForCandidates(passed, [&](int slab) {
    Compare(candidates_[slab].bits.get(), candidates_[slab].count, sign, nan, kth, &above[slab],
            &equal[slab]);
  });
  size_t ties = k;  // selected elements of the k-th magnitude: what those above it leave
  for (size_t n : above) ties -= n;
  for (size_t slab = 0; slab < slabs; ++slab) {
    equal[slab] = std::min(equal[slab], ties);
    ties -= equal[slab];
    begins[slab + 1] = begins[slab] + above[slab] + equal[slab];
  }
  ForCandidates(passed, [&](int slab) {
    Compact(sign, nan, kth, equal[slab], &candidates_[slab]);
    output->Write(begins[slab], candidates_[slab]);
  });
  return kth;
}

bool TopK::AddTies(const Vector& vector, uint32_t magnitude, size_t wanted, Output* output) {
  ties_.resize(candidates_.size());
  ForSlabs(vector.size, [&](int slab, size_t begin, size_t end) {
    ties_[slab].Reserve(std::min(end - begin, wanted));
    FindMagnitude(vector.type, vector.data, begin, end, magnitude, wanted, &ties_[slab]);
  });
  size_t found = 0;
  for (const Candidates& ties : ties_) found += ties.count;
  if (found < wanted) return false;
  size_t written = 0;
  for (size_t slab = 0; slab < ties_.size(); ++slab) {
    ties_[slab].count = std::min(ties_[slab].count, wanted);
    wanted -= ties_[slab].count;
    written = output->WriteMerged(written, candidates_[slab], ties_[slab]);
  }
  return true;
}

void TopK::Learn(uint32_t limit, size_t passed, uint32_t kth, size_t k) {
  if (passed < k) {
    // Few ties are chance: another step's k-th magnitude is another.
    next_ = {limit, true, k - passed > 1 + k / 16};
    return;
  }
  slack_ = std::max(0.95 * slack_, kLeastSlack);
  // A line through two points of the tail, in the bits of the magnitude, which grow like its
  // logarithm: `passed` elements are above `limit`, and k from the k-th on.
  const double factor =
      passed > k ? std::log(slack_) / std::log(static_cast<double>(passed) / k) : kMostSlack;
  const double below = (kth - limit) * std::min(factor, kMostSlack);
  next_ = {kth - static_cast<uint32_t>(std::min<double>(kth, std::max(below, 1.0))), false, true};
}

int TopK::SlabsOf(size_t d) const {
  // More than threads, so that one that starts late or is interrupted does less.
  const size_t most = threads_ == 1 ? 1 : std::max<size_t>(d / tuning_.min_slab, 1);
  return static_cast<int>(std::min<size_t>(4 * static_cast<size_t>(threads_), most));
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

void TopK::ForCandidates(size_t candidates, const std::function<void(int)>& body) {
  const int slabs = static_cast<int>(candidates_.size());
  if (parallel_for_ && slabs > 1 && candidates >= tuning_.min_slab) {
    return parallel_for_(slabs, body);
  }
  for (int slab = 0; slab < slabs; ++slab) body(slab);
}

}  // namespace tfdear
