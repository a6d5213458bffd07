// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "custom_ops/engine/base/thread_annotations.h"

namespace tfdear {

// What was seen of the rows of one table on this rank, since the start.
struct RowCounts {
  std::atomic<int64_t> lookups{0};
  std::atomic<int64_t> ids{0};         // Looked up.
  std::atomic<int64_t> unique_ids{0};  // The different ones of each lookup.
  std::atomic<int64_t> steps{0};       // With a gradient.
  std::atomic<int64_t> rows{0};        // Of this rank's gradients.
  // Where all ranks have the table whole: rows of the gradients of all ranks, and steps in which
  // they were summed on their way.
  std::atomic<int64_t> rows_of_ranks{0};
  std::atomic<int64_t> summed_steps{0};
  // Of divided tables: steps whose ids were foreseen; rows of this rank's gradients that went first
  // and last in steps that knew the next one's ids; this rank's vectors that came early and late.
  std::atomic<int64_t> foreseen_steps{0};
  std::atomic<int64_t> prior_rows{0};
  std::atomic<int64_t> delayed_rows{0};
  std::atomic<int64_t> early_vectors{0};
  std::atomic<int64_t> late_vectors{0};
  // What this rank sent to others: ids, vectors, rows of gradients, by their parts; of rows that
  // travel in one part, all are prior. Without the few bytes that say how many there are.
  std::atomic<int64_t> id_bytes{0};
  std::atomic<int64_t> early_vector_bytes{0};
  std::atomic<int64_t> late_vector_bytes{0};
  std::atomic<int64_t> prior_bytes{0};
  std::atomic<int64_t> delayed_bytes{0};
  // Rows where all ranks have the table whole, gathered or summed.
  std::atomic<int64_t> whole_bytes{0};
};

// The counts of all tables, by the numbers of their variables. Thread safe.
class TableCounts {
 public:
  // Makes them if there are none.
  std::shared_ptr<RowCounts> Of(int64_t variable) {
    MutexLock lock(mutex_);
    auto& counts = counts_[variable];
    if (counts == nullptr) counts = std::make_shared<RowCounts>();
    return counts;
  }

 private:
  Mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<RowCounts>> counts_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
