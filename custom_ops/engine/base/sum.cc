// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/base/sum.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tfdear {
namespace sum_internal {

float FloatFromHalf(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  uint32_t mantissa = half & 0x3ffu;
  uint32_t bits;
  if (exponent == 0x1fu) {  // infinity, or NaN made quiet as the hardware does
    bits = sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x00400000u : 0u);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112u) << 23) | (mantissa << 13);
  } else if (mantissa == 0) {
    bits = sign;
  } else {  // subnormal: normalise, float32 has exponents to spare
    uint32_t shift = 0;
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      ++shift;
    }
    bits = sign | ((113u - shift) << 23) | ((mantissa & 0x3ffu) << 13);
  }
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint16_t HalfFromFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: keep the top of the payload, set the quiet bit
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds past 65504
  if (magnitude <= 0x33000000u) return sign;  // at most half of the smallest subnormal: to even, 0
  uint32_t significand = magnitude - 0x38000000u;  // exponent bias 127 -> 15
  uint32_t shift = 13;
  if (magnitude < 0x38800000u) {  // subnormal half
    significand = (magnitude & 0x7fffffu) | 0x800000u;
    shift = 126u - (magnitude >> 23);
  }
  uint32_t rounded = significand >> shift;  // adding 1 may carry into the exponent, rightly
  const uint32_t rest = significand & ((1u << shift) - 1u);
  const uint32_t half_way = 1u << (shift - 1u);
  if (rest > half_way || (rest == half_way && (rounded & 1u) != 0)) ++rounded;
  return static_cast<uint16_t>(sign | rounded);
}

void SumHalfPortable(uint16_t* accumulator, const uint16_t* addend, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    accumulator[i] = HalfFromFloat(FloatFromHalf(accumulator[i]) + FloatFromHalf(addend[i]));
  }
}

#if defined(__x86_64__)

// Not every Clang knows "f16c" by name.
bool ProcessorHasF16C() {
  unsigned eax, ebx, ecx = 0, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool HasHalfInstructions() {
  static const bool has = __builtin_cpu_supports("avx") && ProcessorHasF16C();
  return has;
}

__attribute__((target("avx,f16c"))) void SumHalfInstructions(uint16_t* accumulator,
                                                             const uint16_t* addend, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 left =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(accumulator + i)));
    const __m256 right =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(addend + i)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(accumulator + i),
                     _mm256_cvtps_ph(_mm256_add_ps(left, right), _MM_FROUND_TO_NEAREST_INT));
  }
  SumHalfPortable(accumulator + i, addend + i, count - i);
}

#else

bool HasHalfInstructions() { return false; }

void SumHalfInstructions(uint16_t* accumulator, const uint16_t* addend, size_t count) {
  SumHalfPortable(accumulator, addend, count);
}

#endif

}  // namespace sum_internal

namespace {

// GCC and Clang vector types instead of the auto-vectoriser: they give vector code at -O2 too, on
// any processor. Moves go through memcpy, which costs nothing and permits any alignment.
template <typename Element>
void SumPlain(Element* accumulator, const Element* addend, size_t count) {
  constexpr size_t kLanes = 32 / sizeof(Element);
  typedef Element Vector __attribute__((vector_size(32)));
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Vector left;
    Vector right;
    std::memcpy(&left, accumulator + i, sizeof(left));
    std::memcpy(&right, addend + i, sizeof(right));
    left += right;
    std::memcpy(accumulator + i, &left, sizeof(left));
  }
  for (; i < count; ++i) accumulator[i] += addend[i];
}

// One group of up to eight elements; `lanes` is a constant in the main loop, so that the copies
// become single instructions there.
inline void SumBFloat16Lanes(uint16_t* accumulator, const uint16_t* addend, size_t lanes) {
  typedef uint16_t Halves __attribute__((vector_size(16)));
  typedef uint32_t Words __attribute__((vector_size(32)));
  typedef float Floats __attribute__((vector_size(32)));
  Halves left = {};
  Halves right = {};
  std::memcpy(&left, accumulator, lanes * sizeof(uint16_t));
  std::memcpy(&right, addend, lanes * sizeof(uint16_t));
  const Words left_bits = __builtin_convertvector(left, Words) << 16;
  const Words right_bits = __builtin_convertvector(right, Words) << 16;
  const Words sum = (Words)((Floats)left_bits + (Floats)right_bits);
  const Words nearest_even = (sum + 0x7fffu + ((sum >> 16) & 1u)) >> 16;
  const Words quiet_nan = (sum >> 16) | 0x40u;  // rounding could carry a NaN into infinity
  const Words rounded = (sum & 0x7fffffffu) > 0x7f800000u ? quiet_nan : nearest_even;
  const Halves result = __builtin_convertvector(rounded, Halves);
  std::memcpy(accumulator, &result, lanes * sizeof(uint16_t));
}

void SumBFloat16(uint16_t* accumulator, const uint16_t* addend, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) SumBFloat16Lanes(accumulator + i, addend + i, 8);
  if (i < count) SumBFloat16Lanes(accumulator + i, addend + i, count - i);
}

void SumFloat16(uint16_t* accumulator, const uint16_t* addend, size_t count) {
  if (sum_internal::HasHalfInstructions()) {
    sum_internal::SumHalfInstructions(accumulator, addend, count);
  } else {
    sum_internal::SumHalfPortable(accumulator, addend, count);
  }
}

template <typename Element>
void CopyScaledPlain(Element* target, const Element* source, Element factor, size_t count) {
  constexpr size_t kLanes = 32 / sizeof(Element);
  typedef Element Vector __attribute__((vector_size(32)));
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Vector values;
    std::memcpy(&values, source + i, sizeof(values));
    values *= factor;
    std::memcpy(target + i, &values, sizeof(values));
  }
  for (; i < count; ++i) target[i] = source[i] * factor;
}

void CopyScaledFloat16(uint16_t* target, const uint16_t* source, float factor, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    target[i] = sum_internal::HalfFromFloat(sum_internal::FloatFromHalf(source[i]) * factor);
  }
}

void CopyScaledBFloat16(uint16_t* target, const uint16_t* source, float factor, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(source[i]) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    value *= factor;
    uint32_t product;
    std::memcpy(&product, &value, sizeof(product));
    const bool is_nan = (product & 0x7fffffffu) > 0x7f800000u;
    const uint32_t nearest_even = (product + 0x7fffu + ((product >> 16) & 1u)) >> 16;
    target[i] = static_cast<uint16_t>(is_nan ? (product >> 16) | 0x40u : nearest_even);
  }
}

}  // namespace

void SumInto(DataType type, void* accumulator, const void* addend, size_t count) {
  switch (type) {
    case DataType::kFloat16:
      return SumFloat16(static_cast<uint16_t*>(accumulator), static_cast<const uint16_t*>(addend),
                        count);
    case DataType::kBFloat16:
      return SumBFloat16(static_cast<uint16_t*>(accumulator), static_cast<const uint16_t*>(addend),
                         count);
    case DataType::kFloat32:
      return SumPlain(static_cast<float*>(accumulator), static_cast<const float*>(addend), count);
    case DataType::kFloat64:
      return SumPlain(static_cast<double*>(accumulator), static_cast<const double*>(addend), count);
    // Unsigned, so that overflow wraps around instead of being undefined.
    case DataType::kInt32:
      return SumPlain(static_cast<uint32_t*>(accumulator), static_cast<const uint32_t*>(addend),
                      count);
    case DataType::kInt64:
      return SumPlain(static_cast<uint64_t*>(accumulator), static_cast<const uint64_t*>(addend),
                      count);
  }
}

void CopyScaled(DataType type, void* target, const void* source, double factor, size_t count) {
  const float single = static_cast<float>(factor);
  switch (type) {
    case DataType::kFloat16:
      return CopyScaledFloat16(static_cast<uint16_t*>(target), static_cast<const uint16_t*>(source),
                               single, count);
    case DataType::kBFloat16:
      return CopyScaledBFloat16(static_cast<uint16_t*>(target),
                                static_cast<const uint16_t*>(source), single, count);
    case DataType::kFloat32:
      return CopyScaledPlain(static_cast<float*>(target), static_cast<const float*>(source), single,
                             count);
    case DataType::kFloat64:
      return CopyScaledPlain(static_cast<double*>(target), static_cast<const double*>(source),
                             factor, count);
    case DataType::kInt32:
    case DataType::kInt64:
      break;  // Refused by whoever brings a factor.
  }
}

}  // namespace tfdear
