// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Shared memory: which pages it has, and that they come and go.

#include "custom_ops/engine/memory/shared_memory_segment.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

constexpr size_t kLarge = SharedMemorySegment::kLargePageBytes;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1.

// The bytes of a mapping under one heading of /proc/self/smaps.
size_t BytesMapped(const void* begin, const std::string& heading) {
  std::ostringstream start;
  start << std::hex << reinterpret_cast<uintptr_t>(begin) << "-";
  std::ifstream maps("/proc/self/smaps");
  bool is_inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') != std::string::npos && line.find(' ') > line.find('-')) {
      is_inside = line.rfind(start.str(), 0) == 0;
    } else if (is_inside && line.rfind(heading + ":", 0) == 0) {
      return std::stoul(line.substr(heading.size() + 1)) << 10;
    }
  }
  return 0;
}

// Whether this system makes large pages of shared memory when it is asked to.
bool HasLargePages() {
  const int fd = memfd_create("probe", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, 2 * kLarge) != 0) return false;
  char* const memory =
      static_cast<char*>(mmap(nullptr, 2 * kLarge, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  char* const page = memory + (kLarge - reinterpret_cast<uintptr_t>(memory) % kLarge) % kLarge;
  // Pages of the file and of the address must lie alike, which a second mapping sees to.
  void* const aligned = mmap(page, kLarge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  page[0] = 1;
  const bool result = aligned == page && madvise(page, kLarge, kCollapse) == 0;
  munmap(memory, 2 * kLarge);
  close(fd);
  return result;
}

std::unique_ptr<SharedMemorySegment> Sparse(size_t bytes) {
  std::unique_ptr<SharedMemorySegment> segment;
  TFDEAR_EXPECT_OK(
      SharedMemorySegment::Create(bytes, SharedMemorySegment::Pages::kSparse, &segment));
  return segment;
}

TEST(SharedMemorySegment, LiesWhereLargePagesCan) {
  for (size_t bytes : {size_t{4096}, kLarge - 1, kLarge, 3 * kLarge + 4096}) {
    const auto segment = Sparse(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(segment->data()) % kLarge, 0u) << bytes;
    std::unique_ptr<SharedMemorySegment> mapped;
    TFDEAR_EXPECT_OK(SharedMemorySegment::Map(segment->address(), bytes,
                                              SharedMemorySegment::Access::kRead, &mapped));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(mapped->data()) % kLarge, 0u) << bytes;
  }
}

TEST(SharedMemorySegment, WholeLargePagesOfARangeAreLarge) {
  if (!HasLargePages()) GTEST_SKIP() << "This system makes no large pages of shared memory.";
  const auto segment = Sparse(8 * kLarge);
  // From the middle of one to the middle of another: three are whole.
  ASSERT_TRUE(segment->Populate(2 * kLarge + kLarge / 2, 4 * kLarge));
  EXPECT_EQ(BytesMapped(segment->data(), "ShmemPmdMapped"), 3 * kLarge);
  // What is populated keeps what was written, whatever becomes of its pages.
  std::memset(segment->data() + 2 * kLarge, 7, 4096);
  ASSERT_TRUE(segment->Populate(kLarge, 6 * kLarge));
  EXPECT_EQ(BytesMapped(segment->data(), "ShmemPmdMapped"), 6 * kLarge);
  EXPECT_EQ(segment->data()[2 * kLarge + 4095], 7);
}

TEST(SharedMemorySegment, GivesMemoryBack) {
  const auto segment = Sparse(8 * kLarge);
  const size_t before = BytesMapped(segment->data(), "Rss");
  ASSERT_TRUE(segment->Populate(kLarge, 4 * kLarge));
  EXPECT_EQ(BytesMapped(segment->data(), "Rss"), before + 4 * kLarge);
  segment->Release(kLarge, 2 * kLarge);
  EXPECT_EQ(BytesMapped(segment->data(), "Rss"), before + 2 * kLarge);
  EXPECT_EQ(segment->data()[kLarge], 0);
}

}  // namespace
}  // namespace tfdear
