// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/plan.h"

#include <algorithm>
#include <string>

namespace tfdear {
namespace {

// No plan of a real model comes near; a damaged one would.
constexpr int64_t kMost = int64_t{1} << 24;
template <typename... Parts>
Status Bad(const Parts&... what) {
  return InvalidArgument("a plan for tensor fusion does not hold: ", what...);
}

// The kinds of a bucket's steps, in the order in which they reduce it and then spread it.
using Chain = std::vector<StepKind>;

// [Note: chains of steps]
// The steps of a bucket make a chain: those of one kind are complete, for all chunks, before those
// of the next begin. Where all kinds of a chain are cut into the same number of chunks, each chunk
// has a chain of its own. Steps of one level exist only where the level does, and then all of them.
std::vector<Chain> Chains(Levels levels) {
  const StepKind intra_scatter{Operation::kReduceScatter, Group::kIntra};
  const StepKind intra_gather{Operation::kAllGather, Group::kIntra};
  const StepKind inter_scatter{Operation::kReduceScatter, Group::kInter};
  const StepKind inter_gather{Operation::kAllGather, Group::kInter};
  const StepKind inter_selected{Operation::kAllReduce, Group::kInter, WireFormat::kSelected};
  std::vector<Chain> chains = {{{Operation::kReduceScatter}, {Operation::kAllGather}},
                               {{Operation::kAllReduce}},
                               {{Operation::kReduce}, {Operation::kBroadcast}},
                               {{Operation::kAllGather, Group::kWorld, WireFormat::kRows}},
                               {{Operation::kAllReduce, Group::kWorld, WireFormat::kSelected}}};
  if (levels.intra && levels.inter) {
    chains.push_back({intra_scatter, inter_scatter, inter_gather, intra_gather});
    chains.push_back({intra_scatter, inter_selected, intra_gather});
  } else if (levels.intra) {
    chains.push_back({intra_scatter, intra_gather});
  } else if (levels.inter) {
    chains.push_back({inter_scatter, inter_gather});
    chains.push_back({inter_selected});
  }
  return chains;
}

// What is done of a bucket: its kinds of steps so far, and of each the chunks. A step costs the
// same however many came before it.
struct Progress {
  struct Chunks {
    std::vector<bool> done;
    size_t left = 0;
  };
  Chain kinds;
  std::vector<Chunks> chunks;  // Of every kind.
  bool interleaved = false;    // A kind began before the one before it was complete.

  // False if the step cannot come now.
  bool Add(const Plan::Step& step) {
    const auto found = std::find(kinds.begin(), kinds.end(), step.kind);
    const size_t place = found - kinds.begin();
    if (found == kinds.end()) {
      kinds.push_back(step.kind);
      const auto count = static_cast<size_t>(step.chunks);
      chunks.push_back({std::vector<bool>(count), count});
    }
    Chunks& own = chunks[place];
    if (own.done.size() != static_cast<size_t>(step.chunks) || own.done[step.chunk]) return false;
    if (place > 0) {
      const Chunks& before = chunks[place - 1];
      const bool alike = std::all_of(chunks.begin(), chunks.end(), [&](const auto& kind) {
        return kind.done.size() == own.done.size();
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

}  // namespace

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
  const Status damaged = Bad("its ", words.size(), " numbers are no plan");
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
    int64_t kind, bucket, chunk, chunks;
    if (!take(&kind) || !take(&bucket) || !take(&chunk) || !take(&chunks)) return damaged;
    if (kind >= kNumStepKinds) return damaged;
    plan->steps.push_back({kStepKinds[kind].kind, static_cast<int>(bucket), static_cast<int>(chunk),
                           static_cast<int>(chunks)});
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
    words.insert(words.end(), {NumberOf(step.kind), step.bucket, step.chunk, step.chunks});
  }
  return words;
}

Status Plan::Check(const std::vector<TensorSpec>& tensors, Levels levels) const {
  std::vector<bool> placed(tensors.size());
  for (const auto& bucket : buckets) {
    if (bucket.empty()) return Bad("a bucket is empty");
    for (int tensor : bucket) {
      if (tensor < 0 || tensor >= static_cast<int>(tensors.size()) || placed[tensor]) {
        return Bad("tensor ", tensor, " of ", tensors.size(), " is unknown or twice in it");
      }
      placed[tensor] = true;
      const TensorSpec& spec = tensors[tensor];
      if (spec.type != tensors[bucket[0]].type) return Bad("a bucket mixes data types");
      if (bucket.size() > 1 && (spec.sparse || spec.count < 0)) {
        return Bad("tensor ", tensor, ", sparse or sized at run time, does not travel alone");
      }
    }
  }
  if (std::count(placed.begin(), placed.end(), false) > 0) {
    return Bad("it places ", std::count(placed.begin(), placed.end(), true), " of ", tensors.size(),
               " tensors");
  }
  std::vector<Progress> progress(buckets.size());
  for (const Step& step : steps) {
    // Every chunk is a step, so there are no more chunks than steps: this bounds what is allocated.
    if (step.bucket < 0 || step.bucket >= static_cast<int>(buckets.size()) || step.chunks < 1 ||
        static_cast<size_t>(step.chunks) > steps.size() || step.chunk < 0 ||
        step.chunk >= step.chunks) {
      return Bad("a step names bucket ", step.bucket, ", chunk ", step.chunk, " of ", step.chunks);
    }
    const TensorSpec& spec = tensors[buckets[step.bucket][0]];
    const std::string words = TextOf(Name(step.kind), " of bucket ", step.bucket);
    const bool selects = step.kind.wire_format == WireFormat::kSelected;
    if (spec.sparse != (step.kind.wire_format == WireFormat::kRows) ||
        (selects && (spec.type != DataType::kFloat32 || spec.count < 0 || step.chunks > 1))) {
      return Bad(words, " does not suit its tensors");
    }
    if (step.chunks > 1 && (spec.sparse || spec.count < 0)) {
      return Bad(words, " is cut, but its size is known at run time only");
    }
    if (!progress[step.bucket].Add(step)) {
      return Bad(words, " comes twice, out of order or in other chunks than before");
    }
  }
  const std::vector<Chain> chains = Chains(levels);
  for (size_t b = 0; b < buckets.size(); ++b) {
    const Chain& chain = progress[b].kinds;
    if (std::find(chains.begin(), chains.end(), chain) == chains.end() ||
        progress[b].chunks.back().left > 0) {
      std::string words;
      for (const StepKind& kind : chain) words += std::string(" ") + Name(kind);
      return Bad("bucket ", b, " is never summed and spread as a whole; its steps:",
                 words.empty() ? " none" : words);
    }
  }
  return Status();
}

}  // namespace tfdear
