// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/streams/byte_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tfdear {
namespace {

bool WouldWait() { return errno == EAGAIN || errno == EWOULDBLOCK; }

msghdr MessageOf(const iovec* parts, size_t count) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = count;
  return message;
}

}  // namespace

ByteStream::~ByteStream() { close(socket_); }

ByteStream::Result PlainStream::Send(const iovec* parts, size_t count, size_t* moved) {
  const msghdr message = MessageOf(parts, count);
  ssize_t written;
  do {
    written = sendmsg(socket(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (written < 0 && errno == EINTR);
  if (written >= 0) {
    *moved = written;
    return Result::kMoved;
  }
  return WouldWait() ? Result::kNotNow : Fail(std::string("sending: ") + std::strerror(errno));
}

ByteStream::Result PlainStream::Receive(const iovec* parts, size_t count, size_t* moved) {
  msghdr message = MessageOf(parts, count);
  ssize_t read;
  do {
    read = recvmsg(socket(), &message, MSG_DONTWAIT);
  } while (read < 0 && errno == EINTR);
  if (read > 0) {
    *moved = read;
    return Result::kMoved;
  }
  if (read == 0) return Result::kEnded;
  return WouldWait() ? Result::kNotNow : Fail(std::string("receiving: ") + std::strerror(errno));
}

}  // namespace tfdear
