// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/collectives/collective_backend.h"

namespace tfdear {

// Collectives on rows: tensors whose first dimension may differ between the ranks. Before rows are
// exchanged, members tell each other how many they bring. What a peer announces is checked before
// memory is sized or offsets are computed by it.

// No machine can address more, so no honest peer announces it, and sums stay far from 2^64.
inline constexpr size_t kMostAnnouncedBytes = size_t{1} << 46;

// The sum of what the members announced, in items of `item_bytes` each; an error, named after
// `what`, if a number is negative or all of them take more than `most_bytes`.
Status CheckedTotal(const std::vector<int64_t>& counts, size_t item_bytes, const std::string& what,
                    size_t* total, size_t most_bytes = kMostAnnouncedBytes);

// How many bytes the items of each member take.
std::vector<size_t> BytesOf(const std::vector<int64_t>& counts, size_t item_bytes);

// The numbers of all ranks, who bring equally many, one after another.
Status AnnounceNumbers(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                       const std::vector<int64_t>& numbers, std::vector<int64_t>* all);

// This rank's rows, one after another.
struct Rows {
  const void* data = nullptr;
  int64_t count = 0;
  size_t row_bytes = 0;  // Equal on all ranks.
};

// Gives memory for the result, once its rows are counted.
using AllocateRows = std::function<Status(size_t rows, void** memory)>;

// The result is the rows of all ranks, in the order of the ranks.
Status AllGatherRows(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                     const Rows& rows, const AllocateRows& allocate);

// All ranks bring equally many rows. The result is this rank's part, by ShardOf(), of their sum.
Status ReduceScatterRows(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                         const Rows& rows, DataType type, const AllocateRows& allocate);

// splits[r] rows go to rank r, in the order of the ranks; the splits add up to the rows. The result
// is what the ranks sent to this one, received_splits[r] rows from rank r.
Status AllToAllRows(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    const Rows& rows, const std::vector<int64_t>& splits,
                    std::vector<int64_t>* received_splits, const AllocateRows& allocate);

// AllGatherRows() for a sparse gradient, each row with an index. The length of a row is compared:
// it is known at run time only, and rows of two lengths must not be put together.
using AllocateIndexedRows = std::function<Status(size_t rows, void** indices, void** values)>;
Status AllGatherIndexedRows(CollectiveBackend* backend, const Signature& signature,
                            uint64_t sequence, const void* indices, const Rows& values,
                            const AllocateIndexedRows& allocate);
// Its two halves: what each rank brings, and how many rows that is in all; then the rows.
Status AnnounceIndexedRows(CollectiveBackend* backend, const Signature& signature,
                           uint64_t sequence, const Rows& values, std::vector<int64_t>* counts,
                           int64_t* total);
Status GatherAnnouncedRows(CollectiveBackend* backend, const Signature& signature,
                           uint64_t sequence, const void* indices, const Rows& values,
                           const std::vector<int64_t>& counts, const AllocateIndexedRows& allocate);

}  // namespace tfdear
