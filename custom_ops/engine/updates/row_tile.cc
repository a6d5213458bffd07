// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/row_tile.h"

#include <algorithm>
#include <cstring>

namespace tfdear {
namespace {

// The tiles of a table and its slots, and those of a program, stay in the nearest caches.
constexpr size_t kElements = 1024;

}  // namespace

RowTile::RowTile(int64_t width)
    : width_(static_cast<size_t>(width)),
      capacity_(std::max<size_t>(1, kElements / std::max<size_t>(1, width_))) {}

void RowTile::Start(const Arrays& arrays, const std::vector<int>& held) {
  rows_.clear();
  arrays_ = arrays;
  held_ = held;
  values_.resize(arrays.size() * stride());
}

void RowTile::Prefetch(int64_t row) const {
  constexpr size_t kLine = 64 / sizeof(float);
  for (int array : held_) {
    const float* const values = arrays_[array] + row * width_;
    for (size_t i = 0; i < width_; i += kLine) __builtin_prefetch(values + i);
  }
}

void RowTile::Add(int64_t row) {
  const size_t place = rows_.size();
  rows_.push_back(row);
  for (int array : held_) {
    std::copy_n(arrays_[array] + row * width_, width_, data(array) + place * width_);
  }
}

void RowTile::Remove(size_t place) {
  const size_t last = rows_.size() - 1;
  for (int array : held_) {
    float* const values = data(array) + place * width_;
    std::copy_n(values, width_, arrays_[array] + rows_[place] * width_);
    if (place == last) continue;
    std::copy_n(data(array) + last * width_, width_, values);
    if (remembered_.empty()) continue;
    float* const remembered = remembered_.data() + array * stride();
    std::copy_n(remembered + last * width_, width_, remembered + place * width_);
  }
  rows_[place] = rows_[last];
  rows_.pop_back();
}

void RowTile::Finish() {
  for (int array : held_) {
    const float* values = data(array);
    for (int64_t row : rows_) {
      std::copy_n(values, width_, arrays_[array] + row * width_);
      values += width_;
    }
  }
  rows_.clear();
}

void RowTile::Remember() {
  remembered_.resize(values_.size());
  for (int array : held_) {
    std::copy_n(data(array), elements(), remembered_.data() + array * stride());
  }
}

bool RowTile::IsAsRemembered(int array, size_t place) const {
  return AreAsRemembered(array, place * width_, width_);
}

bool RowTile::IsAsRemembered(int array) const { return AreAsRemembered(array, 0, elements()); }

bool RowTile::AreAsRemembered(int array, size_t begin, size_t count) const {
  if (count == 0) return true;  // There may be no memory to compare.
  const size_t offset = array * stride() + begin;
  return std::memcmp(values_.data() + offset, remembered_.data() + offset, count * sizeof(float)) ==
         0;
}

}  // namespace tfdear
