// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_wire.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "custom_ops/engine/base/errors.h"

namespace tfdear {
namespace {

using Clock = std::chrono::steady_clock;

// Waits until a socket is ready for `events`.
Status Await(int fd, short events, Clock::time_point deadline, int stop) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return Status(StatusCode::kDeadlineExceeded, "the other side is silent");
    pollfd sockets[] = {{fd, events, 0}, {stop, POLLIN, 0}};
    const int ready = poll(sockets, 2, static_cast<int>(std::min<int64_t>(left, 1000000)));
    if (ready < 0 && errno != EINTR) return Unavailable("poll: ", std::strerror(errno));
    if (ready <= 0) continue;
    if (sockets[1].revents != 0) return Status(StatusCode::kCancelled, "it was closed here");
    return Status();
  }
}

}  // namespace

ExampleSocket::ExampleSocket(std::unique_ptr<ByteStream> stream) : stream_(std::move(stream)) {
  const int yes = 1;
  setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

Status ExampleSocket::Ended(ByteStream::Result result) const {
  if (result == ByteStream::Result::kEnded) {
    return Unavailable("the other side has closed the connection");
  }
  if (stream_->is_forged()) {
    return Internal("what came is not what the other side sent: ", stream_->failure());
  }
  return Unavailable("the connection is lost: ", stream_->failure());
}

Status ExampleSocket::GetReady(std::chrono::milliseconds time, int stop) {
  if (stream_ == nullptr) return Unavailable("the connection was lost");
  const auto deadline = Clock::now() + time;
  while (!is_ready_) {
    const ByteStream::Result result = stream_->ShakeHands();
    if (result == ByteStream::Result::kMoved) {
      is_ready_ = true;
    } else if (result == ByteStream::Result::kNotNow) {
      const short events = stream_->wants_to_write() ? POLLOUT : POLLIN;
      TFDEAR_RETURN_IF_ERROR(Await(fd(), events, deadline, stop));
    } else {
      return Ended(result);
    }
  }
  return Status();
}

Status ExampleSocket::Send(const void* bytes, size_t count, std::chrono::milliseconds time,
                           int stop) {
  TFDEAR_RETURN_IF_ERROR(GetReady(time, stop));
  iovec rest = {const_cast<void*>(bytes), count};
  while (rest.iov_len > 0) {
    size_t moved = 0;
    const ByteStream::Result result = stream_->Send(&rest, 1, &moved);
    if (result == ByteStream::Result::kMoved) {
      rest = {static_cast<char*>(rest.iov_base) + moved, rest.iov_len - moved};
    } else if (result == ByteStream::Result::kNotNow) {
      TFDEAR_RETURN_IF_ERROR(Await(fd(), POLLOUT, Clock::now() + time, stop));
    } else {
      return Ended(result);
    }
  }
  return Status();
}

Status ExampleSocket::Receive(void* bytes, size_t count, std::chrono::milliseconds time, int stop) {
  TFDEAR_RETURN_IF_ERROR(GetReady(time, stop));
  iovec rest = {bytes, count};
  while (rest.iov_len > 0) {
    size_t moved = 0;
    const ByteStream::Result result = stream_->Receive(&rest, 1, &moved);
    if (result == ByteStream::Result::kMoved) {
      rest = {static_cast<char*>(rest.iov_base) + moved, rest.iov_len - moved};
    } else if (result == ByteStream::Result::kNotNow) {
      TFDEAR_RETURN_IF_ERROR(Await(fd(), POLLIN, Clock::now() + time, stop));
    } else {
      return Ended(result);
    }
  }
  return Status();
}

}  // namespace tfdear
