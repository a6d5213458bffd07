// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/memory/fusion_memory.h"
#include "custom_ops/engine/memory/shared_memory_segment.h"

namespace tfdear {

// Where so many bytes of an example begin: large tensors can be used where they are.
inline size_t AlignmentOfExample(size_t bytes) { return bytes < 4096 ? 8 : kSlotAlignment; }

// Has the processor fetch a record. Examples lie anywhere in memory: the first bytes on each page
// of one are fetched, and with them where the page is. Of what comes behind these it knows by
// itself.
inline void PrefetchRecord(const char* data, size_t bytes) {
  constexpr size_t kMost = 65536, kPage = 4096;
  for (size_t at = 0; at < std::min(bytes, kMost); at += kPage) __builtin_prefetch(data + at);
}

// The examples that one rank owns, [begin, end), in memory that the others of its node map
// read-only.
//
// [Note: one copy for a node]
// The owner writes an example's record, and then its place; both stay what they are. So reading
// takes no lock, and a rank that has ended, or was killed, leaves what it prepared to those that
// still read it. Who waits for an example sleeps on a word of the segment (a futex), which counts
// what happens there.
class ExampleSegment {
 public:
  // `memory_bytes`: of records, at most.
  static Status Create(int64_t begin, int64_t end, size_t memory_bytes,
                       std::unique_ptr<ExampleSegment>* result);
  // Maps another rank's. `examples`: of all ranks; `address`: what its address() was there.
  static Status Map(int64_t examples, const std::string& address,
                    std::unique_ptr<ExampleSegment>* result);

  // As text, for Map().
  std::string address() const;
  // All have mapped it.
  void Unpublish() { memory_->Unpublish(); }

  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  bool Has(int64_t example) const { return begin_ <= example && example < end_; }

  // Of an example that it has: whether its record is there; where.
  bool Find(int64_t example, const char** data, size_t* bytes) const;
  bool Failed(int64_t example) const;
  // Whether its rank has begun to prepare examples.
  bool started() const { return head()->started.load(std::memory_order_acquire) != 0; }
  // Whether no more records come.
  bool full() const { return head()->full.load(std::memory_order_acquire) != 0; }
  bool owner_ended() const { return memory_->OwnerEnded(); }
  // Of the owner: for how many bytes it has taken memory.
  size_t populated_bytes() const { return populated_; }
  // How many records there are.
  int64_t held() const { return head()->held.load(std::memory_order_relaxed); }
  // Counts what happens, and waits for more than `seen`, or for so long.
  uint32_t changes() const { return head()->changes.load(std::memory_order_acquire); }
  void AwaitChange(uint32_t seen, std::chrono::milliseconds time) const;

  // For the owner, one call at a time; null: there is no memory left. Then it is full.
  char* Allocate(size_t bytes);
  // What Allocate() gave holds an example now; or the example cannot be prepared.
  void Publish(int64_t example, const char* data, size_t bytes);
  void Fail(int64_t example);
  void Start();
  void SetFull();
  // Wakes up whoever waits for a change. After each of the above.
  void Announce();

 private:
  // At its start. Fresh memory is zeros.
  struct Head {
    std::atomic<uint32_t> changes;
    std::atomic<uint32_t> started;
    std::atomic<uint32_t> full;
    std::atomic<int64_t> held;
  };
  // Where an example's record is, or one of the values below.
  struct Place {
    static constexpr uint64_t kNotYet = 0;
    static constexpr uint64_t kFailed = 1;

    std::atomic<uint64_t> offset;
    uint64_t bytes;  // Written before the offset.
  };

  ExampleSegment(int64_t begin, int64_t end) : begin_(begin), end_(end) {}
  // Bytes before the first record.
  static size_t FrontOf(int64_t examples);
  // How many bytes to have memory for, where so many are needed.
  size_t GrownFor(size_t end) const;

  Head* head() const {
    return reinterpret_cast<Head*>(memory_->data() + SharedMemorySegment::kReservedBytes);
  }
  Place* PlaceOf(int64_t example) const;

  const int64_t begin_;
  const int64_t end_;
  std::unique_ptr<SharedMemorySegment> memory_;
  int64_t allocated_ = 0;  // Examples.
  // Bytes that are used, may be used, and have memory.
  size_t used_ = 0;
  size_t limit_ = 0;
  size_t populated_ = 0;
};

}  // namespace tfdear
