// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/norms/sum_of_squares.h"

#include <cmath>

#if defined(__x86_64__)
#include <immintrin.h>
// The compiler means registers that its own headers leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace tfdear {
namespace {

// As many sums side by side, for every instruction set alike: that fixes the order of additions.
constexpr size_t kLanes = 32;

double Total(const double* lanes) {
  double total = 0;
  for (size_t i = 0; i < kLanes; ++i) total += lanes[i];
  return total;
}

float StepAt(const LayerPiece& piece, size_t i) {
  const AdamStep& step = piece.step;
  const float gradient = piece.gradient[i];
  const float mean = piece.mean[i] + (gradient - piece.mean[i]) * step.mean_rate;
  const float square = piece.square[i] + (gradient * gradient - piece.square[i]) * step.square_rate;
  const float root = std::sqrt(square / step.square_correction);
  return mean / step.mean_correction / (root + step.epsilon) + step.weight_decay * piece.weight[i];
}

// Elements from `begin` on, one by one, into the lanes they belong to.
void AddRest(const LayerPiece& piece, size_t begin, double* weights, double* others) {
  for (size_t i = begin; i < piece.count; ++i) {
    const double weight = piece.weight[i];
    const double other = piece.kind == NormKind::kLars ? piece.gradient[i] : StepAt(piece, i);
    weights[i % kLanes] += weight * weight;
    others[i % kLanes] += other * other;
  }
}

#if defined(__x86_64__)

#define TFDEAR_AVX512 __attribute__((target("avx512f")))

TFDEAR_AVX512 inline void AddSquares(__m512 x, __m512d* low, __m512d* high) {
  const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
  const __m512d b =
      _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
  *low = _mm512_fmadd_pd(a, a, *low);
  *high = _mm512_fmadd_pd(b, b, *high);
}

// Returns how many elements it added.
TFDEAR_AVX512 size_t AddAvx512(const LayerPiece& piece, double* weights, double* others) {
  constexpr size_t kWidth = 16;
  constexpr size_t kParts = kLanes / 8;
  __m512d weight_sums[kParts], other_sums[kParts];
  for (size_t j = 0; j < kParts; ++j) weight_sums[j] = other_sums[j] = _mm512_setzero_pd();
  const AdamStep& step = piece.step;
  const __m512 mean_rate = _mm512_set1_ps(step.mean_rate);
  const __m512 square_rate = _mm512_set1_ps(step.square_rate);
  const __m512 mean_correction = _mm512_set1_ps(step.mean_correction);
  const __m512 square_correction = _mm512_set1_ps(step.square_correction);
  const __m512 epsilon = _mm512_set1_ps(step.epsilon);
  const __m512 decay = _mm512_set1_ps(step.weight_decay);
  const bool lamb = piece.kind == NormKind::kLamb;
  size_t i = 0;
  for (; i + kLanes <= piece.count; i += kLanes) {
    for (size_t j = 0; j < kLanes / kWidth; ++j) {
      const size_t at = i + j * kWidth;
      const __m512 w = _mm512_loadu_ps(piece.weight + at);
      __m512 other = _mm512_loadu_ps(piece.gradient + at);
      if (lamb) {
        __m512 mean = _mm512_loadu_ps(piece.mean + at);
        __m512 square = _mm512_loadu_ps(piece.square + at);
        mean = _mm512_fmadd_ps(_mm512_sub_ps(other, mean), mean_rate, mean);
        square = _mm512_fmadd_ps(_mm512_fmsub_ps(other, other, square), square_rate, square);
        const __m512 root = _mm512_sqrt_ps(_mm512_div_ps(square, square_correction));
        other = _mm512_div_ps(mean, _mm512_mul_ps(mean_correction, _mm512_add_ps(root, epsilon)));
        other = _mm512_fmadd_ps(decay, w, other);
      }
      AddSquares(w, &weight_sums[2 * j], &weight_sums[2 * j + 1]);
      AddSquares(other, &other_sums[2 * j], &other_sums[2 * j + 1]);
    }
  }
  for (size_t j = 0; j < kParts; ++j) {
    _mm512_storeu_pd(weights + 8 * j, weight_sums[j]);
    _mm512_storeu_pd(others + 8 * j, other_sums[j]);
  }
  return i;
}

#define TFDEAR_AVX2 __attribute__((target("avx2,fma")))

TFDEAR_AVX2 inline void AddSquares(__m256 x, __m256d* low, __m256d* high) {
  const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
  const __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
  *low = _mm256_fmadd_pd(a, a, *low);
  *high = _mm256_fmadd_pd(b, b, *high);
}

TFDEAR_AVX2 size_t AddAvx2(const LayerPiece& piece, double* weights, double* others) {
  constexpr size_t kWidth = 8;
  constexpr size_t kParts = kLanes / 4;
  __m256d weight_sums[kParts], other_sums[kParts];
  for (size_t j = 0; j < kParts; ++j) weight_sums[j] = other_sums[j] = _mm256_setzero_pd();
  const AdamStep& step = piece.step;
  const __m256 mean_rate = _mm256_set1_ps(step.mean_rate);
  const __m256 square_rate = _mm256_set1_ps(step.square_rate);
  const __m256 mean_correction = _mm256_set1_ps(step.mean_correction);
  const __m256 square_correction = _mm256_set1_ps(step.square_correction);
  const __m256 epsilon = _mm256_set1_ps(step.epsilon);
  const __m256 decay = _mm256_set1_ps(step.weight_decay);
  const bool lamb = piece.kind == NormKind::kLamb;
  size_t i = 0;
  for (; i + kLanes <= piece.count; i += kLanes) {
    for (size_t j = 0; j < kLanes / kWidth; ++j) {
      const size_t at = i + j * kWidth;
      const __m256 w = _mm256_loadu_ps(piece.weight + at);
      __m256 other = _mm256_loadu_ps(piece.gradient + at);
      if (lamb) {
        __m256 mean = _mm256_loadu_ps(piece.mean + at);
        __m256 square = _mm256_loadu_ps(piece.square + at);
        mean = _mm256_fmadd_ps(_mm256_sub_ps(other, mean), mean_rate, mean);
        square = _mm256_fmadd_ps(_mm256_fmsub_ps(other, other, square), square_rate, square);
        const __m256 root = _mm256_sqrt_ps(_mm256_div_ps(square, square_correction));
        other = _mm256_div_ps(mean, _mm256_mul_ps(mean_correction, _mm256_add_ps(root, epsilon)));
        other = _mm256_fmadd_ps(decay, w, other);
      }
      AddSquares(w, &weight_sums[2 * j], &weight_sums[2 * j + 1]);
      AddSquares(other, &other_sums[2 * j], &other_sums[2 * j + 1]);
    }
  }
  for (size_t j = 0; j < kParts; ++j) {
    _mm256_storeu_pd(weights + 4 * j, weight_sums[j]);
    _mm256_storeu_pd(others + 4 * j, other_sums[j]);
  }
  return i;
}

#endif  // __x86_64__

}  // namespace

void SumOfSquares(const std::vector<LayerPiece>& pieces, double* sums) {
  for (const LayerPiece& piece : pieces) {
    double weights[kLanes] = {}, others[kLanes] = {};
    size_t added = 0;
#if defined(__x86_64__)
    static const bool has_avx512 = __builtin_cpu_supports("avx512f");
    static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx512) {
      added = AddAvx512(piece, weights, others);
    } else if (has_avx2) {
      added = AddAvx2(piece, weights, others);
    }
#endif
    AddRest(piece, added, weights, others);
    *sums++ = Total(weights);
    *sums++ = Total(others);
  }
}

}  // namespace tfdear
