// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/base/work.h"

#include <utility>

namespace tfdear {

Status Work::Wait() {
  MutexLock lock(mutex_);
  while (!done_) lock.Wait(&finished_);
  return status_;
}

bool Work::done() const {
  MutexLock lock(mutex_);
  return done_;
}

void Work::OnDone(std::function<void(const Status&)> callback) {
  Status status;
  {
    MutexLock lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
    status = status_;
  }
  callback(status);
}

void Work::Finish(const Status& status) {
  std::vector<std::function<void(const Status&)>> callbacks;
  {
    MutexLock lock(mutex_);
    if (done_) return;
    done_ = true;
    status_ = status;
    callbacks.swap(callbacks_);
    // Notified under the lock: a waiter may destroy this object as soon as it gets the mutex.
    finished_.notify_all();
  }
  // Outside of the lock, so that callbacks may ask this object things; `status` and not status_,
  // since the last owner may be gone by now.
  for (auto& callback : callbacks) callback(status);
}

}  // namespace tfdear
