// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/partitioned_rows.h"

#include <algorithm>
#include <limits>

namespace tfdear {
namespace {

// A row number on the wire: no table has more rows than that.
using RowNumber = int32_t;

// What one rank has for another, of one table: rows, and which of their bytes.
struct Block {
  std::vector<int64_t> rows;  // By column everybody gets all rows, and this is empty.
  int64_t count = 0;
  size_t begin = 0;
  size_t bytes = 0;

  size_t size(bool numbered) const { return count * (bytes + (numbered ? sizeof(RowNumber) : 0)); }
};

// The blocks of one table for all ranks.
Status BlocksOf(const PartitionedRows& table, int size, const std::string& text,
                std::vector<Block>* blocks) {
  blocks->assign(size, Block());
  const auto& begins = table.partition->column_begins;
  size_t element_bytes = 0;
  if (!table.partition->by_row()) {
    const size_t columns = static_cast<size_t>(std::max<int64_t>(begins.back(), 1));
    element_bytes = table.values.row_bytes / columns;
    if (static_cast<int>(begins.size()) != size + 1 ||
        element_bytes * columns != table.values.row_bytes) {
      return InvalidArgument(text, ": rows of ", table.values.row_bytes, " bytes do not have the ",
                             columns, " columns of a table ", table.partition->Describe());
    }
  }
  for (int rank = 0; rank < size; ++rank) {
    Block& block = (*blocks)[rank];
    block.count = table.partition->by_row() ? 0 : table.values.count;
    block.begin = table.partition->by_row() ? 0 : begins[rank] * element_bytes;
    block.bytes = table.partition->by_row() ? table.values.row_bytes
                                            : (begins[rank + 1] - begins[rank]) * element_bytes;
  }
  for (int64_t i = 0; i < table.values.count; ++i) {
    const int64_t number = table.numbers[i];
    if (number < 0 || number > std::numeric_limits<RowNumber>::max()) {
      return InvalidArgument(text, ": row ", number, " is in no table");
    }
    if (!table.partition->by_row()) continue;
    Block& block = (*blocks)[number % size];
    block.rows.push_back(i);
    ++block.count;
  }
  return Status();
}

// Puts down a block: the numbers of its rows, unless they are known, then the bytes of each.
// Returns where it ends.
char* Pack(const PartitionedRows& table, const Block& block, char* to) {
  const bool numbered = table.known == nullptr;
  auto row = [&](int64_t i) { return block.rows.empty() ? i : block.rows[i]; };
  for (int64_t i = 0; numbered && i < block.count; ++i) {
    const auto number = static_cast<RowNumber>(table.numbers[row(i)]);
    to = std::copy_n(reinterpret_cast<const char*>(&number), sizeof(number), to);
  }
  const char* const values = static_cast<const char*>(table.values.data) + block.begin;
  for (int64_t i = 0; i < block.count; ++i) {
    to = std::copy_n(values + row(i) * table.values.row_bytes, block.bytes, to);
  }
  return to;
}

// The ids of `peer` of which `rank` holds a part.
std::vector<RowNumber> KnownNumbers(const PartitionedRows& table, int peer, int rank, int size) {
  const IdsOfRanks& known = *table.known;
  const int32_t* ids = known.ids;
  for (int before = 0; before < peer; ++before) ids += known.counts[before];
  std::vector<RowNumber> numbers;
  for (int64_t i = 0; i < known.counts[peer]; ++i) {
    if (!table.partition->by_row() || ids[i] % size == rank) numbers.push_back(ids[i]);
  }
  return numbers;
}

// Takes a block apart, behind those of the ranks before. `known`: its numbers, if they are.
const char* Unpack(const char* packed, int64_t count, size_t bytes,
                   const std::vector<RowNumber>* known, int64_t** numbers, char** values) {
  if (known != nullptr) *numbers = std::copy(known->begin(), known->end(), *numbers);
  for (int64_t i = 0; known == nullptr && i < count; ++i, packed += sizeof(RowNumber)) {
    RowNumber number = 0;
    std::copy_n(packed, sizeof(number), reinterpret_cast<char*>(&number));
    *(*numbers)++ = number;
  }
  *values = std::copy_n(packed, count * bytes, *values);
  return packed + count * bytes;
}

}  // namespace

const int32_t* GatheredIds::Of(int rank) const {
  const int32_t* begin = ids.data();
  for (int before = 0; before < rank; ++before) begin += counts[before];
  return begin;
}

std::pair<GatheredIds, GatheredIds> GatheredIds::Split(
    const std::unordered_set<int32_t>& set) const {
  std::pair<GatheredIds, GatheredIds> parts;
  const int32_t* next = ids.data();
  for (int64_t count : counts) {
    const size_t before = parts.first.ids.size();
    for (int64_t i = 0; i < count; ++i, ++next) {
      (set.count(*next) > 0 ? parts.first : parts.second).ids.push_back(*next);
    }
    parts.first.counts.push_back(static_cast<int64_t>(parts.first.ids.size() - before));
    parts.second.counts.push_back(count - parts.first.counts.back());
  }
  return parts;
}

std::string TablePartition::Describe() const {
  if (by_row()) return "by rows";
  std::string text = "by columns";
  for (int64_t begin : column_begins) text += " " + std::to_string(begin);
  return text;
}

Status ExchangePartitionedRows(CollectiveBackend* backend, const Signature& signature,
                               uint64_t sequence, const std::vector<PartitionedRows>& tables,
                               FusionBufferPool* pool) {
  const std::string& text = signature.text();
  const int size = backend->size();
  const int rank = backend->rank();
  std::vector<std::vector<Block>> blocks(tables.size());
  std::vector<int64_t> own;  // Of each table, the length of a row and the rows for every rank.
  bool all_known = true;
  for (size_t t = 0; t < tables.size(); ++t) {
    TFDEAR_RETURN_IF_ERROR(BlocksOf(tables[t], size, text, &blocks[t]));
    const IdsOfRanks* const known = tables[t].known;
    all_known = all_known && known != nullptr;
    if (known != nullptr && known->counts[rank] != tables[t].values.count) {
      return Internal(text, ": ", tables[t].values.count, " rows of table ", t, " for the ",
                      known->counts[rank], " ids that were looked up");
    }
    own.push_back(static_cast<int64_t>(tables[t].values.row_bytes));
    for (const Block& block : blocks[t]) own.push_back(block.count);
  }
  std::vector<int64_t> all;
  if (!all_known) {
    TFDEAR_RETURN_IF_ERROR(
        AnnounceNumbers(backend, Signature(text + " counts"), sequence, own, &all));
  }

  std::vector<size_t> sent(size, 0), received(size, 0);
  size_t packed_bytes = 0;
  for (size_t t = 0; t < tables.size(); ++t) {
    for (const Block& block : blocks[t]) packed_bytes += block.size(tables[t].known == nullptr);
  }
  std::shared_ptr<FusionBuffer> packed, incoming;
  TFDEAR_RETURN_IF_ERROR(pool->Take(packed_bytes, &packed));
  char* to = packed->data();
  for (int peer = 0; peer < size; ++peer) {
    const char* const begin = to;
    for (size_t t = 0; t < tables.size(); ++t) to = Pack(tables[t], blocks[t][peer], to);
    sent[peer] = static_cast<size_t>(to - begin);
  }
  // How many rows each rank has for this one, of each table.
  std::vector<std::vector<int64_t>> counts(tables.size());
  std::vector<std::vector<std::vector<RowNumber>>> known(tables.size());
  std::vector<int64_t*> numbers(tables.size());
  std::vector<char*> values(tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    const size_t kept_bytes = blocks[t][rank].bytes;
    const bool numbered = tables[t].known == nullptr;
    for (int peer = 0; peer < size && !numbered; ++peer) {
      known[t].push_back(KnownNumbers(tables[t], peer, rank, size));
      counts[t].push_back(static_cast<int64_t>(known[t].back().size()));
    }
    for (int peer = 0; peer < size && numbered; ++peer) {
      const int64_t* const announced = all.data() + peer * own.size() + t * (size + 1);
      if (announced[0] != own[t * (size + 1)]) {
        return InvalidArgument(text, ": member ", rank, " of the process group sent rows of ",
                               own[t * (size + 1)], " bytes for table ", t, ", member ", peer,
                               " rows of ", announced[0],
                               "; all ranks must build a table with the same `output_dim`");
      }
      counts[t].push_back(announced[1 + rank]);
    }
    size_t total = 0;
    TFDEAR_RETURN_IF_ERROR(CheckedTotal(counts[t], kept_bytes + sizeof(RowNumber), text, &total));
    for (int peer = 0; peer < size; ++peer) {
      received[peer] += counts[t][peer] * (kept_bytes + (numbered ? sizeof(RowNumber) : 0));
    }
    void* to_numbers = nullptr;
    void* to_values = nullptr;
    TFDEAR_RETURN_IF_ERROR(tables[t].allocate(total, kept_bytes, &to_numbers, &to_values));
    numbers[t] = static_cast<int64_t*>(to_numbers);
    values[t] = static_cast<char*>(to_values);
  }
  size_t incoming_bytes = 0;
  for (size_t bytes : received) incoming_bytes += bytes;
  TFDEAR_RETURN_IF_ERROR(pool->Take(incoming_bytes, &incoming));
  TFDEAR_RETURN_IF_ERROR(
      backend->AllToAllV(packed->data(), sent, incoming->data(), received, signature, sequence));
  const char* next = incoming->data();
  for (int peer = 0; peer < size; ++peer) {
    for (size_t t = 0; t < tables.size(); ++t) {
      next = Unpack(next, counts[t][peer], blocks[t][rank].bytes,
                    known[t].empty() ? nullptr : &known[t][peer], &numbers[t], &values[t]);
    }
  }
  return Status();
}

}  // namespace tfdear
