// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Lookups in tables travel together: ids, then vectors.

#include "custom_ops/engine/schedule/table_lookup.h"

#include "tests/cc/schedule/table_testing.h"

namespace tfdear {
namespace {

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

TEST(TableLookup, ExchangesLargeTablesOneAfterAnother) {
  const int size = 2;
  RunEngines(size, [](EngineRank* rank) {
    auto lookup = std::make_shared<TableLookup>(
        LayoutFor(size), std::make_shared<FusionBufferPool>(), rank->events(), rank->lane(), 0);
    rank->lane()->Open(lookup);
    Received ids_there, received;
    std::vector<GatheredIds> needed(kTables);
    for (int t = 0; t < kTables; ++t) {
      lookup->WhenVectorsThere(t, received.For(t));
      lookup->WhenIdsThere(t, [&, receive = ids_there.For(t), t](const Status& status, const auto&,
                                                                 const GatheredIds& ids) {
        needed[t] = ids;
        receive(status, Reduced());
      });
      lookup->ContributeIds(t, t == 0 ? IdsOf(rank->rank()) : ManyIdsOf(rank->rank()));
    }
    ASSERT_TRUE(ids_there.WaitFor(kTables));
    // The last one's vectors are missing, and the others travel.
    for (int t : {1, 0}) Contribute(lookup.get(), t, needed[t], rank->rank(), size);
    ASSERT_TRUE(received.WaitFor(2));
    EXPECT_EQ(received.calls(), 2);
    Contribute(lookup.get(), 2, needed[2], rank->rank(), size);
    ASSERT_TRUE(received.WaitFor(kTables));
    for (int t = 0; t < kTables; ++t) {
      const auto result = received.Get(t);
      TFDEAR_EXPECT_OK(result.status);
      const auto ids = t == 0 ? IdsOf(rank->rank()) : ManyIdsOf(rank->rank());
      const std::vector<int64_t> shape = {static_cast<int64_t>(ids.size()), 2 * size};
      ASSERT_EQ(result.sum.shape, shape);
      for (size_t i = 0; i < ids.size(); ++i) {
        const auto* const vector = static_cast<const float*>(result.sum.data) + i * 2 * size;
        for (int c = 0; c < 2 * size; ++c) ASSERT_EQ(vector[c], ValueOf(t, ids[i], c));
      }
    }
    EXPECT_TRUE(lookup->complete());
    const auto events = rank->NewEvents();
    EXPECT_EQ(std::count_if(events.begin(), events.end(), IsOf(EventKind::kEmbeddingVectors)), 3);
  });
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

}  // namespace
}  // namespace tfdear
