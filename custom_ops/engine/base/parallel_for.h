// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <thread>
#include <vector>

#include "custom_ops/engine/base/thread_annotations.h"

namespace tfdear {

// Runs task(i) for every i < tasks, on any threads, and returns when all are done.
using ParallelFor = std::function<void(int tasks, const std::function<void(int)>& task)>;

// A ParallelFor on `threads` threads: the caller's and threads that `start` is asked for, which
// runs a function on another thread, soon or late. The caller does itself what nobody has begun, so
// that it never waits for a thread that has not started.
ParallelFor ParallelForOn(int threads, std::function<void(std::function<void()>)> start);

// A ParallelFor on the caller's thread and `threads` - 1 threads of its own, which sleep between
// calls. Calls may come from several threads at once. Must outlive what parallel_for() returned.
class WorkerThreads {
 public:
  explicit WorkerThreads(int threads);
  ~WorkerThreads();
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  ParallelFor parallel_for();

 private:
  void Work();

  Mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> waiting_ TFDEAR_GUARDED_BY(mutex_);
  bool stopped_ TFDEAR_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

}  // namespace tfdear
