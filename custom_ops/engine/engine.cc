// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/engine.h"

#include <utility>

namespace tfdear {

void SingleCollective::Start(std::shared_ptr<const Signature> signature, Body body,
                             std::function<void(const Status&)> done) {
  Status failure;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failure = failure_;
    if (failure.ok()) {
      signature_ = std::move(signature);
      body_ = std::move(body);
      done_ = std::move(done);
      started_ = true;
    }
  }
  if (!failure.ok()) {
    done(failure);
    return;
  }
  lane_->Advance();
}

bool SingleCollective::Issue(ProcessGroup* group, Reactions* reactions) {
  if (!started_.load()) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  auto run = [signature = signature_, body = std::move(body_), events = events_, number = number()](
                 CollectiveBackend* backend, uint64_t sequence) {
    const int64_t begin = EventRecord::NowMicros();
    Status status = body(backend, *signature, sequence);
    events->Add({EventKind::kCollective, number, 0, 0, begin, EventRecord::NowMicros()});
    return status;
  };
  // The state that the caller handed in must live until the collective is done: `done` owns it.
  auto work = group->Run(signature_, std::move(run));
  reactions->push_back([work, done = std::move(done_)] { work->OnDone(done); });
  done_ = nullptr;
  return true;
}

void SingleCollective::Fail(const Status& cause) {
  std::function<void(const Status&)> done;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = cause;
    done = std::move(done_);
    done_ = nullptr;
  }
  if (done) done(cause);
}

Engine* Engine::Get() {
  // Never destroyed: TensorFlow's threads may still call in while the process ends.
  static Engine* engine = new Engine;
  return engine;
}

Status Engine::Start(const Options& options,
                     std::array<std::unique_ptr<ProcessGroup>, kNumLanes> groups) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (started_) {
    return Status(StatusCode::kInvalidArgument,
                  "the engine of this process was started before: a process can hold one "
                  "distributed DearStrategy; create it once and use it for every model");
  }
  started_ = true;
  options_ = options;
  for (int i = 0; i < kNumLanes; ++i) {
    if (groups[i] == nullptr) continue;
    lanes_[i] = std::make_unique<Lane>(static_cast<LaneKind>(i), std::move(groups[i]));
  }
  return Status();
}

bool Engine::started() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return started_;
}

int64_t Engine::CreateLayout(const std::string& name, LaneKind lane) {
  std::lock_guard<std::mutex> lock(mutex_);
  layouts_.push_back(std::make_unique<LayoutEntry>(LayoutEntry{name, lane, {}, nullptr}));
  return static_cast<int64_t>(layouts_.size()) - 1;
}

Status Engine::Find(int64_t layout, bool open_to_change, LayoutEntry** entry) {
  if (layout < 0 || layout >= static_cast<int64_t>(layouts_.size())) {
    return Status(StatusCode::kInvalidArgument,
                  "there is no reduction layout " + std::to_string(layout) +
                      " in this process: a function that was traced under a DearStrategy runs only "
                      "in the process that traced it");
  }
  *entry = layouts_[layout].get();
  if (open_to_change && (*entry)->fixed != nullptr) {
    return Status(StatusCode::kInternal,
                  "reduction layout '" + (*entry)->name + "' was changed after its first use");
  }
  return Status();
}

Status Engine::AddTensor(int64_t layout, const TensorSpec& tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  Status status = Find(layout, /*open_to_change=*/true, &entry);
  if (status.ok()) entry->tensors.push_back(tensor);
  return status;
}

Status Engine::SetLane(int64_t layout, LaneKind lane) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  Status status = Find(layout, /*open_to_change=*/false, &entry);
  if (!status.ok() || entry->lane == lane) return status;
  status = Find(layout, /*open_to_change=*/true, &entry);
  if (status.ok()) entry->lane = lane;
  return status;
}

std::vector<size_t> Engine::BucketBytes(int64_t layout) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  std::vector<size_t> bytes;
  if (!Find(layout, /*open_to_change=*/false, &entry).ok() || entry->fixed == nullptr) return bytes;
  for (const Bucket& bucket : entry->fixed->buckets) {
    bytes.push_back(bucket.count * SizeOf(bucket.type));
  }
  return bytes;
}

Status Engine::Open(int64_t layout, std::shared_ptr<Reduction>* reduction, Lane** lane) {
  std::shared_ptr<const ReductionLayout> fixed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return failure_;
    LayoutEntry* entry = nullptr;
    Status status = Find(layout, /*open_to_change=*/false, &entry);
    if (!status.ok()) return status;
    *lane = lanes_[static_cast<int>(entry->lane)].get();
    if (*lane == nullptr) {
      return Status(StatusCode::kInternal, "the engine was not started before its first use");
    }
    if (entry->fixed == nullptr) {
      // Outside the gradients' lane somebody waits for the sums: nothing to put off.
      const Schedule schedule =
          entry->lane == LaneKind::kGradients ? options_.schedule : Schedule::kWfbp;
      entry->fixed =
          ReductionLayout::Make(entry->name, entry->tensors, options_.bucket_bytes, schedule);
    }
    fixed = entry->fixed;
  }
  ProcessGroup* group = (*lane)->group();
  *reduction = std::make_shared<Reduction>(fixed, group->rank(), group->size(), pool_, &events_,
                                           *lane, options_.max_delay_ms);
  (*lane)->Open(*reduction);
  return Status();
}

Status Engine::OpenCollective(LaneKind kind, std::shared_ptr<SingleCollective>* collective,
                              Lane** opened) {
  Status failed = failure();
  if (!failed.ok()) return failed;
  *opened = lane(kind);
  if (*opened == nullptr) {
    return Status(StatusCode::kInternal, "the engine was not started before its first use");
  }
  *collective = std::make_shared<SingleCollective>();
  (*collective)->lane_ = *opened;
  (*collective)->events_ = &events_;
  (*opened)->Open(*collective);
  return Status();
}

void Engine::Abort(const Status& cause) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = cause;
  }
  for (auto& lane : lanes_) {
    if (lane != nullptr) lane->Fail(cause);
  }
  pending_.Fail(cause);
}

Status Engine::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

}  // namespace tfdear
