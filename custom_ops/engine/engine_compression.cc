// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Compression of gradients: what each layout holds back, from step to step and in checkpoints.
#include <algorithm>
#include <map>
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

HeldBack Engine::HeldBackBy(const LayoutEntry& entry) {
  return entry.held.flushed.state != nullptr ? entry.held.flushed : HeldBack{entry.held.state, {}};
}

// The layouts of these variables that were used with compression; not one whose variables another
// layout has taken over.
std::vector<Engine::LayoutEntry*> Engine::HoldingBack(const Variables& variables) {
  std::vector<LayoutEntry*> found;
  for (const auto& entry : layouts_) {
    if (entry == nullptr || HeldBackBy(*entry).state == nullptr) continue;
    if (!AreOf(*entry, variables)) continue;
    const bool is_followed = std::any_of(
        layouts_.begin(), layouts_.end(), [&](const std::unique_ptr<LayoutEntry>& other) {
          return other != nullptr && other->held.used > entry->held.used &&
                 other->variables == entry->variables && other->lane == entry->lane &&
                 std::count(other->variables.begin(), other->variables.end(), -1) == 0;
        });
    if (!is_followed) found.push_back(entry.get());
  }
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
  const bool same_plan = state->plan().buckets == entry->plan.buckets;
  entry->held.state = same_plan ? state : nullptr;
  entry->held.flushed = same_plan ? HeldBack() : HeldBack{state, {}};
  return true;
}

void Engine::TakeUpLoaded(LayoutEntry* entry) {
  // What was loaded last counts.
  for (auto loaded = loaded_.rbegin(); loaded != loaded_.rend(); ++loaded) {
    if (AreOf(*entry, loaded->variables) && TakeUp(entry, &*loaded)) return;
  }
}

// What other layouts hold back of a layout's variables: they were used since this one was. A model
// goes on with other layers that train, or with another optimizer.
std::vector<HeldBack> Engine::TakeOver(const LayoutEntry& entry) {
  std::map<int64_t, int> places;
  std::vector<HeldBack> taken;
  for (const auto& other : layouts_) {
    if (other == nullptr || other.get() == &entry || other->held.used <= entry.held.used) continue;
    const HeldBack held = HeldBackBy(*other);
    if (held.state == nullptr) continue;
    if (places.empty()) {
      for (size_t i = 0; i < entry.variables.size(); ++i) {
        if (entry.variables[i] >= 0) places[entry.variables[i]] = static_cast<int>(i);
      }
    }
    const int count = static_cast<int>(other->variables.size());
    HeldBack part{held.state, std::vector<int>(count, -1)};
    HeldBack rest = part;
    bool any = false, all = true;
    for (int i = 0; i < count; ++i) {
      if (!held.tensors.empty() && held.tensors[i] < 0) continue;
      const auto place = places.find(other->variables[i]);
      if (place != places.end()) {
        part.tensors[i] = place->second;
        any = true;
      } else {
        rest.tensors[i] = i;
        all = false;
      }
    }
    if (!any) continue;
    taken.push_back(std::move(part));
    other->held.state = all ? NothingHeldBack(*other) : nullptr;
    if (all) other->held.state->steps = held.state->steps;
    other->held.flushed = all ? HeldBack() : std::move(rest);
  }
  return taken;
}

CompressionOfStep Engine::CompressionOf(LayoutEntry* entry) {
  CompressionOfStep step;
  step.flushed = TakeOver(*entry);
  // What is held back belongs to a bucket; in which order buckets travel does not matter to it.
  if (entry->held.state != nullptr && entry->held.state->plan().buckets != entry->plan.buckets) {
    entry->held.flushed = {std::move(entry->held.state), {}};
    entry->held.state = nullptr;
  }
  HeldBack own = std::move(entry->held.flushed);
  entry->held.flushed = HeldBack();
  if (entry->held.state == nullptr) {
    entry->held.state = NothingHeldBack(*entry);
    if (own.state != nullptr) entry->held.state->steps = own.state->steps;
  }
  if (own.state != nullptr) step.flushed.push_back(std::move(own));
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
  std::vector<HeldBack> all;
  std::vector<char> loaded;
  state->clear();
  {
    MutexLock lock(mutex_);
    for (const LayoutEntry* entry : HoldingBack(variables)) all.push_back(HeldBackBy(*entry));
    for (const Loaded& of_file : loaded_) {
      const bool are_of =
          variables.empty() || (!of_file.variables.empty() &&
                                std::includes(variables.begin(), variables.end(),
                                              of_file.variables.begin(), of_file.variables.end()));
      if (!are_of) continue;
      for (const auto& left : of_file.states) left->Save(&loaded);
    }
  }
  for (const HeldBack& held : all) {
    if (held.state->last_exchange != nullptr) {
      TFDEAR_RETURN_IF_ERROR(held.state->last_exchange->Wait());
    }
    held.state->Save(state, held.tensors);
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
  const std::vector<LayoutEntry*> current = HoldingBack(variables);
  for (const auto& entry : layouts_) {
    if (entry == nullptr || HeldBackBy(*entry).state == nullptr) continue;
    if (!AreOf(*entry, variables)) continue;
    entry->held.flushed = HeldBack();
    entry->held.state = NothingHeldBack(*entry);
  }
  for (LayoutEntry* entry : current) TakeUp(entry, &loaded);
  if (!loaded.states.empty()) loaded_.push_back(std::move(loaded));
  return Status();
}

}  // namespace tfdear
