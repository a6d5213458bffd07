// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/engine.h"

#include <condition_variable>
#include <utility>

#include "custom_ops/engine/schedule/tensor_identity.h"

namespace tfdear {

Engine* Engine::Get() {
  // Never destroyed: TensorFlow's threads may still call in while the process ends.
  static Engine* engine = new Engine;
  return engine;
}

Engine::~Engine() {
  // Their threads use everything else.
  for (auto& lane : lanes_) lane.reset();
}

Status Engine::Start(const Options& options,
                     std::array<std::unique_ptr<ProcessGroup>, kNumLanes> groups) {
  MutexLock lock(mutex_);
  if (started_) {
    return Status(StatusCode::kInvalidArgument,
                  "the engine of this process was started before: a process can hold one "
                  "distributed DearStrategy; create it once and use it for every model");
  }
  if (!failure_.ok()) return failure_;
  started_ = true;
  options_ = options;
  for (int i = 0; i < kNumLanes; ++i) {
    if (groups[i] == nullptr) continue;
    lanes_[i] = std::make_unique<Lane>(static_cast<LaneKind>(i), std::move(groups[i]));
    if (options_.tables_first && CarriesGradients(lanes_[i]->kind())) {
      lanes_[i]->group()->set_give_way([this] { right_of_way_.GiveWay(); });
    }
  }
  auto& gradients = lanes_[static_cast<int>(LaneKind::kGradients)];
  auto memory = gradients == nullptr ? nullptr : gradients->group()->fusion_memory();
  if (memory != nullptr) {
    group_pool_ = std::make_shared<FusionBufferPool>(FusionBufferPool::kMaxIdleBytes, memory);
  }
  return Status();
}

bool Engine::started() const {
  MutexLock lock(mutex_);
  return started_;
}

LevelGroups Engine::GroupsOfLevels() {
  auto group = [this](LaneKind kind) {
    Lane* const found = lane(kind);
    return found == nullptr ? nullptr : found->group();
  };
  return {group(LaneKind::kGradientsIntra), group(LaneKind::kGradientsInter)};
}

Levels Engine::Existing() {
  const LevelGroups groups = GroupsOfLevels();
  return {groups.intra != nullptr, groups.inter != nullptr};
}

Status Engine::Fix(LayoutEntry* entry) {
  Identify(&entry->tensors);
  if (entry->lane == LaneKind::kGradients && entry->held.loads < loads_) TakeUpLoaded(entry);
  if (entry->plan.buckets.empty() && !entry->tensors.empty()) {
    return Status(StatusCode::kInternal,
                  "reduction layout '" + entry->name + "' was used before it had a plan");
  }
  entry->current = ReductionLayout::Make(entry->name, entry->tensors, entry->plan);
  entry->agreement.execution = options_.first_agreement;
  return Status();
}

void Engine::Open(int64_t layout, Opened opened) {
  Status status;
  bool agree = false;
  {
    MutexLock lock(mutex_);
    status = failure_;
    LayoutEntry* entry = nullptr;
    if (status.ok()) status = Find(layout, /*open_to_change=*/false, &entry);
    if (status.ok()) {
      FindShared(layout);
      layout = entry->shared;
      entry = layouts_[layout].get();
    }
    if (status.ok() && lanes_[static_cast<int>(entry->lane)] == nullptr) {
      status = Status(StatusCode::kInternal, "the engine was not started before its first use");
    }
    if (status.ok() && entry->current == nullptr) status = Fix(entry);
    if (status.ok()) {
      agree = entry->lane == LaneKind::kGradients && entry->agreement.execution > 0 &&
              entry->executions == entry->agreement.execution;
      ++entry->executions;
    }
  }
  if (!status.ok()) return opened(status, nullptr, nullptr);
  if (agree) return Agree(layout, std::move(opened));
  OpenNow(layout, opened);
}

void Engine::OpenNow(int64_t layout, const Opened& opened) {
  std::shared_ptr<const ReductionLayout> current;
  CompressionOfStep compression;
  Lane* lane = nullptr;
  {
    MutexLock lock(mutex_);
    LayoutEntry& entry = *layouts_[layout];
    current = entry.current;
    if (compressed_ && entry.lane == LaneKind::kGradients) compression = CompressionOf(&entry);
    lane = lanes_[static_cast<int>(entry.lane)].get();
  }
  ProcessGroup* group = lane->group();
  std::shared_ptr<TableRows> tables;
  if (!current->tables.empty()) {
    tables = std::make_shared<TableRows>(current->name, current->tables, pool_, &events_,
                                         this->lane(LaneKind::kEmbeddingRows),
                                         this->lane(LaneKind::kDelayedRows), options_.max_delay_ms,
                                         right_of_way(), !current->steps.empty());
    tables->Open();
  }
  auto reduction = std::make_shared<Reduction>(
      current, group->rank(), group->size(), pool_, &events_, lane, options_.max_delay_ms,
      GroupsOfLevels(), std::move(compression),
      lane->kind() == LaneKind::kGradients ? group_pool_ : nullptr, std::move(tables),
      lane->kind() == LaneKind::kGradients ? right_of_way() : nullptr);
  lane->Open(reduction);
  if (lane->kind() == LaneKind::kGradients) {
    const int64_t now = EventRecord::NowMicros();
    events_.Add({EventKind::kStep, reduction->number(), layout,
                 static_cast<int64_t>(current->buckets.size()), now, now});
  }
  opened(Status(), std::move(reduction), lane);
}

Status Engine::Open(int64_t layout, std::shared_ptr<Reduction>* reduction, Lane** lane) {
  struct Result {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    Status status;
    std::shared_ptr<Reduction> reduction;
    Lane* lane = nullptr;
  };
  auto result = std::make_shared<Result>();
  Open(layout, [result](const Status& status, std::shared_ptr<Reduction> opened, Lane* its_lane) {
    std::lock_guard<std::mutex> lock(result->mutex);
    result->done = true;
    result->status = status;
    result->reduction = std::move(opened);
    result->lane = its_lane;
    result->changed.notify_all();
  });
  // Ends with the collective's own deadline at the latest.
  std::unique_lock<std::mutex> lock(result->mutex);
  result->changed.wait(lock, [&] { return result->done; });
  *reduction = std::move(result->reduction);
  *lane = result->lane;
  return result->status;
}

Status Engine::OpenCollective(LaneKind kind, std::shared_ptr<SingleCollective>* collective,
                              Lane** opened) {
  Status failed = failure();
  if (!failed.ok()) return failed;
  *opened = lane(kind);
  if (*opened == nullptr) {
    return Status(StatusCode::kInternal, "the engine was not started before its first use");
  }
  *collective = std::make_shared<SingleCollective>(*opened, &events_);
  (*opened)->Open(*collective);
  return Status();
}

void Engine::GiveUp(Ticket* ticket, Lane* its_lane) {
  auto* reduction = dynamic_cast<Reduction*>(ticket);
  const auto tables = reduction == nullptr ? nullptr : reduction->tables();
  const bool rows_withdrawn = tables == nullptr || tables->Withdraw();
  if (its_lane->Withdraw(ticket) && rows_withdrawn) return;
  if (auto* lookup = dynamic_cast<TableLookup*>(ticket); lookup != nullptr && !lookup->complete()) {
    return Abort(Status(
        StatusCode::kAborted,
        "a step ended on this rank after some of the ids that it looks up in sharded tables were "
        "on their way to the other ranks. The first error above says why; the job cannot go on, "
        "because the ranks no longer agree on what was sent"));
  }
  if (reduction == nullptr || reduction->complete()) return;
  Abort(Status(
      StatusCode::kAborted,
      "a step ended on this rank after some of the tensors of '" + reduction->layout().name +
          "' were on their way to the other ranks and before the rest were computed. The first "
          "error above says why; the job cannot go on, because the ranks no longer agree on what "
          "was sent"));
}

void Engine::Abort(const Status& cause) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = cause;
  }
  right_of_way_.Release();
  for (auto& lane : lanes_) {
    if (lane != nullptr) lane->Fail(cause);
  }
  pending_.Fail(cause);
}

Status Engine::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

}  // namespace tfdear
