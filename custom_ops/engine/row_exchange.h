// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#ifndef TFDEAR_ENGINE_ROW_EXCHANGE_H_
#define TFDEAR_ENGINE_ROW_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/engine/collective_backend.h"
#include "custom_ops/engine/signature.h"
#include "custom_ops/engine/status.h"

namespace tfdear {

// Before rows are exchanged, members tell each other how many they bring. What a peer announces is
// checked before memory is sized or offsets are computed by it.

// No machine can address more, so no honest peer announces it, and sums stay far from 2^64.
inline constexpr size_t kMostAnnouncedBytes = size_t{1} << 46;

// The sum of what the members announced, in items of `item_bytes` each; an error, named after
// `what`, if a number is negative or all of them take more than `most_bytes`.
Status CheckedTotal(const std::vector<int64_t>& counts, size_t item_bytes, const std::string& what,
                    size_t* total, size_t most_bytes = kMostAnnouncedBytes);

// The rows that each member gives to this one.
struct ArrivingRows {
  std::vector<int64_t> of_member;
  std::vector<size_t> bytes_of_member;
  size_t total = 0;
};

// For a gather: every member gives its rows to all.
Status AnnounceRows(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    int64_t rows, size_t row_bytes, ArrivingRows* arriving);

// For an exchange: this rank gives splits[r] rows to member r.
Status AnnounceSplits(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                      const std::vector<int64_t>& splits, size_t row_bytes, ArrivingRows* arriving);

// For rows whose length is known at run time only, and must be that of rank 0 everywhere.
Status AnnounceRowsOfLength(CollectiveBackend* backend, const Signature& signature,
                            uint64_t sequence, int64_t rows, size_t row_bytes,
                            ArrivingRows* arriving);

}  // namespace tfdear

#endif  // TFDEAR_ENGINE_ROW_EXCHANGE_H_
