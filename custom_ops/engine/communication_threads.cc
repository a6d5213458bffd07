// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/communication_threads.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <mutex>
#include <vector>

namespace tfdear {
namespace {

constexpr int kNiceness = -10;

struct Registry {
  std::mutex mutex;
  std::vector<clockid_t> clocks;
};

// Never destroyed: threads may outlive static objects.
Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

// 0 for the clock of a thread that has ended.
int64_t ReadMicros(clockid_t clock) {
  timespec time;
  if (clock_gettime(clock, &time) != 0) return 0;
  return static_cast<int64_t>(time.tv_sec) * 1000000 + time.tv_nsec / 1000;
}

}  // namespace

void RegisterCommunicationThread() {
  thread_local bool registered = false;
  if (registered) return;
  registered = true;
  pthread_setname_np(pthread_self(), "tfdear_transfer");
  // They need little time, but at once: while one waits for a processor, the line is idle. Where
  // the system does not allow it (to other users than root, by default), all threads are alike.
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNiceness);
  clockid_t clock;
  if (pthread_getcpuclockid(pthread_self(), &clock) != 0) return;
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().clocks.push_back(clock);
}

int64_t ComputationMicros() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  int64_t micros = ReadMicros(CLOCK_PROCESS_CPUTIME_ID);
  for (clockid_t clock : registry().clocks) micros -= ReadMicros(clock);
  return micros;
}

}  // namespace tfdear
