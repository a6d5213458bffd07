// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_reader.h"

#include <algorithm>

namespace tfdear {

int64_t ExampleReader::steps() const {
  const int64_t whole = store_->examples() / options_.batch_size;
  const bool more = store_->examples() % options_.batch_size > 0 && !options_.drop_remainder;
  return whole + (more ? 1 : 0);
}

ExampleReader::Position ExampleReader::Begin() {
  MutexLock lock(mutex_);
  const Position begun = next_;
  next_ = {begun.epoch + 1, 0};
  return begun;
}

void ExampleReader::SetNext(Position next) {
  MutexLock lock(mutex_);
  next_ = next;
}

std::pair<int64_t, int64_t> ExampleReader::Rows(int64_t step) const {
  const int64_t begin = step * options_.batch_size;
  const int64_t rows = std::min(options_.batch_size, store_->examples() - begin);
  // As `row_range` of `tfdear/data/global_batches.py`.
  return {begin + options_.rank * rows / options_.world_size,
          begin + (options_.rank + 1) * rows / options_.world_size};
}

}  // namespace tfdear
