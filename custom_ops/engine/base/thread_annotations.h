// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>

// Which mutex guards what, for Clang to check (`make locks`); other compilers see nothing.

#if defined(__clang__)
#define TFDEAR_THREAD_ANNOTATION(attribute) __attribute__((attribute))
#else
#define TFDEAR_THREAD_ANNOTATION(attribute)
#endif

// Of a member: read and written with the mutex held.
#define TFDEAR_GUARDED_BY(mutex) TFDEAR_THREAD_ANNOTATION(guarded_by(mutex))
// Of a function: called with the mutex held, or never with it.
#define TFDEAR_REQUIRES(mutex) TFDEAR_THREAD_ANNOTATION(requires_capability(mutex))
#define TFDEAR_EXCLUDES(mutex) TFDEAR_THREAD_ANNOTATION(locks_excluded(mutex))

namespace tfdear {

// A std::mutex that Clang knows as one.
class TFDEAR_THREAD_ANNOTATION(capability("mutex")) Mutex {
 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex for as long as it lives, but for the time of its waits and what is between Unlock()
// and Lock(). Waits may end early: the caller looks at its condition again.
class TFDEAR_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TFDEAR_THREAD_ANNOTATION(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() TFDEAR_THREAD_ANNOTATION(release_capability()) {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Unlock() TFDEAR_THREAD_ANNOTATION(release_capability()) { lock_.unlock(); }
  void Lock() TFDEAR_THREAD_ANNOTATION(acquire_capability()) { lock_.lock(); }
  void Wait(std::condition_variable* condition) { condition->wait(lock_); }
  template <typename TimePoint>
  std::cv_status WaitUntil(std::condition_variable* condition, const TimePoint& deadline) {
    return condition->wait_until(lock_, deadline);
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace tfdear
