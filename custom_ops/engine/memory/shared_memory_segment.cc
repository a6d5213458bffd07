// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/memory/shared_memory_segment.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace tfdear {
namespace {

constexpr size_t kTokenBytes = 32;
// MADV_POPULATE_WRITE and MADV_COLLAPSE, for which older headers have no names.
constexpr int kPopulateWrite = 23;
constexpr int kCollapse = 25;
constexpr size_t kPageBytes = 4096;

using Token = std::array<unsigned char, kTokenBytes>;

template <typename... Parts>
Status SystemError(const Parts&... what) {
  const int number = errno;
  return Unavailable(what..., ": ", std::strerror(number));
}

std::string ReadLink(const char* path) {
  char text[128];
  const ssize_t length = readlink(path, text, sizeof(text));
  return length > 0 ? std::string(text, length) : std::string();
}

// What processes that can open each other's memory have in common. The network belongs to it, since
// network namespaces are how one machine plays several nodes.
Status ThisNode(std::string* node) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const std::string processes = ReadLink("/proc/self/ns/pid");
  const std::string network = ReadLink("/proc/self/ns/net");
  if (boot.empty() || processes.empty() || network.empty()) {
    return Unavailable("/proc does not tell this node from others");
  }
  *node = boot + "/" + processes + "/" + network;
  return Status();
}

std::string ToHex(const Token& token) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned char byte : token) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Maps a file where its large pages can be the processor's. Null: that failed.
void* MapAligned(int fd, size_t bytes, int protection) {
  constexpr size_t kUnit = SharedMemorySegment::kLargePageBytes;
  void* const reserved =
      mmap(nullptr, bytes + kUnit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(reserved);
  char* const memory = begin + (kUnit - reinterpret_cast<uintptr_t>(begin) % kUnit) % kUnit;
  void* const mapped = mmap(memory, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  const int failure = errno;
  if (memory > begin) munmap(begin, memory - begin);
  // What was reserved behind the last page.
  char* const end = memory + (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (end < begin + bytes + kUnit) munmap(end, begin + bytes + kUnit - end);
  errno = failure;
  return mapped == MAP_FAILED ? nullptr : mapped;
}

// For poll(): readable once the process has ended, even before its parent has collected it.
int OpenProcess(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

}  // namespace

Status SharedMemorySegment::Create(size_t bytes, Pages pages,
                                   std::unique_ptr<SharedMemorySegment>* result) {
  std::unique_ptr<SharedMemorySegment> segment(new SharedMemorySegment);
  std::string node;
  TFDEAR_RETURN_IF_ERROR(ThisNode(&node));
  // Beyond this limit a larger file would be a signal.
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return Unavailable("no ", bytes, " bytes of shared memory: files are limited to ",
                       limit.rlim_cur, " bytes (ulimit -f)");
  }
  const int fd = memfd_create("tfdear", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return SystemError("no shared memory (memfd_create)");
  segment->memory_fd_ = fd;
  const off_t length = static_cast<off_t>(bytes);
  // All of it at once: without memory this fails here, and not by a signal in a collective.
  int failure;
  do {
    failure = pages == Pages::kSparse ? (ftruncate(fd, length) == 0 ? 0 : errno)
                                      : posix_fallocate(fd, 0, length);
  } while (failure == EINTR);
  if (failure != 0) {
    errno = failure;
    return SystemError("no ", bytes, " bytes of shared memory");
  }
  // The size stays: a page that went away would be a signal in the process that reads it.
  if (fchmod(fd, 0600) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return SystemError("cannot protect shared memory");
  }
  void* const memory = MapAligned(fd, bytes, PROT_READ | PROT_WRITE);
  if (memory == nullptr) return SystemError("cannot map shared memory");
  segment->data_ = static_cast<char*>(memory);
  segment->bytes_ = bytes;
  if (pages == Pages::kSparse) madvise(memory, bytes, MADV_DONTDUMP);
  segment->process_fd_ = OpenProcess(getpid());
  if (segment->process_fd_ < 0) return SystemError("cannot watch processes (pidfd_open)");
  Token token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return SystemError("no random numbers");
  }
  std::memcpy(segment->data_, token.data(), token.size());
  segment->address_ = TextOf(node, " ", getpid(), " ", fd, " ", ToHex(token));
  *result = std::move(segment);
  return Status();
}

Status SharedMemorySegment::Map(const std::string& address, size_t bytes, Access access,
                                std::unique_ptr<SharedMemorySegment>* result) {
  std::unique_ptr<SharedMemorySegment> segment(new SharedMemorySegment);
  std::istringstream fields(address);
  std::string node, token;
  pid_t pid = -1;
  int remote_fd = -1;
  if (!(fields >> node >> pid >> remote_fd >> token)) {
    return InvalidArgument("expected the address of shared memory, received '", address, "'");
  }
  std::string here;
  TFDEAR_RETURN_IF_ERROR(ThisNode(&here));
  if (node != here) {
    return Unavailable("it is on another node, or in another namespace of this one");
  }
  segment->process_fd_ = OpenProcess(pid);
  if (segment->process_fd_ < 0) {
    return SystemError("cannot watch process ", pid, " (pidfd_open)");
  }
  const std::string path = TextOf("/proc/", pid, "/fd/", remote_fd);
  const bool writes = access == Access::kReadAndWrite;
  const int fd = open(path.c_str(), (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (fd < 0) return SystemError("cannot open its shared memory, ", path);
  segment->memory_fd_ = fd;
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError("cannot read the size of ", path);
  const int seals = fcntl(fd, F_GET_SEALS);
  if (static_cast<size_t>(info.st_size) != bytes || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Unavailable(path, " is not the expected shared memory of ", bytes, " bytes");
  }
  void* const memory = MapAligned(fd, bytes, PROT_READ | (writes ? PROT_WRITE : 0));
  if (memory == nullptr) return SystemError("cannot map ", path);
  segment->data_ = static_cast<char*>(memory);
  segment->bytes_ = bytes;
  segment->Unpublish();
  Token found;
  std::memcpy(found.data(), segment->data_, found.size());
  if (ToHex(found) != token) {
    return Unavailable(path,
                       " is other memory; did that process end and a new one take its number?");
  }
  segment->address_ = address;
  *result = std::move(segment);
  return Status();
}

SharedMemorySegment::~SharedMemorySegment() {
  if (data_ != nullptr) munmap(data_, bytes_);
  Unpublish();
  if (process_fd_ >= 0) close(process_fd_);
}

void SharedMemorySegment::Unpublish() {
  if (memory_fd_ >= 0) close(memory_fd_);
  memory_fd_ = -1;
}

bool SharedMemorySegment::Populate(size_t offset, size_t bytes) {
  const size_t first = (offset + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes;
  for (size_t page = first; page + kLargePageBytes <= offset + bytes; page += kLargePageBytes) {
    // One that has a small page already is made large; where that fails, it is filled up below.
    if (madvise(data_ + page, kPageBytes, kPopulateWrite) != 0 ||
        madvise(data_ + page, kLargePageBytes, kCollapse) != 0) {
      break;
    }
  }
  int result;
  do {
    result = madvise(data_ + offset, bytes, kPopulateWrite);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  // A system before Linux 5.14 does not know it, and gives memory when it is touched.
  return result == 0 || errno == EINVAL;
}

void SharedMemorySegment::Release(size_t offset, size_t bytes) {
  madvise(data_ + offset, bytes, MADV_REMOVE);
}

bool SharedMemorySegment::OwnerEnded() const {
  pollfd process = {process_fd_, POLLIN, 0};
  return poll(&process, 1, 0) > 0;
}

}  // namespace tfdear
