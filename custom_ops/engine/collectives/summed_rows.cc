// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/summed_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "custom_ops/engine/base/sum.h"

namespace tfdear {
namespace {

// Which rows of a table ranks have: of every rank, for every owner, a bit for each row it owns.
class RowBits {
 public:
  RowBits(int64_t table_rows, int ranks)
      : ranks_(ranks),
        bytes_of_owner_(static_cast<size_t>((table_rows + ranks - 1) / ranks + 7) / 8),
        bits_(ranks * bytes_of_rank(), 0) {}

  size_t bytes_of_rank() const { return ranks_ * bytes_of_owner_; }
  uint8_t* of_rank(int rank) { return bits_.data() + rank * bytes_of_rank(); }
  uint8_t* all() { return bits_.data(); }

  void Set(int rank, int64_t row) {
    const int64_t place = row / ranks_;
    of_rank(rank)[(row % ranks_) * bytes_of_owner_ + place / 8] |= 1u << (place % 8);
  }
  // Of the row at this place among those of an owner.
  bool Has(int rank, int owner, int64_t place) const {
    const size_t byte = rank * bytes_of_rank() + owner * bytes_of_owner_ + place / 8;
    return (bits_[byte] >> (place % 8) & 1) != 0;
  }
  bool AnyHas(int owner, int64_t place) const {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (Has(rank, owner, place)) return true;
    }
    return false;
  }

 private:
  const int ranks_;
  const size_t bytes_of_owner_;
  std::vector<uint8_t> bits_;
};

int64_t RowsOfOwner(int64_t table_rows, int owner, int ranks) {
  return (table_rows - owner + ranks - 1) / ranks;
}

// This rank's rows, one of each index, in the order of their owners and indices.
Status Pack(const int64_t* indices, const Rows& values, DataType type, int64_t table_rows,
            const std::string& text, int rank, int ranks, RowBits* bits, std::vector<char>* packed,
            std::vector<int64_t>* for_owner) {
  std::vector<int64_t> order(values.count);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i : order) {
    if (indices[i] < 0 || indices[i] >= table_rows) {
      return InvalidArgument(text, ": row ", indices[i], " is not in a table of ", table_rows,
                             " rows");
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t left, int64_t right) {
    const int64_t a = indices[left], b = indices[right];
    return a % ranks != b % ranks ? a % ranks < b % ranks : a < b;
  });
  packed->reserve(values.count * values.row_bytes);
  for_owner->assign(ranks, 0);
  for (size_t i = 0; i < order.size(); ++i) {
    const char* const row = static_cast<const char*>(values.data) + order[i] * values.row_bytes;
    if (i > 0 && indices[order[i]] == indices[order[i - 1]]) {
      SumInto(type, packed->data() + packed->size() - values.row_bytes, row,
              values.row_bytes / SizeOf(type));
      continue;
    }
    packed->insert(packed->end(), row, row + values.row_bytes);
    ++(*for_owner)[indices[order[i]] % ranks];
    bits->Set(rank, indices[order[i]]);
  }
  return Status();
}

Status SumRows(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
               const int64_t* indices, const Rows& values, DataType type, int64_t table_rows,
               const AllocateIndexedRows& allocate, size_t* sent_bytes) {
  const int rank = backend->rank(), ranks = backend->size();
  const size_t row_bytes = values.row_bytes;
  RowBits bits(table_rows, ranks);
  std::vector<char> packed;
  std::vector<int64_t> for_owner;
  TFDEAR_RETURN_IF_ERROR(Pack(indices, values, type, table_rows, signature.text(), rank, ranks,
                              &bits, &packed, &for_owner));
  TFDEAR_RETURN_IF_ERROR(backend->AllGatherV(bits.of_rank(rank), bits.all(),
                                             std::vector<size_t>(ranks, bits.bytes_of_rank()),
                                             Signature(signature.text() + " bits"), sequence));
  const int64_t own = RowsOfOwner(table_rows, rank, ranks);
  std::vector<int64_t> from_rank(ranks, 0);
  for (int peer = 0; peer < ranks; ++peer) {
    for (int64_t place = 0; place < own; ++place) from_rank[peer] += bits.Has(peer, rank, place);
  }
  const std::vector<size_t> received_bytes = BytesOf(from_rank, row_bytes);
  std::vector<char> received(std::accumulate(received_bytes.begin(), received_bytes.end(), 0ul));
  TFDEAR_RETURN_IF_ERROR(backend->AllToAllV(packed.data(), BytesOf(for_owner, row_bytes),
                                            received.data(), received_bytes,
                                            Signature(signature.text() + " rows"), sequence));
  std::vector<char>().swap(packed);
  // One row of each index that some rank has, in the order of the owners.
  std::vector<int64_t> numbers, of_owner(ranks, 0);
  for (int owner = 0; owner < ranks; ++owner) {
    for (int64_t place = 0; place < RowsOfOwner(table_rows, owner, ranks); ++place) {
      if (!bits.AnyHas(owner, place)) continue;
      numbers.push_back(place * ranks + owner);
      ++of_owner[owner];
    }
  }
  void* all_indices = nullptr;
  void* all_values = nullptr;
  TFDEAR_RETURN_IF_ERROR(allocate(numbers.size(), &all_indices, &all_values));
  if (!numbers.empty()) {
    std::memcpy(all_indices, numbers.data(), numbers.size() * sizeof(int64_t));
  }
  const std::vector<size_t> sum_bytes = BytesOf(of_owner, row_bytes);
  const int64_t sent_rows = std::accumulate(for_owner.begin(), for_owner.end(), -for_owner[rank]);
  *sent_bytes = static_cast<size_t>(sent_rows) * row_bytes +
                static_cast<size_t>(ranks - 1) * (bits.bytes_of_rank() + sum_bytes[rank]);
  char* const sums = static_cast<char*>(all_values) +
                     std::accumulate(sum_bytes.begin(), sum_bytes.begin() + rank, 0ul);
  std::vector<const char*> next(ranks, received.data());
  for (int peer = 1; peer < ranks; ++peer) next[peer] = next[peer - 1] + received_bytes[peer - 1];
  char* sum = sums;
  for (int64_t place = 0; place < own; ++place) {
    bool begun = false;
    for (int peer = 0; peer < ranks; ++peer) {
      if (!bits.Has(peer, rank, place)) continue;
      if (begun) {
        SumInto(type, sum, next[peer], row_bytes / SizeOf(type));
      } else {
        std::memcpy(sum, next[peer], row_bytes);
      }
      begun = true;
      next[peer] += row_bytes;
    }
    if (begun) sum += row_bytes;
  }
  return backend->AllGatherV(sums, all_values, sum_bytes, Signature(signature.text() + " sums"),
                             sequence);
}

}  // namespace

Status ExchangeIndexedRows(CollectiveBackend* backend, const Signature& signature,
                           uint64_t sequence, const int64_t* indices, const Rows& values,
                           DataType type, const WholeTable& table,
                           const AllocateIndexedRows& allocate, RowsOfRanks* seen) {
  // What ranks do not agree on would bring them to different collectives.
  const Signature of_table(table.rows == 0
                               ? signature.text()
                               : signature.text() + " of a table of " + std::to_string(table.rows) +
                                     " rows, summed above " + std::to_string(table.most_gathered));
  std::vector<int64_t> counts;
  TFDEAR_RETURN_IF_ERROR(
      AnnounceIndexedRows(backend, of_table, sequence, values, &counts, &seen->count));
  seen->summed = table.rows > 0 && seen->count > table.most_gathered;
  if (seen->summed) {
    return SumRows(backend, of_table, sequence, indices, values, type, table.rows, allocate,
                   &seen->sent_bytes);
  }
  seen->sent_bytes = static_cast<size_t>(backend->size() - 1) * static_cast<size_t>(values.count) *
                     (values.row_bytes + sizeof(int64_t));
  return GatherAnnouncedRows(backend, of_table, sequence, indices, values, counts, allocate);
}

}  // namespace tfdear
