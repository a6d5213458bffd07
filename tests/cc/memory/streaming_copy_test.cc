// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/memory/streaming_copy.h"

#include <atomic>
#include <numeric>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

TEST(StreamingCopy, CopiesEverySizeFromAnywhereToAnywhereAndNothingElse) {
  constexpr size_t kMost = 300;
  std::vector<char> from(kMost + 16);
  std::iota(from.begin(), from.end(), 1);
  for (size_t bytes = 0; bytes <= kMost; ++bytes) {
    for (size_t begin : {0, 1, 8, 15}) {
      for (size_t target : {0, 1, 16, 63}) {
        alignas(64) char to[kMost + 64] = {};
        StreamingCopy(to + target, from.data() + begin, bytes);
        EXPECT_EQ(std::memcmp(to + target, from.data() + begin, bytes), 0)
            << bytes << " from " << begin << " to " << target;
        EXPECT_EQ(static_cast<size_t>(std::count(to, to + sizeof(to), 0)),
                  sizeof(to) - bytes + std::count(&from[begin], &from[begin + bytes], 0));
      }
    }
  }
}

TEST(StreamingCopy, WhoSeesWhatIsStoredAfterwardsSeesWhatWasCopied) {
  constexpr size_t kBytes = 4096;
  static char shared[kBytes];
  std::atomic<int> written{0}, read{0};
  RunThreads(2, [&](int thread) {
    for (int round = 1; round <= 2000; ++round) {
      std::atomic<int>* const mine = thread == 0 ? &written : &read;
      std::atomic<int>* const other = thread == 0 ? &read : &written;
      const int awaited = thread == 0 ? round - 1 : round;
      while (other->load(std::memory_order_acquire) < awaited) std::this_thread::yield();
      const std::vector<char> wanted(kBytes, static_cast<char>(round));
      if (thread == 0) {
        StreamingCopy(shared, wanted.data(), kBytes);
      } else {
        ASSERT_EQ(std::memcmp(shared, wanted.data(), kBytes), 0) << round;
      }
      mine->store(round, std::memory_order_release);
    }
  });
}

}  // namespace
}  // namespace tfdear
