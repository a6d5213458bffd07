// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/fusion_buffer.h"

#include <cstdlib>
#include <iterator>
#include <string>

namespace tfdear {
namespace {

// More than can be addressed; capacities stay below 2^63.
constexpr size_t kMostBytes = size_t{1} << 62;

// What is allocated for a buffer of `size` bytes: eight sizes between one power of two and the
// next.
size_t CapacityFor(size_t size) {
  size_t step = kSlotAlignment;
  while (step < size / 16) step *= 2;
  return size == 0 ? step : (size + step - 1) / step * step;
}

Status NoMemoryFor(size_t size) {
  return Status(StatusCode::kResourceExhausted,
                "this rank has no memory for a fusion buffer of " + std::to_string(size) +
                    " bytes. Start fewer ranks per node, or use a smaller model or smaller "
                    "batches");
}

}  // namespace

Status FusionBufferPool::Take(size_t size, std::shared_ptr<FusionBuffer>* taken) {
  if (size > kMostBytes) return NoMemoryFor(size);
  const size_t capacity = CapacityFor(size);
  FusionBuffer* buffer = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = by_capacity_.find(capacity);
    if (found != by_capacity_.end()) {
      buffer = *found->second;
      idle_.erase(found->second);
      by_capacity_.erase(found);
      idle_bytes_ -= capacity;
    }
  }
  if (buffer == nullptr) {
    void* data = std::aligned_alloc(kSlotAlignment, capacity);
    if (data == nullptr) return NoMemoryFor(size);
    buffer = new FusionBuffer;
    buffer->data_ = static_cast<char*>(data);
    buffer->capacity_ = capacity;
    std::lock_guard<std::mutex> lock(mutex_);
    ++allocations_;
  }
  buffer->size_ = size;
  // The pool outlives its buffers: the deleter owns a reference to it.
  taken->reset(buffer,
               [pool = shared_from_this()](FusionBuffer* returned) { pool->Return(returned); });
  return Status();
}

void FusionBufferPool::Return(FusionBuffer* buffer) {
  IdleList evicted;  // Freed without the mutex: giving back pages takes a while.
  {
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_front(buffer);
    by_capacity_.emplace(buffer->capacity_, idle_.begin());
    idle_bytes_ += buffer->capacity_;
    while (idle_bytes_ > max_idle_bytes_) {
      const auto oldest = std::prev(idle_.end());
      auto entry = by_capacity_.lower_bound((*oldest)->capacity_);
      while (entry->second != oldest) ++entry;
      by_capacity_.erase(entry);
      idle_bytes_ -= (*oldest)->capacity_;
      evicted.splice(evicted.end(), idle_, oldest);
    }
  }
  for (FusionBuffer* old : evicted) Free(old);
}

void FusionBufferPool::Free(FusionBuffer* buffer) {
  std::free(buffer->data_);
  delete buffer;
}

size_t FusionBufferPool::idle_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return idle_bytes_;
}

int64_t FusionBufferPool::allocations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return allocations_;
}

FusionBufferPool::~FusionBufferPool() {
  for (FusionBuffer* buffer : idle_) Free(buffer);
}

}  // namespace tfdear
