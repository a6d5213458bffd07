// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#ifndef TFDEAR_TESTS_CC_SCHEDULE_TABLE_TESTING_H_
#define TFDEAR_TESTS_CC_SCHEDULE_TABLE_TESTING_H_

// Three tables, of which the second is shared by rows, and what lookups in them find.

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "custom_ops/engine/schedule/table_lookup.h"
#include "tests/cc/engine_testing.h"

namespace tfdear {

inline constexpr int kTables = 3;

inline std::shared_ptr<const LookupLayout> LayoutFor(int size) {
  auto layout = std::make_shared<LookupLayout>();
  for (int t = 0; t < kTables; ++t) {
    TablePartition partition;
    for (int rank = 0; t != 1 && rank <= size; ++rank) partition.column_begins.push_back(2 * rank);
    layout->tables.push_back({partition, 2 * size, "table " + std::to_string(t), t});
  }
  return layout;
}

// Rank r looks up r + 1 ids.
inline std::vector<int32_t> IdsOf(int rank) {
  std::vector<int32_t> ids(rank + 1);
  std::iota(ids.begin(), ids.end(), 3 * rank);
  return ids;
}

// Rank 0 looks up so many that their vectors are a large table's; the others have few.
inline std::vector<int32_t> ManyIdsOf(int rank) {
  std::vector<int32_t> ids(rank == 0 ? TableRuns::kApartBytes / (4 * sizeof(float)) : 3);
  std::iota(ids.begin(), ids.end(), 5 * rank);
  return ids;
}

inline auto IsOf(EventKind kind) {
  return [kind](const Event& event) { return event.kind == kind; };
}

inline float ValueOf(int table, int32_t id, int64_t column, int change = 0) {
  return static_cast<float>(1000 * change + 100 * table + 10 * id + column);
}

// Looks up what this rank holds, after so many changes of the table.
inline void Contribute(TableLookup* lookup, int table, const GatheredIds& ids, int rank, int size,
                       int change = 0) {
  const auto& partition = lookup->layout().tables[table].partition;
  auto held = std::make_shared<std::vector<float>>();
  for (int32_t id : HeldIds(ids.View(), partition, rank)) {
    const int64_t begin = partition.by_row() ? 0 : 2 * rank;
    const int64_t end = partition.by_row() ? 2 * size : begin + 2;
    for (int64_t c = begin; c < end; ++c) held->push_back(ValueOf(table, id, c, change));
  }
  lookup->ContributeVectors(table, held->data(), sizeof(float), held, change);
}

}  // namespace tfdear

#endif  // TFDEAR_TESTS_CC_SCHEDULE_TABLE_TESTING_H_
