// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/gloo/gloo_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>

namespace tfdear {
namespace {

constexpr char kMagic[] = "tfdear-gloo-2";
constexpr char kNoAddress[] = "-";

// gloo's form: the socket address, then the sequence number of a shared listener, unused (-1) here
// because every connection has a listening socket of its own.
using Sequence = ssize_t;
constexpr size_t kGlooAddressBytes = sizeof(sockaddr_storage) + sizeof(Sequence);

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Status Lookup(const std::string& host, const char* service, int flags, AddressList* list) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), service, &hints, &found);
  if (error != 0 || found == nullptr) {
    return InvalidArgument("cannot resolve the address '", host, "': ", gai_strerror(error));
  }
  list->reset(found);
  return Status();
}

// Whether this machine has the address. gloo would find out too, but leaks memory when not.
Status ProbeBind(const addrinfo& entry, const std::string& name) {
  const int fd = socket(entry.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool bound = fd >= 0 && bind(fd, entry.ai_addr, entry.ai_addrlen) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (bound) return Status();
  return Unavailable("cannot listen on '", name, "': ", std::strerror(error),
                     "; is it an address of this machine?");
}

bool IsWildcard(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return false;
}

}  // namespace

Status ResolveBindAddress(const std::string& bind_address, std::string* numeric) {
  if (bind_address.empty()) {
    return InvalidArgument(
        "the address to listen on is empty; give an IP address or a host name of this "
        "machine, for example 127.0.0.1");
  }
  AddressList list(nullptr, &freeaddrinfo);
  TFDEAR_RETURN_IF_ERROR(Lookup(bind_address, nullptr, 0, &list));
  Status failure(StatusCode::kInvalidArgument,
                 "'" + bind_address + "' has neither an IPv4 nor an IPv6 address");
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    if (IsWildcard(entry->ai_addr)) {
      return InvalidArgument("cannot listen on '", bind_address,
                             "': peers need one address to connect to; give the address of the "
                             "interface that reaches them");
    }
    // A name may stand for several addresses, of a family that is switched off here among them.
    failure = ProbeBind(*entry, bind_address);
    if (!failure.ok()) continue;
    char host[NI_MAXHOST];
    if (getnameinfo(entry->ai_addr, entry->ai_addrlen, host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      *numeric = host;
      return Status();
    }
  }
  return failure;
}

Status AddressToText(const std::vector<char>& gloo_address, std::string* text) {
  sockaddr_storage storage = {};
  if (gloo_address.size() != kGlooAddressBytes) {
    return Internal("gloo gave an address of ", gloo_address.size(), " bytes, expected ",
                    kGlooAddressBytes, "; this version of gloo is not supported");
  }
  std::memcpy(&storage, gloo_address.data(), sizeof(storage));
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  const int error = getnameinfo(reinterpret_cast<const sockaddr*>(&storage), sizeof(storage), host,
                                sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) {
    return Internal("cannot print gloo's address: ", gai_strerror(error));
  }
  const bool is_ipv6 = storage.ss_family == AF_INET6;
  *text = is_ipv6 ? "[" + std::string(host) + "]:" + port : std::string(host) + ":" + port;
  return Status();
}

Status AddressFromText(const std::string& text, std::vector<char>* gloo_address) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return InvalidArgument("expected an address as host:port, received '", text, "'");
  }
  std::string host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  AddressList list(nullptr, &freeaddrinfo);
  TFDEAR_RETURN_IF_ERROR(
      Lookup(host, text.c_str() + colon + 1, AI_NUMERICHOST | AI_NUMERICSERV, &list));
  sockaddr_storage storage = {};
  std::memcpy(&storage, list->ai_addr, list->ai_addrlen);
  const Sequence no_sequence = -1;
  gloo_address->assign(kGlooAddressBytes, 0);
  std::memcpy(gloo_address->data(), &storage, sizeof(storage));
  std::memcpy(gloo_address->data() + sizeof(storage), &no_sequence, sizeof(no_sequence));
  return Status();
}

std::string AddressBook::Serialize() const {
  std::ostringstream blob;
  blob << kMagic << ' ' << rank << ' ' << size;
  for (const auto& addresses : addresses_for_peer) {
    blob << ' ' << (addresses.empty() ? kNoAddress : "");
    for (size_t i = 0; i < addresses.size(); ++i) blob << (i > 0 ? "," : "") << addresses[i];
  }
  return blob.str();
}

Status AddressBook::Parse(const std::string& blob, AddressBook* book) {
  std::istringstream fields(blob);
  std::string magic;
  fields >> magic >> book->rank >> book->size;
  if (!fields || magic != kMagic) {
    return InvalidArgument("expected a gloo address blob that starts with '", kMagic,
                           "', received '", blob.substr(0, 64),
                           "'; do all ranks run the same tfdear?");
  }
  book->addresses_for_peer.clear();
  for (std::string field; fields >> field;) {
    book->addresses_for_peer.emplace_back();
    if (field == kNoAddress) continue;
    std::istringstream list(field);
    for (std::string address; std::getline(list, address, ',');) {
      if (address.empty() || address == kNoAddress) {
        return InvalidArgument("a gloo address blob holds an empty address: '", field.substr(0, 64),
                               "'");
      }
      book->addresses_for_peer.back().push_back(address);
    }
  }
  if (book->rank < 0 || book->rank >= book->size) {
    return InvalidArgument("a gloo address blob is of rank ", book->rank, " of ", book->size);
  }
  if (book->addresses_for_peer.size() != static_cast<size_t>(book->size)) {
    return InvalidArgument("a gloo address blob for ", book->size, " ranks holds ",
                           book->addresses_for_peer.size(), " lists of addresses");
  }
  return Status();
}

}  // namespace tfdear
