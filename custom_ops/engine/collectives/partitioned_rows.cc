// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/partitioned_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace tfdear {
namespace {

// A row number on the wire: no table has more rows than that.
using RowNumber = int32_t;

// What a rank sends: blocks for the ranks in their order, and how many rows each has.
struct Outgoing {
  std::vector<int64_t> rows;
  std::vector<RowNumber> numbers;  // By columns, all ranks get the same ones, which are here once.
  std::vector<char> values;
};

Status PackNumbers(const int64_t* indices, int64_t count, const std::string& text,
                   std::vector<RowNumber>* numbers) {
  numbers->reserve(count);
  for (int64_t i = 0; i < count; ++i) {
    if (indices[i] < 0 || indices[i] > std::numeric_limits<RowNumber>::max()) {
      return InvalidArgument(text, ": row ", indices[i], " is in no table");
    }
    numbers->push_back(static_cast<RowNumber>(indices[i]));
  }
  return Status();
}

Outgoing PackRows(const std::vector<RowNumber>& numbers, const Rows& values, int size) {
  Outgoing outgoing;
  outgoing.rows.assign(size, 0);
  for (const RowNumber number : numbers) ++outgoing.rows[number % size];
  std::vector<size_t> next(size, 0);
  for (int rank = 1; rank < size; ++rank) next[rank] = next[rank - 1] + outgoing.rows[rank - 1];
  outgoing.numbers.resize(numbers.size());
  outgoing.values.resize(numbers.size() * values.row_bytes);
  const char* row = static_cast<const char*>(values.data);
  for (const RowNumber number : numbers) {
    const size_t place = next[number % size]++;
    outgoing.numbers[place] = number;
    std::copy_n(row, values.row_bytes, outgoing.values.data() + place * values.row_bytes);
    row += values.row_bytes;
  }
  return outgoing;
}

std::vector<char> PackColumns(const Rows& values, const TablePartition& partition,
                              size_t element_bytes) {
  std::vector<char> blocks(values.count * values.row_bytes);
  char* target = blocks.data();
  for (size_t rank = 0; rank + 1 < partition.column_begins.size(); ++rank) {
    const size_t begin = partition.column_begins[rank] * element_bytes;
    const size_t bytes = partition.column_begins[rank + 1] * element_bytes - begin;
    const char* source = static_cast<const char*>(values.data) + begin;
    for (int64_t i = 0; i < values.count; ++i, target += bytes, source += values.row_bytes) {
      std::copy_n(source, bytes, target);
    }
  }
  return blocks;
}

}  // namespace

std::string TablePartition::Describe() const {
  if (by_row()) return "by rows";
  std::string text = "by columns";
  for (int64_t begin : column_begins) text += " " + std::to_string(begin);
  return text;
}

Status ExchangePartitionedRows(CollectiveBackend* backend, const Signature& signature,
                               uint64_t sequence, const TablePartition& partition,
                               const int64_t* indices, const Rows& values,
                               const AllocateIndexedRows& allocate) {
  const std::string text = signature.text() + " " + partition.Describe();
  const int size = backend->size();
  const int rank = backend->rank();
  std::vector<RowNumber> numbers;
  TFDEAR_RETURN_IF_ERROR(PackNumbers(indices, values.count, text, &numbers));
  Outgoing outgoing;
  if (partition.by_row()) {
    outgoing = PackRows(numbers, values, size);
  } else {
    outgoing.rows.assign(size, values.count);
    outgoing.numbers = std::move(numbers);
  }

  std::vector<int64_t> announced, counts;
  std::vector<int64_t> own = outgoing.rows;
  own.push_back(static_cast<int64_t>(values.row_bytes));
  TFDEAR_RETURN_IF_ERROR(
      AnnounceNumbers(backend, Signature(text + " counts"), sequence, own, &announced));
  for (int peer = 0; peer < size; ++peer) {
    const int64_t row_bytes = announced[peer * own.size() + size];
    if (row_bytes != announced[size]) {
      return InvalidArgument(text, ": rank 0 of the process group sent rows of ", announced[size],
                             " bytes, rank ", peer, " rows of ", row_bytes,
                             "; all ranks must build the table with the same `output_dim`");
    }
    counts.push_back(announced[peer * own.size() + rank]);
  }
  size_t element_bytes = 1, kept_bytes = values.row_bytes;
  if (!partition.by_row()) {
    const int64_t columns = std::max<int64_t>(partition.column_begins.back(), 1);
    element_bytes = values.row_bytes / columns;
    if (element_bytes * columns != values.row_bytes) {
      return InvalidArgument(text, ": rows of ", values.row_bytes, " bytes do not have ", columns,
                             " columns");
    }
    kept_bytes =
        (partition.column_begins[rank + 1] - partition.column_begins[rank]) * element_bytes;
    outgoing.values = PackColumns(values, partition, element_bytes);
  }

  size_t total = 0;
  TFDEAR_RETURN_IF_ERROR(CheckedTotal(counts, std::max(kept_bytes, sizeof(int64_t)), text, &total));
  void* all_indices = nullptr;
  void* all_values = nullptr;
  TFDEAR_RETURN_IF_ERROR(allocate(total, &all_indices, &all_values));

  std::vector<RowNumber> all_numbers(total);
  const Signature of_numbers(text + " numbers");
  if (partition.by_row()) {
    TFDEAR_RETURN_IF_ERROR(backend->AllToAllV(
        outgoing.numbers.data(), BytesOf(outgoing.rows, sizeof(RowNumber)), all_numbers.data(),
        BytesOf(counts, sizeof(RowNumber)), of_numbers, sequence));
  } else {
    TFDEAR_RETURN_IF_ERROR(backend->AllGatherV(outgoing.numbers.data(), all_numbers.data(),
                                               BytesOf(counts, sizeof(RowNumber)), of_numbers,
                                               sequence));
  }
  std::copy(all_numbers.begin(), all_numbers.end(), static_cast<int64_t*>(all_indices));

  std::vector<size_t> sent = BytesOf(outgoing.rows, values.row_bytes);
  if (!partition.by_row()) {
    for (int peer = 0; peer < size; ++peer) {
      sent[peer] = values.count * element_bytes *
                   (partition.column_begins[peer + 1] - partition.column_begins[peer]);
    }
  }
  return backend->AllToAllV(outgoing.values.data(), sent, all_values, BytesOf(counts, kept_bytes),
                            Signature(text + " values"), sequence);
}

}  // namespace tfdear
