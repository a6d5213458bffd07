// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_wire.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "custom_ops/engine/base/errors.h"

namespace tfdear {
namespace {

using Clock = std::chrono::steady_clock;

Status SystemError(const std::string& what) {
  const int number = errno;
  return Unavailable(what, ": ", std::strerror(number));
}

// Waits until a socket is ready for `events`.
Status Await(int fd, short events, Clock::time_point deadline, int stop) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return Status(StatusCode::kDeadlineExceeded, "the other side is silent");
    pollfd sockets[] = {{fd, events, 0}, {stop, POLLIN, 0}};
    const int ready = poll(sockets, 2, static_cast<int>(std::min<int64_t>(left, 1000000)));
    if (ready < 0 && errno != EINTR) return SystemError("poll");
    if (ready <= 0) continue;
    if (sockets[1].revents != 0) return Status(StatusCode::kCancelled, "it was closed here");
    return Status();
  }
}

int HexDigit(char digit) {
  if ('0' <= digit && digit <= '9') return digit - '0';
  if ('a' <= digit && digit <= 'f') return digit - 'a' + 10;
  return -1;
}

}  // namespace

bool ParseToken(const std::string& text, ExampleToken* token) {
  if (text.size() != 2 * token->size()) return false;
  for (size_t i = 0; i < token->size(); ++i) {
    const int high = HexDigit(text[2 * i]), low = HexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    (*token)[i] = static_cast<unsigned char>(high << 4 | low);
  }
  return true;
}

bool SameToken(const ExampleToken& one, const ExampleToken& other) {
  volatile unsigned char different = 0;
  for (size_t i = 0; i < one.size(); ++i) different = different | (one[i] ^ other[i]);
  return different == 0;
}

ExampleSocket& ExampleSocket::operator=(ExampleSocket&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) close(fd_);
  fd_ = other.Release();
  return *this;
}

ExampleSocket::~ExampleSocket() {
  if (fd_ >= 0) close(fd_);
}

int ExampleSocket::Release() { return std::exchange(fd_, -1); }

Status ExampleSocket::Connect(const std::string& address, std::chrono::milliseconds time, int stop,
                              ExampleSocket* connected) {
  std::istringstream fields(address);
  std::string host, port;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (!(fields >> host >> port) || getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
    return InvalidArgument("expected a numeric host and a port, received '", address, "'");
  }
  ExampleSocket made(
      socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, found->ai_protocol));
  const int result = made.fd() < 0 ? -1 : connect(made.fd(), found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  if (result != 0) {
    if (made.fd() < 0 || errno != EINPROGRESS) return SystemError("cannot connect to " + address);
    TFDEAR_RETURN_IF_ERROR(Await(made.fd(), POLLOUT, Clock::now() + time, stop));
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(made.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    if (error != 0) return SystemError("cannot connect to " + address);
  }
  const int yes = 1;
  setsockopt(made.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  *connected = std::move(made);
  return Status();
}

Status ExampleSocket::Listen(const std::string& host, ExampleSocket* listening,
                             std::string* address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "0", &hints, &found) != 0) {
    return InvalidArgument("expected a numeric host, received '", host, "'");
  }
  ExampleSocket made(
      socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, found->ai_protocol));
  const bool listens = made.fd() >= 0 && bind(made.fd(), found->ai_addr, found->ai_addrlen) == 0 &&
                       listen(made.fd(), 128) == 0;
  freeaddrinfo(found);
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  char port[8];
  if (!listens || getsockname(made.fd(), reinterpret_cast<sockaddr*>(&bound), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, nullptr, 0, port, sizeof(port),
                  NI_NUMERICSERV) != 0) {
    return SystemError("cannot listen on " + host);
  }
  *address = host + " " + port;
  *listening = std::move(made);
  return Status();
}

Status ExampleSocket::Send(const void* bytes, size_t count, std::chrono::milliseconds time,
                           int stop) {
  const char* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t sent = send(fd_, from, count, MSG_NOSIGNAL);
    if (sent > 0) {
      from += sent;
      count -= sent;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      TFDEAR_RETURN_IF_ERROR(Await(fd_, POLLOUT, Clock::now() + time, stop));
    } else if (errno != EINTR) {
      return SystemError("the connection is lost");
    }
  }
  return Status();
}

Status ExampleSocket::Receive(void* bytes, size_t count, std::chrono::milliseconds time, int stop) {
  char* to = static_cast<char*>(bytes);
  while (count > 0) {
    const ssize_t received = recv(fd_, to, count, 0);
    if (received > 0) {
      to += received;
      count -= received;
    } else if (received == 0) {
      return Unavailable("the other side has closed the connection");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      TFDEAR_RETURN_IF_ERROR(Await(fd_, POLLIN, Clock::now() + time, stop));
    } else if (errno != EINTR) {
      return SystemError("the connection is lost");
    }
  }
  return Status();
}

bool ExampleSocket::Closed() const {
  pollfd socket = {fd_, POLLRDHUP, 0};
  return poll(&socket, 1, 0) > 0;
}

}  // namespace tfdear
