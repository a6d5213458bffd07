// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "custom_ops/engine/base/errors.h"

namespace tfdear {

// Memory of one process, which processes of the same user on the same node read or, where its maker
// wants that, write too. Thread safe but for Unpublish().
//
// [Note: memory without a name]
// It comes from memfd_create, not from shm_open: it has no name that could be guessed, taken by
// somebody else, or left behind in /dev/shm; the kernel frees it with its last mapping, however the
// processes end. Nor is it bound by the size of /dev/shm, which is 64 MiB in many containers. Peers
// open it as /proc/PID/fd/FD, which the kernel permits to the same user only. A random token at its
// start tells it from whatever else may have come to bear this PID and FD.
class SharedMemorySegment {
 public:
  // Bytes at the start of data() that belong to this class.
  static constexpr size_t kReservedBytes = 64;

  // Where the system has them, so many bytes are one page, and one entry of the processor's list of
  // pages: what lies there is read faster in random order, and is there sooner.
  static constexpr size_t kLargePageBytes = size_t{2} << 20;

  // What its pages are before they are used: memory, or only addresses.
  enum class Pages { kAllocated, kSparse };
  // What a process may do with the segment of another one.
  enum class Access { kRead, kReadAndWrite };

  // Makes a segment, filled with zeros, that this process writes.
  static Status Create(size_t bytes, Pages pages, std::unique_ptr<SharedMemorySegment>* result);

  // Maps the segment of another rank. `address`: what its address() was there.
  static Status Map(const std::string& address, size_t bytes, Access access,
                    std::unique_ptr<SharedMemorySegment>* result);

  ~SharedMemorySegment();
  SharedMemorySegment(const SharedMemorySegment&) = delete;
  SharedMemorySegment& operator=(const SharedMemorySegment&) = delete;

  // Where the segment is, as text without blanks at its ends: for Map() in another process.
  const std::string& address() const { return address_; }

  // No process can map it from now on; call it when all have.
  void Unpublish();

  // Page aligned. Writing is allowed in the process that made it, and with kReadAndWrite.
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // Of a sparse segment: gets memory for a range of whole pages, by large ones where they are all
  // in it, and returns it to the system. False where there is none left.
  bool Populate(size_t offset, size_t bytes);
  void Release(size_t offset, size_t bytes);

  // Whether the process that made it has ended. In that process itself: false.
  bool OwnerEnded() const;

 private:
  SharedMemorySegment() = default;

  std::string address_;
  char* data_ = nullptr;
  size_t bytes_ = 0;
  int memory_fd_ = -1;
  int process_fd_ = -1;  // of the process that made it
};

}  // namespace tfdear
