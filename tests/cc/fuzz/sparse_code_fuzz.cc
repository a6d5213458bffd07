// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Bytes of a peer as coded sparse gradients: refused, or ascending indices that fit. And whatever
// is encoded comes back.

#include <vector>

#include "custom_ops/engine/compression/sparse_code.h"
#include "tests/cc/fuzz/fuzzing.h"

namespace tfdear {
namespace {

struct Pairs {
  std::vector<uint32_t> indices;
  std::vector<float> values;
};

void CheckIndices(const Pairs& pairs, uint64_t d) {
  TFDEAR_FUZZ_CHECK(pairs.indices.size() == pairs.values.size());
  for (size_t i = 0; i < pairs.indices.size(); ++i) {
    TFDEAR_FUZZ_CHECK(pairs.indices[i] < d);
    TFDEAR_FUZZ_CHECK(i == 0 || pairs.indices[i - 1] < pairs.indices[i]);
  }
}

void RoundTrip(const Pairs& pairs, uint64_t d, ValueFormat format) {
  const size_t k = pairs.indices.size();
  std::vector<char> code;
  EncodeSparse(pairs.indices.data(), pairs.values.data(), k, d, format, &code);
  TFDEAR_FUZZ_CHECK(code.size() <= SparseCodeBound(k, d, format));
  Pairs decoded;
  TFDEAR_FUZZ_CHECK(
      DecodeSparse(code.data(), code.size(), d, &decoded.indices, &decoded.values).ok());
  std::vector<float> expected = pairs.values;
  if (format == ValueFormat::kBFloat16) {
    for (float& value : expected) value = RoundToBFloat16(value);
  }
  TFDEAR_FUZZ_CHECK(decoded.indices == pairs.indices && decoded.values.size() == k);
  TFDEAR_FUZZ_CHECK(k == 0 ||
                    std::memcmp(decoded.values.data(), expected.data(), k * sizeof(float)) == 0);
}

}  // namespace
}  // namespace tfdear

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfdear;
  FuzzInput input(data, size);
  const uint8_t mode = input.Take<uint8_t>();
  const auto format = (mode & 1) != 0 ? ValueFormat::kBFloat16 : ValueFormat::kFloat32;
  Pairs pairs;
  if ((mode & 2) != 0) {
    // Gaps and values.
    uint64_t next = 0;
    while (input.size() > 0) {
      next += (mode & 4) != 0 ? input.Take<uint32_t>() : input.Take<uint8_t>();
      if (next > UINT32_MAX) break;
      pairs.indices.push_back(static_cast<uint32_t>(next++));
      pairs.values.push_back(0);
      const uint32_t bits = (mode & 8) != 0 ? input.Take<uint32_t>() : input.Take<uint8_t>() << 23;
      std::memcpy(&pairs.values.back(), &bits, sizeof(bits));
    }
    const uint64_t last = pairs.indices.empty() ? 0 : uint64_t{pairs.indices.back()} + 1;
    RoundTrip(pairs, last + (mode >> 4), format);
    return 0;
  }
  const uint64_t d = uint64_t{input.Take<uint32_t>()} + (mode >> 4);
  if (DecodeSparse(input.data(), input.size(), d, &pairs.indices, &pairs.values).ok()) {
    CheckIndices(pairs, d);
    RoundTrip(pairs, d, format);
  }
  return 0;
}
