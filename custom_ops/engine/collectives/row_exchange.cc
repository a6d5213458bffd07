// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/row_exchange.h"

#include <algorithm>
#include <cstring>

#include "custom_ops/engine/base/shard.h"

namespace tfdear {
namespace {

// Also of rows without bytes: their number becomes a dimension and sizes their indices.
Status TotalRows(const std::vector<int64_t>& counts, size_t row_bytes, const Signature& signature,
                 size_t* total) {
  return CheckedTotal(counts, std::max(row_bytes, sizeof(int64_t)), signature.text(), total);
}

Status Announce(CollectiveBackend* backend, const Signature& signature, const char* what,
                uint64_t sequence, const std::vector<int64_t>& numbers, std::vector<int64_t>* all) {
  return AnnounceNumbers(backend, Signature(signature.text() + what), sequence, numbers, all);
}

}  // namespace

std::vector<size_t> BytesOf(const std::vector<int64_t>& counts, size_t item_bytes) {
  std::vector<size_t> bytes;
  for (int64_t count : counts) bytes.push_back(static_cast<size_t>(count) * item_bytes);
  return bytes;
}

Status AnnounceNumbers(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                       const std::vector<int64_t>& numbers, std::vector<int64_t>* all) {
  all->assign(backend->size() * numbers.size(), 0);
  std::copy(numbers.begin(), numbers.end(), all->begin() + backend->rank() * numbers.size());
  return backend->AllGather(all->data(), all->size(), DataType::kInt64, signature, sequence);
}

Status CheckedTotal(const std::vector<int64_t>& counts, size_t item_bytes, const std::string& what,
                    size_t* total, size_t most_bytes) {
  const size_t most = most_bytes / std::max<size_t>(item_bytes, 1);
  size_t sum = 0;
  for (size_t member = 0; member < counts.size(); ++member) {
    if (counts[member] < 0 || static_cast<uint64_t>(counts[member]) > most - sum) {
      return Internal(what, ": member ", member, " of the process group announced ", counts[member],
                      " items of ", item_bytes, " bytes, expected 0 to ", most - sum,
                      "; it may run another version of tfdear, or its memory is damaged");
    }
    sum += static_cast<size_t>(counts[member]);
  }
  *total = sum;
  return Status();
}

Status AllGatherRows(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                     const Rows& rows, const AllocateRows& allocate) {
  std::vector<int64_t> counts;
  size_t total = 0;
  void* result = nullptr;
  TFDEAR_RETURN_IF_ERROR(Announce(backend, signature, " rows", sequence, {rows.count}, &counts));
  TFDEAR_RETURN_IF_ERROR(TotalRows(counts, rows.row_bytes, signature, &total));
  TFDEAR_RETURN_IF_ERROR(allocate(total, &result));
  return backend->AllGatherV(rows.data, result, BytesOf(counts, rows.row_bytes), signature,
                             sequence);
}

Status ReduceScatterRows(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                         const Rows& rows, DataType type, const AllocateRows& allocate) {
  // Blocks of equal size, so that the backend's shards are whole rows: block r holds the rows that
  // rank r gets.
  const int size = backend->size();
  const size_t count = static_cast<size_t>(rows.count);
  const size_t block_bytes = (count + size - 1) / size * rows.row_bytes;
  const char* const input = static_cast<const char*>(rows.data);
  std::vector<char> blocks(block_bytes * size, 0);
  for (int r = 0; r < size; ++r) {
    const Range range = ShardOf(count, r, size);
    std::copy(input + range.begin * rows.row_bytes, input + range.end * rows.row_bytes,
              blocks.begin() + r * block_bytes);
  }
  TFDEAR_RETURN_IF_ERROR(backend->ReduceScatter(blocks.data(), blocks.size() / SizeOf(type), type,
                                                signature, sequence));
  const Range mine = ShardOf(count, backend->rank(), size);
  void* result = nullptr;
  TFDEAR_RETURN_IF_ERROR(allocate(mine.size(), &result));
  std::copy_n(blocks.begin() + backend->rank() * block_bytes, mine.size() * rows.row_bytes,
              static_cast<char*>(result));
  return Status();
}

Status AllToAllRows(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    const Rows& rows, const std::vector<int64_t>& splits,
                    std::vector<int64_t>* received_splits, const AllocateRows& allocate) {
  // Everyone learns the splits of all: one small all-gather instead of P messages.
  std::vector<int64_t> table;
  size_t total = 0;
  void* result = nullptr;
  TFDEAR_RETURN_IF_ERROR(Announce(backend, signature, " splits", sequence, splits, &table));
  received_splits->clear();
  for (size_t to_here = backend->rank(); to_here < table.size(); to_here += splits.size()) {
    received_splits->push_back(table[to_here]);
  }
  TFDEAR_RETURN_IF_ERROR(TotalRows(*received_splits, rows.row_bytes, signature, &total));
  TFDEAR_RETURN_IF_ERROR(allocate(total, &result));
  return backend->AllToAllV(rows.data, BytesOf(splits, rows.row_bytes), result,
                            BytesOf(*received_splits, rows.row_bytes), signature, sequence);
}

Status AllGatherIndexedRows(CollectiveBackend* backend, const Signature& signature,
                            uint64_t sequence, const void* indices, const Rows& values,
                            const AllocateIndexedRows& allocate) {
  std::vector<int64_t> counts;
  int64_t total = 0;
  TFDEAR_RETURN_IF_ERROR(
      AnnounceIndexedRows(backend, signature, sequence, values, &counts, &total));
  return GatherAnnouncedRows(backend, signature, sequence, indices, values, counts, allocate);
}

Status AnnounceIndexedRows(CollectiveBackend* backend, const Signature& signature,
                           uint64_t sequence, const Rows& values, std::vector<int64_t>* counts,
                           int64_t* total) {
  std::vector<int64_t> announced;
  TFDEAR_RETURN_IF_ERROR(Announce(backend, signature, " counts", sequence,
                                  {values.count, static_cast<int64_t>(values.row_bytes)},
                                  &announced));
  counts->clear();
  for (size_t r = 0; 2 * r < announced.size(); ++r) {
    if (announced[2 * r + 1] != announced[1]) {
      return InvalidArgument(
          signature.text(), ": rank 0 of the process group sent rows of ", announced[1],
          " bytes, rank ", r, " rows of ", announced[2 * r + 1],
          "; the shape of a sparse gradient may differ between ranks in its first "
          "dimension only");
    }
    counts->push_back(announced[2 * r]);
  }
  size_t rows = 0;
  TFDEAR_RETURN_IF_ERROR(TotalRows(*counts, values.row_bytes, signature, &rows));
  *total = static_cast<int64_t>(rows);
  return Status();
}

Status GatherAnnouncedRows(CollectiveBackend* backend, const Signature& signature,
                           uint64_t sequence, const void* indices, const Rows& values,
                           const std::vector<int64_t>& counts,
                           const AllocateIndexedRows& allocate) {
  const std::string& text = signature.text();
  size_t total = 0;
  void* all_indices = nullptr;
  void* all_values = nullptr;
  TFDEAR_RETURN_IF_ERROR(TotalRows(counts, values.row_bytes, signature, &total));
  TFDEAR_RETURN_IF_ERROR(allocate(total, &all_indices, &all_values));
  TFDEAR_RETURN_IF_ERROR(backend->AllGatherV(indices, all_indices, BytesOf(counts, sizeof(int64_t)),
                                             Signature(text + " indices"), sequence));
  return backend->AllGatherV(values.data, all_values, BytesOf(counts, values.row_bytes),
                             Signature(text + " values"), sequence);
}

}  // namespace tfdear
