// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdear {

// Rows of several arrays, gathered so that they lie one after another: what is done to them runs
// over all of them at once, however narrow they are. All arrays are [rows, width], row-major.
class RowTile {
 public:
  // By number; null: not there.
  using Arrays = std::vector<float*>;

  explicit RowTile(int64_t width);

  // What fits; 0 rows are in it then. `held`: the arrays that take part.
  void Start(const Arrays& arrays, const std::vector<int>& held);
  size_t capacity() const { return capacity_; }

  // Says that a row is about to be read: rows lie anywhere in memory.
  void Prefetch(int64_t row) const;
  // A row is in the tile once at most.
  void Add(int64_t row);
  // Writes a row back. The last one takes its place.
  void Remove(size_t place);
  // Writes all rows back.
  void Finish();

  size_t size() const { return rows_.size(); }
  size_t elements() const { return rows_.size() * width_; }
  int64_t row(size_t place) const { return rows_[place]; }
  float* data(int array) { return values_.data() + array * stride(); }
  const float* values(int array, size_t place) const {
    return values_.data() + array * stride() + place * width_;
  }

  // Remembers the values of all rows.
  void Remember();
  // Whether a row of an array has the bits that were remembered.
  bool IsAsRemembered(int array, size_t place) const;
  // The same of all rows.
  bool IsAsRemembered(int array) const;

 private:
  bool AreAsRemembered(int array, size_t begin, size_t count) const;
  size_t stride() const { return capacity_ * width_; }

  const size_t width_;
  const size_t capacity_;
  Arrays arrays_;
  std::vector<int> held_;
  std::vector<int64_t> rows_;
  // By array number, then by place.
  std::vector<float> values_;
  std::vector<float> remembered_;
};

}  // namespace tfdear
