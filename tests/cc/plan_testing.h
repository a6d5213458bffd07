// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Plans for tests of what executes them. Those of real jobs are made in Python.

#ifndef TFDEAR_TESTS_CC_PLAN_TESTING_H_
#define TFDEAR_TESTS_CC_PLAN_TESTING_H_

#include <algorithm>
#include <vector>

#include "custom_ops/engine/schedule/plan.h"

namespace tfdear {

inline constexpr StepKind kReduceScatter{Operation::kReduceScatter};
inline constexpr StepKind kAllGather{Operation::kAllGather};
inline constexpr StepKind kAllReduce{Operation::kAllReduce};
inline constexpr StepKind kReduce{Operation::kReduce};
inline constexpr StepKind kBroadcast{Operation::kBroadcast};
inline constexpr StepKind kIntraReduceScatter{Operation::kReduceScatter, Group::kIntra};
inline constexpr StepKind kIntraAllGather{Operation::kAllGather, Group::kIntra};
inline constexpr StepKind kInterReduceScatter{Operation::kReduceScatter, Group::kInter};
inline constexpr StepKind kInterAllGather{Operation::kAllGather, Group::kInter};
inline constexpr StepKind kSparseGather{Operation::kAllGather, Group::kWorld, WireFormat::kRows};
inline constexpr StepKind kSparseExchange{Operation::kAllReduce, Group::kInter,
                                          WireFormat::kSelected};
inline constexpr StepKind kSparseAllGather{Operation::kAllReduce, Group::kWorld,
                                           WireFormat::kSelected};

enum class Schedule { kDear, kWfbp, kSequential };
enum class Algorithm { kShards, kTree, kLevels };

// Cuts tensors, from the last to the first, into buckets of at most so many bytes of one data type.
inline std::vector<std::vector<int>> BucketsOf(const std::vector<TensorSpec>& tensors,
                                               size_t bucket_bytes) {
  std::vector<std::vector<int>> buckets;
  auto alone = [&](int tensor) { return tensors[tensor].sparse || tensors[tensor].count < 0; };
  for (int tensor = static_cast<int>(tensors.size()) - 1; tensor >= 0; --tensor) {
    const DataType type = tensors[tensor].type;
    auto latest = std::find_if(buckets.rbegin(), buckets.rend(), [&](const auto& bucket) {
      return tensors[bucket[0]].type == type && !alone(bucket[0]);
    });
    if (!alone(tensor) && latest != buckets.rend()) {
      std::vector<int> members = *latest;
      members.push_back(tensor);
      if (MakeBucket(tensors, members).count * SizeOf(type) <= bucket_bytes) {
        *latest = members;
        continue;
      }
    }
    buckets.push_back({tensor});
  }
  return buckets;
}

// Every bucket's first half and then every second half, last bucket first; or, for the schedules of
// all-reduces, both of each bucket together.
inline Plan PlanFor(const std::vector<TensorSpec>& tensors, size_t bucket_bytes, Schedule schedule,
                    Algorithm algorithm = Algorithm::kShards, Levels levels = {}) {
  std::vector<StepKind> first = {kReduceScatter}, second = {kAllGather};
  if (algorithm == Algorithm::kTree) {
    first = {kReduce};
    second = {kBroadcast};
  } else if (algorithm == Algorithm::kLevels) {
    first.clear();
    second.clear();
    if (levels.intra) first.push_back(kIntraReduceScatter);
    if (levels.inter) first.push_back(kInterReduceScatter);
    if (levels.inter) second.push_back(kInterAllGather);
    if (levels.intra) second.push_back(kIntraAllGather);
  } else if (schedule != Schedule::kDear) {
    first = {kAllReduce};
    second.clear();
  }
  Plan plan;
  plan.buckets = BucketsOf(tensors, bucket_bytes);
  plan.wait_for_all = schedule == Schedule::kSequential;
  const int count = static_cast<int>(plan.buckets.size());
  auto sparse = [&](int bucket) { return tensors[plan.buckets[bucket][0]].sparse; };
  auto add = [&](int bucket, const std::vector<StepKind>& kinds) {
    for (const StepKind& kind : kinds) plan.steps.push_back({kind, bucket});
  };
  for (int b = 0; b < count; ++b) {
    add(b, sparse(b) ? std::vector<StepKind>{kSparseGather} : first);
    if (!sparse(b) && schedule != Schedule::kDear) add(b, second);
  }
  for (int b = count - 1; b >= 0 && schedule == Schedule::kDear; --b) {
    if (!sparse(b)) add(b, second);
  }
  return plan;
}

}  // namespace tfdear

#endif  // TFDEAR_TESTS_CC_PLAN_TESTING_H_
