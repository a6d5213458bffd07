// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// The rows of tables' gradients travel, in two parts where the next ids are known.

#include "custom_ops/engine/schedule/table_rows.h"

#include <thread>

#include "tests/cc/schedule/table_testing.h"

namespace tfdear {
namespace {

std::shared_ptr<TableRows> OpenRows(const LookupLayout& layout,
                                    std::shared_ptr<FusionBufferPool> pool, EngineRank* rank,
                                    RightOfWay* right_of_way = nullptr) {
  std::vector<TableRows::Table> tables;
  for (const auto& table : layout.tables) {
    tables.push_back({std::make_shared<const TablePartition>(table.partition)});
  }
  auto rows = std::make_shared<TableRows>("gradients", tables, std::move(pool), rank->events(),
                                          rank->lane(), rank->lane(), 0, right_of_way,
                                          /*beside_dense=*/true);
  rows->Open();
  return rows;
}

// What a rank contributes for ids of a table.
TableRows::Rows RowsFor(int table, const std::vector<int32_t>& ids, int columns,
                        FusionBufferPool* pool, std::shared_ptr<TableLookup> lookup = nullptr) {
  TableRows::Rows rows;
  TFDEAR_EXPECT_OK(pool->Take(ids.size() * columns * sizeof(float), &rows.values));
  TFDEAR_EXPECT_OK(pool->Take(ids.size() * sizeof(int64_t), &rows.numbers));
  for (size_t i = 0; i < ids.size(); ++i) {
    reinterpret_cast<int64_t*>(rows.numbers->data())[i] = ids[i];
    for (int c = 0; c < columns; ++c) {
      reinterpret_cast<float*>(rows.values->data())[i * columns + c] = ValueOf(table, ids[i], c);
    }
  }
  rows.shape = {static_cast<int64_t>(ids.size()), columns};
  rows.lookup = std::move(lookup);
  rows.table_of_lookup = table;
  return rows;
}

// Hands on what comes, which must come at once.
template <typename Receive>
TableRows::PartReceiver InOnePart(Receive receive) {
  return {[](const auto&) { ADD_FAILURE() << "rows in parts"; },
          [receive](const Status& status, int, int parts, const Reduced& sum) {
            EXPECT_EQ(parts, 1);
            receive(status, sum);
          }};
}

TEST(TableRows, BringTheRowsOfAllTablesAtOnce) {
  for (int size : {2, 3}) {
    RunEngines(size, [size](EngineRank* rank) {
      auto pool = std::make_shared<FusionBufferPool>();
      const auto layout = LayoutFor(size);
      const auto rows = OpenRows(*layout, pool, rank);
      Received received;
      const std::vector<int32_t> ids = IdsOf(rank->rank());
      for (int t = kTables - 1; t >= 0; --t) {
        rows->WhenThere(t, nullptr, 0, {}, InOnePart(received.For(t)));
        rows->Contribute(t, RowsFor(t, ids, 2 * size, pool.get()));
      }
      ASSERT_TRUE(received.WaitFor(kTables));
      for (int t = 0; t < kTables; ++t) {
        const auto result = received.Get(t);
        TFDEAR_EXPECT_OK(result.status);
        const bool by_row = layout->tables[t].partition.by_row();
        const int width = by_row ? 2 * size : 2;
        const int first = by_row ? 0 : 2 * rank->rank();
        ASSERT_EQ(result.sum.shape[1], width);
        int64_t row = 0;
        for (int peer = 0; peer < size; ++peer) {
          for (int32_t id : IdsOf(peer)) {
            if (by_row && id % size != rank->rank()) continue;
            EXPECT_EQ(result.sum.indices[row], id);
            EXPECT_EQ(static_cast<const float*>(result.sum.data)[row * width],
                      ValueOf(t, id, first));
            ++row;
          }
        }
        EXPECT_EQ(result.sum.shape[0], row);
      }
    });
  }
}

TEST(TableRows, ThoseOfLargeTablesTravelWhenTheyAreReadyTheLastOnesFirst) {
  const int size = 2;
  RunEngines(size, [](EngineRank* rank) {
    auto pool = std::make_shared<FusionBufferPool>();
    const auto layout = LayoutFor(size);
    auto lookup = std::make_shared<TableLookup>(layout, pool, rank->events(), rank->lane(), 0);
    rank->lane()->Open(lookup);
    Received vectors;
    auto ids_of = [rank](int t) { return t == 0 ? IdsOf(rank->rank()) : ManyIdsOf(rank->rank()); };
    for (int t = 0; t < kTables; ++t) {
      lookup->WhenIdsThere(t, [&, t](const Status&, const auto&, const GatheredIds& needed) {
        Contribute(lookup.get(), t, needed, rank->rank(), size);
      });
      lookup->WhenVectorsThere(t, vectors.For(t));
      lookup->ContributeIds(t, ids_of(t));
    }
    ASSERT_TRUE(vectors.WaitFor(kTables));

    const auto rows = OpenRows(*layout, pool, rank);
    Received received;
    for (int t = 0; t < kTables; ++t) {
      rows->WhenThere(t, lookup, t, {}, InOnePart(received.For(t)));
    }
    // As in a backward pass; but the second table's come last, and the first one's turn is later.
    for (int t : {2, 0, 1}) {
      rows->Contribute(t, RowsFor(t, ids_of(t), 2 * size, pool.get(), lookup));
      if (t > 0) ASSERT_TRUE(received.WaitFor(t == 2 ? 1 : kTables));
      if (t == 0) EXPECT_EQ(received.calls(), 1);
    }
    for (int t = 0; t < kTables; ++t) {
      const auto result = received.Get(t);
      TFDEAR_EXPECT_OK(result.status);
      const bool by_row = layout->tables[t].partition.by_row();
      const int64_t width = result.sum.shape[1];
      for (int64_t row = 0; row < result.sum.shape[0]; ++row) {
        const auto id = static_cast<int32_t>(result.sum.indices[row]);
        ASSERT_EQ(static_cast<const float*>(result.sum.data)[row * width],
                  ValueOf(t, id, by_row ? 0 : 2 * rank->rank()));
      }
    }
    const auto events = rank->NewEvents();
    EXPECT_EQ(std::count_if(events.begin(), events.end(), IsOf(EventKind::kEmbeddingPrior)), 3);
  });
}

TEST(TableRows, TravelInTwoPartsWhereTheNextIdsAreKnown) {
  for (int size : {2, 3}) {
    RunEngines(size, [size](EngineRank* rank) {
      auto pool = std::make_shared<FusionBufferPool>();
      auto layout = std::make_shared<LookupLayout>(*LayoutFor(size));
      layout->looks_ahead = true;
      RightOfWay held_back;
      auto lookup =
          std::make_shared<TableLookup>(layout, pool, rank->events(), rank->lane(), 0, &held_back);
      lookup->LookAhead(0);
      rank->lane()->Open(lookup);
      // Every rank looks up 5, its own number and 10 more than that; in the next step 5 and 10.
      const std::vector<int32_t> ids = {5, rank->rank(), 10 + rank->rank()}, next = {10, 5};
      Received vectors;
      for (int t = 0; t < kTables; ++t) {
        lookup->WhenIdsThere(
            t, [&, t, lookup](const Status& status, const auto&, const GatheredIds& needed) {
              TFDEAR_EXPECT_OK(status);
              Contribute(lookup.get(), t, needed, rank->rank(), size);
            });
        lookup->WhenVectorsThere(t, vectors.For(t));
        lookup->ContributeIds(t, ids);
      }
      rank->lane()->Open(lookup->TakeAhead());
      for (int t = 0; t < kTables; ++t) lookup->ahead()->ContributeIds(t, next);
      ASSERT_TRUE(vectors.WaitFor(kTables));

      const auto rows = OpenRows(*layout, pool, rank, &held_back);
      Received prior, delayed;
      std::mutex mutex;
      std::vector<std::vector<std::vector<int32_t>>> declared(kTables);
      for (int t = 0; t < kTables; ++t) {
        auto declare = [&, t](const std::vector<std::vector<int32_t>>& parts) {
          std::lock_guard<std::mutex> lock(mutex);
          declared[t] = parts;
        };
        auto part = [first = prior.For(t), second = delayed.For(t)](
                        const Status& status, int number, int parts, const Reduced& sum) {
          EXPECT_EQ(parts, 2);
          (number == TableRows::kPrior ? first : second)(status, sum);
        };
        rows->WhenThere(t, lookup, t, {t}, {declare, part});
        rows->Contribute(t, RowsFor(t, ids, 2 * size, pool.get(), lookup));
        if (t > 0) continue;
        // Who asks after the split is told the parts, too, long before rows come.
        const auto split = [&] {
          std::lock_guard<std::mutex> lock(mutex);
          return !declared[0].empty();
        };
        while (!split()) std::this_thread::yield();
        const auto late = std::make_shared<std::vector<std::vector<int32_t>>>();
        rows->WhenThere(0, lookup, 0, {0},
                        {[late](const auto& parts) { *late = parts; },
                         [](const Status&, int, int, const Reduced&) {}});
        EXPECT_EQ(*late, declared[0]);
      }
      ASSERT_TRUE(prior.WaitFor(kTables));
      if (rank->rank() == 0) EXPECT_EQ(delayed.calls(), 0);
      held_back.VariableWanted(kTables);  // Of no table.
      held_back.VariableWanted(1);
      ASSERT_TRUE(delayed.WaitFor(kTables));
      int64_t split = 0;
      for (const Event& event : rank->NewEvents()) {
        if (event.kind == EventKind::kEmbeddingSplit) split += event.detail;
      }
      EXPECT_EQ(split, kTables * size * static_cast<int64_t>(ids.size())) << "each once, of all";
      auto of = [&](Received* received, int t) {
        const auto result = received->Get(t);
        TFDEAR_EXPECT_OK(result.status);
        const bool by_row = layout->tables[t].partition.by_row();
        const int first = by_row ? 0 : 2 * rank->rank();
        const auto* const values = static_cast<const float*>(result.sum.data);
        std::vector<int32_t> numbers;
        for (int64_t row = 0; row < result.sum.shape[0]; ++row) {
          numbers.push_back(static_cast<int32_t>(result.sum.indices[row]));
          EXPECT_EQ(values[row * result.sum.shape[1]], ValueOf(t, numbers.back(), first));
        }
        return numbers;
      };
      for (int t = 0; t < kTables; ++t) {
        std::vector<int32_t> first, second;
        for (int peer = 0; peer < size; ++peer) {
          for (int32_t id : {5, peer, 10 + peer}) {
            if (layout->tables[t].partition.by_row() && id % size != rank->rank()) continue;
            (id == 5 || id == 10 ? first : second).push_back(id);
          }
        }
        EXPECT_EQ(of(&prior, t), first);
        EXPECT_EQ(of(&delayed, t), second);
        std::lock_guard<std::mutex> lock(mutex);
        ASSERT_EQ(declared[t].size(), 2u);
        EXPECT_EQ(declared[t][0], (std::vector<int32_t>{5, 10}));
      }
    });
  }
}

TEST(TableRows, TravelAtOnceWhereAStepEndedBeforeItLookedAhead) {
  for (const bool is_opened : {true, false}) {
    RunEngines(2, [is_opened](EngineRank* rank) {
      auto pool = std::make_shared<FusionBufferPool>();
      auto layout = std::make_shared<LookupLayout>(*LayoutFor(2));
      layout->looks_ahead = true;
      auto lookup = std::make_shared<TableLookup>(layout, pool, rank->events(), rank->lane(), 0);
      lookup->LookAhead(0);
      rank->lane()->Open(lookup);
      const std::vector<int32_t> ids = {5, rank->rank()};
      for (int t = 0; t < kTables; ++t) {
        lookup->WhenIdsThere(t, [&, t](const Status&, const auto&, const GatheredIds& needed) {
          Contribute(lookup.get(), t, needed, rank->rank(), 2);
        });
        lookup->ContributeIds(t, ids);
      }
      if (is_opened) rank->lane()->Open(lookup->TakeAhead());
      const auto rows = OpenRows(*layout, pool, rank);
      Received received;
      for (int t = 0; t < kTables; ++t) {
        rows->WhenThere(t, lookup, t, {}, InOnePart(received.For(t)));
        rows->Contribute(t, RowsFor(t, ids, 4, pool.get(), lookup));
      }
      EXPECT_EQ(received.calls(), 0);
      Ticket* const ahead = lookup->ahead().get();
      if (is_opened) {
        EXPECT_TRUE(rank->lane()->Withdraw(ahead));
      } else {
        ahead->Fail(Status(StatusCode::kCancelled, "the step ended"));
      }
      ASSERT_TRUE(received.WaitFor(kTables));
      for (int t = 0; t < kTables; ++t) TFDEAR_EXPECT_OK(received.Get(t).status);
      // Later ones find the lane free.
      Received later;
      auto next =
          std::make_shared<TableLookup>(LayoutFor(2), pool, rank->events(), rank->lane(), 0);
      rank->lane()->Open(next);
      for (int t = 0; t < kTables; ++t) {
        next->WhenIdsThere(t, [&, t](const Status&, const auto&, const GatheredIds& needed) {
          Contribute(next.get(), t, needed, rank->rank(), 2);
        });
        next->WhenVectorsThere(t, later.For(t));
        next->ContributeIds(t, ids);
      }
      ASSERT_TRUE(later.WaitFor(kTables));
    });
  }
}

}  // namespace
}  // namespace tfdear
