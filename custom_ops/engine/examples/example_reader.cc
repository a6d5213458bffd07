// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_reader.h"

#include <algorithm>

namespace tfdear {

int64_t ExampleReader::steps() const {
  const int64_t whole = store_->examples() / options_.batch_size;
  const bool more = store_->examples() % options_.batch_size > 0 && !options_.drop_remainder;
  return whole + (more ? 1 : 0);
}

int64_t ExampleReader::rows() const {
  if (steps() == 0) return 0;
  const auto [begin, end] = Rows(0);
  const auto [last_begin, last_end] = Rows(steps() - 1);
  return (steps() - 1) * (end - begin) + last_end - last_begin;
}

ExampleReader::Position ExampleReader::Begin() {
  MutexLock lock(mutex_);
  const Position begun = next_;
  next_ = {begun.epoch + 1, 0};
  return begun;
}

void ExampleReader::SetNext(Position next) {
  {
    MutexLock lock(mutex_);
    next_ = next;
  }
  store_->ReadFrom(options_.order, next.epoch, next.step * options_.batch_size, true);
}

std::pair<int64_t, int64_t> ExampleReader::Rows(int64_t step) const {
  const int64_t begin = step * options_.batch_size;
  const int64_t rows = std::min(options_.batch_size, store_->examples() - begin);
  const auto [first, last] = RowsOfRank(rows, options_.rank, options_.world_size);
  return {begin + first, begin + last};
}

void ExampleReader::Lead() {
  Position next;
  {
    MutexLock lock(mutex_);
    next = next_;
  }
  store_->ReadFrom(options_.order, next.epoch, next.step * options_.batch_size);
}

}  // namespace tfdear
