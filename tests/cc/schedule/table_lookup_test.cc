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
    layout->tables.push_back({partition, 2 * size, "table " + std::to_string(t), t});
  }
  return layout;
}

// Rank r looks up r + 1 ids.
std::vector<int32_t> IdsOf(int rank) {
  std::vector<int32_t> ids(rank + 1);
  std::iota(ids.begin(), ids.end(), 3 * rank);
  return ids;
}

float ValueOf(int table, int32_t id, int64_t column, int change = 0) {
  return static_cast<float>(1000 * change + 100 * table + 10 * id + column);
}

// Looks up what this rank holds, after so many changes of the table.
void Contribute(TableLookup* lookup, int table, const GatheredIds& ids, int rank, int size,
                int change = 0) {
  const auto& partition = lookup->layout().tables[table].partition;
  auto held = std::make_shared<std::vector<float>>();
  for (int32_t id : HeldIds(ids.View(), partition, rank)) {
    const int64_t begin = partition.by_row() ? 0 : 2 * rank;
    const int64_t end = partition.by_row() ? 2 * size : begin + 2;
    for (int64_t c = begin; c < end; ++c) held->push_back(ValueOf(table, id, c, change));
  }
  lookup->ContributeVectors(table, held->data(), sizeof(float), held, change);
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
              t, [&, t, lookup](const Status& status, const GatheredIds& ids, const auto& needed) {
                TFDEAR_EXPECT_OK(status);
                EXPECT_EQ(static_cast<int>(ids.counts.size()), size);
                EXPECT_EQ(needed.ids, ids.ids);
                Contribute(lookup.get(), t, needed, rank->rank(), size);
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

// What a step finds when the step before has looked ahead. Rank r looks up r and 7 in the first
// step, and 7 and 20 + r in the second.
struct Ahead {
  bool expected = true;  // Whether rank 1 expects the ids that it then has;
  bool valid = true;     // whether the vectors are still valid on rank 0;
  bool has_next = true;  // whether rank 0 knows of a next step.
};

void CheckAhead(const Ahead& ahead) {
  const int size = 3;
  RunEngines(size, [&](EngineRank* rank) {
    auto pool = std::make_shared<FusionBufferPool>();
    auto layout = std::make_shared<LookupLayout>(*LayoutFor(size));
    layout->looks_ahead = true;
    layout->tables[0].early = layout->tables[1].early = true;  // Not the last one.
    auto open = [&](std::shared_ptr<TableLookup> expected) {
      auto lookup = std::make_shared<TableLookup>(layout, pool, rank->events(), rank->lane(), 0);
      lookup->LookAhead(0);
      lookup->SetExpected(std::move(expected));
      rank->lane()->Open(lookup);
      return lookup;
    };
    const std::vector<int32_t> first = {rank->rank(), 7}, second = {7, 20 + rank->rank()};
    // The ids of all ranks for which each collective asks the holders.
    std::mutex mutex;
    std::map<std::pair<const TableLookup*, int>, GatheredIds> needed;
    Received received;
    auto take = [&](std::shared_ptr<TableLookup> lookup, int table, int change) {
      lookup->WhenIdsThere(table, [&, lookup, table, change](const Status& status, const auto&,
                                                             const GatheredIds& ids) {
        TFDEAR_EXPECT_OK(status);
        {
          std::lock_guard<std::mutex> lock(mutex);
          needed[{lookup.get(), table}] = ids;
        }
        Contribute(lookup.get(), table, ids, rank->rank(), size, change);
      });
    };
    auto lookup = open(nullptr);
    for (int t = 0; t < kTables; ++t) {
      take(lookup, t, 0);
      lookup->WhenVectorsThere(t, received.For(t));
      lookup->ContributeIds(t, first);
    }
    auto beyond = lookup->TakeAhead();
    rank->lane()->Open(beyond);
    for (int t = 0; t < kTables; ++t) {
      if (t < 2) take(beyond, t, 0);
      if (rank->rank() == 0 && !ahead.has_next) {
        beyond->ContributeNoIds(t);
      } else {
        beyond->ContributeIds(
            t, rank->rank() == 1 && !ahead.expected ? std::vector<int32_t>{8} : second);
      }
    }
    ASSERT_TRUE(received.WaitFor(kTables));
    // The table has changed where the first step has touched it.
    auto next = open(beyond);
    for (int t = 0; t < kTables; ++t) {
      next->WhenVectorsThere(t, received.For(kTables + t));
      next->WhenIdsThere(t, [&, t, next](const Status& status, const auto& ids, const auto& ask) {
        TFDEAR_EXPECT_OK(status);
        EXPECT_EQ(ids.ids, (std::vector<int32_t>{7, 20, 7, 21, 7, 22}));
        std::lock_guard<std::mutex> lock(mutex);
        needed[{next.get(), t}] = ask;
      });
    }
    for (int t = 0; t < kTables; ++t) {
      next->ContributeIds(t, second, ahead.valid || rank->rank() != 0);
    }
    for (int t = 0; t < kTables; ++t) take(next, t, 1);
    ASSERT_TRUE(received.WaitFor(2 * kTables));
    const bool early = ahead.expected && ahead.valid && ahead.has_next;
    for (int t = 0; t < kTables; ++t) {
      const std::vector<int32_t> untouched = {20, 21, 22}, touched = {7, 7, 7};
      const std::vector<int32_t> all = {7, 20, 7, 21, 7, 22};
      std::lock_guard<std::mutex> lock(mutex);
      EXPECT_EQ((needed[{next.get(), t}].ids), early && t < 2 ? touched : all);
      if (early && t < 2) EXPECT_EQ((needed[{beyond.get(), t}].ids), untouched);
      const auto result = received.Get(kTables + t);
      TFDEAR_EXPECT_OK(result.status);
      const auto* const vectors = static_cast<const float*>(result.sum.data);
      for (int c = 0; c < 2 * size; ++c) {
        EXPECT_EQ(vectors[c], ValueOf(t, 7, c, 1));
        EXPECT_EQ(vectors[2 * size + c], ValueOf(t, second[1], c, early && t < 2 ? 0 : 1));
      }
    }
    // The ids of the second step were gathered once, if they were foreseen.
    std::vector<int64_t> bytes_of_ids;
    for (const Event& event : rank->NewEvents()) {
      if (event.kind == EventKind::kEmbeddingIds) bytes_of_ids.push_back(event.detail);
    }
    const int64_t foreseen = ahead.has_next ? (rank->rank() == 1 && !ahead.expected ? 12 : 24) : 0;
    const int64_t again = ahead.expected && ahead.has_next ? 0 : 24;
    EXPECT_EQ(bytes_of_ids, (std::vector<int64_t>{24, foreseen, again}));
  });
}

TEST(TableLookup, LooksUpEarlyWhatTheStepLeaves) { CheckAhead({}); }
TEST(TableLookup, ForgetsWhatWasNotExpected) { CheckAhead({.expected = false}); }
TEST(TableLookup, ForgetsVectorsThatAreNotValid) { CheckAhead({.valid = false}); }
TEST(TableLookup, GoesOnWhereARankKnowsOfNoNextStep) { CheckAhead({.has_next = false}); }

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
          std::make_shared<TableRows>("gradients", tables, pool, rank->events(), rank->lane(),
                                      rank->lane(), 0, nullptr, /*beside_dense=*/true);
      rows->Open();
      Received received;
      const std::vector<int32_t> ids = IdsOf(rank->rank());
      for (int t = kTables - 1; t >= 0; --t) {
        rows->WhenThere(
            t, nullptr, 0, {},
            {[](const auto&) { ADD_FAILURE() << "rows in parts"; },
             [receive = received.For(t)](const Status& status, int, int parts, const Reduced& sum) {
               EXPECT_EQ(parts, 1);
               receive(status, sum);
             }});
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

      std::vector<TableRows::Table> tables;
      for (const auto& table : layout->tables) {
        tables.push_back({std::make_shared<const TablePartition>(table.partition)});
      }
      auto rows =
          std::make_shared<TableRows>("gradients", tables, pool, rank->events(), rank->lane(),
                                      rank->lane(), 0, &held_back, /*beside_dense=*/true);
      rows->Open();
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
        TableRows::Rows given;
        TFDEAR_EXPECT_OK(pool->Take(ids.size() * 2 * size * sizeof(float), &given.values));
        TFDEAR_EXPECT_OK(pool->Take(ids.size() * sizeof(int64_t), &given.numbers));
        for (size_t i = 0; i < ids.size(); ++i) {
          reinterpret_cast<int64_t*>(given.numbers->data())[i] = ids[i];
          for (int c = 0; c < 2 * size; ++c) {
            reinterpret_cast<float*>(given.values->data())[i * 2 * size + c] =
                ValueOf(t, ids[i], c);
          }
        }
        given.shape = {static_cast<int64_t>(ids.size()), 2 * size};
        given.lookup = lookup;
        given.table_of_lookup = t;
        rows->Contribute(t, std::move(given));
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
        const bool by_row = tables[t].partition->by_row();
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
            if (tables[t].partition->by_row() && id % size != rank->rank()) continue;
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

}  // namespace
}  // namespace tfdear
