// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Sums of bags travel where they are fewer, beside the vectors of other tables.

#include "custom_ops/engine/schedule/table_lookup.h"
#include "tests/cc/engine_testing.h"

namespace tfdear {
namespace {

constexpr int kWidth = 16;  // Columns of a rank.
constexpr int kTables = 3;  // The vectors of the first two may be pooled.

std::shared_ptr<const LookupLayout> LayoutFor(int size) {
  auto layout = std::make_shared<LookupLayout>();
  for (int t = 0; t < kTables; ++t) {
    TablePartition partition;
    for (int rank = 0; rank <= size; ++rank) partition.column_begins.push_back(kWidth * rank);
    layout->tables.push_back({partition, kWidth * size, "table " + std::to_string(t), t});
    layout->tables[t].counts = std::make_shared<RowCounts>();
    if (t < 2) layout->tables[t].pooled_bytes = sizeof(float);
  }
  return layout;
}

float ValueOf(int table, int32_t id, int64_t column) {
  return static_cast<float>(10000 * table + 100 * id + column);
}

// Rank r has 4 r ids, and of the first table a bag of all of them and one that is empty: none on
// rank 0, where there is nothing to add up. Of the second table every id is in a bag of its own.
std::vector<int32_t> IdsOf(int rank) {
  std::vector<int32_t> ids(4 * rank);
  std::iota(ids.begin(), ids.end(), 3 * rank);
  return ids;
}

Bags BagsOf(int table, int rank) {
  const std::vector<int32_t> ids = IdsOf(rank);
  Bags bags;
  bags.positions.resize(ids.size());
  std::iota(bags.positions.begin(), bags.positions.end(), 0);
  if (table == 1) {
    bags.sizes.assign(ids.size(), 1);
  } else if (rank > 0) {
    bags.sizes = {static_cast<int32_t>(ids.size()), 0};
  }
  return bags;
}

// Contributes this rank's columns of the vectors of ids, or of the sums of bags.
void Contribute(TableLookup* lookup, int table, const GatheredIds& ids, int rank) {
  const auto bags = lookup->BagsThere(table);
  const size_t vectors = bags == nullptr ? ids.ids.size() : bags->total();
  auto held = std::make_shared<std::vector<float>>(vectors * kWidth, 0);
  const size_t terms = bags == nullptr ? ids.ids.size() : bags->positions.size();
  for (size_t i = 0; i < terms; ++i) {
    const int32_t id = ids.ids[bags == nullptr ? i : bags->positions[i]];
    float* const to = held->data() + (bags == nullptr ? i : bags->bag_of[i]) * kWidth;
    for (int c = 0; c < kWidth; ++c) to[c] += ValueOf(table, id, kWidth * rank + c);
  }
  lookup->ContributeVectors(table, held->data(), sizeof(float), held);
}

TEST(LookupBags, TravelWhereTheirSumsAreFewer) {
  for (int size : {2, 3, 4}) {
    RunEngines(size, [size](EngineRank* rank) {
      auto pool = std::make_shared<FusionBufferPool>();
      const auto layout = LayoutFor(size);
      const int own = rank->rank();
      for (int step = 0; step < 3; ++step) {
        auto lookup = std::make_shared<TableLookup>(layout, pool, rank->events(), rank->lane(), 0);
        rank->lane()->Open(lookup);
        Received received;
        for (int t = 0; t < kTables; ++t) {
          lookup->WhenVectorsThere(t, received.For(t));
          lookup->WhenIdsThere(
              t, [&, t, lookup](const Status& status, const auto& ids, const GatheredIds& needed) {
                TFDEAR_EXPECT_OK(status);
                EXPECT_EQ(needed.ids, ids.ids);
                EXPECT_EQ(lookup->BagsThere(t) != nullptr, t == 0);
                Contribute(lookup.get(), t, needed, own);
              });
        }
        for (int i = 0; i < kTables; ++i) {
          const int t = (i + own) % kTables;  // Another order on every rank.
          if (step % 2 == 0 && t < 2) lookup->ContributeBags(t, BagsOf(t, own));
          lookup->ContributeIds(t, IdsOf(own));
          if (step % 2 != 0 && t < 2) lookup->ContributeBags(t, BagsOf(t, own));
        }
        ASSERT_TRUE(received.WaitFor(kTables));
        const std::vector<int32_t> ids = IdsOf(own);
        for (int t = 0; t < kTables; ++t) {
          const auto result = received.Get(t);
          TFDEAR_EXPECT_OK(result.status);
          const auto* const vectors = static_cast<const float*>(result.sum.data);
          const int64_t columns = kWidth * size;
          const int64_t count = t > 0 ? ids.size() : own > 0 ? 2 : 0;
          ASSERT_EQ(result.sum.shape, (std::vector<int64_t>{count, columns}));
          std::vector<float> expected(count * columns, 0);
          for (size_t i = 0; i < ids.size(); ++i) {
            for (int64_t c = 0; c < columns; ++c) {
              expected[(t == 0 ? 0 : i) * columns + c] += ValueOf(t, ids[i], c);
            }
          }
          EXPECT_EQ(std::vector<float>(vectors, vectors + count * columns), expected);
        }
      }
      // What was sent to others, in three steps: of bags, and of single vectors.
      const int64_t others = size * (size - 1) / 2 - own;  // Ids of the other ranks, in fours.
      const int64_t bags = 2 * (size - 1) - (own > 0 ? 2 : 0);
      const int64_t of_vector = 3 * kWidth * sizeof(float);
      const auto& tables = layout->tables;
      EXPECT_EQ(tables[0].counts->late_vector_bytes, bags * of_vector);
      EXPECT_EQ(tables[1].counts->late_vector_bytes, 4 * others * of_vector);
      EXPECT_EQ(tables[0].counts->late_vectors, own > 0 ? 6 : 0);
      const int64_t structure = own > 0 ? 4 * own + 2 : 0;
      EXPECT_EQ(tables[0].counts->id_bytes, 12 * (size - 1) * (4 * own + structure));
      EXPECT_EQ(tables[1].counts->id_bytes, 12 * (size - 1) * 4 * own);
    });
  }
}

TEST(LookupBags, AreGatheredAlsoWhereIdsWereForeseen) {
  const int size = 3;
  RunEngines(size, [&](EngineRank* rank) {
    auto pool = std::make_shared<FusionBufferPool>();
    auto layout = std::make_shared<LookupLayout>(*LayoutFor(size));
    layout->looks_ahead = true;
    const int own = rank->rank();
    Received received;
    std::shared_ptr<TableLookup> beyond;
    for (int step = 0; step < 2; ++step) {
      auto lookup = std::make_shared<TableLookup>(layout, pool, rank->events(), rank->lane(), 0);
      lookup->LookAhead(0);
      lookup->SetExpected(std::move(beyond));
      rank->lane()->Open(lookup);
      for (int t = 0; t < kTables; ++t) {
        lookup->WhenVectorsThere(t, received.For(step * kTables + t));
        lookup->WhenIdsThere(t, [=](const Status& status, const auto&, const GatheredIds& needed) {
          TFDEAR_EXPECT_OK(status);
          Contribute(lookup.get(), t, needed, own);
        });
        lookup->ContributeIds(t, IdsOf(own));
        if (t < 2) lookup->ContributeBags(t, BagsOf(t, own));
      }
      beyond = lookup->TakeAhead();
      rank->lane()->Open(beyond);
      for (int t = 0; t < kTables; ++t) beyond->ContributeIds(t, IdsOf(own));
      ASSERT_TRUE(received.WaitFor((step + 1) * kTables));
      const auto result = received.Get(step * kTables);
      TFDEAR_EXPECT_OK(result.status);
      ASSERT_EQ(result.sum.shape[0], own > 0 ? 2 : 0);
      float sum = 0;
      for (int32_t id : IdsOf(own)) sum += ValueOf(0, id, 0);
      if (own > 0) {
        EXPECT_EQ(static_cast<const float*>(result.sum.data)[0], sum);
      }
    }
    EXPECT_EQ(layout->tables[0].counts->foreseen_steps, 1);
  });
}

}  // namespace
}  // namespace tfdear
