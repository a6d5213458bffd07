// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/transport/streams/byte_stream.h"

namespace tfdear {

// [Note: reads of other nodes' examples]
// A rank asks the rank of its own local number on another node for examples, over a TCP connection
// that both have made as they make those for gradients: each knows who the other one is, and with
// TFDEAR_TLS=1 nobody between them reads or changes anything.
// A read is one-sided: ranks are at different steps, and in a lane it would hold up gradients.
// The asking side sends requests, each the numbers of some examples, and gets an answer for each
// number, in the order in which they are there. All numbers are little-endian, as on all machines
// that the library runs on. Whatever breaks these rules ends the connection, and nothing else.

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

static_assert(sizeof(ExampleAnswer) == 24, "no padding");

// The bytes of a connection that is closed with its object. Calls fail after a deadline, and where
// `stop` is readable, which ends all of them: kUnavailable where the connection has ended,
// kInternal where what came is not what the other side sent. For one thread at a time.
class ExampleSocket {
 public:
  ExampleSocket() = default;  // None.
  // The first call that moves bytes shakes hands before: the other side then has to do the same.
  explicit ExampleSocket(std::unique_ptr<ByteStream> stream);

  int fd() const { return stream_ == nullptr ? -1 : stream_->socket(); }
  // Whether there is something to receive of which the kernel does not tell.
  bool has_more() const { return is_ready_ && stream_->has_more(); }
  Status Send(const void* bytes, size_t count, std::chrono::milliseconds time, int stop);
  // The deadline starts anew with every byte.
  Status Receive(void* bytes, size_t count, std::chrono::milliseconds time, int stop);

 private:
  Status GetReady(std::chrono::milliseconds time, int stop);
  Status Ended(ByteStream::Result result) const;

  std::unique_ptr<ByteStream> stream_;
  bool is_ready_ = false;
};

}  // namespace tfdear
