// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/reduction_layout.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tfdear {
namespace {

// The tensors of a bucket, a line each: what ranks compare, and what it is called here.
std::string DetailsOf(const ReductionLayout& layout, const Bucket& bucket) {
  std::string lines;
  for (int tensor : bucket.tensors) {
    const TensorSpec& spec = layout.tensors[tensor];
    if (spec.name.empty()) continue;
    char identity[24];
    std::snprintf(identity, sizeof(identity), "%016llx ",
                  static_cast<unsigned long long>(spec.identity));
    lines += identity + spec.name + " " + spec.kind + "\n";
  }
  return lines;
}

// Links the steps of each bucket: see [Note: chains of steps] in plan.cc.
void LinkSteps(ReductionLayout* layout) {
  const size_t count = layout->buckets.size();
  layout->last_steps.assign(count, 0);
  layout->chunks_alike.assign(count, true);
  // Of each bucket: the steps of each kind in its chain.
  std::vector<std::vector<std::vector<int>>> chains(count);
  auto kind_of = [layout](const std::vector<int>& steps) { return layout->steps[steps[0]].kind; };
  for (size_t i = 0; i < layout->steps.size(); ++i) {
    auto& chain = chains[layout->steps[i].bucket];
    auto found = std::find_if(chain.begin(), chain.end(), [&](const auto& steps) {
      return kind_of(steps) == layout->steps[i].kind;
    });
    if (found == chain.end()) found = chain.insert(found, std::vector<int>());
    found->push_back(static_cast<int>(i));
  }
  for (size_t b = 0; b < count; ++b) {
    const auto& chain = chains[b];
    for (const auto& steps : chain) {
      if (steps.size() != chain[0].size()) layout->chunks_alike[b] = false;
    }
    for (size_t place = 0; place < chain.size(); ++place) {
      for (int i : chain[place]) {
        ReductionLayout::Step& step = layout->steps[i];
        step.brings_sum = place + 1 == chain.size();
        if (place == 0 || step.kind.group == kind_of(chain[place - 1]).group) continue;
        // Groups take their steps in order, so with the last one all of them are over.
        step.waits_for = chain[place - 1].back();
        for (int before : chain[place - 1]) {
          if (layout->chunks_alike[b] && layout->steps[before].chunk == step.chunk) {
            step.waits_for = before;
          }
        }
      }
    }
    if (!chain.empty()) layout->last_steps[b] = static_cast<int>(chain.back().size());
  }
}

}  // namespace

std::shared_ptr<const ReductionLayout> ReductionLayout::Make(std::string name,
                                                             std::vector<TensorSpec> tensors,
                                                             Plan plan) {
  auto layout = std::make_shared<ReductionLayout>();
  layout->name = std::move(name);
  layout->tensors = std::move(tensors);
  layout->wait_for_all = plan.wait_for_all;
  layout->place_of_tensor.resize(layout->tensors.size());
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    layout->buckets.push_back(MakeBucket(layout->tensors, plan.buckets[b]));
    for (size_t slot = 0; slot < plan.buckets[b].size(); ++slot) {
      layout->place_of_tensor[plan.buckets[b][slot]] = {static_cast<int>(b),
                                                        static_cast<int>(slot)};
    }
  }
  for (size_t t = 0; t < layout->tensors.size(); ++t) {
    const TensorSpec& tensor = layout->tensors[t];
    layout->table_of_tensor.push_back(-1);
    if (tensor.partition == nullptr) continue;
    layout->table_of_tensor[t] = static_cast<int>(layout->tables.size());
    layout->tables.push_back({tensor.partition, tensor.type, tensor.row_counts});
  }
  for (const Bucket& bucket : layout->buckets) {
    layout->details.push_back(std::make_shared<const std::string>(DetailsOf(*layout, bucket)));
  }
  std::vector<bool> begun(layout->buckets.size());
  for (const Plan::Step& step : plan.steps) {
    const Bucket& bucket = layout->buckets[step.bucket];
    if (layout->tensors[bucket.tensors[0]].partition != nullptr) continue;  // See TableRows.
    const bool sized_at_run_time = !bucket.sparse && layout->tensors[bucket.tensors[0]].count < 0;
    std::shared_ptr<const Signature> signature;
    if (!sized_at_run_time) {
      signature = std::make_shared<Signature>(layout->Describe(step, bucket.count));
    }
    layout->steps.push_back({step, std::move(signature)});
    layout->steps.back().adds_held_back =
        !begun[step.bucket] && bucket.type == DataType::kFloat32 && !bucket.sparse;
    begun[step.bucket] = true;
  }
  LinkSteps(layout.get());
  std::vector<bool> last_seen(layout->buckets.size());
  for (auto step = layout->steps.rbegin(); step != layout->steps.rend(); ++step) {
    step->takes_norms = !last_seen[step->bucket] && layout->NormedIn(step->bucket) > 0;
    last_seen[step->bucket] = true;
  }
  return layout;
}

int ReductionLayout::NormedIn(int bucket) const {
  const auto& members = buckets[bucket].tensors;
  return static_cast<int>(std::count_if(members.begin(), members.end(), [&](int tensor) {
    return tensors[tensor].norms && !tensors[tensor].sparse;
  }));
}

// It lists the elements of every tensor, because two ranks may fill buckets of one size with
// different tensors.
std::string ReductionLayout::Describe(const Plan::Step& step, size_t count) const {
  const Bucket& bucket = buckets[step.bucket];
  std::string text = std::string(Name(step.kind)) + " " + Name(bucket.type) + "[" +
                     (bucket.sparse ? "rows" : std::to_string(count)) + "] of '" + name +
                     "' bucket " + std::to_string(step.bucket) + "/" +
                     std::to_string(buckets.size());
  if (step.chunks > 1) {
    text += " chunk " + std::to_string(step.chunk) + "/" + std::to_string(step.chunks);
  }
  if (!bucket.sparse) text += " (elements";
  const size_t shown = std::min<size_t>(bucket.tensors.size(), 8);
  std::string rest;
  for (size_t i = 0; i < bucket.tensors.size(); ++i) {
    const int64_t elements = tensors[bucket.tensors[i]].count;
    if (bucket.sparse) break;
    (i < shown ? text : rest) += " " + std::to_string(elements < 0 ? count : elements);
  }
  if (!rest.empty()) text += " and " + std::to_string(bucket.tensors.size() - shown) + " more";
  if (!bucket.sparse) text += ")";
  for (int tensor : bucket.tensors) {
    const TensorSpec& spec = tensors[tensor];
    if (!spec.name.empty()) rest += " " + std::to_string(spec.identity);
  }
  if (!rest.empty()) {
    char fingerprint[32];
    std::snprintf(fingerprint, sizeof(fingerprint), " fingerprint %016llx",
                  static_cast<unsigned long long>(Signature(rest).hash()));
    text += fingerprint;
  }
  const int normed = NormedIn(step.bucket);
  return text + (normed > 0 ? " with norms of " + std::to_string(normed) : "");
}

}  // namespace tfdear
