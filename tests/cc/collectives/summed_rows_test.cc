// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Rows that are summed on their way are those that are gathered, added up in the order of the
// ranks.

#include "custom_ops/engine/collectives/summed_rows.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

constexpr int kColumns = 3;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Gradient {
  std::vector<int64_t> indices;
  std::vector<float> values;

  Rows rows() const {
    return {values.data(), static_cast<int64_t>(indices.size()), kColumns * sizeof(float)};
  }
  AllocateIndexedRows allocate() {
    return [this](size_t rows, void** all_indices, void** all_values) {
      indices.assign(rows, -1);
      values.assign(rows * kColumns, -1);
      *all_indices = indices.data();
      *all_values = values.data();
      return Status();
    };
  }
  // The sum of the rows of each index, in their order.
  std::map<int64_t, std::vector<float>> Sums() const {
    std::map<int64_t, std::vector<float>> sums;
    for (size_t i = 0; i < indices.size(); ++i) {
      const float* const row = values.data() + i * kColumns;
      const auto [found, is_new] =
          sums.try_emplace(indices[i], std::vector<float>(row, row + kColumns));
      for (int k = 0; !is_new && k < kColumns; ++k) found->second[k] += row[k];
    }
    return sums;
  }
};

// What a rank has of a table, with values whose sums depend on their order.
Gradient GradientOf(int rank, int64_t table_rows, int count) {
  std::mt19937 random(100 * rank + count);
  Gradient gradient;
  gradient.indices.resize(table_rows);
  std::iota(gradient.indices.begin(), gradient.indices.end(), 0);
  std::shuffle(gradient.indices.begin(), gradient.indices.end(), random);
  gradient.indices.resize(std::min<int64_t>(count, table_rows));
  for (size_t i = 0; i < gradient.indices.size(); ++i) {
    for (int k = 0; k < kColumns; ++k) {
      gradient.values.push_back(std::ldexp(1.0f + random() % 97 / 128.0f, random() % 30));
    }
  }
  return gradient;
}

TEST(SummedRows, AreTheSumsOfGatheredOnes) {
  for (int size : {1, 2, 3, 4}) {
    RunRanks(size, [&](std::unique_ptr<TcpBackend> backend) {
      uint64_t sequence = 0;
      for (int64_t table_rows : {1, 2, 7, 8, 33, 1000}) {
        for (int count : {0, 1, 5, 400}) {
          // Some ranks have nothing.
          const int own = (backend->rank() + count) % 3 == 0 ? 0 : count;
          Gradient given = GradientOf(backend->rank(), table_rows, own);
          Gradient gathered, summed;
          RowsOfRanks seen;
          // What is sent but rows, in a group whose ranks all send to each other.
          const uint64_t counts = (size - 1) * 2 * sizeof(int64_t);
          uint64_t before = backend->bytes_sent();
          TFDEAR_EXPECT_OK(ExchangeIndexedRows(
              backend.get(), Signature("x"), sequence++, given.indices.data(), given.rows(),
              DataType::kFloat32, {table_rows, kNever}, gathered.allocate(), &seen));
          EXPECT_FALSE(seen.summed);
          EXPECT_EQ(seen.sent_bytes + counts, backend->bytes_sent() - before);
          before = backend->bytes_sent();
          EXPECT_EQ(seen.count, static_cast<int64_t>(gathered.indices.size()));
          TFDEAR_EXPECT_OK(ExchangeIndexedRows(
              backend.get(), Signature("x"), sequence++, given.indices.data(), given.rows(),
              DataType::kFloat32, {table_rows, -1}, summed.allocate(), &seen));
          EXPECT_TRUE(seen.summed);
          EXPECT_EQ(seen.sent_bytes + counts, backend->bytes_sent() - before);
          EXPECT_EQ(summed.indices.size(), summed.Sums().size()) << "an index comes twice";
          EXPECT_EQ(summed.Sums(), gathered.Sums()) << table_rows << " " << count;
        }
      }
    });
  }
}

TEST(SummedRows, AreChosenByTheRowsOfAllRanks) {
  RunRanks(3, [&](std::unique_ptr<TcpBackend> backend) {
    // 0, 4 and 8 rows: 12 in all.
    for (int64_t most : {11, 12}) {
      Gradient given = GradientOf(backend->rank(), 50, 4 * backend->rank());
      Gradient result;
      RowsOfRanks seen;
      TFDEAR_EXPECT_OK(ExchangeIndexedRows(backend.get(), Signature("x"), most,
                                           given.indices.data(), given.rows(), DataType::kFloat32,
                                           {50, most}, result.allocate(), &seen));
      EXPECT_EQ(seen.count, 12);
      EXPECT_EQ(seen.summed, most == 11);
    }
  });
}

TEST(SummedRows, OfNoRowOfTheTableAreRefused) {
  for (int64_t index : {int64_t{-1}, int64_t{5}}) {
    RunRanks(1, [&](std::unique_ptr<TcpBackend> backend) {
      Gradient given{{0, index}, std::vector<float>(2 * kColumns, 1)};
      Gradient result;
      RowsOfRanks seen;
      const Status status =
          ExchangeIndexedRows(backend.get(), Signature("x"), 0, given.indices.data(), given.rows(),
                              DataType::kFloat32, {5, -1}, result.allocate(), &seen);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_TRUE(Contains(status.message(), "row " + std::to_string(index) + " is not in a table"))
          << status.message();
    });
  }
}

}  // namespace
}  // namespace tfdear
