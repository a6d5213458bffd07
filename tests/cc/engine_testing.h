// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#ifndef TFDEAR_TESTS_CC_ENGINE_TESTING_H_
#define TFDEAR_TESTS_CC_ENGINE_TESTING_H_

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/queue/lane.h"
#include "custom_ops/engine/schedule/reduction.h"
#include "tests/cc/plan_testing.h"
#include "tests/cc/testing.h"

namespace tfdear {

// A layout under a plan of PlanFor().
inline std::shared_ptr<const ReductionLayout> FixedSizeLayout(
    const std::string& name, const std::vector<TensorSpec>& tensors, size_t bucket_bytes,
    Schedule schedule, Algorithm algorithm = Algorithm::kShards, Levels levels = {}) {
  return ReductionLayout::Make(name, tensors,
                               PlanFor(tensors, bucket_bytes, schedule, algorithm, levels));
}

// What a rank needs to reduce gradients: the parts of an Engine, which is one per process, so that
// several ranks can be threads of one process.
class EngineRank {
 public:
  explicit EngineRank(std::unique_ptr<CollectiveBackend> backend,
                      LaneKind kind = LaneKind::kGradients)
      : size_(backend->size()), lane_(kind, MakeGroup(std::move(backend))) {
    auto memory = lane_.group()->fusion_memory();
    if (memory == nullptr) return;
    group_pool_ = std::make_shared<FusionBufferPool>(FusionBufferPool::kLeastIdleBytes, memory);
  }

  int rank() { return lane_.group()->rank(); }
  int size() const { return size_; }
  Lane* lane() { return &lane_; }
  EventRecord* events() { return &events_; }
  // The events since the last call.
  std::vector<Event> NewEvents() { return events_.Read(&seen_); }
  // Of dense buckets.
  FusionBufferPool* pool() { return group_pool_ != nullptr ? group_pool_.get() : pool_.get(); }

  std::shared_ptr<Reduction> Open(std::shared_ptr<const ReductionLayout> layout,
                                  int max_delay_ms = 0) {
    auto reduction =
        std::make_shared<Reduction>(std::move(layout), rank(), size_, pool_, &events_, &lane_,
                                    max_delay_ms, LevelGroups(), CompressionOfStep(), group_pool_);
    lane_.Open(reduction);
    return reduction;
  }

 private:
  static std::unique_ptr<ProcessGroup> MakeGroup(std::unique_ptr<CollectiveBackend> backend) {
    std::vector<int> ranks(backend->size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return std::make_unique<ProcessGroup>("world", ranks, std::move(backend));
  }

  const int size_;
  std::shared_ptr<FusionBufferPool> pool_ = std::make_shared<FusionBufferPool>();
  std::shared_ptr<FusionBufferPool> group_pool_;
  EventRecord events_;
  uint64_t seen_ = 0;
  Lane lane_;  // Last: its group's thread uses what is above.
};

inline void RunEngines(int size, const std::function<void(EngineRank*)>& body) {
  RunRanks(size, [&](std::unique_ptr<TcpBackend> backend) {
    EngineRank rank(std::move(backend));
    body(&rank);
  });
}

// The same on ranks that map each other's fusion buffers.
inline void RunEnginesInSharedMemory(int size, const std::function<void(EngineRank*)>& body,
                                     size_t arena_bytes = size_t{256} << 20) {
  RunRanksOver(WithFusionMemory(arena_bytes), size,
               [&](std::unique_ptr<CollectiveBackend> backend) {
                 EngineRank rank(std::move(backend));
                 body(&rank);
               });
}

// What receivers of a reduction were given, by tensor. Thread safe.
class Received {
 public:
  struct Result {
    Status status;
    Reduced sum;
    int calls = 0;
  };

  Reduction::Receiver For(int tensor) {
    return [this, tensor](const Status& status, const Reduced& sum) {
      std::lock_guard<std::mutex> lock(mutex_);
      Result& result = results_[tensor];
      result.status = status;
      result.sum = sum;
      ++result.calls;
      ++calls_;
      changed_.notify_all();
    };
  }
  void ListenTo(Reduction* reduction) {
    const int count = static_cast<int>(reduction->layout().tensors.size());
    for (int tensor = 0; tensor < count; ++tensor) reduction->WhenReduced(tensor, For(tensor));
  }
  // False if fewer receivers were called within the tests' timeout.
  bool WaitFor(int calls) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kTestTimeout, [&] { return calls_ >= calls; });
  }
  int calls() {
    std::lock_guard<std::mutex> lock(mutex_);
    return calls_;
  }
  Result Get(int tensor) {
    std::lock_guard<std::mutex> lock(mutex_);
    return results_[tensor];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Result> results_;
  int calls_ = 0;
};

}  // namespace tfdear

#endif  // TFDEAR_TESTS_CC_ENGINE_TESTING_H_
