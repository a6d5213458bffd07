// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Bags of all ranks, gathered where their sums are fewer bytes than the vectors of ids.

#include "custom_ops/engine/collectives/bags.h"

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

TEST(MakeBags, KeepsTheOrderOfTokensWhateverTheOrderOfBags) {
  const std::vector<int32_t> positions = {5, 4, 3, 2, 1, 0}, bag_of = {2, 0, -1, 2, 0, 2};
  Bags bags;
  ASSERT_TRUE(MakeBags(positions.data(), bag_of.data(), 6, 4, &bags));
  EXPECT_EQ(bags.sizes, (std::vector<int32_t>{2, 0, 3, 0}));
  EXPECT_EQ(bags.positions, (std::vector<int32_t>{4, 1, 5, 2, 0}));
  EXPECT_FALSE(MakeBags(positions.data(), bag_of.data(), 6, 2, &bags));
  ASSERT_TRUE(MakeBags(nullptr, nullptr, 0, 0, &bags));
  EXPECT_TRUE(bags.sizes.empty() && bags.positions.empty());
}

TEST(PoolingPays, IfSumsAndBagsAreFewerBytesThanVectors) {
  const TablePartition columns{{0, 4, 8}};
  const auto pays = [&](int64_t ids, int64_t bags, int64_t tokens, const TablePartition& partition,
                        size_t element_bytes) {
    bool result = false;
    TFDEAR_EXPECT_OK(PoolingPays({{ids, ids}, {bags, bags}, {tokens, tokens}}, partition,
                                 element_bytes, &result));
    return result;
  };
  // A vector that travels has 16 bytes, a token or a bag 4.
  EXPECT_TRUE(pays(10, 2, 29, columns, 4));
  EXPECT_FALSE(pays(10, 2, 30, columns, 4));
  EXPECT_FALSE(pays(10, 2, 29, columns, 2));
  EXPECT_FALSE(pays(10, 10, 0, columns, 4));
  EXPECT_FALSE(pays(0, 0, 0, columns, 4));
  EXPECT_FALSE(pays(10, 2, 29, TablePartition(), 4));
  EXPECT_FALSE(pays(int64_t{1} << 31, 1, 1, columns, 4));  // Places are of int32.
  bool result = false;
  EXPECT_FALSE(PoolingPays({{1, 1}, {1, -1}, {1, 1}}, columns, 4, &result).ok());
  EXPECT_FALSE(PoolingPays({{1, 1}, {1, 1}, {1, int64_t{1} << 60}}, columns, 4, &result).ok());
}

TEST(GatheredBags, RefuseWhatWasNotAnnounced) {
  const auto add = [](std::vector<int32_t> sent, int64_t bags) {
    GatheredBags all;
    return all.Add(sent.data(), bags, static_cast<int64_t>(sent.size()) - bags, 7, 3);
  };
  TFDEAR_EXPECT_OK(add({1, 0, 2, 2, 0, 1}, 3));
  EXPECT_FALSE(add({1, 0, 3, 2, 0, 1}, 3).ok());
  EXPECT_FALSE(add({1, 0, 1, 2, 0, 1}, 3).ok());
  EXPECT_FALSE(add({1, -1, 3, 2, 0, 1}, 3).ok());
  EXPECT_FALSE(add({1, 0, 2, 3, 0, 1}, 3).ok());
  EXPECT_FALSE(add({1, 0, 2, 2, -1, 1}, 3).ok());
}

TEST(GatherBags, GivesTheBagsOfAllRanksInTheirOrder) {
  for (int size : {1, 2, 3, 4}) {
    RunRanks(size, [size](std::unique_ptr<TcpBackend> backend) {
      // Rank r has r ids, each of them in two bags of which the second is empty on odd ranks; of
      // the other table, the last rank alone has a bag.
      std::vector<TableOfBags> tables(2);
      for (int r = 0; r < size; ++r) {
        const int64_t tokens = r % 2 == 0 ? 2 * r : r;
        const bool is_last = r == size - 1;
        tables[0].counts.ids.push_back(r);
        tables[0].counts.bags.push_back(2);
        tables[0].counts.tokens.push_back(tokens);
        tables[1].counts.ids.push_back(is_last);
        tables[1].counts.bags.push_back(is_last);
        tables[1].counts.tokens.push_back(is_last);
        if (r != backend->rank()) continue;
        tables[0].own.sizes = {r, static_cast<int32_t>(tokens) - r};
        for (int i = 0; i < tokens; ++i) tables[0].own.positions.push_back(i % r);
        if (is_last) tables[1].own = {{1}, {0}};
      }
      TFDEAR_EXPECT_OK(GatherBags(backend.get(), Signature("bags"), 0, &tables));
      std::vector<int32_t> positions, bag_of;
      int32_t first_id = 0;
      for (int32_t r = 0; r < size; first_id += r++) {
        for (int bag = 0; bag < (r % 2 == 0 ? 2 : 1); ++bag) {
          for (int32_t i = 0; i < r; ++i) {
            positions.push_back(first_id + i);
            bag_of.push_back(2 * r + bag);
          }
        }
      }
      EXPECT_EQ(tables[0].all.positions, positions);
      EXPECT_EQ(tables[0].all.bag_of, bag_of);
      EXPECT_EQ(tables[0].all.total(), 2 * size);
      EXPECT_EQ(tables[1].all.positions, std::vector<int32_t>{0});
      EXPECT_EQ(tables[1].all.bag_of, std::vector<int32_t>{0});
      EXPECT_EQ(tables[1].all.total(), 1);
    });
  }
}

}  // namespace
}  // namespace tfdear
