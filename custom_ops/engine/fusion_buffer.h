// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#ifndef TFDEAR_ENGINE_FUSION_BUFFER_H_
#define TFDEAR_ENGINE_FUSION_BUFFER_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

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
};

// Recycles fusion buffers by exact size: the buckets of every step have the same sizes, and fresh
// pages cost more than the copy into them. Thread safe.
class FusionBufferPool : public std::enable_shared_from_this<FusionBufferPool> {
 public:
  // Gaps between slots are zero in a new buffer and stay finite afterwards, because only sums of
  // gaps are ever written there.
  std::shared_ptr<FusionBuffer> Take(size_t size);

  ~FusionBufferPool();

 private:
  void Return(FusionBuffer* buffer);

  std::mutex mutex_;
  std::multimap<size_t, FusionBuffer*> free_;
  size_t free_bytes_ = 0;
};

}  // namespace tfdear

#endif  // TFDEAR_ENGINE_FUSION_BUFFER_H_
