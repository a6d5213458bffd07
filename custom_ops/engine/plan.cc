// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/plan.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace tfdear {
namespace {

// No plan of a real model comes near; a damaged one would.
constexpr int64_t kMost = int64_t{1} << 24;
// Of a bucket, where nobody says how large: with fewer, little is left to overlap; with more, or
// smaller ones, start-ups weigh more than what they save.
constexpr size_t kUsualBuckets = 16;
constexpr size_t kLeastBytes = size_t{64} << 10;
constexpr size_t kMostBytes = size_t{25} << 20;

Status Bad(const std::string& what) {
  return Status(StatusCode::kInvalidArgument, "a plan for tensor fusion does not hold: " + what);
}

using Phases = std::vector<Phase>;

// [Note: chains of phases]
// The steps of a bucket make a chain: every phase is complete, for all chunks, before the next
// begins. Where all phases of a chain are cut into the same number of chunks, each chunk has a
// chain of its own. Phases of one level exist only where the level does, and then all of them.
std::vector<Phases> Chains(Levels levels) {
  std::vector<Phases> chains = {{Phase::kReduceScatter, Phase::kAllGather},
                                {Phase::kAllReduce},
                                {Phase::kReduce, Phase::kBroadcast},
                                {Phase::kSparseGather},
                                {Phase::kSparseAllGather}};
  if (levels.intra && levels.inter) {
    chains.push_back({Phase::kIntraReduceScatter, Phase::kInterReduceScatter,
                      Phase::kInterAllGather, Phase::kIntraAllGather});
    chains.push_back({Phase::kIntraReduceScatter, Phase::kSparseExchange, Phase::kIntraAllGather});
  } else if (levels.intra) {
    chains.push_back({Phase::kIntraReduceScatter, Phase::kIntraAllGather});
  } else if (levels.inter) {
    chains.push_back({Phase::kInterReduceScatter, Phase::kInterAllGather});
    chains.push_back({Phase::kSparseExchange});
  }
  return chains;
}

// The two halves of an all-reduce.
struct Halves {
  Phases first;
  Phases second;
};

Halves HalvesOf(Algorithm algorithm, Levels levels) {
  if (algorithm == Algorithm::kTree) return {{Phase::kReduce}, {Phase::kBroadcast}};
  if (algorithm == Algorithm::kShards || !(levels.intra || levels.inter)) {
    return {{Phase::kReduceScatter}, {Phase::kAllGather}};
  }
  Halves halves;
  if (levels.intra) halves.first.push_back(Phase::kIntraReduceScatter);
  if (levels.inter) {
    halves.first.push_back(Phase::kInterReduceScatter);
    halves.second.push_back(Phase::kInterAllGather);
  }
  if (levels.intra) halves.second.push_back(Phase::kIntraAllGather);
  return halves;
}

// By what the tensors hold, without the gaps between them, as `tfdear/engine/plan.py` counts for
// the plans that come later: a bucket must not change sides when the ranks first agree on one.
bool IsExchangedSparsely(const std::vector<TensorSpec>& tensors, const Bucket& bucket,
                         const SparseBuckets& sparse_buckets) {
  if (sparse_buckets.at_least < 0 || bucket.type != DataType::kFloat32) return false;
  int64_t elements = 0;
  for (int tensor : bucket.tensors) {
    if (tensors[tensor].sparse || tensors[tensor].count < 0) return false;
    elements += tensors[tensor].count;
  }
  return elements >= std::max<int64_t>(sparse_buckets.at_least, 1);
}

// The same for a bucket that is exchanged sparsely.
Halves SparseHalves(bool hierarchical, Levels levels) {
  if (!hierarchical) return {{Phase::kSparseAllGather}, {}};
  if (!levels.intra) return {{Phase::kSparseExchange}, {}};
  return {{Phase::kIntraReduceScatter, Phase::kSparseExchange}, {Phase::kIntraAllGather}};
}

// The group of a node takes its steps in order: a last step that waits for other nodes would hold
// up the first step of the next bucket, and with it that bucket's step between the nodes. So it
// goes behind the next first step, if there is one.
void Pipeline(std::vector<Plan::Step>* steps) {
  auto count = [](const Plan::Step& step) { return step.phase == Phase::kIntraReduceScatter; };
  auto left = std::count_if(steps->begin(), steps->end(), count);
  std::vector<Plan::Step> ordered, held;
  for (const Plan::Step& step : *steps) {
    if (step.phase == Phase::kIntraAllGather && left > 0) {
      held.push_back(step);
      continue;
    }
    ordered.push_back(step);
    if (count(step)) {
      --left;
      ordered.insert(ordered.end(), held.begin(), held.end());
      held.clear();
    }
  }
  *steps = std::move(ordered);
}

// What is done of a bucket: its phases so far, and of each the chunks. A step costs the same
// however many came before it.
struct Progress {
  struct Chunks {
    std::vector<bool> done;
    size_t left = 0;
  };
  std::vector<Phase> phases;
  std::vector<Chunks> chunks;  // Of every phase.
  bool interleaved = false;    // A phase began before the one before it was complete.

  // False if the step cannot come now.
  bool Add(const Plan::Step& step) {
    const auto found = std::find(phases.begin(), phases.end(), step.phase);
    const size_t place = found - phases.begin();
    if (found == phases.end()) {
      phases.push_back(step.phase);
      const auto count = static_cast<size_t>(step.chunks);
      chunks.push_back({std::vector<bool>(count), count});
    }
    Chunks& own = chunks[place];
    if (own.done.size() != static_cast<size_t>(step.chunks) || own.done[step.chunk]) return false;
    if (place > 0) {
      const Chunks& before = chunks[place - 1];
      const bool alike = std::all_of(chunks.begin(), chunks.end(), [&](const auto& phase) {
        return phase.done.size() == own.done.size();
      });
      if (!before.done[step.chunk % before.done.size()]) return false;
      interleaved = interleaved || before.left > 0;
      if (interleaved && !alike) return false;
    }
    own.done[step.chunk] = true;
    --own.left;
    return true;
  }
};

size_t UsualBucketBytes(const std::vector<TensorSpec>& tensors) {
  size_t bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    if (!tensor.sparse && tensor.count > 0) bytes += tensor.count * SizeOf(tensor.type);
  }
  return std::clamp(bytes / kUsualBuckets, kLeastBytes, kMostBytes);
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
    case Phase::kIntraReduceScatter:
      return "intra_reduce_scatter";
    case Phase::kInterReduceScatter:
      return "inter_reduce_scatter";
    case Phase::kInterAllGather:
      return "inter_all_gather";
    case Phase::kIntraAllGather:
      return "intra_all_gather";
    case Phase::kSparseExchange:
      return "sparse_exchange";
    case Phase::kSparseAllGather:
      return "sparse_all_gather";
  }
  return "unknown";
}

bool IsIntra(Phase phase) {
  return phase == Phase::kIntraReduceScatter || phase == Phase::kIntraAllGather;
}

bool IsInter(Phase phase) {
  return phase == Phase::kInterReduceScatter || phase == Phase::kInterAllGather ||
         phase == Phase::kSparseExchange;
}

Plan Plan::Make(const std::vector<TensorSpec>& tensors, size_t bucket_bytes, Schedule schedule,
                Algorithm algorithm, Levels levels, SparseBuckets sparse_buckets) {
  Plan plan;
  std::vector<bool> sparse;
  std::vector<bool> compressed;
  if (bucket_bytes == 0) bucket_bytes = UsualBucketBytes(tensors);
  for (const Bucket& bucket : PlanFixedSize(tensors, bucket_bytes)) {
    plan.buckets.push_back(bucket.tensors);
    sparse.push_back(bucket.sparse);
    compressed.push_back(IsExchangedSparsely(tensors, bucket, sparse_buckets) &&
                         (levels.inter || !sparse_buckets.hierarchical));
  }
  plan.wait_for_all = schedule == Schedule::kSequential;
  const Halves dense_halves = HalvesOf(algorithm, levels);
  const Halves sparse_halves = SparseHalves(sparse_buckets.hierarchical, levels);
  const int count = static_cast<int>(plan.buckets.size());
  auto add = [&plan](const Phases& phases, int b) {
    for (Phase phase : phases) plan.steps.push_back({phase, b});
  };
  for (int b = 0; b < count; ++b) {
    const Halves& halves = compressed[b] ? sparse_halves : dense_halves;
    if (sparse[b]) {
      plan.steps.push_back({Phase::kSparseGather, b});
    } else if (schedule == Schedule::kDear) {
      add(halves.first, b);
    } else if (algorithm == Algorithm::kShards && !compressed[b]) {
      plan.steps.push_back({Phase::kAllReduce, b});
    } else {
      add(halves.first, b);
      add(halves.second, b);
    }
  }
  Pipeline(&plan.steps);
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
    if (!sparse[b]) add((compressed[b] ? sparse_halves : dense_halves).second, b);
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
  // How many items follow, of `each` words at least: no more than there are words for, so that a
  // number alone allocates nothing.
  auto take_count = [&](size_t each, int64_t* count) {
    return take(count) && static_cast<size_t>(*count) <= (words.size() - next) / each;
  };
  const Status damaged = Bad("its " + std::to_string(words.size()) + " numbers are no plan");
  int64_t wait_for_all, count;
  if (!take(&wait_for_all) || wait_for_all > 1 || !take_count(1, &count)) return damaged;
  plan->wait_for_all = wait_for_all == 1;
  plan->buckets.assign(count, {});
  for (auto& bucket : plan->buckets) {
    int64_t size, tensor;
    if (!take_count(1, &size)) return damaged;
    for (int64_t i = 0; i < size; ++i) {
      if (!take(&tensor)) return damaged;
      bucket.push_back(static_cast<int>(tensor));
    }
  }
  if (!take_count(4, &count)) return damaged;
  plan->steps.clear();
  for (int64_t i = 0; i < count; ++i) {
    int64_t phase, bucket, chunk, chunks;
    if (!take(&phase) || !take(&bucket) || !take(&chunk) || !take(&chunks)) return damaged;
    if (phase > static_cast<int64_t>(Phase::kSparseAllGather)) return damaged;
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

Status Plan::Check(const std::vector<TensorSpec>& tensors, Levels levels) const {
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
  std::vector<Progress> progress(buckets.size());
  for (const Step& step : steps) {
    // Every chunk is a step, so there are no more chunks than steps: this bounds what is allocated.
    if (step.bucket < 0 || step.bucket >= static_cast<int>(buckets.size()) || step.chunks < 1 ||
        static_cast<size_t>(step.chunks) > steps.size() || step.chunk < 0 ||
        step.chunk >= step.chunks) {
      return Bad("a step names bucket " + std::to_string(step.bucket) + ", chunk " +
                 std::to_string(step.chunk) + " of " + std::to_string(step.chunks));
    }
    const TensorSpec& spec = tensors[buckets[step.bucket][0]];
    const std::string words =
        std::string(Name(step.phase)) + " of bucket " + std::to_string(step.bucket);
    const bool selects =
        step.phase == Phase::kSparseExchange || step.phase == Phase::kSparseAllGather;
    if (spec.sparse != (step.phase == Phase::kSparseGather) ||
        (selects && (spec.type != DataType::kFloat32 || spec.count < 0 || step.chunks > 1))) {
      return Bad(words + " does not suit its tensors");
    }
    if (step.chunks > 1 && (spec.sparse || spec.count < 0)) {
      return Bad(words + " is cut, but its size is known at run time only");
    }
    if (!progress[step.bucket].Add(step)) {
      return Bad(words + " comes twice, out of order or in other chunks than before");
    }
  }
  const std::vector<Phases> chains = Chains(levels);
  for (size_t b = 0; b < buckets.size(); ++b) {
    const Phases& chain = progress[b].phases;
    if (std::find(chains.begin(), chains.end(), chain) == chains.end() ||
        progress[b].chunks.back().left > 0) {
      std::string words;
      for (Phase phase : chain) words += std::string(" ") + Name(phase);
      return Bad(
          "bucket " + std::to_string(b) +
          " is never summed and spread as a whole; its steps:" + (words.empty() ? " none" : words));
    }
  }
  return Status();
}

}  // namespace tfdear
