// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/fusion_buffer.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace tfdear {
namespace {

// Idle memory that the pool keeps at most. Two steps of a large language model fit; one-off sizes
// (the last batch of an evaluation) do not pile up.
constexpr size_t kMaxFreeBytes = size_t{1} << 30;

}  // namespace

std::shared_ptr<FusionBuffer> FusionBufferPool::Take(size_t size) {
  FusionBuffer* buffer = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = free_.find(size);
    if (found != free_.end()) {
      buffer = found->second;
      free_.erase(found);
      free_bytes_ -= size;
    }
  }
  if (buffer == nullptr) {
    const size_t allocated = AlignUp(size == 0 ? 1 : size);
    void* data = std::aligned_alloc(kSlotAlignment, allocated);
    if (data == nullptr) throw std::bad_alloc();
    std::memset(data, 0, allocated);
    buffer = new FusionBuffer;
    buffer->data_ = static_cast<char*>(data);
    buffer->size_ = size;
  }
  // The pool outlives its buffers: the deleter owns a reference to it.
  return std::shared_ptr<FusionBuffer>(
      buffer, [pool = shared_from_this()](FusionBuffer* returned) { pool->Return(returned); });
}

void FusionBufferPool::Return(FusionBuffer* buffer) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (free_bytes_ + buffer->size_ > kMaxFreeBytes) {
    std::free(buffer->data_);
    delete buffer;
    return;
  }
  free_bytes_ += buffer->size_;
  free_.emplace(buffer->size_, buffer);
}

FusionBufferPool::~FusionBufferPool() {
  for (auto& [size, buffer] : free_) {
    std::free(buffer->data_);
    delete buffer;
  }
}

}  // namespace tfdear
