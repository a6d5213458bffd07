// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/partitioned_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>

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

// Puts down a block: the numbers of its rows, if they travel, then the bytes of each.
// Returns where it ends.
char* Pack(const PartitionedRows& table, const Block& block, bool numbered, char* to) {
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

// Where rows of one table go that come from all ranks, in their order.
struct Arrivals {
  std::vector<int64_t> counts;  // Of each rank.
  size_t bytes = 0;             // Of a row.
  int64_t* numbers = nullptr;
  char* values = nullptr;
};

// Exchanges rows with their numbers, where these are not known.
Status MoveRows(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                const std::vector<PartitionedRows>& tables,
                const std::vector<std::vector<Block>>& blocks, std::vector<Arrivals> arrivals,
                FusionBufferPool* pool, const AroundExchange& around) {
  std::vector<size_t> sent(backend->size(), 0), received(backend->size(), 0);
  for (size_t t = 0; t < tables.size(); ++t) {
    const bool numbered = tables[t].known == nullptr;
    for (int peer = 0; peer < backend->size(); ++peer) {
      sent[peer] += blocks[t][peer].size(numbered);
      received[peer] +=
          arrivals[t].counts[peer] * (arrivals[t].bytes + (numbered ? sizeof(RowNumber) : 0));
    }
  }
  std::shared_ptr<FusionBuffer> packed, incoming;
  TFDEAR_RETURN_IF_ERROR(pool->Take(std::accumulate(sent.begin(), sent.end(), size_t{0}), &packed));
  TFDEAR_RETURN_IF_ERROR(
      pool->Take(std::accumulate(received.begin(), received.end(), size_t{0}), &incoming));
  char* to = packed->data();
  for (int peer = 0; peer < backend->size(); ++peer) {
    for (size_t t = 0; t < tables.size(); ++t) {
      to = Pack(tables[t], blocks[t][peer], tables[t].known == nullptr, to);
    }
  }
  const auto exchange = [&] {
    return backend->AllToAllV(packed->data(), sent, incoming->data(), received, signature,
                              sequence);
  };
  TFDEAR_RETURN_IF_ERROR(around ? around(exchange) : exchange());
  const char* from = incoming->data();
  for (int peer = 0; peer < backend->size(); ++peer) {
    for (size_t t = 0; t < tables.size(); ++t) {
      Arrivals& table = arrivals[t];
      const int64_t count = table.counts[peer];
      for (int64_t i = 0; tables[t].known == nullptr && i < count; ++i, from += sizeof(RowNumber)) {
        RowNumber number = 0;
        std::copy_n(from, sizeof(number), reinterpret_cast<char*>(&number));
        *table.numbers++ = number;
      }
      table.values = std::copy_n(from, count * table.bytes, table.values);
      from += count * table.bytes;
    }
  }
  return Status();
}

// Exchanges rows whose numbers are known: they arrive, and this rank's own are packed, in place.
Status MoveValues(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                  const std::vector<PartitionedRows>& tables,
                  const std::vector<std::vector<Block>>& blocks, std::vector<Arrivals> arrivals,
                  FusionBufferPool* pool, const AroundExchange& around) {
  const int size = backend->size();
  std::vector<size_t> sent(size, 0), received(size, 0);
  size_t incoming_bytes = 0;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == backend->rank()) continue;
    for (size_t t = 0; t < tables.size(); ++t) {
      sent[peer] += blocks[t][peer].size(/*numbered=*/false);
      received[peer] += arrivals[t].counts[peer] * arrivals[t].bytes;
    }
    if (!TravelApart(received[peer], tables.size())) incoming_bytes += received[peer];
  }
  std::shared_ptr<FusionBuffer> packed, incoming;
  TFDEAR_RETURN_IF_ERROR(pool->Take(std::accumulate(sent.begin(), sent.end(), size_t{0}), &packed));
  TFDEAR_RETURN_IF_ERROR(pool->Take(incoming_bytes, &incoming));
  std::vector<OutgoingPieces> sends(size);
  std::vector<IncomingPieces> receives(size), together(size);
  char* to = packed->data();
  char* arrived = incoming->data();
  for (int peer = 0; peer < size; ++peer) {
    const bool here = peer == backend->rank();
    const bool sent_apart = TravelApart(sent[peer], tables.size());
    const bool received_apart = TravelApart(received[peer], tables.size());
    if (!here && !sent_apart) sends[peer].push_back({to, sent[peer]});
    if (!here && !received_apart) {
      receives[peer].push_back({arrived, received[peer]});
      arrived += received[peer];
    }
    for (size_t t = 0; t < tables.size(); ++t) {
      Arrivals& table = arrivals[t];
      const Piece<char> place{table.values, table.counts[peer] * table.bytes};
      table.values += place.bytes;
      char* const begin = here ? place.data : to;
      char* const end = Pack(tables[t], blocks[t][peer], /*numbered=*/false, begin);
      if (here) continue;
      to = end;
      if (sent_apart) sends[peer].push_back({begin, static_cast<size_t>(end - begin)});
      (received_apart ? receives : together)[peer].push_back(place);
    }
  }
  const auto exchange = [&] {
    return backend->AllToAllPieces(sends, receives, signature, sequence);
  };
  TFDEAR_RETURN_IF_ERROR(around ? around(exchange) : exchange());
  const char* from = incoming->data();
  for (const IncomingPieces& places : together) {
    for (const Piece<char>& place : places) {
      std::copy_n(from, place.bytes, place.data);
      from += place.bytes;
    }
  }
  return Status();
}

}  // namespace

GatheredIds CopyOf(const IdsOfRanks& ids) {
  int64_t count = 0;
  for (int64_t of_rank : ids.counts) count += of_rank;
  return {std::vector<int32_t>(ids.ids, ids.ids + count), ids.counts};
}

const int32_t* GatheredIds::Of(int rank) const {
  const int32_t* begin = ids.data();
  for (int before = 0; before < rank; ++before) begin += counts[before];
  return begin;
}

std::pair<GatheredIds, GatheredIds> GatheredIds::Split(const IdPlaces& set) const {
  std::pair<GatheredIds, GatheredIds> parts;
  const int32_t* next = ids.data();
  for (int64_t count : counts) {
    const size_t before = parts.first.ids.size();
    for (int64_t i = 0; i < count; ++i, ++next) {
      (set.Contains(*next) ? parts.first : parts.second).ids.push_back(*next);
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

size_t SentBytes(const PartitionedRows& table, int rank, int size) {
  const Rows& values = table.values;
  const size_t number_bytes = table.known == nullptr ? sizeof(RowNumber) : 0;
  if (table.partition->by_row()) {
    const auto sent = std::count_if(table.numbers, table.numbers + values.count,
                                    [&](int64_t number) { return number % size != rank; });
    return static_cast<size_t>(sent) * (values.row_bytes + number_bytes);
  }
  const auto& begins = table.partition->column_begins;
  const size_t element_bytes =
      values.row_bytes / static_cast<size_t>(std::max<int64_t>(begins.back(), 1));
  const size_t kept = static_cast<size_t>(begins[rank + 1] - begins[rank]) * element_bytes;
  return static_cast<size_t>(values.count) *
         (values.row_bytes - kept + static_cast<size_t>(size - 1) * number_bytes);
}

Status ExchangePartitionedRows(CollectiveBackend* backend, const Signature& signature,
                               uint64_t sequence, const std::vector<PartitionedRows>& tables,
                               FusionBufferPool* pool, const AroundExchange& around) {
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

  std::vector<Arrivals> arrivals(tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    Arrivals& table = arrivals[t];
    table.bytes = blocks[t][rank].bytes;
    std::vector<std::vector<RowNumber>> known;
    for (int peer = 0; peer < size; ++peer) {
      if (tables[t].known != nullptr) {
        known.push_back(KnownNumbers(tables[t], peer, rank, size));
        table.counts.push_back(static_cast<int64_t>(known.back().size()));
        continue;
      }
      const int64_t* const announced = all.data() + peer * own.size() + t * (size + 1);
      if (announced[0] != own[t * (size + 1)]) {
        return InvalidArgument(text, ": member ", rank, " of the process group sent rows of ",
                               own[t * (size + 1)], " bytes for table ", t, ", member ", peer,
                               " rows of ", announced[0],
                               "; all ranks must build a table with the same `output_dim`");
      }
      table.counts.push_back(announced[1 + rank]);
    }
    size_t total = 0;
    TFDEAR_RETURN_IF_ERROR(
        CheckedTotal(table.counts, table.bytes + sizeof(RowNumber), text, &total));
    void* numbers = nullptr;
    void* values = nullptr;
    TFDEAR_RETURN_IF_ERROR(tables[t].allocate(total, table.bytes, &numbers, &values));
    table.numbers = static_cast<int64_t*>(numbers);
    table.values = static_cast<char*>(values);
    for (const auto& of_peer : known) {
      table.numbers = std::copy(of_peer.begin(), of_peer.end(), table.numbers);
    }
  }
  return (all_known ? MoveValues : MoveRows)(backend, signature, sequence, tables, blocks,
                                             std::move(arrivals), pool, around);
}

}  // namespace tfdear
