// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/memory/fusion_memory.h"
#include "custom_ops/engine/memory/shared_memory_segment.h"

namespace tfdear {

// Memory of the ranks of a node for their fusion buffers: every rank allocates in a segment of its
// own, and all ranks read and write all of them. Thread safe but for Map() and Unpublish().
//
// [Note: loans]
// A block that holds the sum for all ranks is lent to the others, who give it back when the last of
// their tensors goes that alias it. How many have not done so yet is counted at the head of the
// block, in memory that all of them map; its owner uses it again when nobody is left. A rank that
// ends without giving back ends the job.
class SharedMemoryArena : public FusionMemory {
 public:
  // `bytes`: addresses, not memory, which is taken as blocks are allocated.
  static Status Create(int rank, int size, size_t bytes,
                       std::shared_ptr<SharedMemoryArena>* result);

  const std::string& address() const { return segments_[rank_]->address(); }
  // Maps the segment of another rank.
  Status Map(int peer, const std::string& address);
  void Unpublish() { segments_[rank_]->Unpublish(); }

  char* Allocate(size_t bytes) override;
  void Free(char* data, size_t bytes) override;
  bool Lent(const char* data) const override;
  void GiveBack(char* data) override;

  // Lends a block of this rank to so many others, before they hear of it.
  void Lend(char* data, int ranks);

  // Where this rank's block is, for At() on another rank; 0 for memory that is not of the arena.
  uint64_t OffsetOf(const void* data) const;
  // The block of a rank, as mapped here; null where no block of so many bytes can be.
  char* At(int rank, uint64_t offset, size_t bytes) const;

 protected:
  // Others read it next.
  void Copy(DataType type, char* target, const void* values, double weight, size_t count) override;

 private:
  struct Head;
  // Blocks are whole pages, of which no system has larger ones.
  static constexpr size_t kUnitBytes = 64 * 1024;

  SharedMemoryArena(int rank, int size, size_t bytes)
      : rank_(rank), bytes_(bytes), segments_(size) {}
  static Head* HeadOf(const char* data);
  static size_t BlockBytes(size_t bytes);

  const int rank_;
  const size_t bytes_;
  std::vector<std::unique_ptr<SharedMemorySegment>> segments_;  // By rank.
  Mutex mutex_;
  // Of the blocks allocated so far, behind what the segment keeps for itself.
  size_t end_ TFDEAR_GUARDED_BY(mutex_) = kUnitBytes;
  // Offsets of free blocks, without memory, by their sizes.
  std::multimap<size_t, size_t> free_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
