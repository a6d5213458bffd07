// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/memory/fusion_memory.h"

namespace tfdear {

// The bytes of one bucket while it travels. Returned to its pool when the last reference goes: the
// engine holds one until the bucket is gathered, every tensor that aliases a slot holds another.
class FusionBuffer {
 public:
  // What another rank lends, as a buffer: given back to `memory` when the last reference goes.
  static std::shared_ptr<FusionBuffer> Borrowed(std::shared_ptr<FusionMemory> memory, char* data,
                                                size_t size);

  char* data() { return data_; }
  size_t size() const { return size_; }
  Device device() const { return memory_->device(); }

  // FusionMemory::Write() from `offset` on. From any thread, but not twice to the same bytes.
  void Write(size_t offset, DataType type, const void* values, double weight, size_t count,
             size_t bytes);
  // What is still to be over before all that was written is there; to be heard once.
  std::vector<std::shared_ptr<Work>> TakeWrites();

 private:
  friend class FusionBufferPool;
  FusionMemory* memory_ = nullptr;  // Kept by the buffer's deleter.
  char* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
  Mutex mutex_;
  std::vector<std::shared_ptr<Work>> writes_ TFDEAR_GUARDED_BY(mutex_);
};

// Recycles fusion buffers: the buckets of every step have the same sizes, and fresh pages cost more
// than the copy into them. Sizes are rounded up by at most an eighth, so that the rows of an
// embedding, which differ from step to step, find a buffer too. Thread safe.
class FusionBufferPool : public std::enable_shared_from_this<FusionBufferPool> {
 public:
  // A job of any size may keep so much.
  static constexpr size_t kLeastIdleBytes = size_t{1} << 30;
  // Many steps of any model.
  static constexpr int kTakesOfWindow = 4096;

  // `least_idle_bytes`: memory that may lie idle, or as much as was in use at one time lately, if
  // that is more: what a step needed the next one needs again. Past it the buffers that lay idle
  // longest are freed; before a new one is allocated, past what is in use and idle together.
  // `memory`: null for the heap.
  explicit FusionBufferPool(size_t least_idle_bytes = kLeastIdleBytes,
                            std::shared_ptr<FusionMemory> memory = nullptr);

  const std::shared_ptr<FusionMemory>& memory() const { return memory_; }

  // A buffer of this size; its bytes are what its last user left there.
  Status Take(size_t size, std::shared_ptr<FusionBuffer>* taken);
  size_t idle_bytes() const;
  // Buffers that had to be allocated so far, because none that lay idle would do.
  int64_t allocations() const;

  ~FusionBufferPool();

 private:
  using IdleList = std::list<FusionBuffer*>;

  void Return(FusionBuffer* buffer);
  size_t MostBytesLocked() const TFDEAR_REQUIRES(mutex_);
  // `evicted` gets what has to go for this one to stay, or for no more than so much to lie idle.
  void KeepLocked(FusionBuffer* buffer, IdleList* evicted) TFDEAR_REQUIRES(mutex_);
  void EvictLocked(size_t most_idle_bytes, IdleList* evicted) TFDEAR_REQUIRES(mutex_);
  void Free(FusionBuffer* buffer);

  const size_t least_idle_bytes_;
  const std::shared_ptr<FusionMemory> memory_;
  mutable Mutex mutex_;
  IdleList lent_ TFDEAR_GUARDED_BY(mutex_);  // Returned here, but other ranks still read them.
  IdleList idle_ TFDEAR_GUARDED_BY(mutex_);  // The one returned last is in front.
  std::multimap<size_t, IdleList::iterator> by_capacity_ TFDEAR_GUARDED_BY(mutex_);
  size_t idle_bytes_ TFDEAR_GUARDED_BY(mutex_) = 0;
  size_t bytes_in_use_ TFDEAR_GUARDED_BY(mutex_) = 0;
  // In this window of kTakesOfWindow calls of Take(), and in the one before.
  size_t most_in_use_ TFDEAR_GUARDED_BY(mutex_) = 0;
  size_t most_in_use_before_ TFDEAR_GUARDED_BY(mutex_) = 0;
  int takes_ TFDEAR_GUARDED_BY(mutex_) = 0;
  int64_t allocations_ TFDEAR_GUARDED_BY(mutex_) = 0;
};

}  // namespace tfdear
