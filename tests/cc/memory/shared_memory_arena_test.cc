// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Fusion buffers that all ranks of a node map: blocks, loans, and sums that are formed in them.

#include "custom_ops/engine/memory/shared_memory_arena.h"

#include <random>

#include "tests/cc/engine_testing.h"

namespace tfdear {
namespace {

constexpr size_t kArenaBytes = size_t{64} << 20;
const size_t kCounts[] = {0, 1, 3, 5, 1000, 100003};

std::shared_ptr<SharedMemoryArena> MakeArena(int rank, size_t bytes = kArenaBytes) {
  std::shared_ptr<SharedMemoryArena> arena;
  TFDEAR_EXPECT_OK(SharedMemoryArena::Create(rank, 2, bytes, &arena));
  return arena;
}

// Numbers whose float sums depend on the order of summation; the same on every call.
std::vector<char> InputOf(DataType type, size_t count, int rank) {
  std::minstd_rand random(rank + 1);
  if (type != DataType::kFloat32) {
    return MakeData(type, count, [&](size_t) { return static_cast<int>(random() % 9) - 4; });
  }
  std::vector<char> data(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    const float scale = static_cast<float>(uint64_t{1} << random() % 30);
    StoreAs<float>(data.data() + i * sizeof(float), (random() % 2001 - 1000.0) / 7.0 * scale);
  }
  return data;
}

std::shared_ptr<FusionBuffer> BufferWith(const std::shared_ptr<FusionBufferPool>& pool,
                                         const std::vector<char>& data) {
  std::shared_ptr<FusionBuffer> buffer;
  TFDEAR_EXPECT_OK(pool->Take(data.size(), &buffer));
  if (!data.empty()) std::memcpy(buffer->data(), data.data(), data.size());
  return buffer;
}

TEST(SharedMemoryArena, BlocksAreAlignedAndDoNotOverlap) {
  const auto arena = MakeArena(0);
  std::vector<std::pair<char*, size_t>> blocks;
  for (size_t bytes : {64, 4096, 65536, 100032, 5000000}) {
    char* const data = arena->Allocate(bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kSlotAlignment, 0u);
    EXPECT_NE(arena->OffsetOf(data), 0u);
    EXPECT_FALSE(arena->Lent(data));
    std::memset(data, static_cast<int>(blocks.size()), bytes);
    blocks.emplace_back(data, bytes);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [data, bytes] = blocks[i];
    EXPECT_EQ(data[0], static_cast<char>(i));
    EXPECT_EQ(data[bytes - 1], static_cast<char>(i));
  }
  EXPECT_EQ(arena->OffsetOf(&arena), 0u);
}

TEST(SharedMemoryArena, WritesTheBitsThatOtherMemoryHas) {
  const auto arena = MakeArena(0);
  const auto pool = std::make_shared<FusionBufferPool>();
  for (DataType type : {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16,
                        DataType::kBFloat16, DataType::kInt32}) {
    const bool is_integer = type == DataType::kInt32;
    for (size_t count : kCounts) {
      const std::vector<char> values = InputOf(type, count, 0);
      for (double weight : {0.0, 1.0, 0.3}) {
        if (is_integer && weight == 0.3) continue;
        const size_t bytes = AlignUp(count * SizeOf(type)) + kSlotAlignment;
        std::shared_ptr<FusionBuffer> wanted;
        TFDEAR_EXPECT_OK(pool->Take(bytes, &wanted));
        wanted->Write(0, type, values.data(), weight, count, bytes);
        char* const written = arena->Allocate(bytes);
        std::memset(written, 1, bytes);
        EXPECT_EQ(arena->Write(type, written, values.data(), weight, count, bytes), nullptr);
        EXPECT_EQ(std::memcmp(written, wanted->data(), bytes), 0) << count << " * " << weight;
        arena->Free(written, bytes);
      }
    }
  }
}

TEST(SharedMemoryArena, IsExhaustedAtItsSizeAndTakesBackWhatIsFreed) {
  const auto arena = MakeArena(0, size_t{1} << 20);
  std::vector<char*> blocks;
  while (char* const data = arena->Allocate(100000)) blocks.push_back(data);
  EXPECT_GE(blocks.size(), 5u);
  EXPECT_EQ(arena->Allocate(~size_t{0}), nullptr);
  char* const freed = blocks[2];
  freed[0] = 'x';
  arena->Free(freed, 100000);
  EXPECT_EQ(arena->Allocate(100000), freed);
  EXPECT_EQ(freed[0], 0) << "its memory had gone back to the system";
  EXPECT_EQ(arena->Allocate(100000), nullptr);
}

TEST(SharedMemoryArena, WhatIsLentIsNotUsedAgainUntilItIsGivenBack) {
  const auto lender = MakeArena(0);
  const auto borrower = MakeArena(1);
  TFDEAR_EXPECT_OK(borrower->Map(0, lender->address()));
  auto pool = std::make_shared<FusionBufferPool>(size_t{1} << 20, lender);
  auto buffer = BufferWith(pool, {'a', 'b'});
  char* const data = buffer->data();
  lender->Lend(data, 1);
  char* const there = borrower->At(0, lender->OffsetOf(data), 2);
  ASSERT_NE(there, nullptr);
  auto borrowed = FusionBuffer::Borrowed(borrower, there, 2);
  buffer.reset();
  EXPECT_NE(BufferWith(pool, {'c', 'd'})->data(), data);
  EXPECT_EQ(borrowed->data()[1], 'b');
  auto tensor = borrowed;
  borrowed.reset();
  EXPECT_TRUE(lender->Lent(data)) << "a tensor still aliases it";
  tensor.reset();
  EXPECT_FALSE(lender->Lent(data));
  auto first = BufferWith(pool, {'e'});
  auto second = BufferWith(pool, {'f'});
  EXPECT_TRUE(first->data() == data || second->data() == data);
  EXPECT_EQ(pool->allocations(), 2);
}

TEST(SharedMemoryArena, MemoryOutlivesWhoLentIt) {
  auto lender = MakeArena(0);
  const auto borrower = MakeArena(1);
  TFDEAR_EXPECT_OK(borrower->Map(0, lender->address()));
  auto pool = std::make_shared<FusionBufferPool>(size_t{1} << 20, lender);
  auto buffer = BufferWith(pool, {'a'});
  lender->Lend(buffer->data(), 1);
  auto borrowed =
      FusionBuffer::Borrowed(borrower, borrower->At(0, lender->OffsetOf(buffer->data()), 1), 1);
  buffer.reset();
  pool.reset();
  lender.reset();
  EXPECT_EQ(borrowed->data()[0], 'a');
}

TEST(SharedMemoryArena, PlacesOutsideOfItAreRefused) {
  const auto arena = MakeArena(0, size_t{1} << 20);
  const uint64_t place = arena->OffsetOf(arena->Allocate(1000));
  EXPECT_NE(arena->At(0, place, 1000), nullptr);
  EXPECT_EQ(arena->At(0, place, size_t{1} << 20), nullptr);
  EXPECT_EQ(arena->At(0, place, ~size_t{0}), nullptr);
  EXPECT_EQ(arena->At(0, place + 1, 1000), nullptr);
  EXPECT_EQ(arena->At(0, 64, 1000), nullptr);
  EXPECT_EQ(arena->At(0, ~uint64_t{0} - 63, 1000), nullptr);
}

class SharedSumTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, SharedSumTest, testing::Values(2, 3, 4));

TEST_P(SharedSumTest, HasTheBitsOfTheSumByCopies) {
  RunRanksOver(WithFusionMemory(kArenaBytes), size(), [&](std::unique_ptr<CollectiveBackend> rank) {
    auto pool = std::make_shared<FusionBufferPool>(size_t{64} << 20, rank->fusion_memory());
    uint64_t sequence = 0;
    for (DataType type : AllDataTypes()) {
      for (size_t count : kCounts) {
        SCOPED_TRACE(std::string(Name(type)) + "[" + std::to_string(count) + "]");
        auto expected = InputOf(type, count, rank->rank());
        TFDEAR_EXPECT_OK(
            rank->AllReduce(expected.data(), count, type, Signature("copies"), sequence++));
        for (int host = 0; host < size(); ++host) {
          const auto own = BufferWith(pool, InputOf(type, count, rank->rank()));
          char* sum = nullptr;
          // Chunks in any order: between them the host's data are partly sums.
          for (int chunk : {1, 0, 2}) {
            TFDEAR_EXPECT_OK(rank->ReduceScatterShared(own->data(), host,
                                                       ShardsOf(count, size(), chunk, 3), type,
                                                       Signature("shared"), sequence++, &sum));
          }
          TFDEAR_EXPECT_OK(rank->Barrier(Signature("shared"), sequence++));
          ASSERT_NE(sum, nullptr);
          EXPECT_EQ(sum == own->data(), rank->rank() == host);
          EXPECT_EQ(std::vector<char>(sum, sum + expected.size()), expected);
          if (rank->rank() != host) rank->fusion_memory()->GiveBack(sum);
        }
      }
    }
  });
}

TEST_P(SharedSumTest, OneRankWithOtherMemoryMakesAllCopy) {
  constexpr size_t kCount = 10001;
  RunRanksOver(WithFusionMemory(kArenaBytes), size(), [&](std::unique_ptr<CollectiveBackend> rank) {
    auto pool = std::make_shared<FusionBufferPool>(size_t{1} << 20, rank->fusion_memory());
    auto heap = std::make_shared<FusionBufferPool>();
    const auto input = InputOf(DataType::kFloat32, kCount, rank->rank());
    auto expected = input;
    TFDEAR_EXPECT_OK(
        rank->AllReduce(expected.data(), kCount, DataType::kFloat32, Signature("copies"), 0));
    uint64_t sequence = 1;
    for (int other = 0; other < size(); ++other) {
      for (int host = 0; host < size(); ++host) {
        const auto own = BufferWith(rank->rank() == other ? heap : pool, input);
        char* sum = own->data();
        TFDEAR_EXPECT_OK(rank->ReduceScatterShared(own->data(), host, ShardsOf(kCount, size()),
                                                   DataType::kFloat32, Signature("x"), sequence++,
                                                   &sum));
        EXPECT_EQ(sum, nullptr);
        TFDEAR_EXPECT_OK(
            rank->AllGather(own->data(), kCount, DataType::kFloat32, Signature("x"), sequence++));
        EXPECT_EQ(std::vector<char>(own->data(), own->data() + own->size()), expected);
        if (rank->rank() != other) {
          EXPECT_FALSE(rank->fusion_memory()->Lent(own->data()));
        }
      }
    }
  });
}

TEST(SharedSum, OneRankWithoutAnArenaLeavesAllWithout) {
  auto make = [](int rank, int size, std::chrono::milliseconds timeout,
                 std::unique_ptr<CollectiveBackend>* result) {
    // Rank 1 asks for more than any file may have.
    const size_t bytes = rank == 1 ? ~size_t{0} >> 1 : kArenaBytes;
    return WithFusionMemory(bytes)(rank, size, timeout, result);
  };
  RunRanksOver(make, 3, [](std::unique_ptr<CollectiveBackend> rank) {
    EXPECT_EQ(rank->fusion_memory(), nullptr);
    std::vector<float> data(100, 1.0f);
    char* sum = nullptr;
    TFDEAR_EXPECT_OK(rank->ReduceScatterShared(data.data(), 0, ShardsOf(100, 3), DataType::kFloat32,
                                               Signature("x"), 0, &sum));
    EXPECT_EQ(sum, nullptr);
    EXPECT_EQ(data[ShardOf(100, rank->rank(), 3).begin], 3.0f);
  });
}

// Each step's sums are held for as long as `held` says, by another rank each time.
TEST_P(SharedSumTest, SumsThatTensorsAliasStay) {
  constexpr int64_t kCount = 50000;
  const auto layout =
      FixedSizeLayout("gradients", {{DataType::kFloat32, kCount}, {DataType::kFloat32, kCount}},
                      /*bucket_bytes=*/1, Schedule::kDear);
  RunEnginesInSharedMemory(size(), [&](EngineRank* rank) {
    std::vector<std::pair<float, Reduced>> held;
    for (int step = 0; step < 20; ++step) {
      auto reduction = rank->Open(layout);
      Received received;
      received.ListenTo(reduction.get());
      const std::vector<float> ones(kCount, step + 1.0f);
      for (int tensor : {1, 0}) {
        TFDEAR_EXPECT_OK(reduction->Contribute(tensor, ones.data(), {kCount}));
      }
      ASSERT_TRUE(received.WaitFor(2));
      for (int tensor : {0, 1}) held.emplace_back(step + 1.0f, received.Get(tensor).sum);
      if (step % size() == rank->rank()) held.clear();
      for (const auto& [value, sum] : held) {
        const float* const data = static_cast<const float*>(sum.data);
        ASSERT_EQ(std::vector<float>(data, data + kCount),
                  std::vector<float>(kCount, value * size()));
      }
    }
    // As many as are lent at once, and not more with every step.
    EXPECT_LE(rank->pool()->allocations(), 4 * (size() + 2));
  });
}

TEST_P(SharedSumTest, MoreThanTheArenaHoldsTravelsByCopies) {
  constexpr int64_t kCount = 50000;
  const auto layout = FixedSizeLayout("gradients", {{DataType::kFloat32, kCount}},
                                      /*bucket_bytes=*/1, Schedule::kDear);
  RunEnginesInSharedMemory(
      size(),
      [&](EngineRank* rank) {
        std::vector<Reduced> held;
        for (int step = 0; step < 12; ++step) {
          auto reduction = rank->Open(layout);
          Received received;
          received.ListenTo(reduction.get());
          const std::vector<float> data(kCount, 1.0f + rank->rank());
          TFDEAR_EXPECT_OK(reduction->Contribute(0, data.data(), {kCount}));
          ASSERT_TRUE(received.WaitFor(1));
          TFDEAR_EXPECT_OK(received.Get(0).status);
          const Reduced sum = received.Get(0).sum;
          const float* const sums = static_cast<const float*>(sum.data);
          EXPECT_EQ(std::vector<float>(sums, sums + kCount),
                    std::vector<float>(kCount, size() * (size() + 1) / 2));
          held.push_back(sum);
        }
      },
      size_t{1} << 20);
}

}  // namespace
}  // namespace tfdear
