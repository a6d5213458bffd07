// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/memory/fusion_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <utility>

namespace tfdear {
namespace {

// More than can be addressed; capacities stay below 2^63.
constexpr size_t kMostBytes = size_t{1} << 62;

constexpr size_t kLargePageBytes = size_t{2} << 20;

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

class Heap : public FusionMemory {
 public:
  char* Allocate(size_t bytes) override {
    const bool large = bytes >= 2 * kLargePageBytes;
    void* data = nullptr;
    if (posix_memalign(&data, large ? kLargePageBytes : kSlotAlignment, bytes) != 0) return nullptr;
    // Where the system makes large pages only for who asks: a 512th of the faults at the first
    // touch, and of the translations in every sum. Without them all works, too.
    if (large) madvise(data, bytes / kLargePageBytes * kLargePageBytes, MADV_HUGEPAGE);
    return static_cast<char*>(data);
  }
  void Free(char* data, size_t) override { std::free(data); }
};

}  // namespace

std::shared_ptr<FusionBuffer> FusionBuffer::Borrowed(std::shared_ptr<FusionMemory> memory,
                                                     char* data, size_t size) {
  auto* const buffer = new FusionBuffer;
  buffer->memory_ = memory.get();
  buffer->data_ = data;
  buffer->size_ = size;
  return std::shared_ptr<FusionBuffer>(buffer, [memory = std::move(memory)](FusionBuffer* read) {
    memory->GiveBack(read->data_);
    delete read;
  });
}

void FusionBuffer::Write(size_t offset, DataType type, const void* values, double weight,
                         size_t count, size_t bytes) {
  auto written = memory_->Write(type, data_ + offset, values, weight, count, bytes);
  if (written == nullptr) return;
  MutexLock lock(mutex_);
  writes_.push_back(std::move(written));
}

std::vector<std::shared_ptr<Work>> FusionBuffer::TakeWrites() {
  MutexLock lock(mutex_);
  return std::exchange(writes_, {});
}

FusionBufferPool::FusionBufferPool(size_t least_idle_bytes, std::shared_ptr<FusionMemory> memory)
    : least_idle_bytes_(least_idle_bytes),
      memory_(memory != nullptr ? std::move(memory) : std::make_shared<Heap>()) {}

Status FusionBufferPool::Take(size_t size, std::shared_ptr<FusionBuffer>* taken) {
  if (size > kMostBytes) return NoMemoryFor(size);
  const size_t capacity = CapacityFor(size);
  FusionBuffer* buffer = nullptr;
  IdleList evicted;
  {
    MutexLock lock(mutex_);
    for (auto next = lent_.begin(); next != lent_.end();) {
      const auto lent = next++;
      if (memory_->Lent((*lent)->data_)) continue;
      KeepLocked(*lent, &evicted);
      lent_.erase(lent);
    }
    auto found = by_capacity_.find(capacity);
    if (found != by_capacity_.end()) {
      buffer = *found->second;
      idle_.erase(found->second);
      by_capacity_.erase(found);
      idle_bytes_ -= capacity;
    }
    bytes_in_use_ += capacity;
    if (++takes_ == kTakesOfWindow) {
      takes_ = 0;
      most_in_use_before_ = std::exchange(most_in_use_, 0);
    }
    most_in_use_ = std::max(most_in_use_, bytes_in_use_);
    // A change of plan changes sizes: what lies idle makes room for what nobody had before.
    const size_t most = MostBytesLocked();
    if (buffer == nullptr) EvictLocked(most - std::min(most, bytes_in_use_), &evicted);
  }
  for (FusionBuffer* old : evicted) Free(old);
  if (buffer == nullptr) {
    char* const data = memory_->Allocate(capacity);
    if (data == nullptr) {
      MutexLock lock(mutex_);
      bytes_in_use_ -= capacity;
      return NoMemoryFor(size);
    }
    buffer = new FusionBuffer;
    buffer->memory_ = memory_.get();
    buffer->data_ = data;
    buffer->capacity_ = capacity;
    MutexLock lock(mutex_);
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
    MutexLock lock(mutex_);
    if (memory_->Lent(buffer->data_)) {
      lent_.push_back(buffer);
    } else {
      KeepLocked(buffer, &evicted);
    }
  }
  for (FusionBuffer* old : evicted) Free(old);
}

size_t FusionBufferPool::MostBytesLocked() const {
  return std::max({least_idle_bytes_, most_in_use_, most_in_use_before_});
}

void FusionBufferPool::KeepLocked(FusionBuffer* buffer, IdleList* evicted) {
  idle_.push_front(buffer);
  by_capacity_.emplace(buffer->capacity_, idle_.begin());
  idle_bytes_ += buffer->capacity_;
  bytes_in_use_ -= buffer->capacity_;
  EvictLocked(MostBytesLocked(), evicted);
}

void FusionBufferPool::EvictLocked(size_t most_idle_bytes, IdleList* evicted) {
  while (idle_bytes_ > most_idle_bytes) {
    const auto oldest = std::prev(idle_.end());
    auto entry = by_capacity_.lower_bound((*oldest)->capacity_);
    while (entry->second != oldest) ++entry;
    by_capacity_.erase(entry);
    idle_bytes_ -= (*oldest)->capacity_;
    evicted->splice(evicted->end(), idle_, oldest);
  }
}

void FusionBufferPool::Free(FusionBuffer* buffer) {
  memory_->Free(buffer->data_, buffer->capacity_);
  delete buffer;
}

size_t FusionBufferPool::idle_bytes() const {
  MutexLock lock(mutex_);
  return idle_bytes_;
}

int64_t FusionBufferPool::allocations() const {
  MutexLock lock(mutex_);
  return allocations_;
}

FusionBufferPool::~FusionBufferPool() {
  for (FusionBuffer* buffer : idle_) Free(buffer);
  // Others read their memory, which goes with the last of its mappings.
  for (FusionBuffer* buffer : lent_) delete buffer;
}

}  // namespace tfdear
