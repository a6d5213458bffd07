// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/vector_exchange.h"

#include <algorithm>
#include <numeric>

namespace tfdear {
namespace {

// How many vectors of `reader`'s ids `holder` has a part of, and how many columns that part has.
struct Part {
  int64_t vectors;
  int64_t columns;
  size_t elements() const { return static_cast<size_t>(vectors * columns); }
};

// Where the ids of each rank begin.
std::vector<int64_t> Begins(const std::vector<int64_t>& counts) {
  std::vector<int64_t> begins(1, 0);
  for (int64_t count : counts) begins.push_back(begins.back() + count);
  return begins;
}

int64_t CountHeld(const IdsOfRanks& ids, int reader, int holder) {
  const int size = static_cast<int>(ids.counts.size());
  const int32_t* const begin = ids.ids + Begins(ids.counts)[reader];
  return std::count_if(begin, begin + ids.counts[reader],
                       [&](int32_t id) { return id % size == holder; });
}

Part PartOf(const LookedUp& table, int reader, int holder) {
  if (table.partition.by_row()) return {CountHeld(table.ids, reader, holder), table.columns};
  const auto& begins = table.partition.column_begins;
  return {table.counts()[reader], begins[holder + 1] - begins[holder]};
}

// Puts the parts that came from the holders of one table where they belong in the whole vectors.
void PutTogether(const LookedUp& table, int rank, int size, const std::vector<const char*>& parts) {
  char* const result = static_cast<char*>(table.result);
  const size_t vector_bytes = table.columns * table.element_bytes;
  const int64_t count = table.counts()[rank];
  if (table.partition.by_row()) {
    const int32_t* const own = table.ids.ids + Begins(table.ids.counts)[rank];
    std::vector<const char*> next = parts;
    for (int64_t i = 0; i < count; ++i) {
      const char*& part = next[own[i] % size];
      std::copy_n(part, vector_bytes, result + i * vector_bytes);
      part += vector_bytes;
    }
    return;
  }
  for (int holder = 0; holder < size; ++holder) {
    const size_t begin = table.partition.column_begins[holder] * table.element_bytes;
    const size_t bytes = table.partition.column_begins[holder + 1] * table.element_bytes - begin;
    const char* part = parts[holder];
    for (int64_t i = 0; i < count; ++i, part += bytes) {
      std::copy_n(part, bytes, result + i * vector_bytes + begin);
    }
  }
}

}  // namespace

std::vector<int32_t> HeldIds(const IdsOfRanks& ids, const TablePartition& partition, int rank) {
  const int size = static_cast<int>(ids.counts.size());
  const int64_t total = Begins(ids.counts).back();
  if (!partition.by_row()) return std::vector<int32_t>(ids.ids, ids.ids + total);
  std::vector<int32_t> held;
  for (int64_t i = 0; i < total; ++i) {
    if (ids.ids[i] % size == rank) held.push_back(ids.ids[i]);
  }
  return held;
}

size_t SentBytes(const LookedUp& table, int rank) {
  size_t elements = 0;
  for (int peer = 0; peer < static_cast<int>(table.ids.counts.size()); ++peer) {
    if (peer != rank) elements += PartOf(table, peer, rank).elements();
  }
  return elements * table.element_bytes;
}

Status ExchangeVectors(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                       const std::vector<LookedUp>& tables, FusionBufferPool* pool,
                       const AroundExchange& around) {
  const int size = backend->size();
  const int rank = backend->rank();
  const auto bytes_of = [&](const LookedUp& table, int reader, int holder) {
    return PartOf(table, reader, holder).elements() * table.element_bytes;
  };
  std::vector<size_t> sent(size, 0), received(size, 0);
  size_t packed_bytes = 0;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    for (const LookedUp& table : tables) {
      sent[peer] += bytes_of(table, peer, rank);
      received[peer] += bytes_of(table, rank, peer);
    }
    if (!TravelApart(sent[peer], tables.size())) packed_bytes += sent[peer];
  }
  std::shared_ptr<FusionBuffer> packed, incoming;
  TFDEAR_RETURN_IF_ERROR(pool->Take(packed_bytes, &packed));
  TFDEAR_RETURN_IF_ERROR(
      pool->Take(std::accumulate(received.begin(), received.end(), size_t{0}), &incoming));
  std::vector<OutgoingPieces> sends(size);
  std::vector<IncomingPieces> receives(size);
  std::vector<std::vector<const char*>> parts(tables.size());  // Of each table, from each holder.
  std::vector<const char*> held;
  for (const LookedUp& table : tables) held.push_back(static_cast<const char*>(table.held));
  char* to = packed->data();
  char* arrived = incoming->data();
  for (int peer = 0; peer < size; ++peer) {
    // What lies together: the parts of one table, or packed, of all tables.
    const bool sent_apart = TravelApart(sent[peer], tables.size());
    const bool received_apart = TravelApart(received[peer], tables.size());
    if (peer != rank && !sent_apart) sends[peer].push_back({to, sent[peer]});
    if (peer != rank && !received_apart) receives[peer].push_back({arrived, received[peer]});
    for (size_t t = 0; t < tables.size(); ++t) {
      const size_t out = bytes_of(tables[t], peer, rank);
      const size_t in = bytes_of(tables[t], rank, peer);
      if (peer == rank) {
        parts[t].push_back(held[t]);
      } else {
        parts[t].push_back(arrived);
        if (received_apart) receives[peer].push_back({arrived, in});
        arrived += in;
        if (sent_apart) {
          sends[peer].push_back({held[t], out});
        } else {
          to = std::copy_n(held[t], out, to);
        }
      }
      held[t] += out;
    }
  }
  const auto exchange = [&] {
    return backend->AllToAllPieces(sends, receives, signature, sequence);
  };
  TFDEAR_RETURN_IF_ERROR(around ? around(exchange) : exchange());
  for (size_t t = 0; t < tables.size(); ++t) PutTogether(tables[t], rank, size, parts[t]);
  return Status();
}

Status GatherIds(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                 const std::vector<std::vector<int32_t>>& own, int64_t known, int64_t* agreed,
                 std::vector<GatheredIds>* all, const std::vector<int64_t>& further,
                 std::vector<int64_t>* further_of_all) {
  const int size = backend->size();
  const size_t tables = own.size();
  std::vector<int64_t> announced, numbers = {known};
  for (const std::vector<int32_t>& ids : own) numbers.push_back(static_cast<int64_t>(ids.size()));
  numbers.insert(numbers.end(), further.begin(), further.end());
  TFDEAR_RETURN_IF_ERROR(AnnounceNumbers(backend, Signature(signature.text() + " counts"), sequence,
                                         numbers, &announced));
  *agreed = known;
  for (int rank = 0; rank < size; ++rank) {
    const auto of_rank = announced.begin() + rank * numbers.size();
    *agreed = std::min(*agreed, *of_rank);
    if (further_of_all == nullptr) continue;
    further_of_all->insert(further_of_all->end(), of_rank + 1 + tables, of_rank + numbers.size());
  }
  if (*agreed != 0) return Status();
  all->assign(tables, GatheredIds());
  std::vector<int64_t> of_rank(size, 0);
  for (int rank = 0; rank < size; ++rank) {
    for (size_t t = 0; t < tables; ++t) {
      const int64_t count = announced[rank * numbers.size() + 1 + t];
      (*all)[t].counts.push_back(count);
      size_t checked = 0;
      TFDEAR_RETURN_IF_ERROR(
          CheckedTotal({of_rank[rank], count}, sizeof(int32_t), signature.text(), &checked));
      of_rank[rank] = static_cast<int64_t>(checked);
    }
  }
  size_t total = 0;
  TFDEAR_RETURN_IF_ERROR(CheckedTotal(of_rank, sizeof(int32_t), signature.text(), &total));
  std::vector<int32_t> given, gathered(total);
  for (const std::vector<int32_t>& ids : own) given.insert(given.end(), ids.begin(), ids.end());
  TFDEAR_RETURN_IF_ERROR(backend->AllGatherV(
      given.data(), gathered.data(), BytesOf(of_rank, sizeof(int32_t)), signature, sequence));
  const int32_t* next = gathered.data();
  for (int rank = 0; rank < size; ++rank) {
    for (GatheredIds& of_table : *all) {
      const int64_t count = of_table.counts[rank];
      of_table.ids.insert(of_table.ids.end(), next, next + count);
      next += count;
    }
  }
  return Status();
}

}  // namespace tfdear
