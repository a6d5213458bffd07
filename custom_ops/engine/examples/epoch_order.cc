// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/epoch_order.h"

#include <algorithm>
#include <tuple>

namespace tfdear {
namespace {

// Nodes have orders of their own; an odd number, so that seeds of other nodes are far away.
constexpr uint64_t kSeedOfNode = 0x9e3779b97f4a7c15;

}  // namespace

NodeParts::NodeParts(const std::vector<Rank>& ranks, int64_t batch_size) : batch_size_(batch_size) {
  for (const Rank& rank : ranks) {
    node_of_rank_.push_back(rank.node);
    nodes_.resize(std::max<size_t>(nodes_.size(), rank.node + 1));
    nodes_[rank.node].ranges.emplace_back(rank.own_begin, rank.own_end);
    nodes_[rank.node].examples += rank.own_end - rank.own_begin;
    examples_ += rank.own_end - rank.own_begin;
  }
  const int64_t batches = examples_ / batch_size_;
  const int world_size = static_cast<int>(ranks.size());
  for (int rank = 0; rank < world_size; ++rank) {
    Node& node = nodes_[node_of_rank_[rank]];
    const auto [begin, end] = RowsOfRank(batch_size_, rank, world_size);
    const auto [last_begin, last_end] = RowsOfRank(examples_ % batch_size_, rank, world_size);
    node.rows_of_batch += end - begin;
    node.rows += batches * (end - begin) + last_end - last_begin;
  }
  int64_t surplus = 0, rest = 0;
  for (Node& node : nodes_) {
    node.surplus_before = surplus;
    node.rest_before = rest;
    surplus += std::max<int64_t>(node.rows - node.examples, 0);
    rest += std::max<int64_t>(node.examples - node.rows, 0);
  }
}

int64_t NodeParts::RowsBefore(int rank, int64_t rows_of_batch) const {
  int64_t before = 0;
  for (int other = 0; other < rank; ++other) {
    if (node_of_rank_[other] != node_of_rank_[rank]) continue;
    const auto [begin, end] = RowsOfRank(rows_of_batch, other, node_of_rank_.size());
    before += end - begin;
  }
  return before;
}

std::pair<int, int64_t> NodeParts::RowOfNode(int64_t position) const {
  const int64_t batch = position / batch_size_;
  const int64_t place = position % batch_size_;
  const int64_t rows = std::min(batch_size_, examples_ - batch * batch_size_);
  const int64_t world_size = node_of_rank_.size();
  // The last rank whose rows begin there or before.
  const int rank = static_cast<int>(((place + 1) * world_size - 1) / rows);
  const int node = node_of_rank_[rank];
  return {node, batch * nodes_[node].rows_of_batch + RowsBefore(rank, rows) + place -
                    RowsOfRank(rows, rank, world_size).first};
}

int64_t NodeParts::ExampleOf(int node, int64_t number) const {
  for (const auto& [begin, end] : nodes_[node].ranges) {
    if (number < end - begin) return begin + number;
    number -= end - begin;
  }
  return -1;  // There is none.
}

std::pair<int, int64_t> NodeParts::Rest(int64_t surplus) const {
  // The last node that has some before which there are not more.
  int node = static_cast<int>(nodes_.size()) - 1;
  while (nodes_[node].rest_before > surplus || nodes_[node].examples <= nodes_[node].rows) --node;
  return {node, nodes_[node].rows + surplus - nodes_[node].rest_before};
}

EpochOrder::EpochOrder(const ReadingOrder& order, int64_t epoch, int64_t examples)
    : nodes_(order.nodes) {
  if (!order.shuffle) return;
  if (nodes_ == nullptr) {
    orders_.emplace_back(order.seed, epoch, examples);
    return;
  }
  for (size_t node = 0; node < nodes_->nodes_.size(); ++node) {
    orders_.emplace_back(order.seed + kSeedOfNode * (node + 1), epoch,
                         nodes_->nodes_[node].examples);
  }
}

int64_t EpochOrder::At(int64_t position) const {
  if (nodes_ == nullptr) {
    return orders_.empty() ? position : static_cast<int64_t>(orders_[0].At(position));
  }
  auto [node, row] = nodes_->RowOfNode(position);
  const NodeParts::Node& part = nodes_->nodes_[node];
  if (row >= part.examples) {
    std::tie(node, row) = nodes_->Rest(part.surplus_before + row - part.examples);
  }
  const int64_t number = orders_.empty() ? row : static_cast<int64_t>(orders_[node].At(row));
  return nodes_->ExampleOf(node, number);
}

}  // namespace tfdear
