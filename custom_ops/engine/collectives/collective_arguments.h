// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/collectives/pieces.h"

namespace tfdear {

// What every backend does with the arguments of a collective: checks and byte ranges.

Status CheckElements(const void* data, size_t count, DataType type);
Status CheckRoot(int root, int size);
Status CheckLength(const char* name, size_t length, int size);
// Of AllToAllV: a rank sends itself what it receives from itself.
Status CheckExchange(const std::vector<size_t>& send_bytes, const std::vector<size_t>& recv_bytes,
                     int rank, int size);

Status CheckPieces(const std::vector<OutgoingPieces>& sends,
                   const std::vector<IncomingPieces>& receives, int rank, int size);

// Checks the arguments of a sum or a gather and converts its shards to ranges of bytes.
Status ToByteRanges(const void* data, const std::vector<Range>& shards, DataType type, int size,
                    std::vector<Range>* byte_ranges);

// Ranges of these sizes, one after another.
std::vector<Range> ConsecutiveRanges(const std::vector<size_t>& sizes);
size_t TotalOf(const std::vector<Range>& ranges);

}  // namespace tfdear
