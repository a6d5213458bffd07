// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

namespace tfdear {

// What a collective is, in words: for example "all_reduce gradients/bucket_3 float32[1000]". Its
// hash is part of every message's address, so two ranks that call different collectives wait for
// each other (and are told so) and never add up bytes that do not belong together.
class Signature {
 public:
  // `details`: more about it, a line each, for messages only.
  explicit Signature(std::string text, std::shared_ptr<const std::string> details = nullptr)
      : text_(std::move(text)), hash_(HashOf(text_)), details_(std::move(details)) {}

  const std::string& text() const { return text_; }
  const std::shared_ptr<const std::string>& details() const { return details_; }
  uint64_t hash() const { return hash_; }

 private:
  // FNV-1a: the same on every machine and compiler, which std::hash does not promise.
  static uint64_t HashOf(const std::string& text) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (unsigned char character : text) hash = (hash ^ character) * 0x100000001b3ull;
    return hash;
  }

  std::string text_;
  uint64_t hash_;
  std::shared_ptr<const std::string> details_;
};

// "all_reduce 'text' (sequence 3)", for messages.
std::string DescribeCall(const char* operation, const Signature& signature, uint64_t sequence);

// Finaliser of splitmix64: every bit of the input changes half of the output's.
uint64_t MixBits(uint64_t value);

// The same on all ranks for the same call, another for any other call. `round` as in RoundCounter.
uint64_t KeyOfCall(const char* operation, const Signature& signature, uint64_t sequence,
                   uint64_t round);

// Tells calls with equal signature and sequence apart: counts those in a row with one sequence.
class RoundCounter {
 public:
  uint64_t Next(uint64_t sequence) {
    round_ = sequence == last_sequence_ ? round_ + 1 : 0;
    last_sequence_ = sequence;
    return round_;
  }

 private:
  uint64_t last_sequence_ = std::numeric_limits<uint64_t>::max();
  uint64_t round_ = 0;
};

}  // namespace tfdear
