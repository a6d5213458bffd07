// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#ifndef TFDEAR_ENGINE_FUSION_BUFFER_H_
#define TFDEAR_ENGINE_FUSION_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "custom_ops/engine/status.h"

namespace tfdear {

// Start of every tensor inside a fusion buffer, in bytes: what vectorised kernels and TensorFlow's
// allocator expect, so that a gathered slice can be handed on as a tensor without a copy.
inline constexpr size_t kSlotAlignment = 64;

inline size_t AlignUp(size_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

// The bytes of one bucket while it travels. Returned to its pool when the last reference goes: the
// engine holds one until the bucket is gathered, every tensor that aliases a slot holds another.
class FusionBuffer {
 public:
  char* data() { return data_; }
  size_t size() const { return size_; }

 private:
  friend class FusionBufferPool;
  char* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

// Recycles fusion buffers: the buckets of every step have the same sizes, and fresh pages cost more
// than the copy into them. Sizes are rounded up by at most an eighth, so that the rows of an
// embedding, which differ from step to step, find a buffer too. Thread safe.
class FusionBufferPool : public std::enable_shared_from_this<FusionBufferPool> {
 public:
  // `max_idle_bytes`: memory that may lie idle; past it the buffers that lay idle longest are
  // freed. The default holds two steps of a large language model.
  explicit FusionBufferPool(size_t max_idle_bytes = size_t{1} << 30)
      : max_idle_bytes_(max_idle_bytes) {}

  // A buffer of this size; its bytes are what its last user left there.
  Status Take(size_t size, std::shared_ptr<FusionBuffer>* taken);
  size_t idle_bytes() const;
  // Buffers that had to be allocated so far, because none that lay idle would do.
  int64_t allocations() const;

  ~FusionBufferPool();

 private:
  using IdleList = std::list<FusionBuffer*>;

  void Return(FusionBuffer* buffer);
  static void Free(FusionBuffer* buffer);

  const size_t max_idle_bytes_;
  mutable std::mutex mutex_;
  IdleList idle_;  // The one returned last is in front.
  std::multimap<size_t, IdleList::iterator> by_capacity_;
  size_t idle_bytes_ = 0;
  int64_t allocations_ = 0;
};

}  // namespace tfdear

#endif  // TFDEAR_ENGINE_FUSION_BUFFER_H_
