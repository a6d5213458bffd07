// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/base/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "custom_ops/engine/base/signal_mask.h"

namespace tfdear {
namespace {

// One call. Shared with the threads that help, some of which may start when all is done: they find
// no task left, and do not touch `task`, which is gone by then.
class Loop {
 public:
  Loop(int tasks, const std::function<void(int)>& task) : tasks_(tasks), task_(task) {}

  void TakeTasks() {
    int done = 0;
    for (int i; (i = next_.fetch_add(1)) < tasks_; ++done) task_(i);
    if (done == 0) return;
    MutexLock lock(mutex_);
    done_ += done;
    if (done_ == tasks_) all_done_.notify_one();
  }

  void Wait() {
    MutexLock lock(mutex_);
    while (done_ < tasks_) lock.Wait(&all_done_);
  }

 private:
  const int tasks_;
  const std::function<void(int)>& task_;
  std::atomic<int> next_{0};
  Mutex mutex_;
  std::condition_variable all_done_;
  int done_ TFDEAR_GUARDED_BY(mutex_) = 0;
};

}  // namespace

ParallelFor ParallelForOn(int threads, std::function<void(std::function<void()>)> start) {
  return [threads, start = std::move(start)](int tasks, const std::function<void(int)>& task) {
    if (tasks <= 0) return;
    const auto loop = std::make_shared<Loop>(tasks, task);
    for (int i = 1; i < std::min(tasks, threads); ++i) start([loop] { loop->TakeTasks(); });
    loop->TakeTasks();
    loop->Wait();
  };
}

WorkerThreads::WorkerThreads(int threads) {
  const ScopedHelperThreadSignals signals;
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
}

WorkerThreads::~WorkerThreads() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

ParallelFor WorkerThreads::parallel_for() {
  return ParallelForOn(threads(), [this](std::function<void()> helper) {
    {
      MutexLock lock(mutex_);
      waiting_.push_back(std::move(helper));
    }
    changed_.notify_one();
  });
}

void WorkerThreads::Work() {
  MutexLock lock(mutex_);
  while (true) {
    while (!stopped_ && waiting_.empty()) lock.Wait(&changed_);
    if (waiting_.empty()) return;
    const std::function<void()> helper = std::move(waiting_.back());
    waiting_.pop_back();
    lock.Unlock();
    helper();
    lock.Lock();
  }
}

}  // namespace tfdear
