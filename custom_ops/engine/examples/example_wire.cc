// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_wire.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
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

}  // namespace

ExampleSocket::ExampleSocket(int fd) : fd_(fd) {
  if (fd < 0) return;
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
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

}  // namespace tfdear
