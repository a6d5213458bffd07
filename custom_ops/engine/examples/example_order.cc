// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_order.h"

#include <cmath>

namespace tfdear {
namespace {

// The step of SplitMix64, and what it makes of a state: every bit depends on all bits.
constexpr uint64_t kStep = 0x9e3779b97f4a7c15;

uint64_t Mixed(uint64_t state) {
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
  state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
  return state ^ (state >> 31);
}

// A number below `range` from one of 64 random bits, without a division.
uint64_t Below(uint64_t range, uint64_t bits) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * range) >> 64);
}

}  // namespace

ExampleOrder::ExampleOrder(uint64_t seed, uint64_t epoch, uint64_t examples) : examples_(examples) {
  if (examples > 1) {
    rows_ = static_cast<uint64_t>(std::sqrt(static_cast<double>(examples)));
    columns_ = (examples + rows_ - 1) / rows_;
  }
  // Seeds and epochs next to each other have nothing in common after this.
  uint64_t state = Mixed(Mixed(seed + kStep) + epoch + kStep);
  for (uint64_t& key : keys_) key = Mixed(state += kStep);
}

uint64_t ExampleOrder::Permuted(uint64_t number) const {
  uint64_t row = number % rows_;
  uint64_t column = number / rows_;
  for (int round = 0; round < kRounds; round += 2) {
    row += Below(rows_, Mixed(keys_[round] + column * kStep));
    if (row >= rows_) row -= rows_;
    column += Below(columns_, Mixed(keys_[round + 1] + row * kStep));
    if (column >= columns_) column -= columns_;
  }
  return column * rows_ + row;
}

uint64_t ExampleOrder::At(uint64_t position) const {
  do {
    position = Permuted(position);
  } while (position >= examples_);
  return position;
}

}  // namespace tfdear
