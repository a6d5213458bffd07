// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "custom_ops/engine/base/status.h"

namespace tfdear {

// [Note: reads of other nodes' examples]
// A rank asks the rank of its own local number on another node for examples, over a TCP connection.
// A read is one-sided: ranks are at different steps, and in a lane it would hold up gradients.
// The asking side begins with the token that the job's ranks share, and is answered by the same.
// Then it sends requests, each the numbers of some examples, and gets an answer for each number, in
// the order in which they are there. All numbers are little-endian, as on all machines that the
// library runs on. Whatever breaks these rules ends the connection, and nothing else.

using ExampleToken = std::array<unsigned char, 32>;

// What a connection begins with, in both directions.
struct ExampleGreeting {
  static constexpr uint64_t kMagic = 0x3173656c706d6178;  // "xamples1"
  uint64_t magic = kMagic;
  ExampleToken token;
};

// Before the numbers of a request.
struct ExampleRequest {
  static constexpr uint64_t kMost = 4096;  // Of all requests that are not answered yet.
  uint64_t count = 0;
};

enum class ExampleState : uint32_t {
  kHere,     // Its record follows.
  kNotHeld,  // It does not fit into the memory of its node, or its owner cannot prepare it.
};

// Before the record of an example.
struct ExampleAnswer {
  static constexpr uint64_t kMostBytes = uint64_t{1} << 32;
  uint64_t example = 0;
  uint64_t bytes = 0;
  ExampleState state = ExampleState::kHere;
  uint32_t crc = 0;
};

static_assert(sizeof(ExampleGreeting) == 40 && sizeof(ExampleAnswer) == 24, "no padding");

// Whether a text is a token, of 64 hexadecimal digits.
bool ParseToken(const std::string& text, ExampleToken* token);
// In a time that does not tell where they differ.
bool SameToken(const ExampleToken& one, const ExampleToken& other);

// A TCP socket that is closed with its object. Calls fail after a deadline, and where `stop` is
// readable, which ends all of them.
class ExampleSocket {
 public:
  explicit ExampleSocket(int fd = -1) : fd_(fd) {}
  ExampleSocket(ExampleSocket&& other) noexcept : fd_(other.Release()) {}
  ExampleSocket& operator=(ExampleSocket&& other) noexcept;
  ~ExampleSocket();

  // `address`: "HOST PORT", numeric.
  static Status Connect(const std::string& address, std::chrono::milliseconds time, int stop,
                        ExampleSocket* connected);
  // Listens on a free port of a numeric host; `*address`: for Connect().
  static Status Listen(const std::string& host, ExampleSocket* listening, std::string* address);

  int fd() const { return fd_; }
  Status Send(const void* bytes, size_t count, std::chrono::milliseconds time, int stop);
  // The deadline starts anew with every byte.
  Status Receive(void* bytes, size_t count, std::chrono::milliseconds time, int stop);
  // Whether the other side has closed it.
  bool Closed() const;

 private:
  int Release();
  int fd_;
};

}  // namespace tfdear
