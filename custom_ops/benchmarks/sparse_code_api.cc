// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// What a sparse exchange does with its pairs besides sending them, as plain C, for benchmarks. All
// memory belongs to the caller; of what a call needs itself, a thread keeps the last one's.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "custom_ops/engine/base/export.h"
#include "custom_ops/engine/compression/sparse_code.h"

extern "C" {

// Codes the pairs of k of d elements, as bfloat16 if that is not 0. Returns the bytes of the code,
// of which `capacity` at most are written.
TFDEAR_EXPORT int64_t tfdear_sparse_encode(const uint32_t* indices, const float* values, int64_t k,
                                           int64_t d, int bfloat16, char* code, int64_t capacity) {
  thread_local std::vector<float> sent;
  thread_local std::vector<char> out;
  sent.assign(values, values + k);
  if (bfloat16) {
    for (float& value : sent) value = tfdear::RoundToBFloat16(value);
  }
  out.clear();
  const auto format = bfloat16 ? tfdear::ValueFormat::kBFloat16 : tfdear::ValueFormat::kFloat32;
  tfdear::EncodeSparse(indices, sent.data(), static_cast<size_t>(k), static_cast<size_t>(d), format,
                       &out);
  const int64_t size = static_cast<int64_t>(out.size());
  std::memcpy(code, out.data(), static_cast<size_t>(std::min(size, capacity)));
  return size;
}

// Decodes pairs and adds them to data[0 .. d). Returns 0, or 1 if `code` is none.
TFDEAR_EXPORT int tfdear_sparse_decode_and_add(const char* code, int64_t size, int64_t d,
                                               float* data) {
  thread_local std::vector<uint32_t> indices;
  thread_local std::vector<float> values;
  const tfdear::Status status = tfdear::DecodeSparse(code, static_cast<size_t>(size),
                                                     static_cast<size_t>(d), &indices, &values);
  if (!status.ok()) return 1;
  for (size_t i = 0; i < indices.size(); ++i) data[indices[i]] += values[i];
  return 0;
}

}  // extern "C"
