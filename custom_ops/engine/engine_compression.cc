// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Compression of gradients: what each layout holds back, from step to step and in checkpoints.
#include <algorithm>
#include <utility>

#include "custom_ops/engine/engine.h"

namespace tfdear {

Status Engine::Compress(const Compression& compression) {
  MutexLock lock(mutex_);
  for (const auto& entry : layouts_) {
    if (entry == nullptr) continue;
    if (entry->lane == LaneKind::kGradients && entry->current != nullptr) {
      return Status(StatusCode::kInternal,
                    "compression was set after the first use of layout '" + entry->name + "'");
    }
  }
  compressed_ = true;
  compression_ = compression;
  return Status();
}

SparseExchangeOptions Engine::ExchangeOf(const LayoutEntry& entry) const {
  SparseExchangeOptions options = compression_.exchange;
  if (compression_.momentum_of_optimizer) {
    options.momentum = entry.momentum;
    options.optimizer_has_momentum = entry.momentum != 0;
  }
  return options;
}

Status Engine::SetDensity(double density) {
  MutexLock lock(mutex_);
  if (!(density > 0 && density <= 1)) {
    return Status(StatusCode::kInvalidArgument,
                  "expected a density above 0 and at most 1, received " + std::to_string(density));
  }
  if (!compressed_ && density < 1) {
    return Status(StatusCode::kInvalidArgument,
                  "the strategy was created without compression; pass `compression=` to "
                  "DearStrategy, and switch it on and off afterwards");
  }
  density_ = density;
  return Status();
}

// Which part of every bucket this rank exchanges, of how many.
std::pair<int, int> Engine::PlaceOfExchange() {
  const LevelGroups groups = GroupsOfLevels();
  if (!compression_.hierarchical || groups.intra == nullptr) return {0, 1};
  return {groups.intra->rank(), groups.intra->size()};
}

void Engine::TakeUpLoaded(LayoutEntry* entry) {
  entry->held.loads = loads_;
  entry->held.state = nullptr;
  entry->held.flushed = nullptr;
  auto found = std::find_if(loaded_.begin(), loaded_.end(),
                            [&](const auto& state) { return state->tensors() == entry->tensors; });
  if (found == loaded_.end()) return;
  std::shared_ptr<CompressionState> state = std::move(*found);
  loaded_.erase(found);
  state->Use(ExchangeOf(*entry));
  if (entry->current == nullptr && state->plan().Check(entry->tensors, Existing()).ok()) {
    entry->plan = state->plan();
  }
  if (state->plan().buckets == entry->plan.buckets) {
    entry->held.state = std::move(state);
  } else {
    entry->held.flushed = std::move(state);
  }
}

CompressionOfStep Engine::CompressionOf(LayoutEntry* entry) {
  if (entry->held.loads < loads_) TakeUpLoaded(entry);
  const auto [place, places] = PlaceOfExchange();
  // What is held back belongs to a bucket; in which order buckets travel does not matter to it.
  if (entry->held.state != nullptr && entry->held.state->plan().buckets != entry->plan.buckets) {
    entry->held.flushed = std::move(entry->held.state);
    entry->held.state = nullptr;
  }
  if (entry->held.state == nullptr) {
    entry->held.state = std::make_shared<CompressionState>(entry->tensors, entry->plan,
                                                           ExchangeOf(*entry), place, places);
    if (entry->held.flushed != nullptr) entry->held.state->steps = entry->held.flushed->steps;
  }
  CompressionOfStep step;
  step.state = entry->held.state;
  step.flushed = std::move(entry->held.flushed);
  entry->held.flushed = nullptr;
  step.density = density_;
  if (density_ < 1) {
    const bool warms_up = entry->optimizer || !compression_.only_optimizers_warm_up;
    step.density = DensityAt(density_, compression_.first_density,
                             warms_up ? compression_.warm_up_steps : 0, entry->held.state->steps);
    ++entry->held.state->steps;
  }
  return step;
}

Status Engine::SaveCompression(std::vector<char>* state) {
  std::vector<std::shared_ptr<const CompressionState>> states;
  state->clear();
  {
    MutexLock lock(mutex_);
    for (const auto& entry : layouts_) {
      if (entry == nullptr) continue;
      if (entry->held.loads < loads_) continue;  // A loaded state is about to take its place.
      const std::shared_ptr<const CompressionState> current =
          entry->held.flushed != nullptr ? entry->held.flushed : entry->held.state;
      if (current != nullptr) states.push_back(current);
    }
    for (const auto& loaded : loaded_) loaded->Save(state);
  }
  for (const auto& of_layout : states) {
    if (of_layout->last_exchange != nullptr) {
      TFDEAR_RETURN_IF_ERROR(of_layout->last_exchange->Wait());
    }
    of_layout->Save(state);
  }
  return Status();
}

Status Engine::LoadCompression(const std::vector<char>& state) {
  MutexLock lock(mutex_);
  const auto [place, places] = PlaceOfExchange();
  std::vector<std::unique_ptr<CompressionState>> loaded;
  const char* next = state.data();
  const char* const end = next + state.size();
  while (next != end) {
    loaded.emplace_back();
    TFDEAR_RETURN_IF_ERROR(CompressionState::Load(&next, end, place, places, &loaded.back()));
  }
  loaded_ = std::move(loaded);
  ++loads_;
  return Status();
}

}  // namespace tfdear
