// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Fusion buffers: alignment, recycling, and who outlives whom.

#include "custom_ops/engine/memory/fusion_buffer.h"

#include <algorithm>
#include <random>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

bool IsAligned(FusionBuffer* buffer) {
  return reinterpret_cast<uintptr_t>(buffer->data()) % kSlotAlignment == 0;
}

std::shared_ptr<FusionBuffer> Take(const std::shared_ptr<FusionBufferPool>& pool, size_t size) {
  std::shared_ptr<FusionBuffer> buffer;
  TFDEAR_EXPECT_OK(pool->Take(size, &buffer));
  return buffer;
}

TEST(AlignUp, RoundsToSlots) {
  EXPECT_EQ(AlignUp(0), 0u);
  EXPECT_EQ(AlignUp(1), 64u);
  EXPECT_EQ(AlignUp(64), 64u);
  EXPECT_EQ(AlignUp(65), 128u);
}

TEST(FusionBufferPool, BuffersAreAlignedAndWritable) {
  auto pool = std::make_shared<FusionBufferPool>();
  for (size_t size : {0, 1, 63, 64, 65, 4096, 1000003}) {
    auto buffer = Take(pool, size);
    EXPECT_EQ(buffer->size(), size);
    EXPECT_TRUE(IsAligned(buffer.get()));
    std::memset(buffer->data(), 0x5a, size);
  }
}

TEST(FusionBufferPool, RecyclesWhenTheLastReferenceGoes) {
  auto pool = std::make_shared<FusionBufferPool>();
  auto buffer = Take(pool, 5000);
  char* const data = buffer->data();
  auto alias = buffer;  // A tensor that aliases a slot.
  buffer.reset();
  EXPECT_NE(Take(pool, 5000)->data(), data) << "still in use";
  alias.reset();
  auto first = Take(pool, 5000);
  auto second = Take(pool, 5000);
  EXPECT_NE(first->data(), second->data());
  EXPECT_TRUE(first->data() == data || second->data() == data);
}

TEST(FusionBufferPool, SmallerBufferIsNeverGivenForALargerOne) {
  auto pool = std::make_shared<FusionBufferPool>();
  std::minstd_rand random(1);
  std::vector<std::shared_ptr<FusionBuffer>> held;
  for (int i = 0; i < 2000; ++i) {
    const size_t size = random() % 3000;
    auto buffer = Take(pool, size);
    ASSERT_EQ(buffer->size(), size);
    std::memset(buffer->data(), i, size);  // The address sanitizer checks the bounds.
    held.push_back(std::move(buffer));
    if (held.size() > 20) {
      std::swap(held[random() % held.size()], held.back());
      held.pop_back();
    }
  }
}

TEST(FusionBufferPool, OneOffSizesDoNotCrowdOutTheSteadyOnes) {
  // An embedding's rows have another size in every step, the dense bucket always the same.
  constexpr size_t kIdle = size_t{1} << 20;
  constexpr size_t kBucket = size_t{1} << 18;
  auto pool = std::make_shared<FusionBufferPool>(kIdle);
  Take(pool, kBucket);
  for (int step = 0; step < 1000; ++step) {
    const int64_t before = pool->allocations();
    auto bucket = Take(pool, kBucket);
    ASSERT_EQ(pool->allocations(), before) << "step " << step;
    // Comes back while the bucket is under way, and takes its room.
    Take(pool, 10000 + 999 * step % 300000);
    bucket.reset();
    ASSERT_LE(pool->idle_bytes(), kIdle);
  }
}

TEST(FusionBufferPool, SizesOfOneOctaveShareEightBuffers) {
  auto pool = std::make_shared<FusionBufferPool>();
  for (size_t size = 64001; size <= 128000; size += 50) Take(pool, size);
  EXPECT_LE(pool->allocations(), 18);
  EXPECT_LE(pool->idle_bytes(), pool->allocations() * size_t{128000} * 9 / 8);
}

TEST(FusionBufferPool, IdleMemoryIsBounded) {
  constexpr size_t kIdle = 10000;
  auto pool = std::make_shared<FusionBufferPool>(kIdle);
  EXPECT_EQ(pool->idle_bytes(), 0u);
  for (size_t size = 1000; size < 8000; size += 500) Take(pool, size);
  EXPECT_LE(pool->idle_bytes(), kIdle);
  EXPECT_GE(pool->idle_bytes(), kIdle / 2);
}

TEST(FusionBufferPool, WhatAStepHasInUseAtOneTimeStays) {
  constexpr size_t kIdle = 10000;
  auto pool = std::make_shared<FusionBufferPool>(kIdle);
  for (int step = 0; step < 3; ++step) {
    std::vector<std::shared_ptr<FusionBuffer>> buckets;
    for (int i = 0; i < 100; ++i) buckets.push_back(Take(pool, 1024));
  }
  EXPECT_EQ(pool->allocations(), 100);
  EXPECT_EQ(pool->idle_bytes(), 100u * 1024);
  // Another plan: what lies idle makes room for buffers of other sizes.
  {
    std::vector<std::shared_ptr<FusionBuffer>> buckets;
    for (size_t i = 1; i <= 60; ++i) {
      buckets.push_back(Take(pool, 2048));
      EXPECT_LE(pool->idle_bytes() + i * 2048, std::max<size_t>(100 * 1024, i * 2048));
    }
  }
  // Not for ever.
  for (int i = 0; i < 2 * FusionBufferPool::kTakesOfWindow; ++i) Take(pool, 1024);
  EXPECT_LE(pool->idle_bytes(), kIdle);
}

TEST(FusionBufferPool, BufferOutlivesItsPool) {
  auto pool = std::make_shared<FusionBufferPool>();
  Take(pool, 100);
  auto buffer = Take(pool, 1000);
  pool.reset();
  std::memset(buffer->data(), 1, 1000);
  EXPECT_EQ(buffer->data()[999], 1);
}

TEST(FusionBufferPool, NoMemoryIsAnError) {
  auto pool = std::make_shared<FusionBufferPool>();
  std::shared_ptr<FusionBuffer> buffer;
  for (size_t size : {size_t{1} << 50, size_t{1} << 62, (size_t{1} << 62) + 1, ~size_t{0}}) {
    const Status status = pool->Take(size, &buffer);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_TRUE(Contains(status.message(), std::to_string(size))) << status.message();
    EXPECT_EQ(buffer, nullptr);
  }
  EXPECT_EQ(pool->allocations(), 0);
  EXPECT_NE(Take(pool, 100), nullptr) << "the pool goes on";
}

TEST(FusionBufferPool, NoTwoThreadsHoldTheSameMemory) {
  auto pool = std::make_shared<FusionBufferPool>(20000);
  RunThreads(4, [&](int thread) {
    std::minstd_rand random(thread + 1);
    const char mark = static_cast<char>(thread + 1);
    for (int i = 0; i < 3000; ++i) {
      auto buffer = Take(pool, 1000 + random() % 8 * 500);
      std::memset(buffer->data(), mark, buffer->size());
      if (i % 64 == 0) std::this_thread::yield();
      ASSERT_TRUE(std::all_of(buffer->data(), buffer->data() + buffer->size(),
                              [&](char byte) { return byte == mark; }));
    }
  });
  EXPECT_LE(pool->idle_bytes(), 20000u);
}

}  // namespace
}  // namespace tfdear
