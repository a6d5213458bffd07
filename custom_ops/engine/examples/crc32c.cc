// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tfdear {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // With its bits in reverse.

std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}

uint32_t ByTable(const unsigned char* bytes, size_t count, uint32_t crc) {
  static const std::array<uint32_t, 256> table = MakeTable();
  for (size_t i = 0; i < count; ++i) crc = (crc >> 8) ^ table[(crc ^ bytes[i]) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t ByInstruction(const unsigned char* bytes, size_t count,
                                                         uint32_t crc) {
  uint64_t wide = crc;
  for (; count >= sizeof(uint64_t); count -= sizeof(uint64_t), bytes += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, bytes, sizeof(word));
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; count > 0; --count, ++bytes) crc = _mm_crc32_u8(crc, *bytes);
  return crc;
}
#endif

}  // namespace

uint32_t Crc32c(const void* bytes, size_t count) {
  const auto* const first = static_cast<const unsigned char*>(bytes);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~ByInstruction(first, count, ~uint32_t{0});
#endif
  return ~ByTable(first, count, ~uint32_t{0});
}

}  // namespace tfdear
