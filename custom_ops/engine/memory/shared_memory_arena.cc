// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/memory/shared_memory_arena.h"

#include <algorithm>
#include <atomic>

#include "custom_ops/engine/base/sum.h"
#include "custom_ops/engine/memory/streaming_copy.h"

namespace tfdear {

// Of values that are scaled on their way: stays in the fastest cache.
constexpr size_t kBlockBytes = 8 * 1024;

// Before the bytes of a block; fresh memory is zeros.
struct alignas(kSlotAlignment) SharedMemoryArena::Head {
  std::atomic<uint32_t> readers;  // Other ranks that have not given it back.
};

static_assert(std::atomic<uint32_t>::is_always_lock_free, "atomics are shared among processes");

size_t SharedMemoryArena::BlockBytes(size_t bytes) {
  return (sizeof(Head) + bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
}

Status SharedMemoryArena::Create(int rank, int size, size_t bytes,
                                 std::shared_ptr<SharedMemoryArena>* result) {
  std::shared_ptr<SharedMemoryArena> arena(new SharedMemoryArena(rank, size, bytes));
  TFDEAR_RETURN_IF_ERROR(SharedMemorySegment::Create(bytes, SharedMemorySegment::Pages::kSparse,
                                                     &arena->segments_[rank]));
  *result = std::move(arena);
  return Status();
}

Status SharedMemoryArena::Map(int peer, const std::string& address) {
  if (segments_[peer] != nullptr) return Status();  // This rank's, or mapped before.
  return SharedMemorySegment::Map(address, bytes_, SharedMemorySegment::Access::kReadAndWrite,
                                  &segments_[peer]);
}

SharedMemoryArena::Head* SharedMemoryArena::HeadOf(const char* data) {
  return reinterpret_cast<Head*>(const_cast<char*>(data) - sizeof(Head));
}

char* SharedMemoryArena::Allocate(size_t bytes) {
  if (bytes > bytes_) return nullptr;
  const size_t block = BlockBytes(bytes);
  size_t offset = 0;
  {
    MutexLock lock(mutex_);
    const auto found = free_.find(block);
    if (found != free_.end()) {
      offset = found->second;
      free_.erase(found);
    } else if (block <= bytes_ - end_) {
      offset = end_;
      end_ += block;
    } else {
      return nullptr;
    }
  }
  if (!segments_[rank_]->Populate(offset, block)) {
    segments_[rank_]->Release(offset, block);
    MutexLock lock(mutex_);
    free_.emplace(block, offset);
    return nullptr;
  }
  return segments_[rank_]->data() + offset + sizeof(Head);
}

void SharedMemoryArena::Free(char* data, size_t bytes) {
  const size_t offset = OffsetOf(data) - sizeof(Head);
  const size_t block = BlockBytes(bytes);
  segments_[rank_]->Release(offset, block);
  MutexLock lock(mutex_);
  free_.emplace(block, offset);
}

void SharedMemoryArena::Copy(DataType type, char* target, const void* values, double weight,
                             size_t count) {
  const char* const source = static_cast<const char*>(values);
  const size_t bytes = count * SizeOf(type);
  if (weight == 1) return StreamingCopy(target, source, bytes);
  alignas(kSlotAlignment) char block[kBlockBytes];
  for (size_t begin = 0; begin < bytes; begin += kBlockBytes) {
    const size_t scaled = std::min(kBlockBytes, bytes - begin);
    CopyScaled(type, block, source + begin, weight, scaled / SizeOf(type));
    StreamingCopy(target + begin, block, scaled);
  }
}

bool SharedMemoryArena::Lent(const char* data) const {
  return HeadOf(data)->readers.load(std::memory_order_acquire) > 0;
}

void SharedMemoryArena::Lend(char* data, int ranks) {
  HeadOf(data)->readers.store(static_cast<uint32_t>(ranks), std::memory_order_release);
}

void SharedMemoryArena::GiveBack(char* data) {
  HeadOf(data)->readers.fetch_sub(1, std::memory_order_release);
}

uint64_t SharedMemoryArena::OffsetOf(const void* data) const {
  const auto begin = reinterpret_cast<uintptr_t>(segments_[rank_]->data());
  const auto address = reinterpret_cast<uintptr_t>(data);
  return address >= begin && address < begin + bytes_ ? address - begin : 0;
}

char* SharedMemoryArena::At(int rank, uint64_t offset, size_t bytes) const {
  const bool inside = offset >= kUnitBytes + sizeof(Head) && offset <= bytes_ &&
                      bytes <= bytes_ - offset && offset % kSlotAlignment == 0;
  return inside ? segments_[rank]->data() + offset : nullptr;
}

}  // namespace tfdear
