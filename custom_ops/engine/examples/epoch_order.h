// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "custom_ops/engine/examples/example_order.h"

namespace tfdear {

// Positions of a batch of `rows` that are a rank's, [first, second); as `row_range` of
// `tfdear/data/global_batches.py`.
inline std::pair<int64_t, int64_t> RowsOfRank(int64_t rows, int rank, int world_size) {
  return {rank * rows / world_size, (rank + 1) * rows / world_size};
}

// Which examples lie on which node, and which rows of an epoch's batches its ranks have.
class NodeParts {
 public:
  // What a rank owns, and where.
  struct Rank {
    int node = 0;  // From 0 to the number of nodes.
    int64_t own_begin = 0;
    int64_t own_end = 0;
  };

  // `batch_size`: rows of all ranks. The parts of all ranks are all examples.
  NodeParts(const std::vector<Rank>& ranks, int64_t batch_size);

 private:
  friend class EpochOrder;

  struct Node {
    std::vector<std::pair<int64_t, int64_t>> ranges;  // Of its examples.
    int64_t examples = 0;
    int64_t rows = 0;            // That its ranks read in an epoch.
    int64_t rows_of_batch = 0;   // Of a whole one.
    int64_t surplus_before = 0;  // Rows that nodes before it read more than they have examples.
    int64_t rest_before = 0;     // Examples that nodes before it have more than they read rows.
  };

  // The node whose ranks read a position of an epoch, and which of their rows in it that is.
  std::pair<int, int64_t> RowOfNode(int64_t position) const;
  // The example of that number on a node.
  int64_t ExampleOf(int node, int64_t number) const;
  // The same for the rows of all nodes that have no example of their own left.
  std::pair<int, int64_t> Rest(int64_t surplus) const;

  int64_t RowsBefore(int rank, int64_t rows_of_batch) const;

  const int64_t batch_size_;
  int64_t examples_ = 0;
  std::vector<int> node_of_rank_;
  std::vector<Node> nodes_;
};

// In which order examples are read, in all epochs.
struct ReadingOrder {
  bool shuffle = true;  // Else in the order of their numbers.
  uint64_t seed = 0;
  // If ranks are to read the examples of their own node; null: any.
  std::shared_ptr<const NodeParts> nodes;
};

// The same, of one epoch: which example is read at each position.
//
// [Note: an order within nodes]
// The rows of an epoch that the ranks of a node read are numbered, and a permutation of the node's
// examples says which one each of them is. Where ranks read more rows than their node has
// examples, the rest of those of other nodes come last, in the order of the nodes. So it is a
// permutation of all examples, computed at every position by itself, that depends on who reads
// what: on the ranks, their nodes and the size of batches.
class EpochOrder {
 public:
  EpochOrder(const ReadingOrder& order, int64_t epoch, int64_t examples);

  int64_t At(int64_t position) const;

 private:
  std::shared_ptr<const NodeParts> nodes_;
  // Of all examples, or of those of each node; none: in the order of their numbers.
  std::vector<ExampleOrder> orders_;
};

}  // namespace tfdear
