// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Rows of gradients reach the ranks that hold them, and vectors come back whole.

#include "custom_ops/engine/collectives/partitioned_rows.h"

#include <numeric>

#include "custom_ops/engine/collectives/vector_exchange.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

// Where the columns of each rank begin: as even as whole numbers allow; some have none.
TablePartition ByColumns(int64_t columns, int size) {
  TablePartition partition;
  for (int rank = 0; rank <= size; ++rank) {
    partition.column_begins.push_back(columns * rank / size);
  }
  return partition;
}

// Which rank it comes from, which row it is, and which column.
float ValueOf(int rank, int64_t row, int64_t column) {
  return static_cast<float>(10000 * rank + 100 * row + column);
}

// The rows that a rank brings: other ones on every rank, none on some.
std::vector<int64_t> NumbersOf(int rank, int table) {
  std::vector<int64_t> numbers;
  for (int i = 0; i < (rank + table) % 3 * 3; ++i) numbers.push_back((7 * i + rank) % 23);
  return numbers;
}

struct Table {
  TablePartition partition;
  int64_t columns;
};

FusionBufferPool* Pool() {
  static const auto* const pool = new auto(std::make_shared<FusionBufferPool>());
  return pool->get();
}

std::vector<Table> TablesFor(int size) {
  return {{ByColumns(10, size), 10}, {TablePartition(), 3}, {ByColumns(1, size), 1}};
}

TEST(PartitionedRows, ReachTheRanksThatHoldThemInTheOrderOfTheRanks) {
  for (int size : {1, 2, 3, 4}) {
    RunRanks(size, [size](std::unique_ptr<TcpBackend> backend) {
      const int rank = backend->rank();
      const std::vector<Table> tables = TablesFor(size);
      std::vector<std::vector<int64_t>> numbers(tables.size()), got_numbers(tables.size());
      std::vector<std::vector<float>> values(tables.size()), got(tables.size());
      std::vector<PartitionedRows> given;
      for (size_t t = 0; t < tables.size(); ++t) {
        const int64_t columns = tables[t].columns;
        numbers[t] = NumbersOf(rank, static_cast<int>(t));
        for (int64_t row : numbers[t]) {
          for (int64_t column = 0; column < columns; ++column) {
            values[t].push_back(ValueOf(rank, row, column));
          }
        }
        given.push_back(
            {&tables[t].partition,
             numbers[t].data(),
             {values[t].data(), static_cast<int64_t>(numbers[t].size()), columns * sizeof(float)},
             [&, t](size_t rows, size_t bytes, void** to_numbers, void** to_values) {
               got_numbers[t].assign(rows, -1);
               got[t].assign(rows * bytes / sizeof(float), -1);
               *to_numbers = got_numbers[t].data();
               *to_values = got[t].data();
               return Status();
             }});
      }
      // What is sent of all tables.
      auto sent = [&] {
        return std::accumulate(given.begin(), given.end(), uint64_t{0},
                               [&](uint64_t bytes, const PartitionedRows& table) {
                                 return bytes + SentBytes(table, rank, size);
                               });
      };
      uint64_t before = backend->bytes_sent();
      TFDEAR_EXPECT_OK(ExchangePartitionedRows(backend.get(), Signature("rows"), 0, given, Pool()));
      const uint64_t counts = (size - 1) * tables.size() * (1 + size) * sizeof(int64_t);
      EXPECT_EQ(sent() + counts, backend->bytes_sent() - before);
      // Where all know which rows they are, the numbers do not travel, and arrive all the same.
      const auto numbers_that_travelled = got_numbers;
      const auto values_that_travelled = got;
      std::vector<std::vector<int32_t>> ids(tables.size());
      std::vector<IdsOfRanks> known(tables.size());
      for (size_t t = 0; t < tables.size(); ++t) {
        for (int peer = 0; peer < size; ++peer) {
          const std::vector<int64_t> of_peer = NumbersOf(peer, static_cast<int>(t));
          ids[t].insert(ids[t].end(), of_peer.begin(), of_peer.end());
          known[t].counts.push_back(static_cast<int64_t>(of_peer.size()));
        }
        known[t].ids = ids[t].data();
        given[t].known = &known[t];
        if (t == 0) {  // Also where only one table's are known.
          TFDEAR_EXPECT_OK(
              ExchangePartitionedRows(backend.get(), Signature("some"), 1, given, Pool()));
          EXPECT_EQ(got_numbers, numbers_that_travelled);
        }
      }
      before = backend->bytes_sent();
      TFDEAR_EXPECT_OK(
          ExchangePartitionedRows(backend.get(), Signature("known"), 2, given, Pool()));
      EXPECT_EQ(sent(), backend->bytes_sent() - before);
      EXPECT_EQ(got_numbers, numbers_that_travelled);
      EXPECT_EQ(got, values_that_travelled);
      for (size_t t = 0; t < tables.size(); ++t) {
        const auto& begins = tables[t].partition.column_begins;
        const bool by_row = tables[t].partition.by_row();
        std::vector<int64_t> expected_numbers;
        std::vector<float> expected;
        for (int peer = 0; peer < size; ++peer) {
          for (int64_t row : NumbersOf(peer, static_cast<int>(t))) {
            if (by_row && row % size != rank) continue;
            expected_numbers.push_back(row);
            const int64_t begin = by_row ? 0 : begins[rank];
            const int64_t end = by_row ? tables[t].columns : begins[rank + 1];
            for (int64_t column = begin; column < end; ++column) {
              expected.push_back(ValueOf(peer, row, column));
            }
          }
        }
        EXPECT_EQ(got_numbers[t], expected_numbers) << "table " << t << " on rank " << rank;
        EXPECT_EQ(got[t], expected) << "table " << t << " on rank " << rank;
      }
    });
  }
}

TEST(PartitionedRows, OfUnequalLengthsAreRefusedOnAllRanks) {
  RunRanks(2, [](std::unique_ptr<TcpBackend> backend) {
    const TablePartition partition;
    const std::vector<float> values(5);
    const int64_t number = 0;
    const size_t columns = backend->rank() == 0 ? 4 : 5;
    const Status status =
        ExchangePartitionedRows(backend.get(), Signature("rows"), 0,
                                {{&partition,
                                  &number,
                                  {values.data(), 1, columns * sizeof(float)},
                                  [](size_t, size_t, void**, void**) { return Status(); }}},
                                Pool());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Contains(status.message(), "output_dim")) << status.message();
  });
}

TEST(PartitionedRows, OfNoTableAreRefused) {
  RunRanks(1, [](std::unique_ptr<TcpBackend> backend) {
    const TablePartition partition;
    const float value = 0;
    for (int64_t number : {int64_t{-1}, int64_t{1} << 31}) {
      const Status status =
          ExchangePartitionedRows(backend.get(), Signature("rows"), 0,
                                  {{&partition,
                                    &number,
                                    {&value, 1, sizeof(float)},
                                    [](size_t, size_t, void**, void**) { return Status(); }}},
                                  Pool());
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_TRUE(Contains(status.message(), std::to_string(number))) << status.message();
    }
  });
}

TEST(VectorExchange, GivesEveryRankTheWholeVectorsOfItsIds) {
  for (int size : {1, 2, 3, 4}) {
    RunRanks(size, [size](std::unique_ptr<TcpBackend> backend) {
      const int rank = backend->rank();
      const std::vector<Table> tables = TablesFor(size);
      std::vector<std::vector<int32_t>> own(tables.size());
      std::vector<GatheredIds> all;
      for (size_t t = 0; t < tables.size(); ++t) {
        for (int64_t number : NumbersOf(rank, static_cast<int>(t))) {
          own[t].push_back(static_cast<int32_t>(number));
        }
      }
      int64_t agreed = -1;
      TFDEAR_EXPECT_OK(GatherIds(backend.get(), Signature("ids"), 0, own, 0, &agreed, &all));
      EXPECT_EQ(agreed, 0);
      std::vector<std::vector<float>> held(tables.size()), results(tables.size());
      std::vector<LookedUp> looked_up;
      for (size_t t = 0; t < tables.size(); ++t) {
        const IdsOfRanks of_ranks = all[t].View();
        const auto& begins = tables[t].partition.column_begins;
        const bool by_row = tables[t].partition.by_row();
        for (int32_t id : HeldIds(of_ranks, tables[t].partition, rank)) {
          const int64_t begin = by_row ? 0 : begins[rank];
          const int64_t end = by_row ? tables[t].columns : begins[rank + 1];
          for (int64_t c = begin; c < end; ++c) held[t].push_back(ValueOf(0, id, c));
        }
        results[t].assign(own[t].size() * tables[t].columns, -1);
        looked_up.push_back({tables[t].partition, of_ranks, held[t].data(), sizeof(float),
                             tables[t].columns, results[t].data()});
      }
      const uint64_t before = backend->bytes_sent();
      TFDEAR_EXPECT_OK(ExchangeVectors(backend.get(), Signature("vectors"), 1, looked_up, Pool()));
      uint64_t sent = 0;
      for (const LookedUp& table : looked_up) sent += SentBytes(table, rank);
      EXPECT_EQ(sent, backend->bytes_sent() - before);
      for (size_t t = 0; t < tables.size(); ++t) {
        std::vector<float> expected;
        for (int32_t id : own[t]) {
          for (int64_t c = 0; c < tables[t].columns; ++c) expected.push_back(ValueOf(0, id, c));
        }
        EXPECT_EQ(results[t], expected) << "table " << t << " on rank " << rank;
      }
    });
  }
}

TEST(GatherIds, GathersNothingIfAllRanksKnowTheIdsOrOneHasNone) {
  RunRanks(3, [](std::unique_ptr<TcpBackend> backend) {
    const std::vector<std::vector<int32_t>> own = {{1, 2}, {}};
    std::vector<GatheredIds> all;
    int64_t agreed = 0;
    const int rank = backend->rank();
    TFDEAR_EXPECT_OK(
        GatherIds(backend.get(), Signature("ids"), 0, own, rank == 1 ? 1 : 2, &agreed, &all));
    EXPECT_EQ(agreed, 1);
    EXPECT_TRUE(all.empty());
    TFDEAR_EXPECT_OK(
        GatherIds(backend.get(), Signature("ids"), 1, own, rank == 2 ? -1 : 0, &agreed, &all));
    EXPECT_EQ(agreed, -1);
    EXPECT_TRUE(all.empty());
  });
}

TEST(GatheredIds, SplitInOrder) {
  const GatheredIds ids{{5, 1, 7, 1, 9}, {3, 0, 2}};
  const auto [in, out] = ids.Split(IdPlaces({1, 9}));
  EXPECT_EQ(in.ids, (std::vector<int32_t>{1, 1, 9}));
  EXPECT_EQ(in.counts, (std::vector<int64_t>{1, 0, 2}));
  EXPECT_EQ(out.ids, (std::vector<int32_t>{5, 7}));
  EXPECT_EQ(out.counts, (std::vector<int64_t>{2, 0, 0}));
  EXPECT_EQ(*out.Of(0), 5);
  EXPECT_EQ(*in.Of(2), 1);
}

}  // namespace
}  // namespace tfdear
