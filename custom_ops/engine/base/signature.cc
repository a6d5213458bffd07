// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/base/signature.h"

namespace tfdear {

std::string DescribeCall(const char* operation, const Signature& signature, uint64_t sequence) {
  return std::string(operation) + " '" + signature.text() + "' (sequence " +
         std::to_string(sequence) + ")";
}

uint64_t MixBits(uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

uint64_t KeyOfCall(const char* operation, const Signature& signature, uint64_t sequence,
                   uint64_t round) {
  const uint64_t name = Signature(operation).hash();
  return MixBits(MixBits(MixBits(signature.hash() ^ name) ^ sequence) ^ round);
}

}  // namespace tfdear
