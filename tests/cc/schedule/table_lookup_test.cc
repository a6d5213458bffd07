// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Tables travel together: ids, then vectors, then the rows of their gradients.

#include "custom_ops/engine/schedule/table_lookup.h"

#include "custom_ops/engine/schedule/table_rows.h"
#include "tests/cc/engine_testing.h"

namespace tfdear {
namespace {

constexpr int kTables = 3;

std::shared_ptr<const LookupLayout> LayoutFor(int size) {
  auto layout = std::make_shared<LookupLayout>();
  for (int t = 0; t < kTables; ++t) {
    TablePartition partition;
    for (int rank = 0; t != 1 && rank <= size; ++rank) partition.column_begins.push_back(2 * rank);
    layout->tables.push_back({partition, 2 * size, "table " + std::to_string(t)});
  }
  return layout;
}

// Rank r looks up r + 1 ids.
std::vector<int32_t> IdsOf(int rank) {
  std::vector<int32_t> ids(rank + 1);
  std::iota(ids.begin(), ids.end(), 3 * rank);
  return ids;
}

TEST(TableLookup, ExchangesAllTablesAtOnceWhateverOrderTheyComeIn) {
  for (int size : {2, 3, 4}) {
    RunEngines(size, [size](EngineRank* rank) {
      auto pool = std::make_shared<FusionBufferPool>();
      const auto layout = LayoutFor(size);
      for (int step = 0; step < 5; ++step) {
        auto lookup = std::make_shared<TableLookup>(layout, pool, rank->events(), rank->lane(), 0);
        rank->lane()->Open(lookup);
        EXPECT_TRUE(lookup->Untouched());
        Received received;
        for (int t = 0; t < kTables; ++t) {
          lookup->WhenVectorsThere(t, received.For(t));
          lookup->WhenIdsThere(
              t, [&, t, lookup](const Status& status, const auto& ids, const auto& counts) {
                TFDEAR_EXPECT_OK(status);
                EXPECT_EQ(static_cast<int>(counts.size()), size);
                const auto& partition = layout->tables[t].partition;
                auto held = std::make_shared<std::vector<float>>();
                for (int32_t id : HeldIds({ids.data(), counts}, partition, rank->rank())) {
                  const int64_t begin = partition.by_row() ? 0 : 2 * rank->rank();
                  const int64_t end = partition.by_row() ? 2 * size : begin + 2;
                  for (int64_t c = begin; c < end; ++c) {
                    held->push_back(static_cast<float>(100 * t + 10 * id + c));
                  }
                }
                lookup->ContributeVectors(t, held->data(), sizeof(float), held);
              });
        }
        for (int t = 0; t < kTables; ++t) {
          const int table = (t + rank->rank()) % kTables;  // Another order on every rank.
          lookup->ContributeIds(table, IdsOf(rank->rank()));
        }
        ASSERT_TRUE(received.WaitFor(kTables));
        for (int t = 0; t < kTables; ++t) {
          const auto result = received.Get(t);
          TFDEAR_EXPECT_OK(result.status);
          const std::vector<int64_t> shape = {rank->rank() + 1, 2 * size};
          ASSERT_EQ(result.sum.shape, shape);
          const auto* const vectors = static_cast<const float*>(result.sum.data);
          const std::vector<int32_t> ids = IdsOf(rank->rank());
          for (size_t i = 0; i < ids.size(); ++i) {
            for (int c = 0; c < 2 * size; ++c) {
              EXPECT_EQ(vectors[i * 2 * size + c], static_cast<float>(100 * t + 10 * ids[i] + c));
            }
          }
        }
      }
      // Of each step, one exchange of ids and one of vectors.
      int ids = 0, vectors = 0;
      for (const Event& event : rank->NewEvents()) {
        ids += event.kind == EventKind::kEmbeddingIds;
        vectors += event.kind == EventKind::kEmbeddingVectors;
      }
      EXPECT_EQ(ids, 5);
      EXPECT_EQ(vectors, 5);
    });
  }
}

TEST(TableLookup, TellsAllThatWaitWhenTheJobFails) {
  RunEngines(2, [](EngineRank* rank) {
    auto pool = std::make_shared<FusionBufferPool>();
    auto lookup =
        std::make_shared<TableLookup>(LayoutFor(2), pool, rank->events(), rank->lane(), 0);
    rank->lane()->Open(lookup);
    Received received;
    Status of_ids;
    lookup->WhenVectorsThere(0, received.For(0));
    lookup->WhenIdsThere(1,
                         [&](const Status& status, const auto&, const auto&) { of_ids = status; });
    lookup->ContributeIds(0, {1});
    EXPECT_FALSE(lookup->Untouched());
    rank->lane()->Fail(Status(StatusCode::kAborted, "the cause"));
    ASSERT_TRUE(received.WaitFor(1));
    EXPECT_EQ(received.Get(0).status.message(), "the cause");
    EXPECT_EQ(of_ids.message(), "the cause");
  });
}

TEST(TableRows, BringTheRowsOfAllTablesAtOnce) {
  for (int size : {2, 3}) {
    RunEngines(size, [size](EngineRank* rank) {
      auto pool = std::make_shared<FusionBufferPool>();
      const auto layout = LayoutFor(size);
      std::vector<TableRows::Table> tables;
      for (const auto& table : layout->tables) {
        tables.push_back({std::make_shared<const TablePartition>(table.partition)});
      }
      auto rows =
          std::make_shared<TableRows>("gradients", tables, pool, rank->events(), rank->lane(), 0);
      rank->lane()->Open(rows);
      Received received;
      const std::vector<int32_t> ids = IdsOf(rank->rank());
      for (int t = kTables - 1; t >= 0; --t) {
        rows->WhenThere(t, received.For(t));
        TableRows::Rows given;
        TFDEAR_EXPECT_OK(pool->Take(ids.size() * 2 * size * sizeof(float), &given.values));
        TFDEAR_EXPECT_OK(pool->Take(ids.size() * sizeof(int64_t), &given.numbers));
        for (size_t i = 0; i < ids.size(); ++i) {
          reinterpret_cast<int64_t*>(given.numbers->data())[i] = ids[i];
          for (int c = 0; c < 2 * size; ++c) {
            reinterpret_cast<float*>(given.values->data())[i * 2 * size + c] =
                static_cast<float>(100 * t + 10 * ids[i] + c);
          }
        }
        given.shape = {static_cast<int64_t>(ids.size()), 2 * size};
        rows->Contribute(t, std::move(given));
      }
      ASSERT_TRUE(received.WaitFor(kTables));
      for (int t = 0; t < kTables; ++t) {
        const auto result = received.Get(t);
        TFDEAR_EXPECT_OK(result.status);
        const bool by_row = tables[t].partition->by_row();
        const int width = by_row ? 2 * size : 2;
        const int first = by_row ? 0 : 2 * rank->rank();
        ASSERT_EQ(result.sum.shape[1], width);
        int64_t row = 0;
        for (int peer = 0; peer < size; ++peer) {
          for (int32_t id : IdsOf(peer)) {
            if (by_row && id % size != rank->rank()) continue;
            EXPECT_EQ(result.sum.indices[row], id);
            EXPECT_EQ(static_cast<const float*>(result.sum.data)[row * width],
                      static_cast<float>(100 * t + 10 * id + first));
            ++row;
          }
        }
        EXPECT_EQ(result.sum.shape[0], row);
      }
    });
  }
}

}  // namespace
}  // namespace tfdear
