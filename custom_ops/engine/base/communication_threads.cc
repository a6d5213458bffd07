// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/base/communication_threads.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace tfdear {
namespace {

// The shortest slice that Linux grants.
constexpr uint64_t kSliceNanos = 100 * 1000;

// `struct sched_attr` of sched_setattr(2); the C library has no name for it everywhere.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0;
  uint64_t deadline = 0;
  uint64_t period = 0;
};

// [Note: short slices]
// Transfer threads need little time, but at once: while one waits for a processor, the line is
// idle. Since Linux 6.12 a thread may ask for a short slice of time, with which it runs before
// others that have longer ones, as long as it does not use more than its share. Unlike a negative
// niceness every user gets that. An older system leaves all threads alike.
void AskForShortSlices() {
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;  // Somebody chose.
  attributes.flags = 0;
  attributes.runtime = kSliceNanos;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

struct Registry {
  std::mutex mutex;
  std::vector<clockid_t> clocks;  // Of threads that run.
  int64_t micros_of_ended = 0;
};

// Never destroyed: threads may outlive static objects.
Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

// 0 for a clock that cannot be read.
int64_t ReadMicros(clockid_t clock) {
  timespec time;
  if (clock_gettime(clock, &time) != 0) return 0;
  return static_cast<int64_t>(time.tv_sec) * 1000000 + time.tv_nsec / 1000;
}

// Lives as long as its thread. The system gives the clock of an ended thread to a new one, which
// may be one that computes.
class Registration {
 public:
  explicit Registration(clockid_t clock) : clock_(clock) {
    std::lock_guard<std::mutex> lock(registry().mutex);
    registry().clocks.push_back(clock);
  }

  ~Registration() {
    std::lock_guard<std::mutex> lock(registry().mutex);
    auto& clocks = registry().clocks;
    clocks.erase(std::find(clocks.begin(), clocks.end(), clock_));
    registry().micros_of_ended += ReadMicros(clock_);
  }

 private:
  const clockid_t clock_;
};

}  // namespace

void RegisterCommunicationThread() {
  thread_local bool known = false;
  if (known) return;
  known = true;
  pthread_setname_np(pthread_self(), "tfdear_transfer");
  AskForShortSlices();
  clockid_t clock;
  if (pthread_getcpuclockid(pthread_self(), &clock) != 0) return;
  thread_local Registration registration(clock);
}

int64_t ComputationMicros() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  int64_t micros = ReadMicros(CLOCK_PROCESS_CPUTIME_ID) - registry().micros_of_ended;
  for (clockid_t clock : registry().clocks) micros -= ReadMicros(clock);
  return micros;
}

}  // namespace tfdear
