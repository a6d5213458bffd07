// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "custom_ops/engine/examples/epoch_order.h"

namespace tfdear {

// Goes through epochs in the order in which they are read, and finds what there is to be done for
// them. Not thread safe.
class ExampleCourse {
 public:
  // `examples`: of an epoch.
  explicit ExampleCourse(int64_t examples) : examples_(examples) {}

  bool begun() const { return begun_; }
  bool in_order() const { return !order_.shuffle; }
  // Begins at a position of an epoch.
  void Begin(const ReadingOrder& order, int64_t epoch, int64_t position) {
    begun_ = true;
    order_ = order;
    epoch_ = epoch;
    position_ = std::min(position, examples_);
    of_epoch_ = nullptr;
    passed_ = 0;
  }
  // Whether nothing was to be done for all of an epoch, so that nothing will be.
  bool over() const { return !begun_ || passed_ == examples_; }
  // The next example; something is to be done for it if Found() is called.
  int64_t Step() {
    ++passed_;
    if (position_ == examples_) {
      ++epoch_;
      position_ = 0;
      of_epoch_ = nullptr;
    }
    if (of_epoch_ == nullptr) of_epoch_ = std::make_unique<EpochOrder>(order_, epoch_, examples_);
    return of_epoch_->At(position_++);
  }
  void Found() { passed_ = 0; }

 private:
  const int64_t examples_;
  bool begun_ = false;
  ReadingOrder order_{false, 0, nullptr};
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  std::unique_ptr<EpochOrder> of_epoch_;
  int64_t passed_ = 0;  // Positions since something was to be done.
};

}  // namespace tfdear
