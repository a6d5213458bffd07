// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#ifndef TFDEAR_ENGINE_COLLECTIVE_CALL_H_
#define TFDEAR_ENGINE_COLLECTIVE_CALL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "custom_ops/engine/data_type.h"
#include "custom_ops/engine/shard.h"
#include "custom_ops/engine/signature.h"
#include "custom_ops/engine/status.h"

namespace tfdear {

// What every backend does with its arguments and those of a collective: checks, names, byte ranges.

Status CheckMembership(int rank, int size, std::chrono::milliseconds timeout);
Status CheckElements(const void* data, size_t count, DataType type);
Status CheckRoot(int root, int size);
Status CheckLength(const char* name, size_t length, int size);
// Of AllToAllV: a rank sends itself what it receives from itself.
Status CheckExchange(const std::vector<size_t>& send_bytes, const std::vector<size_t>& recv_bytes,
                     int rank, int size);

// Checks the arguments of a sum or a gather and converts its shards to ranges of bytes.
Status ToByteRanges(const void* data, const std::vector<Range>& shards, DataType type, int size,
                    std::vector<Range>* byte_ranges);

// Ranges of these sizes, one after another.
std::vector<Range> ConsecutiveRanges(const std::vector<size_t>& sizes);
size_t TotalOf(const std::vector<Range>& ranges);

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

#endif  // TFDEAR_ENGINE_COLLECTIVE_CALL_H_
