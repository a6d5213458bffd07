// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/thread_annotations.h"

namespace tfdear {

// What Python and graphs call by number: a number in a graph stays valid when the graph is written
// and read again, as tf.data does. Thread safe.
template <typename T>
class Registry {
 public:
  static Registry* Get() {
    static auto* registry = new Registry;
    return registry;
  }

  int64_t Add(std::shared_ptr<T> object) TFDEAR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    objects_[++last_] = std::move(object);
    return last_;
  }

  // Null: it was removed, or never added.
  std::shared_ptr<T> Find(int64_t number) TFDEAR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto found = objects_.find(number);
    return found == objects_.end() ? nullptr : found->second;
  }

  std::vector<std::shared_ptr<T>> All() TFDEAR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::vector<std::shared_ptr<T>> all;
    for (const auto& [number, object] : objects_) all.push_back(object);
    return all;
  }

  // It lives on as long as somebody uses it.
  void Remove(int64_t number) TFDEAR_EXCLUDES(mutex_) {
    std::shared_ptr<T> removed;  // Destroyed without the mutex.
    {
      MutexLock lock(mutex_);
      const auto found = objects_.find(number);
      if (found == objects_.end()) return;
      removed = std::move(found->second);
      objects_.erase(found);
    }
  }

 private:
  Mutex mutex_;
  int64_t last_ TFDEAR_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::shared_ptr<T>> objects_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
