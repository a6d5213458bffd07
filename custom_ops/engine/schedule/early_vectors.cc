// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Vectors that a lookup has from the one that looked ahead.
#include <algorithm>

#include "custom_ops/engine/schedule/table_lookup.h"

namespace tfdear {

Status TableLookup::AddEarlyVectors(int number_of_table) {
  OfTable& table = tables_[number_of_table];
  MutexLock lock(expected_->mutex_);
  const OfTable& expected = expected_->tables_[number_of_table];
  if (expected.looked_up.element_bytes != table.looked_up.element_bytes) {
    return Internal("vectors of ", layout_->tables[number_of_table].name,
                    " were looked up early in another type");
  }
  const size_t bytes = table.looked_up.columns * table.looked_up.element_bytes;
  const int64_t count = table.all.counts[rank_];
  std::shared_ptr<FusionBuffer> merged;
  TFDEAR_RETURN_IF_ERROR(pool_->Take(count * bytes, &merged));
  const int32_t* const own = table.all.Of(rank_);
  const int32_t* late_id = table.needed.Of(rank_);
  const int32_t* const late_end = late_id + table.needed.counts[rank_];
  const char* late = table.vectors->data();
  const char* early = expected.vectors->data();
  char* to = merged->data();
  for (int64_t i = 0; i < count; ++i) {
    const bool is_late = late_id != late_end && *late_id == own[i];
    if (is_late) ++late_id;
    const char*& from = is_late ? late : early;
    to = std::copy_n(from, bytes, to);
    from += bytes;
  }
  table.vectors = std::move(merged);
  return Status();
}

}  // namespace tfdear
