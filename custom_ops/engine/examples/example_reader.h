// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/examples/epoch_order.h"
#include "custom_ops/engine/examples/example_store.h"

namespace tfdear {

// One way to read the examples of a store: in which order, and which rows of each batch are this
// rank's. Epochs are counted as they begin, whichever iterator begins them. Thread safe.
class ExampleReader {
 public:
  struct Options {
    ReadingOrder order;
    int64_t batch_size = 1;  // Rows of all ranks.
    bool drop_remainder = false;
    bool may_skip = false;  // Whether examples may be left out.
    int rank = 0;
    int world_size = 1;
  };

  // Where an iteration is: the next batch of an epoch.
  struct Position {
    int64_t epoch = 0;
    int64_t step = 0;
  };

  ExampleReader(std::shared_ptr<ExampleStore> store, const Options& options, Position start)
      : store_(std::move(store)), options_(options), next_(start) {}

  const std::shared_ptr<ExampleStore>& store() const { return store_; }
  const Options& options() const { return options_; }
  int64_t steps() const;

  // The next epoch begins; where. Its first step is 0, but of the first one it may be another.
  Position Begin() TFDEAR_EXCLUDES(mutex_);
  // What begins next.
  void SetNext(Position next) TFDEAR_EXCLUDES(mutex_);

  // Rows of this rank in an epoch.
  int64_t rows() const;
  // Positions [first, second) within the epoch of this rank's rows of a batch.
  std::pair<int64_t, int64_t> Rows(int64_t step) const;
  EpochOrder OrderOf(int64_t epoch) const {
    return EpochOrder(options_.order, epoch, store_->examples());
  }
  // Lets the store prepare examples in the order in which they are read from here on.
  void Lead() TFDEAR_EXCLUDES(mutex_);

 private:
  const std::shared_ptr<ExampleStore> store_;
  const Options options_;
  Mutex mutex_;
  Position next_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
