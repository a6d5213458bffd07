// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/base/communication_threads.h"

#include <gtest/gtest.h>
#include <time.h>

#include <thread>

namespace tfdear {
namespace {

constexpr int64_t kMicros = 40000;  // Of processor time: other processes do not count.

int64_t MicrosOfThread() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<int64_t>(time.tv_sec) * 1000000 + time.tv_nsec / 1000;
}

// Computes for so long in a thread that then ends.
void Compute(bool communicates) {
  std::thread([communicates] {
    if (communicates) RegisterCommunicationThread();
    if (communicates) RegisterCommunicationThread();  // Counts once.
    const int64_t begin = MicrosOfThread();
    while (MicrosOfThread() - begin < kMicros) {
    }
  }).join();
}

TEST(CommunicationThreads, AreNoComputationAfterTheirEndEither) {
  const int64_t before = ComputationMicros();
  for (int i = 0; i < 3; ++i) Compute(/*communicates=*/true);
  EXPECT_LT(ComputationMicros() - before, kMicros);
}

TEST(CommunicationThreads, AnEndedOneTakesNothingFromThoseThatFollow) {
  // The threads that follow are given what the ended ones had, their clocks among it.
  for (int i = 0; i < 3; ++i) Compute(/*communicates=*/true);
  const int64_t before = ComputationMicros();
  for (int i = 0; i < 3; ++i) Compute(/*communicates=*/false);
  EXPECT_GT(ComputationMicros() - before, 3 * kMicros - 1000);
}

}  // namespace
}  // namespace tfdear
