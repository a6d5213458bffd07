// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/engine.h"

#include <condition_variable>
#include <utility>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/schedule/tensor_identity.h"

namespace tfdear {

Engine* Engine::Get() {
  // Never destroyed: TensorFlow's threads may still call in while the process ends.
  static Engine* engine = new Engine;
  return engine;
}

Engine::~Engine() {
  Lanes lanes;
  {
    MutexLock lock(mutex_);
    lanes.swap(lanes_);
  }
  // Their threads use everything else.
  for (auto& lane : lanes) {
    if (lane != nullptr) lane->Close(Status(StatusCode::kAborted, "the engine was destroyed"));
  }
}

Status Engine::Start(const Options& options,
                     std::array<std::unique_ptr<ProcessGroup>, kNumLanes> groups) {
  MutexLock lock(mutex_);
  if (started_) {
    return Status(
        StatusCode::kInvalidArgument,
        "the engine of this process was started before: a process can hold one "
        "distributed DearStrategy at a time. Use it for every model, or close() it before "
        "another one is created");
  }
  if (!failure_.ok()) return failure_;
  started_ = true;
  options_ = options;
  max_delay_ms_ = options.max_delay_ms;
  for (int i = 0; i < kNumLanes; ++i) {
    if (groups[i] == nullptr) continue;
    lanes_[i] = std::make_shared<Lane>(static_cast<LaneKind>(i), std::move(groups[i]));
    if (options_.tables_first && CarriesGradients(lanes_[i]->kind())) {
      lanes_[i]->group()->set_give_way([this] { right_of_way_.GiveWay(); });
    }
  }
  auto& gradients = lanes_[static_cast<int>(LaneKind::kGradients)];
  auto memory = gradients == nullptr ? nullptr : gradients->group()->fusion_memory();
  if (memory != nullptr) {
    group_pool_ = std::make_shared<FusionBufferPool>(FusionBufferPool::kLeastIdleBytes, memory);
  }
  return Status();
}

Status Engine::Stop(std::chrono::milliseconds timeout) {
  const Status updates = WaitForUpdates(timeout);
  Lanes lanes;
  // Freed without the mutex.
  std::vector<std::unique_ptr<LayoutEntry>> layouts;
  std::vector<LookupEntry> lookups;
  std::vector<Loaded> loaded;
  std::shared_ptr<FusionBufferPool> pool = std::make_shared<FusionBufferPool>(), group_pool;
  {
    MutexLock lock(mutex_);
    started_ = false;
    was_stopped_ = true;
    lanes.swap(lanes_);
    layouts.swap(layouts_);
    layouts_.resize(layouts.size());
    lookups.swap(lookups_);
    lookups_.resize(lookups.size());
    compressed_ = false;
    compression_ = Compression();
    density_ = 1;
    loaded.swap(loaded_);
    pool.swap(pool_);
    group_pool.swap(group_pool_);
  }
  const Status closed(StatusCode::kAborted,
                      "the strategy was closed before all of this was done: close() it when no "
                      "step runs any more");
  // All before any is closed: a group may wait for work of another one.
  for (auto& lane : lanes) {
    if (lane != nullptr) lane->Fail(closed);
  }
  right_of_way_.Release();
  for (auto& lane : lanes) {
    if (lane != nullptr) lane->Close(closed);
  }
  right_of_way_.Reset();
  return updates;
}

bool Engine::started() const {
  MutexLock lock(mutex_);
  return started_;
}

Status Engine::NotStarted() const {
  if (!was_stopped_) return Internal("the engine was not started before its first use");
  return InvalidArgument(kOfClosedStrategy);
}

LevelGroups Engine::GroupsOfLevels() {
  LevelGroups groups;
  groups.lane_of_intra = LaneOf(LaneKind::kGradientsIntra);
  groups.lane_of_inter = LaneOf(LaneKind::kGradientsInter);
  if (groups.lane_of_intra != nullptr) groups.intra = groups.lane_of_intra->group();
  if (groups.lane_of_inter != nullptr) groups.inter = groups.lane_of_inter->group();
  return groups;
}

Levels Engine::Existing() {
  const LevelGroups groups = GroupsOfLevels();
  return {groups.intra != nullptr, groups.inter != nullptr};
}

Status Engine::Fix(LayoutEntry* entry) {
  Identify(&entry->tensors);
  if (entry->lane == LaneKind::kGradients) TakeUpLoaded(entry);
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
    if (status.ok() && LaneOf(entry->lane) == nullptr) status = NotStarted();
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
  std::shared_ptr<Lane> lane, prior, delayed;  // Kept by their tickets, once they are opened.
  std::shared_ptr<Reduction> reduction;
  Status status;
  {
    MutexLock lock(mutex_);
    LayoutEntry* entry = nullptr;
    status = Find(layout, /*open_to_change=*/false, &entry);
    if (status.ok()) {
      lane = LaneOf(entry->lane);
      prior = LaneOf(LaneKind::kEmbeddingRows);
      delayed = LaneOf(LaneKind::kDelayedRows);
      reduction = MakeReduction(entry);
    }
  }
  if (!status.ok()) return opened(status, nullptr, nullptr);
  if (reduction->tables() != nullptr) reduction->tables()->Open();
  lane->Open(reduction);
  if (lane->kind() == LaneKind::kGradients) {
    const ReductionLayout* const current = &reduction->layout();
    const int64_t now = EventRecord::NowMicros();
    events_.Add({EventKind::kStep, reduction->number(), layout,
                 static_cast<int64_t>(current->buckets.size()), now, now});
  }
  opened(Status(), std::move(reduction), lane.get());
}

std::shared_ptr<Reduction> Engine::MakeReduction(LayoutEntry* entry) {
  const bool gradients = entry->lane == LaneKind::kGradients;
  const std::shared_ptr<const ReductionLayout>& current = entry->current;
  CompressionOfStep compression;
  if (compressed_ && gradients) compression = CompressionOf(entry);
  std::shared_ptr<TableRows> tables;
  if (!current->tables.empty()) {
    tables = std::make_shared<TableRows>(
        current->name, current->tables, pool_, &events_, LaneOf(LaneKind::kEmbeddingRows).get(),
        LaneOf(LaneKind::kDelayedRows).get(), options_.max_delay_ms, right_of_way(),
        !current->steps.empty());
  }
  Lane* const lane = LaneOf(entry->lane).get();
  return std::make_shared<Reduction>(current, lane->group()->rank(), lane->group()->size(), pool_,
                                     &events_, lane, options_.max_delay_ms, GroupsOfLevels(),
                                     std::move(compression), gradients ? group_pool_ : nullptr,
                                     std::move(tables), gradients ? right_of_way() : nullptr);
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
  std::shared_ptr<Lane> found;  // Kept by the ticket, once it is opened.
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    found = LaneOf(kind);
    if (found == nullptr) return NotStarted();
  }
  *collective = std::make_shared<SingleCollective>(found.get(), &events_);
  found->Open(*collective);
  *opened = found.get();
  return Status();
}

void Engine::GiveUp(Ticket* ticket, Lane* its_lane) {
  auto* lookup = dynamic_cast<TableLookup*>(ticket);
  if (lookup != nullptr && lookup->ahead() != nullptr && lookup->ahead()->number() < 0) {
    Ticket* const ahead = lookup->ahead().get();
    ahead->Fail(Status(StatusCode::kCancelled, "the step ended before it looked ahead"));
  }
  auto* reduction = dynamic_cast<Reduction*>(ticket);
  const auto tables = reduction == nullptr ? nullptr : reduction->tables();
  // Of what has got gradients, the rows of tables are not taken back alone.
  const bool rows_withdrawn = tables == nullptr || (ticket->Untouched() && tables->Withdraw());
  if (its_lane->Withdraw(ticket) && rows_withdrawn) return;
  // Nobody waits for what belongs to a strategy that was closed.
  if (lane(its_lane->kind()).get() != its_lane) return;
  if (lookup != nullptr && !lookup->complete()) {
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
  Lanes lanes;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = cause;
    lanes = lanes_;
  }
  right_of_way_.Release();
  for (auto& lane : lanes) {
    if (lane != nullptr) lane->Fail(cause);
  }
  pending_.Fail(cause);
}

Status Engine::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

}  // namespace tfdear
