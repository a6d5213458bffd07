// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Collectives on rows: which rows go where, and which announcements of peers are refused.

#include "custom_ops/engine/collectives/row_exchange.h"

#include <array>
#include <limits>
#include <numeric>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();

void ExpectRefused(const Status& status, int member, int64_t number) {
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_TRUE(Contains(status.message(), "member " + std::to_string(member))) << status.message();
  EXPECT_TRUE(Contains(status.message(), "announced " + std::to_string(number)))
      << status.message();
}

TEST(CheckedTotal, AddsUpWhatFits) {
  size_t total = 0;
  TFDEAR_EXPECT_OK(CheckedTotal({}, 4, "x", &total));
  EXPECT_EQ(total, 0u);
  TFDEAR_EXPECT_OK(CheckedTotal({3, 0, 5}, 4, "x", &total, 32));
  EXPECT_EQ(total, 8u);
  TFDEAR_EXPECT_OK(CheckedTotal({0}, 0, "x", &total));
  ExpectRefused(CheckedTotal({3, 0, 6}, 4, "x", &total, 32), 2, 6);
}

TEST(CheckedTotal, RefusesWhatIsNegativeOrWrapsAround) {
  size_t total = 0;
  ExpectRefused(CheckedTotal({1, -1}, 4, "x", &total), 1, -1);
  // Their sum is 4, or their bytes are.
  ExpectRefused(CheckedTotal({kLargest, kLargest, 6}, 1, "x", &total), 0, kLargest);
  ExpectRefused(CheckedTotal({-6, 10}, 1, "x", &total), 0, -6);
  ExpectRefused(CheckedTotal({(int64_t{1} << 62) + 1}, 4, "x", &total), 0, (int64_t{1} << 62) + 1);
  ExpectRefused(CheckedTotal({kSmallest, kSmallest}, 1, "x", &total), 0, kSmallest);
}

// Three numbers: sizes are odd, and whole rows must stay together.
using Row = std::array<int32_t, 3>;

// Row `i` of a rank; sums over ranks tell who is in them.
Row RowOf(int rank, int i) {
  const int first = 100 * rank + i;
  return {first, -first, 7 * first};
}

std::vector<Row> RowsOf(int rank, int count) {
  std::vector<Row> rows;
  for (int i = 0; i < count; ++i) rows.push_back(RowOf(rank, i));
  return rows;
}

Rows AllOf(const std::vector<Row>& rows) {
  return {rows.data(), static_cast<int64_t>(rows.size()), sizeof(Row)};
}

AllocateRows Into(std::vector<Row>* result) {
  return [result](size_t rows, void** memory) {
    result->assign(rows, Row{-1, -1, -1});
    *memory = result->data();
    return Status();
  };
}

Status Forbidden(size_t rows, void**) {
  ADD_FAILURE() << "allocates " << rows << " rows";
  return Status(StatusCode::kInternal, "forbidden");
}

// How many rows a rank brings: none, one, an odd number, many.
const std::vector<std::vector<int>> kCounts = {
    {0, 0, 0, 0}, {0, 3, 0, 1}, {5, 0, 1, 7}, {1, 1, 1, 1}, {1000, 3, 0, 999}};

TEST(RowExchange, AllGatherHasTheRowsInTheOrderOfTheRanks) {
  for (int size : {1, 2, 3, 4}) {
    RunRanks(size, [&](std::unique_ptr<TcpBackend> backend) {
      uint64_t sequence = 0;
      for (const std::vector<int>& counts : kCounts) {
        const std::vector<Row> rows = RowsOf(backend->rank(), counts[backend->rank()]);
        std::vector<Row> result, expected;
        for (int r = 0; r < size; ++r) {
          for (const Row& row : RowsOf(r, counts[r])) expected.push_back(row);
        }
        TFDEAR_EXPECT_OK(
            AllGatherRows(backend.get(), Signature("x"), sequence++, AllOf(rows), Into(&result)));
        EXPECT_EQ(result, expected);
      }
    });
  }
}

TEST(RowExchange, ReduceScatterKeepsRowsWhole) {
  for (int size : {1, 2, 3, 4}) {
    RunRanks(size, [&](std::unique_ptr<TcpBackend> backend) {
      uint64_t sequence = 0;
      for (int count : {0, 1, 3, 4, 7, 1001}) {
        const std::vector<Row> rows = RowsOf(backend->rank(), count);
        std::vector<Row> result, expected;
        const Range mine = ShardOf(count, backend->rank(), size);
        for (size_t i = mine.begin; i < mine.end; ++i) {
          Row sum{};
          for (int r = 0; r < size; ++r) {
            for (int k = 0; k < 3; ++k) sum[k] += RowOf(r, static_cast<int>(i))[k];
          }
          expected.push_back(sum);
        }
        TFDEAR_EXPECT_OK(ReduceScatterRows(backend.get(), Signature("x"), sequence++, AllOf(rows),
                                           DataType::kInt32, Into(&result)));
        EXPECT_EQ(result, expected) << count;
      }
    });
  }
}

TEST(RowExchange, AllToAllSendsEveryRankItsSplit) {
  for (int size : {1, 2, 3, 4}) {
    for (int kind : {0, 1, 2}) {
      // What rank `from` gives to rank `to`: nothing at all, something else each, much from one.
      auto split = [kind](int from, int to) {
        return kind == 0 ? 0 : kind == 1 ? (from + 2 * to) % 4 : from == 0 ? 333 * to : 0;
      };
      RunRanks(size, [&](std::unique_ptr<TcpBackend> backend) {
        const int rank = backend->rank();
        std::vector<int64_t> splits, received_splits, expected_splits;
        std::vector<Row> result, expected;
        for (int to = 0; to < size; ++to) splits.push_back(split(rank, to));
        for (int from = 0; from < size; ++from) {
          int before = 0;
          for (int to = 0; to < rank; ++to) before += split(from, to);
          expected_splits.push_back(split(from, rank));
          for (int i = 0; i < split(from, rank); ++i) expected.push_back(RowOf(from, before + i));
        }
        const std::vector<Row> rows =
            RowsOf(rank, std::accumulate(splits.begin(), splits.end(), 0));
        TFDEAR_EXPECT_OK(AllToAllRows(backend.get(), Signature("x"), 0, AllOf(rows), splits,
                                      &received_splits, Into(&result)));
        EXPECT_EQ(received_splits, expected_splits);
        EXPECT_EQ(result, expected);
      });
    }
  }
}

TEST(RowExchange, IndexedRowsComeWithTheirIndices) {
  for (int size : {1, 2, 3, 4}) {
    RunRanks(size, [&](std::unique_ptr<TcpBackend> backend) {
      uint64_t sequence = 0;
      for (const std::vector<int>& counts : kCounts) {
        auto indices_of = [&](int rank) {
          std::vector<int64_t> indices(counts[rank]);
          std::iota(indices.begin(), indices.end(), 1000000 * rank);
          return indices;
        };
        const std::vector<int64_t> indices = indices_of(backend->rank());
        const std::vector<Row> rows = RowsOf(backend->rank(), counts[backend->rank()]);
        std::vector<int64_t> all_indices, expected_indices;
        std::vector<Row> result, expected;
        for (int r = 0; r < size; ++r) {
          for (int64_t index : indices_of(r)) expected_indices.push_back(index);
          for (const Row& row : RowsOf(r, counts[r])) expected.push_back(row);
        }
        auto allocate = [&](size_t rows, void** index_memory, void** memory) {
          all_indices.assign(rows, -1);
          *index_memory = all_indices.data();
          return Into(&result)(rows, memory);
        };
        TFDEAR_EXPECT_OK(AllGatherIndexedRows(backend.get(), Signature("x"), sequence++,
                                              indices.data(), AllOf(rows), allocate));
        EXPECT_EQ(all_indices, expected_indices);
        EXPECT_EQ(result, expected);
      }
    });
  }
}

TEST(RowExchange, IndexedRowsOfTwoLengthsAreRefusedOnAllRanks) {
  RunRanks(3, [](std::unique_ptr<TcpBackend> backend) {
    const size_t row_bytes = backend->rank() == 2 ? 8 : 12;
    const Status status = AllGatherIndexedRows(
        backend.get(), Signature("x"), 0, nullptr, {nullptr, 0, row_bytes},
        [](size_t rows, void**, void** memory) { return Forbidden(rows, memory); });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Contains(status.message(), "12 bytes, rank 2 rows of 8")) << status.message();
  });
}

TEST(RowExchange, WithoutMemoryNothingIsExchanged) {
  RunRanks(1, [](std::unique_ptr<TcpBackend> backend) {
    auto refuse = [](size_t, void**) { return Status(StatusCode::kResourceExhausted, "none"); };
    const std::vector<Row> rows = RowsOf(0, 2);
    std::vector<int64_t> received;
    const Status statuses[] = {
        AllGatherRows(backend.get(), Signature("x"), 0, AllOf(rows), refuse),
        ReduceScatterRows(backend.get(), Signature("x"), 1, AllOf(rows), DataType::kInt32, refuse),
        AllToAllRows(backend.get(), Signature("x"), 2, AllOf(rows), {2}, &received, refuse)};
    for (const Status& status : statuses) EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  });
}

// Rank 1 announces `number` where the collective named `suffix` asks for its rows.
void RunWithLiar(const std::string& suffix, size_t numbers, size_t place, int64_t number,
                 const std::function<Status(CollectiveBackend*)>& collective) {
  RunRanks(2, [&](std::unique_ptr<TcpBackend> backend) {
    if (backend->rank() == 1) {
      std::vector<int64_t> all(numbers, 4);
      all[place] = number;
      TFDEAR_EXPECT_OK(backend->AllGather(all.data(), all.size(), DataType::kInt64,
                                          Signature("x " + suffix), 0));
      return;
    }
    ExpectRefused(collective(backend.get()), 1, number);
  });
}

TEST(RowExchange, RefusesWhatAPeerCannotMean) {
  for (int64_t number : {int64_t{-1}, int64_t{1} << 60, kLargest, kSmallest}) {
    RunWithLiar("rows", 2, 1, number, [](CollectiveBackend* backend) {
      return AllGatherRows(backend, Signature("x"), 0, {nullptr, 1, 64}, Forbidden);
    });
    RunWithLiar("splits", 4, 2, number, [](CollectiveBackend* backend) {
      std::vector<int64_t> received;
      return AllToAllRows(backend, Signature("x"), 0, {nullptr, 2, 64}, {1, 1}, &received,
                          Forbidden);
    });
    RunWithLiar("counts", 4, 2, number, [](CollectiveBackend* backend) {
      return AllGatherIndexedRows(
          backend, Signature("x"), 0, nullptr, {nullptr, 1, 4},
          [](size_t rows, void**, void** memory) { return Forbidden(rows, memory); });
    });
  }
}

TEST(RowExchange, RowsWithoutBytesAreCountedToo) {
  RunWithLiar("rows", 2, 1, kLargest, [](CollectiveBackend* backend) {
    return AllGatherRows(backend, Signature("x"), 0, {nullptr, 1, 0}, Forbidden);
  });
}

}  // namespace
}  // namespace tfdear
