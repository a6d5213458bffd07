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

bool Engine::AreOf(const LayoutEntry& entry, const Variables& variables) {
  return std::all_of(entry.variables.begin(), entry.variables.end(), [&](int64_t variable) {
    return variables.empty() || variables.count(variable) > 0;
  });
}

std::shared_ptr<const CompressionState> Engine::HeldBackBy(const LayoutEntry& entry) {
  return entry.held.flushed != nullptr ? entry.held.flushed : entry.held.state;
}

// The layouts of these variables that were used with compression; what was used last is first.
std::vector<Engine::LayoutEntry*> Engine::HoldingBack(const Variables& variables) {
  std::vector<LayoutEntry*> found;
  for (const auto& entry : layouts_) {
    if (entry == nullptr || HeldBackBy(*entry) == nullptr || !AreOf(*entry, variables)) continue;
    found.push_back(entry.get());
  }
  std::sort(found.begin(), found.end(), [](const LayoutEntry* one, const LayoutEntry* other) {
    return one->held.used > other->held.used;
  });
  return found;
}

std::shared_ptr<CompressionState> Engine::NothingHeldBack(const LayoutEntry& entry) {
  const auto [place, places] = PlaceOfExchange();
  return std::make_shared<CompressionState>(entry.tensors, entry.plan, ExchangeOf(entry), place,
                                            places);
}

bool Engine::TakeUp(LayoutEntry* entry, Loaded* loaded) {
  auto found = std::find_if(loaded->states.begin(), loaded->states.end(),
                            [&](const auto& state) { return state->tensors() == entry->tensors; });
  if (found == loaded->states.end()) return false;
  std::shared_ptr<CompressionState> state = std::move(*found);
  loaded->states.erase(found);
  state->Use(ExchangeOf(*entry));
  if (entry->current == nullptr && state->plan().Check(entry->tensors, Existing()).ok()) {
    entry->plan = state->plan();
  }
  if (state->plan().buckets == entry->plan.buckets) {
    entry->held.state = std::move(state);
    entry->held.flushed = nullptr;
  } else {
    entry->held.flushed = std::move(state);
    entry->held.state = nullptr;
  }
  return true;
}

void Engine::TakeUpLoaded(LayoutEntry* entry) {
  // What was loaded last counts.
  for (auto loaded = loaded_.rbegin(); loaded != loaded_.rend(); ++loaded) {
    if (AreOf(*entry, loaded->variables) && TakeUp(entry, &*loaded)) return;
  }
}

// What other layouts hold back of a layout's variables, when it is used first: a model goes on with
// other layers that train, or with another optimizer.
std::vector<HeldBack> Engine::TakeOver(const LayoutEntry& entry) {
  std::vector<HeldBack> taken;
  for (LayoutEntry* other : HoldingBack({})) {
    HeldBack held{HeldBackBy(*other), {}};
    bool any = false;
    for (int64_t variable : other->variables) {
      const auto place = std::find(entry.variables.begin(), entry.variables.end(), variable);
      const bool known = variable >= 0 && place != entry.variables.end();
      held.tensors.push_back(known ? static_cast<int>(place - entry.variables.begin()) : -1);
      any |= known;
    }
    if (!any) continue;
    other->held.flushed = nullptr;
    other->held.state = NothingHeldBack(*other);
    other->held.state->steps = held.state->steps;
    taken.push_back(std::move(held));
  }
  return taken;
}

CompressionOfStep Engine::CompressionOf(LayoutEntry* entry) {
  CompressionOfStep step;
  if (HeldBackBy(*entry) == nullptr) {
    step.flushed = TakeOver(*entry);
  }
  // What is held back belongs to a bucket; in which order buckets travel does not matter to it.
  if (entry->held.state != nullptr && entry->held.state->plan().buckets != entry->plan.buckets) {
    entry->held.flushed = std::move(entry->held.state);
    entry->held.state = nullptr;
  }
  if (entry->held.state == nullptr) {
    entry->held.state = NothingHeldBack(*entry);
    if (entry->held.flushed != nullptr) entry->held.state->steps = entry->held.flushed->steps;
  }
  if (entry->held.flushed != nullptr) step.flushed.push_back({entry->held.flushed, {}});
  entry->held.flushed = nullptr;
  entry->held.used = ++uses_;
  step.state = entry->held.state;
  step.density = density_;
  if (density_ < 1) {
    const bool warms_up = entry->optimizer || !compression_.only_optimizers_warm_up;
    step.density = DensityAt(density_, compression_.first_density,
                             warms_up ? compression_.warm_up_steps : 0, entry->held.state->steps);
    ++entry->held.state->steps;
  }
  return step;
}

Status Engine::SaveCompression(const Variables& variables, std::vector<char>* state) {
  std::vector<std::shared_ptr<const CompressionState>> states;
  std::vector<char> loaded;
  state->clear();
  {
    MutexLock lock(mutex_);
    for (const LayoutEntry* entry : HoldingBack(variables)) {
      states.push_back(HeldBackBy(*entry));
    }
    for (const Loaded& of_file : loaded_) {
      const bool all_of_them = std::includes(variables.begin(), variables.end(),
                                             of_file.variables.begin(), of_file.variables.end());
      if (!variables.empty() && !all_of_them) continue;
      for (const auto& left : of_file.states) left->Save(&loaded);
    }
  }
  for (const auto& of_layout : states) {
    if (of_layout->last_exchange != nullptr) {
      TFDEAR_RETURN_IF_ERROR(of_layout->last_exchange->Wait());
    }
    of_layout->Save(state);
  }
  state->insert(state->end(), loaded.begin(), loaded.end());
  return Status();
}

Status Engine::LoadCompression(const std::vector<char>& state, const Variables& variables) {
  MutexLock lock(mutex_);
  const auto [place, places] = PlaceOfExchange();
  Loaded loaded;
  loaded.variables = variables;
  const char* next = state.data();
  const char* const end = next + state.size();
  while (next != end) {
    loaded.states.emplace_back();
    TFDEAR_RETURN_IF_ERROR(
        CompressionState::Load(&next, end, place, places, &loaded.states.back()));
  }
  // It takes the place of what was loaded of the same.
  loaded_.erase(
      std::remove_if(loaded_.begin(), loaded_.end(),
                     [&](const Loaded& earlier) {
                       return variables.empty() ||
                              (!earlier.variables.empty() &&
                               std::includes(variables.begin(), variables.end(),
                                             earlier.variables.begin(), earlier.variables.end()));
                     }),
      loaded_.end());
  for (LayoutEntry* entry : HoldingBack(variables)) {
    entry->held.flushed = nullptr;
    entry->held.state = NothingHeldBack(*entry);
    TakeUp(entry, &loaded);
  }
  if (!loaded.states.empty()) loaded_.push_back(std::move(loaded));
  return Status();
}

}  // namespace tfdear
