// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace tfdear {

// In which order an epoch takes its examples: a permutation of their numbers that depends on the
// seed and the epoch alone, known at every position without those before it, in no memory.
//
// [Note: an order without memory]
// The numbers below rows x columns, a little more than there are examples, are pairs. A round adds
// to one part of the pair a random function of the other, modulo its own range; that can be taken
// back, so it is a permutation of the pairs, and so are all rounds together (a Feistel network).
// A pair that is no example's number goes through the rounds again until it is one: as on a cycle
// of the permutation, no two examples end in the same place, and the walk ends, since the cycle
// leads back to where it began.
// Reference: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002), sections 4
// and 5.
class ExampleOrder {
 public:
  // `examples`: their number, below 2^62.
  ExampleOrder(uint64_t seed, uint64_t epoch, uint64_t examples);

  // The number of the example at a position, both below the number of examples.
  uint64_t At(uint64_t position) const;

 private:
  static constexpr int kRounds = 8;

  uint64_t Permuted(uint64_t number) const;

  const uint64_t examples_;
  uint64_t rows_ = 1;
  uint64_t columns_ = 1;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace tfdear
