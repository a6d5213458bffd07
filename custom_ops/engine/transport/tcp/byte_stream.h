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

  // What was not sent is offered again, from the same bytes on.
  virtual Result Send(const iovec* parts, size_t count, size_t* moved) = 0;
  // Fills the parts one after another.
  virtual Result Receive(const iovec* parts, size_t count, size_t* moved) = 0;

  // Whether bytes are on their way that no call has counted as sent yet.
  virtual bool is_sending() const { return false; }

  int socket() const { return socket_; }
  const std::string& failure() const { return failure_; }

 protected:
  Result Fail(std::string why) {
    failure_ = std::move(why);
    return Result::kFailed;
  }

 private:
  const int socket_;
  std::string failure_;
};

// As they are.
class PlainStream : public ByteStream {
 public:
  using ByteStream::ByteStream;
  Result Send(const iovec* parts, size_t count, size_t* moved) override;
  Result Receive(const iovec* parts, size_t count, size_t* moved) override;
};

}  // namespace tfdear
