// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/plan.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace tfdear {
namespace {

// No plan of a real model comes near; a damaged one would.
constexpr int64_t kMost = int64_t{1} << 24;

Status Bad(const std::string& what) {
  return Status(StatusCode::kInvalidArgument, "a plan for tensor fusion does not hold: " + what);
}

}  // namespace

const char* Name(Phase phase) {
  switch (phase) {
    case Phase::kReduceScatter:
      return "reduce_scatter";
    case Phase::kAllGather:
      return "all_gather";
    case Phase::kAllReduce:
      return "all_reduce";
    case Phase::kSparseGather:
      return "sparse_gather";
    case Phase::kReduce:
      return "reduce";
    case Phase::kBroadcast:
      return "broadcast";
  }
  return "unknown";
}

bool IsFinal(Phase phase) { return phase != Phase::kReduceScatter && phase != Phase::kReduce; }

Plan Plan::Make(const std::vector<TensorSpec>& tensors, size_t bucket_bytes, Schedule schedule,
                Algorithm algorithm) {
  Plan plan;
  std::vector<bool> sparse;
  for (const Bucket& bucket : PlanFixedSize(tensors, bucket_bytes)) {
    plan.buckets.push_back(bucket.tensors);
    sparse.push_back(bucket.sparse);
  }
  plan.wait_for_all = schedule == Schedule::kSequential;
  const bool tree = algorithm == Algorithm::kTree;
  const Phase first = tree ? Phase::kReduce : Phase::kReduceScatter;
  const Phase second = tree ? Phase::kBroadcast : Phase::kAllGather;
  const int count = static_cast<int>(plan.buckets.size());
  for (int b = 0; b < count; ++b) {
    if (sparse[b]) {
      plan.steps.push_back({Phase::kSparseGather, b});
    } else if (schedule == Schedule::kDear) {
      plan.steps.push_back({first, b});
    } else if (tree) {
      plan.steps.push_back({first, b});
      plan.steps.push_back({second, b});
    } else {
      plan.steps.push_back({Phase::kAllReduce, b});
    }
  }
  if (schedule != Schedule::kDear) return plan;
  // The next forward pass reads the first variables first.
  std::vector<int> forward(count);
  std::iota(forward.begin(), forward.end(), 0);
  auto first_tensor = [&](int b) {
    return *std::min_element(plan.buckets[b].begin(), plan.buckets[b].end());
  };
  std::sort(forward.begin(), forward.end(),
            [&](int a, int b) { return first_tensor(a) < first_tensor(b); });
  for (int b : forward) {
    if (!sparse[b]) plan.steps.push_back({second, b});
  }
  return plan;
}

Status Plan::Decode(const std::vector<int64_t>& words, Plan* plan) {
  size_t next = 0;
  auto take = [&](int64_t* value) {
    if (next >= words.size() || words[next] < 0 || words[next] > kMost) return false;
    *value = words[next++];
    return true;
  };
  const Status damaged = Bad("its " + std::to_string(words.size()) + " numbers are no plan");
  int64_t wait_for_all, count;
  if (!take(&wait_for_all) || !take(&count)) return damaged;
  plan->wait_for_all = wait_for_all != 0;
  plan->buckets.assign(count, {});
  for (auto& bucket : plan->buckets) {
    int64_t size, tensor;
    if (!take(&size)) return damaged;
    for (int64_t i = 0; i < size; ++i) {
      if (!take(&tensor)) return damaged;
      bucket.push_back(static_cast<int>(tensor));
    }
  }
  if (!take(&count)) return damaged;
  plan->steps.clear();
  for (int64_t i = 0; i < count; ++i) {
    int64_t phase, bucket, chunk, chunks;
    if (!take(&phase) || !take(&bucket) || !take(&chunk) || !take(&chunks)) return damaged;
    if (phase > static_cast<int64_t>(Phase::kBroadcast)) return damaged;
    plan->steps.push_back({static_cast<Phase>(phase), static_cast<int>(bucket),
                           static_cast<int>(chunk), static_cast<int>(chunks)});
  }
  return next == words.size() ? Status() : damaged;
}

std::vector<int64_t> Plan::Encode() const {
  std::vector<int64_t> words = {wait_for_all ? 1 : 0, static_cast<int64_t>(buckets.size())};
  for (const auto& bucket : buckets) {
    words.push_back(static_cast<int64_t>(bucket.size()));
    words.insert(words.end(), bucket.begin(), bucket.end());
  }
  words.push_back(static_cast<int64_t>(steps.size()));
  for (const Step& step : steps) {
    words.insert(words.end(),
                 {static_cast<int64_t>(step.phase), step.bucket, step.chunk, step.chunks});
  }
  return words;
}

Status Plan::Check(const std::vector<TensorSpec>& tensors) const {
  std::vector<bool> placed(tensors.size());
  for (const auto& bucket : buckets) {
    if (bucket.empty()) return Bad("a bucket is empty");
    for (int tensor : bucket) {
      if (tensor < 0 || tensor >= static_cast<int>(tensors.size()) || placed[tensor]) {
        return Bad("tensor " + std::to_string(tensor) + " of " + std::to_string(tensors.size()) +
                   " is unknown or twice in it");
      }
      placed[tensor] = true;
      const TensorSpec& spec = tensors[tensor];
      if (spec.type != tensors[bucket[0]].type) return Bad("a bucket mixes data types");
      if (bucket.size() > 1 && (spec.sparse || spec.count < 0)) {
        return Bad("tensor " + std::to_string(tensor) +
                   ", sparse or sized at run time, does not travel alone");
      }
    }
  }
  if (std::count(placed.begin(), placed.end(), false) > 0) {
    return Bad("it places " + std::to_string(std::count(placed.begin(), placed.end(), true)) +
               " of " + std::to_string(tensors.size()) + " tensors");
  }
  // Per bucket: which chunks were reduced and which spread, in the order of the steps.
  struct Progress {
    std::vector<bool> reduced, spread;
    Phase reduce = Phase::kReduceScatter;
  };
  std::vector<Progress> progress(buckets.size());
  auto mark = [](std::vector<bool>* done, const Step& step) {
    if (done->empty()) done->resize(step.chunks);
    const bool fits = static_cast<int>(done->size()) == step.chunks && !(*done)[step.chunk];
    if (fits) (*done)[step.chunk] = true;
    return fits;
  };
  auto complete = [](const std::vector<bool>& done) {
    return !done.empty() && std::count(done.begin(), done.end(), false) == 0;
  };
  for (const Step& step : steps) {
    if (step.bucket < 0 || step.bucket >= static_cast<int>(buckets.size()) || step.chunks < 1 ||
        step.chunk < 0 || step.chunk >= step.chunks) {
      return Bad("a step names bucket " + std::to_string(step.bucket) + ", chunk " +
                 std::to_string(step.chunk) + " of " + std::to_string(step.chunks));
    }
    const TensorSpec& spec = tensors[buckets[step.bucket][0]];
    Progress& bucket = progress[step.bucket];
    const std::string words =
        std::string(Name(step.phase)) + " of bucket " + std::to_string(step.bucket);
    if (spec.sparse != (step.phase == Phase::kSparseGather)) {
      return Bad(words + " does not suit its tensors");
    }
    if (step.chunks > 1 && (spec.sparse || spec.count < 0)) {
      return Bad(words + " is cut, but its size is known at run time only");
    }
    bool fits;
    if (!IsFinal(step.phase)) {
      bucket.reduce = step.phase;
      fits = mark(&bucket.reduced, step);
    } else if (step.phase == Phase::kAllGather || step.phase == Phase::kBroadcast) {
      const Phase half = step.phase == Phase::kAllGather ? Phase::kReduceScatter : Phase::kReduce;
      fits = complete(bucket.reduced) && bucket.reduce == half && mark(&bucket.spread, step);
    } else {
      fits = bucket.reduced.empty() && mark(&bucket.spread, step);
    }
    if (!fits) return Bad(words + " comes twice, out of order or in other chunks than before");
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    if (!complete(progress[b].spread)) {
      return Bad("bucket " + std::to_string(b) + " is never summed and spread as a whole");
    }
  }
  return Status();
}

}  // namespace tfdear
