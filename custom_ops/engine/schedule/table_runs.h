// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdear {

// Divides tables, in an order that all ranks share, into runs of which each travels at once.
//
// [Note: tables apart]
// Small tables travel together: to start an exchange costs more than their bytes. One of which any
// rank has kApartBytes or more travels by itself, as soon as it is its turn: the first layer does
// not wait for vectors that a later one needs, nor rows that are ready for those of a layer whose
// backward pass comes later. All ranks know the ids of all, so all divide alike.
class TableRuns {
 public:
  enum class Order { kForward, kBackward };
  // A few milliseconds of a line of 1 Gbit/s, and what takes as long as an exchange on a fast one.
  static constexpr int64_t kApartBytes = 512 << 10;

  TableRuns(size_t tables, Order order) : order_(order), tables_(tables) {}

  bool done() const { return taken_ == tables_.size(); }

  // Says what the rank with the most has of a table: on all ranks the same.
  void SetBytes(size_t table, int64_t bytes) { tables_[table].bytes = bytes; }
  // Says that this rank has all that it gives of a table.
  void SetReady(size_t table) { tables_[table].ready = true; }

  // Takes the tables of the next run; none: it is not known which these are, or one is not ready.
  std::vector<size_t> Take() {
    std::vector<size_t> run;
    bool ready = true;
    for (size_t place = taken_; place < tables_.size(); ++place) {
      const size_t number = order_ == Order::kForward ? place : tables_.size() - 1 - place;
      const Table& table = tables_[number];
      if (table.bytes == kNotKnown) return {};
      const bool apart = table.bytes >= kApartBytes;
      if (apart && !run.empty()) break;
      run.push_back(number);
      ready = ready && table.ready;
      if (apart) break;
    }
    if (!ready) return {};
    taken_ += run.size();
    return run;
  }

 private:
  static constexpr int64_t kNotKnown = -1;
  struct Table {
    int64_t bytes = kNotKnown;
    bool ready = false;
  };

  const Order order_;
  std::vector<Table> tables_;
  size_t taken_ = 0;
};

// Of rows of so many bytes, what the rank with the most of them has.
inline int64_t MostBytes(const std::vector<int64_t>& rows, size_t row_bytes) {
  const auto most = std::max_element(rows.begin(), rows.end());
  return most == rows.end() ? 0 : *most * static_cast<int64_t>(row_bytes);
}

}  // namespace tfdear
