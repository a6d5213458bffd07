// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/tensorflow_server/loopback_bind.h"

#include <elf.h>
#include <link.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace tfdear {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kJumpSlot = R_X86_64_JUMP_SLOT;
constexpr uint32_t kGlobalData = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT;
constexpr uint32_t kGlobalData = R_AARCH64_GLOB_DAT;
#else
#error "loopback_bind.cc knows the import tables of x86-64 and AArch64 only"
#endif

std::atomic<bool> enabled{false};

int BindToLoopback(int socket, const sockaddr* address, socklen_t length) {
  if (!enabled.load() || address == nullptr) return bind(socket, address, length);
  if (address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) {
    sockaddr_in copy;
    std::memcpy(&copy, address, sizeof(copy));
    if (copy.sin_addr.s_addr == htonl(INADDR_ANY)) copy.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return bind(socket, reinterpret_cast<const sockaddr*>(&copy), sizeof(copy));
  }
  if (address->sa_family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
    sockaddr_in6 copy;
    std::memcpy(&copy, address, sizeof(copy));
    if (IN6_IS_ADDR_UNSPECIFIED(&copy.sin6_addr)) {
      // gRPC listens for both families on one IPv6 socket; the ranks of a machine meet at
      // 127.0.0.1, which such a socket knows as ::ffff:127.0.0.1.
      const uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
      std::memcpy(&copy.sin6_addr, mapped, sizeof(mapped));
    }
    return bind(socket, reinterpret_cast<const sockaddr*>(&copy), sizeof(copy));
  }
  return bind(socket, address, length);
}

// The dynamic section of a loaded library: its values, by their tags.
std::map<int64_t, uintptr_t> ReadDynamicSection(const dl_phdr_info& library) {
  std::map<int64_t, uintptr_t> values;
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    if (library.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    auto* entry =
        reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + library.dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) values[entry->d_tag] = entry->d_un.d_val;
  }
  return values;
}

// Changes one entry. Libraries linked with "relro" have theirs write-protected after loading; the
// page stays writable afterwards, because neighbours may be entries that are bound lazily.
bool Write(void** entry, void* value) {
  const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t page = reinterpret_cast<uintptr_t>(entry) & ~(page_size - 1);
  if (mprotect(reinterpret_cast<void*>(page), page_size, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(entry, value, __ATOMIC_SEQ_CST);
  return true;
}

// Leads the library's calls of bind through BindToLoopback; adds to *count, or sets it to -1.
int ChangeLibrary(dl_phdr_info* library, size_t, void* count_pointer) {
  int* count = static_cast<int*>(count_pointer);
  if (std::strstr(library->dlpi_name, "libtensorflow_cc.so") == nullptr &&
      std::strstr(library->dlpi_name, "libtensorflow_framework.so") == nullptr) {
    return 0;
  }
  auto dynamic = ReadDynamicSection(*library);
  const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(dynamic[DT_SYMTAB]);
  const auto* names = reinterpret_cast<const char*>(dynamic[DT_STRTAB]);
  if (symbols == nullptr || names == nullptr) return 0;
  for (const auto& [table, bytes] :
       {std::pair(DT_JMPREL, DT_PLTRELSZ), std::pair(DT_RELA, DT_RELASZ)}) {
    const auto* relocations = reinterpret_cast<const ElfW(Rela)*>(dynamic[table]);
    const size_t relocated = dynamic[bytes] / sizeof(ElfW(Rela));
    for (size_t i = 0; i < relocated; ++i) {
      const uint32_t type = ELF64_R_TYPE(relocations[i].r_info);
      if (type != kJumpSlot && type != kGlobalData) continue;
      const ElfW(Sym)& symbol = symbols[ELF64_R_SYM(relocations[i].r_info)];
      if (std::strcmp(names + symbol.st_name, "bind") != 0) continue;
      auto** entry = reinterpret_cast<void**>(library->dlpi_addr + relocations[i].r_offset);
      if (!Write(entry, reinterpret_cast<void*>(&BindToLoopback))) {
        *count = -1;
        return 1;
      }
      ++*count;
    }
  }
  return 0;
}

}  // namespace
}  // namespace tfdear

int tfdear_bind_to_loopback(int enable) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  tfdear::enabled.store(enable != 0);
  if (enable == 0) return 0;
  int count = 0;
  dl_iterate_phdr(tfdear::ChangeLibrary, &count);
  return count;
}
