// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Bytes of a peer where frames are expected: they reach the messages that were asked for under
// their name and length, whole, or the connection fails; nothing else is written, nothing waits.
// Frames of the input are headers without their check, which no input would hit: it is added.

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/transport/tcp/tcp_connection.h"
#include "tests/cc/fuzz/fuzzing.h"

namespace tfdear {
namespace {

constexpr int kMessages = 3;
constexpr size_t kMostBytes = 64 << 10;  // What the kernel takes before anybody reads.

struct Frame {
  uint64_t name;
  std::string bytes;
};

// What is sent for an input, and the whole frames at its beginning. A name with its highest bit set
// keeps its header as it is.
std::vector<Frame> FramesOf(FuzzInput input, std::string* sent) {
  std::vector<Frame> frames;
  while (input.size() >= sizeof(TcpConnection::Header)) {
    const std::string raw(input.data(), sizeof(TcpConnection::Header));
    const auto name = input.Take<uint64_t>();
    const auto bytes = input.Take<uint64_t>() & ((uint64_t{1} << 40) - 1);
    TcpConnection::Header header(name, bytes);
    const bool is_raw = name >> 63 != 0;
    if (is_raw) std::memcpy(&header, raw.data(), sizeof(header));
    sent->append(reinterpret_cast<const char*>(&header), sizeof(header));
    if (bytes > input.size() || (is_raw && !header.IsSound())) break;
    const std::string payload(input.data(), bytes);
    for (size_t i = 0; i < bytes; ++i) input.Take<uint8_t>();
    sent->append(payload);
    frames.push_back({name, payload});
  }
  sent->append(input.data(), input.size());
  return frames;
}

}  // namespace
}  // namespace tfdear

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfdear;
  FuzzInput input(data, size);
  // How many are asked for before anything is read; the rest, once nothing more can be.
  const int early = input.Take<uint8_t>() % (kMessages + 1);
  std::array<TcpConnection::Message, kMessages> messages;
  std::array<std::vector<char>, kMessages> targets;
  for (int i = 0; i < kMessages; ++i) {
    const uint64_t name = input.Take<uint8_t>();
    const size_t bytes = 1 + input.Take<uint8_t>();
    targets[i].resize(bytes);
    messages[i].target = targets[i].data();
    messages[i].bytes = bytes;
    messages[i].header = TcpConnection::Header(name, bytes);
  }
  if (input.size() > kMostBytes) return 0;
  std::string sent;
  const std::vector<Frame> frames = FramesOf(input, &sent);

  int ends[2];
  TFDEAR_FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  TFDEAR_FUZZ_CHECK(send(ends[1], sent.data(), sent.size(), MSG_DONTWAIT) ==
                    static_cast<ssize_t>(sent.size()));
  close(ends[1]);
  {
    TcpConnection connection(1, std::make_unique<PlainStream>(ends[0]));
    for (int i = 0; i < early; ++i) connection.Receive(&messages[i]);
    while (connection.Advance()) {
    }
    (void)connection.Unexpected();
    for (int i = early; i < kMessages; ++i) connection.Receive(&messages[i]);
    // As a rank does that waits for them.
    while (connection.Advance() || connection.PutAside()) {
    }
    const bool all_came = std::all_of(messages.begin(), messages.end(),
                                      [](const auto& message) { return message.done; });
    TFDEAR_FUZZ_CHECK(all_came || !connection.failure().empty());
    connection.Forget();
  }
  for (int i = 0; i < kMessages; ++i) {
    if (!messages[i].done) continue;
    TFDEAR_FUZZ_CHECK(std::any_of(frames.begin(), frames.end(), [&](const Frame& frame) {
      return frame.name == messages[i].header.name() &&
             frame.bytes == std::string(targets[i].begin(), targets[i].end());
    }));
  }
  return 0;
}
