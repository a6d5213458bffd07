// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/compression/magnitude_filter.h"

#include <algorithm>
#include <cstring>

#include "custom_ops/engine/base/keep_denormals.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tfdear {
namespace {

// Elements that a filter looks at between two looks at the capacity.
constexpr size_t kStep = 64;
constexpr uint32_t kNothing = 0x7fffffffu;  // no magnitude is above it

template <typename Word>
constexpr Word kMagnitude = static_cast<Word>(~Word{0}) >> 1;

template <typename Word>
inline void AppendOne(Word bits, size_t index, Candidates* candidates) {
  candidates->indices[candidates->count] = static_cast<uint32_t>(index);
  candidates->bits[candidates->count] = bits;
  ++candidates->count;
}

// Those of x[base + j] with bit j of `mask` set.
template <typename Word>
inline void AppendMask(const Word* x, size_t base, uint64_t mask, Candidates* candidates) {
  for (; mask != 0; mask &= mask - 1) {
    const size_t index = base + static_cast<size_t>(__builtin_ctzll(mask));
    AppendOne(x[index], index, candidates);
  }
}

template <typename Word>
void FilterPortable(const Word* x, size_t begin, size_t end, Word limit, Candidates* candidates) {
  size_t i = begin;
  for (; i + kStep <= end && !candidates->overflowed(); i += kStep) {
    unsigned any = 0;  // without a branch, for the vectoriser
    for (size_t j = 0; j < kStep; ++j) any |= (x[i + j] & kMagnitude<Word>) > limit ? 1u : 0u;
    if (any == 0) continue;
    for (size_t j = i; j < i + kStep; ++j) {
      if ((x[j] & kMagnitude<Word>) > limit) AppendOne(x[j], j, candidates);
    }
  }
  for (; i < end && !candidates->overflowed(); ++i) {
    if ((x[i] & kMagnitude<Word>) > limit) AppendOne(x[i], i, candidates);
  }
}

const uint32_t* Bits(const float* x) { return reinterpret_cast<const uint32_t*>(x); }

// After an overflow nothing is kept any more, but the sums go on.
inline uint32_t LimitNow(uint32_t limit, const Candidates& candidates) {
  return candidates.overflowed() ? kNothing : limit;
}

void FilterSumPortable(const float* x, float* residual, size_t begin, size_t end, uint32_t limit,
                       Candidates* candidates) {
  for (size_t i = begin; i < end; i += kStep) {
    const size_t step_end = std::min(end, i + kStep);
    for (size_t j = i; j < step_end; ++j) residual[j] = residual[j] + x[j];
    for (size_t j = i; j < step_end; ++j) {
      uint32_t bits;
      std::memcpy(&bits, residual + j, sizeof(bits));
      if ((bits & kNothing) > LimitNow(limit, *candidates)) AppendOne(bits, j, candidates);
    }
  }
}

#if defined(__x86_64__)

#define TFDEAR_AVX2 __attribute__((target("avx2,bmi,popcnt")))
#define TFDEAR_AVX512 __attribute__((target("avx512f,avx512bw,bmi,popcnt")))

TFDEAR_AVX2 inline uint64_t AboveAvx2(__m256i bits, __m256i limit) {
  // Signed comparison will do: neither side has its top bit set.
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i above = _mm256_cmpgt_epi32(magnitude, limit);
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(above)));
}

TFDEAR_AVX2 void FilterAvx2(const uint32_t* x, size_t begin, size_t end, uint32_t limit,
                            Candidates* candidates) {
  const __m256i limits = _mm256_set1_epi32(static_cast<int>(limit));
  size_t i = begin;
  for (; i + kStep <= end && !candidates->overflowed(); i += kStep) {
    uint64_t mask = 0;
    for (size_t j = 0; j < kStep; j += 8) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i + j));
      mask |= AboveAvx2(bits, limits) << j;
    }
    if (mask != 0) AppendMask(x, i, mask, candidates);
  }
  FilterPortable(x, i, end, limit, candidates);
}

TFDEAR_AVX2 void FilterAvx2(const uint16_t* x, size_t begin, size_t end, uint16_t limit,
                            Candidates* candidates) {
  const __m256i limits = _mm256_set1_epi16(static_cast<int16_t>(limit));
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  size_t i = begin;
  for (; i + kStep <= end && !candidates->overflowed(); i += kStep) {
    uint64_t mask = 0;
    for (size_t j = 0; j < kStep; j += 32) {
      const __m256i* from = reinterpret_cast<const __m256i*>(x + i + j);
      const __m256i low = _mm256_and_si256(_mm256_loadu_si256(from), magnitude);
      const __m256i high = _mm256_and_si256(_mm256_loadu_si256(from + 1), magnitude);
      // Packing works within halves of the register; the permutation restores the order.
      const __m256i packed = _mm256_permute4x64_epi64(
          _mm256_packs_epi16(_mm256_cmpgt_epi16(low, limits), _mm256_cmpgt_epi16(high, limits)),
          0xd8);
      mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(packed))) << j;
    }
    if (mask != 0) AppendMask(x, i, mask, candidates);
  }
  FilterPortable(x, i, end, limit, candidates);
}

TFDEAR_AVX2 void FilterSumAvx2(const float* x, float* residual, size_t begin, size_t end,
                               uint32_t limit, Candidates* candidates) {
  size_t i = begin;
  for (; i + kStep <= end; i += kStep) {
    const __m256i limits = _mm256_set1_epi32(static_cast<int>(LimitNow(limit, *candidates)));
    uint64_t mask = 0;
    for (size_t j = 0; j < kStep; j += 8) {
      const __m256 sum =
          _mm256_add_ps(_mm256_loadu_ps(residual + i + j), _mm256_loadu_ps(x + i + j));
      _mm256_storeu_ps(residual + i + j, sum);
      mask |= AboveAvx2(_mm256_castps_si256(sum), limits) << j;
    }
    if (mask != 0) AppendMask(Bits(residual), i, mask, candidates);
  }
  FilterSumPortable(x, residual, i, end, limit, candidates);
}

TFDEAR_AVX512 inline __mmask16 AboveAvx512(__m512i bits, __m512i limit) {
  return _mm512_cmpgt_epu32_mask(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)), limit);
}

// A step of four registers from x[base] on. Few elements are cheaper one by one; many are
// compressed in registers, which are then stored whole: stores that compress are slow on some
// processors.
TFDEAR_AVX512 inline void AppendAvx512(const uint32_t* x, size_t base, const __m512i bits[4],
                                       const __mmask16 masks[4], Candidates* candidates) {
  const uint64_t mask = static_cast<uint64_t>(masks[0]) | static_cast<uint64_t>(masks[1]) << 16 |
                        static_cast<uint64_t>(masks[2]) << 32 |
                        static_cast<uint64_t>(masks[3]) << 48;
  if (mask == 0) return;
  if (__builtin_popcountll(mask) <= 8) return AppendMask(x, base, mask, candidates);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int v = 0; v < 4; ++v) {
    const __m512i indices =
        _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(base + 16 * v)), lanes);
    const size_t count = candidates->count;
    _mm512_storeu_si512(candidates->indices.get() + count,
                        _mm512_maskz_compress_epi32(masks[v], indices));
    _mm512_storeu_si512(candidates->bits.get() + count,
                        _mm512_maskz_compress_epi32(masks[v], bits[v]));
    candidates->count = count + static_cast<size_t>(__builtin_popcount(masks[v]));
  }
}

TFDEAR_AVX512 void FilterAvx512(const uint32_t* x, size_t begin, size_t end, uint32_t limit,
                                Candidates* candidates) {
  const __m512i limits = _mm512_set1_epi32(static_cast<int>(limit));
  size_t i = begin;
  for (; i + kStep <= end && !candidates->overflowed(); i += kStep) {
    __m512i bits[4];
    __mmask16 masks[4];
    for (int v = 0; v < 4; ++v) {
      bits[v] = _mm512_loadu_si512(x + i + 16 * v);
      masks[v] = AboveAvx512(bits[v], limits);
    }
    AppendAvx512(x, i, bits, masks, candidates);
  }
  FilterPortable(x, i, end, limit, candidates);
}

TFDEAR_AVX512 void FilterAvx512(const uint16_t* x, size_t begin, size_t end, uint16_t limit,
                                Candidates* candidates) {
  const __m512i limits = _mm512_set1_epi16(static_cast<int16_t>(limit));
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  size_t i = begin;
  for (; i + kStep <= end && !candidates->overflowed(); i += kStep) {
    const __m512i low = _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude);
    const __m512i high = _mm512_and_si512(_mm512_loadu_si512(x + i + 32), magnitude);
    const uint64_t mask = static_cast<uint64_t>(_mm512_cmpgt_epu16_mask(low, limits)) |
                          static_cast<uint64_t>(_mm512_cmpgt_epu16_mask(high, limits)) << 32;
    if (mask != 0) AppendMask(x, i, mask, candidates);
  }
  FilterPortable(x, i, end, limit, candidates);
}

TFDEAR_AVX512 void FilterSumAvx512(const float* x, float* residual, size_t begin, size_t end,
                                   uint32_t limit, Candidates* candidates) {
  size_t i = begin;
  for (; i + kStep <= end; i += kStep) {
    const __m512i limits = _mm512_set1_epi32(static_cast<int>(LimitNow(limit, *candidates)));
    __m512i bits[4];
    __mmask16 masks[4];
    for (int v = 0; v < 4; ++v) {
      float* const sums = residual + i + 16 * v;
      const __m512 sum = _mm512_add_ps(_mm512_loadu_ps(sums), _mm512_loadu_ps(x + i + 16 * v));
      _mm512_storeu_ps(sums, sum);
      bits[v] = _mm512_castps_si512(sum);
      masks[v] = AboveAvx512(bits[v], limits);
    }
    AppendAvx512(Bits(residual), i, bits, masks, candidates);
  }
  FilterSumPortable(x, residual, i, end, limit, candidates);
}

#endif

template <typename Word>
void Filter(InstructionSet instructions, const Word* x, size_t begin, size_t end, Word limit,
            Candidates* candidates) {
  switch (instructions) {
#if defined(__x86_64__)
    case InstructionSet::kAvx512:
      return FilterAvx512(x, begin, end, limit, candidates);
    case InstructionSet::kAvx2:
      return FilterAvx2(x, begin, end, limit, candidates);
#endif
    default:
      return FilterPortable(x, begin, end, limit, candidates);
  }
}

template <typename Word, typename Found>
void Find(const Word* x, size_t begin, size_t end, size_t wanted, const Found& found,
          Candidates* candidates) {
  for (size_t i = begin; i < end && candidates->count < wanted; i += kStep) {
    const size_t step = std::min(end - i, kStep);
    if (step == kStep) {
      Word any = 0;  // without a branch, for the vectoriser
      for (size_t j = 0; j < kStep; ++j) any |= found(x[i + j]) ? 1 : 0;
      if (any == 0) continue;
    }
    for (size_t j = i; j < i + step; ++j) {
      if (found(x[j])) AppendOne(x[j], j, candidates);
    }
  }
}

template <typename Word>
void Find(const Word* x, size_t begin, size_t end, Word magnitude, Word infinity, size_t wanted,
          Candidates* candidates) {
  if (magnitude > infinity) {
    const auto is_nan = [=](Word bits) { return (bits & kMagnitude<Word>) > infinity; };
    return Find(x, begin, end, wanted, is_nan, candidates);
  }
  const auto is_equal = [=](Word bits) { return (bits & kMagnitude<Word>) == magnitude; };
  Find(x, begin, end, wanted, is_equal, candidates);
}

}  // namespace

std::vector<InstructionSet> SupportedInstructionSets() {
  std::vector<InstructionSet> sets = {InstructionSet::kPortable};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi")) {
    sets.push_back(InstructionSet::kAvx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
      sets.push_back(InstructionSet::kAvx512);
    }
  }
#endif
  return sets;
}

void Candidates::Reserve(size_t new_capacity) {
  if (new_capacity > capacity || indices == nullptr) {
    // Not initialised: pages that no candidate reaches are never touched.
    indices.reset(new uint32_t[new_capacity + 2 * kStep]);
    bits.reset(new uint32_t[new_capacity + 2 * kStep]);
    capacity = new_capacity;
  }
  count = 0;
}

void FilterMagnitude(InstructionSet instructions, DataType type, const void* x, size_t begin,
                     size_t end, uint32_t limit, Candidates* candidates) {
  if (type == DataType::kFloat32) {
    Filter(instructions, static_cast<const uint32_t*>(x), begin, end, limit, candidates);
  } else {
    Filter(instructions, static_cast<const uint16_t*>(x), begin, end,
           static_cast<uint16_t>(std::min(limit, 0x7fffu)), candidates);
  }
}

void FilterMagnitudeOfSum(InstructionSet instructions, const float* x, float* residual,
                          size_t begin, size_t end, uint32_t limit, Candidates* candidates) {
  const KeepDenormals keep_denormals;
  switch (instructions) {
#if defined(__x86_64__)
    case InstructionSet::kAvx512:
      return FilterSumAvx512(x, residual, begin, end, limit, candidates);
    case InstructionSet::kAvx2:
      return FilterSumAvx2(x, residual, begin, end, limit, candidates);
#endif
    default:
      return FilterSumPortable(x, residual, begin, end, limit, candidates);
  }
}

void FindMagnitude(DataType type, const void* x, size_t begin, size_t end, uint32_t magnitude,
                   size_t wanted, Candidates* candidates) {
  if (type == DataType::kFloat32) {
    Find(static_cast<const uint32_t*>(x), begin, end, magnitude, 0x7f800000u, wanted, candidates);
  } else {
    const uint16_t infinity = type == DataType::kFloat16 ? 0x7c00 : 0x7f80;
    Find(static_cast<const uint16_t*>(x), begin, end, static_cast<uint16_t>(magnitude), infinity,
         wanted, candidates);
  }
}

}  // namespace tfdear
