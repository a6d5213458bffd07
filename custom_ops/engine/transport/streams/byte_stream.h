// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <string>
#include <utility>

namespace tfdear {

// The bytes that go over one connected socket. For one thread; no call waits.
class ByteStream {
 public:
  enum class Result {
    kMoved,   // Some bytes: `moved` says how many.
    kNotNow,  // None; the kernel tells when to try again.
    kEnded,   // The peer has closed it.
    kFailed,  // failure() says why.
  };

  // Takes over a connected socket.
  explicit ByteStream(int socket) : socket_(socket) {}
  virtual ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // Agrees with the peer on what it takes to read each other, before anything else is called.
  // kMoved: it is done; kNotNow: wait until the socket is readable, or writable if
  // wants_to_write().
  virtual Result ShakeHands() { return Result::kMoved; }
  virtual bool wants_to_write() const { return false; }

  // What was not sent is offered again, from the same bytes on.
  virtual Result Send(const iovec* parts, size_t count, size_t* moved) = 0;
  // Fills the parts one after another.
  virtual Result Receive(const iovec* parts, size_t count, size_t* moved) = 0;

  // Whether Receive() has bytes of which the kernel does not tell any more.
  virtual bool has_more() const { return false; }
  // Whether bytes are on their way that no call has counted as sent yet.
  virtual bool is_sending() const { return false; }

  int socket() const { return socket_; }
  const std::string& failure() const { return failure_; }
  // After kFailed: whether what came is not what the peer sent, or is of another peer; else it is
  // the line that failed.
  bool is_forged() const { return is_forged_; }

 protected:
  Result Fail(std::string why, bool is_forged = false) {
    failure_ = std::move(why);
    is_forged_ = is_forged;
    return Result::kFailed;
  }

 private:
  const int socket_;
  std::string failure_;
  bool is_forged_ = false;
};

// As they are.
class PlainStream : public ByteStream {
 public:
  using ByteStream::ByteStream;
  Result Send(const iovec* parts, size_t count, size_t* moved) override;
  Result Receive(const iovec* parts, size_t count, size_t* moved) override;
};

}  // namespace tfdear
