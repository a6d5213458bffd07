// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/epoch_order.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace tfdear {
namespace {

// Ranks with equal parts of the examples; `node_of_rank` says where they are.
std::vector<NodeParts::Rank> RanksOf(const std::vector<int>& node_of_rank, int64_t examples) {
  std::vector<NodeParts::Rank> ranks;
  const int world_size = static_cast<int>(node_of_rank.size());
  for (int rank = 0; rank < world_size; ++rank) {
    const auto [begin, end] = RowsOfRank(examples, rank, world_size);
    ranks.push_back({node_of_rank[rank], begin, end});
  }
  return ranks;
}

// How many rows of an epoch are examples of another node than that of the rank which reads them.
// All examples must come once.
int64_t CrossingOf(const std::vector<NodeParts::Rank>& ranks, int64_t examples, int64_t batch_size,
                   bool shuffle, int64_t epoch) {
  const EpochOrder order({shuffle, 7, std::make_shared<const NodeParts>(ranks, batch_size)}, epoch,
                         examples);
  std::vector<int> seen(examples, 0);
  int64_t crossing = 0;
  const int world_size = static_cast<int>(ranks.size());
  for (int64_t begin = 0; begin < examples; begin += batch_size) {
    const int64_t rows = std::min(batch_size, examples - begin);
    for (int rank = 0; rank < world_size; ++rank) {
      const auto [first, last] = RowsOfRank(rows, rank, world_size);
      for (int64_t row = first; row < last; ++row) {
        const int64_t example = order.At(begin + row);
        if (example < 0 || example >= examples) {
          ADD_FAILURE() << "example " << example << " of " << examples;
          return -1;
        }
        ++seen[example];
        for (const NodeParts::Rank& owner : ranks) {
          if (owner.own_begin <= example && example < owner.own_end) {
            crossing += owner.node != ranks[rank].node;
          }
        }
      }
    }
  }
  for (int times : seen) EXPECT_EQ(times, 1);
  return crossing;
}

TEST(EpochOrder, WithoutNodesIsThatOfAllExamples) {
  const ExampleOrder all(3, 2, 50);
  const EpochOrder shuffled({true, 3, nullptr}, 2, 50);
  const EpochOrder in_order({false, 3, nullptr}, 2, 50);
  for (int64_t position = 0; position < 50; ++position) {
    EXPECT_EQ(shuffled.At(position), static_cast<int64_t>(all.At(position)));
    EXPECT_EQ(in_order.At(position), position);
  }
}

TEST(EpochOrder, WithinNodesEveryExampleComesOnce) {
  const std::vector<std::vector<int>> places = {{0},          {0, 1},       {0, 0, 1},   {0, 1, 0},
                                                {0, 0, 1, 1}, {0, 1, 2, 3}, {0, 1, 1, 1}};
  for (const auto& place : places) {
    for (int64_t examples : {1, 7, 64, 1000, 1003}) {
      for (int64_t batch_size : {1, 8, 64, 2000}) {
        for (bool shuffle : {true, false}) {
          const int64_t crossing =
              CrossingOf(RanksOf(place, examples), examples, batch_size, shuffle, 1);
          // Where ranks have equal parts of batches, they read what they own, but for the rest.
          if (batch_size % place.size() == 0) {
            EXPECT_LE(crossing, static_cast<int64_t>(2 * place.size())) << examples << " examples";
          }
        }
      }
    }
  }
}

TEST(EpochOrder, WithinNodesEpochsDiffer) {
  const auto parts = std::make_shared<const NodeParts>(RanksOf({0, 0, 1, 1}, 1000), 8);
  const EpochOrder first({true, 7, parts}, 0, 1000);
  const EpochOrder second({true, 7, parts}, 1, 1000);
  int same = 0;
  for (int64_t position = 0; position < 1000; ++position) {
    same += first.At(position) == second.At(position);
  }
  EXPECT_LT(same, 20);
}

}  // namespace
}  // namespace tfdear
