// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/row_exchange.h"

#include <algorithm>

namespace tfdear {
namespace {

Status SizeUp(const std::string& what, size_t row_bytes, ArrivingRows* arriving) {
  // Also of rows without bytes: their number becomes a dimension and sizes their indices.
  TFDEAR_RETURN_IF_ERROR(CheckedTotal(arriving->of_member, std::max(row_bytes, sizeof(int64_t)),
                                      what, &arriving->total));
  arriving->bytes_of_member.clear();
  for (int64_t rows : arriving->of_member) {
    arriving->bytes_of_member.push_back(static_cast<size_t>(rows) * row_bytes);
  }
  return Status();
}

}  // namespace

Status CheckedTotal(const std::vector<int64_t>& counts, size_t item_bytes, const std::string& what,
                    size_t* total, size_t most_bytes) {
  const size_t most = most_bytes / std::max<size_t>(item_bytes, 1);
  size_t sum = 0;
  for (size_t member = 0; member < counts.size(); ++member) {
    if (counts[member] < 0 || static_cast<uint64_t>(counts[member]) > most - sum) {
      return Status(StatusCode::kInternal,
                    what + ": member " + std::to_string(member) +
                        " of the process group announced " + std::to_string(counts[member]) +
                        " items of " + std::to_string(item_bytes) + " bytes, expected 0 to " +
                        std::to_string(most - sum) +
                        "; it may run another version of tfdear, or its memory is damaged");
    }
    sum += static_cast<size_t>(counts[member]);
  }
  *total = sum;
  return Status();
}

Status AnnounceRows(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    int64_t rows, size_t row_bytes, ArrivingRows* arriving) {
  arriving->of_member.assign(backend->size(), 0);
  arriving->of_member[backend->rank()] = rows;
  TFDEAR_RETURN_IF_ERROR(backend->AllGather(arriving->of_member.data(), arriving->of_member.size(),
                                            DataType::kInt64, Signature(signature.text() + " rows"),
                                            sequence));
  return SizeUp(signature.text(), row_bytes, arriving);
}

Status AnnounceSplits(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                      const std::vector<int64_t>& splits, size_t row_bytes,
                      ArrivingRows* arriving) {
  // Everyone learns the whole table of rows: one small all-gather instead of P messages.
  const size_t size = splits.size();
  std::vector<int64_t> table(size * size, 0);
  std::copy(splits.begin(), splits.end(), table.begin() + backend->rank() * size);
  TFDEAR_RETURN_IF_ERROR(backend->AllGather(table.data(), table.size(), DataType::kInt64,
                                            Signature(signature.text() + " splits"), sequence));
  arriving->of_member.clear();
  for (size_t member = 0; member < size; ++member) {
    arriving->of_member.push_back(table[member * size + backend->rank()]);
  }
  return SizeUp(signature.text(), row_bytes, arriving);
}

Status AnnounceRowsOfLength(CollectiveBackend* backend, const Signature& signature,
                            uint64_t sequence, int64_t rows, size_t row_bytes,
                            ArrivingRows* arriving) {
  const int size = backend->size();
  // Of each rank: its rows, and their length, because rows of two lengths must not be put together.
  std::vector<int64_t> facts(2 * size, 0);
  facts[2 * backend->rank()] = rows;
  facts[2 * backend->rank() + 1] = static_cast<int64_t>(row_bytes);
  TFDEAR_RETURN_IF_ERROR(backend->AllGather(facts.data(), facts.size(), DataType::kInt64,
                                            Signature(signature.text() + " counts"), sequence));
  arriving->of_member.clear();
  for (int r = 0; r < size; ++r) {
    if (facts[2 * r + 1] != facts[1]) {
      return Status(StatusCode::kInvalidArgument,
                    signature.text() + ": rank 0 of the process group sent rows of " +
                        std::to_string(facts[1]) + " bytes, rank " + std::to_string(r) +
                        " rows of " + std::to_string(facts[2 * r + 1]) +
                        "; the shape of a sparse gradient may differ between ranks in its first "
                        "dimension only");
    }
    arriving->of_member.push_back(facts[2 * r]);
  }
  return SizeUp(signature.text(), row_bytes, arriving);
}

}  // namespace tfdear
