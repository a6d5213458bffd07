// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Bytes from whatever listens where a rank was expected to serve examples: who asked for some hears
// about each of them once, and an example that came is whole.

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "custom_ops/engine/examples/crc32c.h"
#include "custom_ops/engine/examples/example_client.h"
#include "tests/cc/fuzz/fuzzing.h"

namespace tfdear {
namespace {

constexpr std::chrono::seconds kTime{10};
constexpr int kAsked = 3;

// Where all inputs come from.
struct Listening {
  Listening() { TFDEAR_FUZZ_CHECK(ExampleSocket::Listen("127.0.0.1", &socket, &address).ok()); }
  ExampleSocket socket;
  std::string address;
};

ExampleSocket Accepted(const Listening& listening) {
  pollfd readable = {listening.socket.fd(), POLLIN, 0};
  TFDEAR_FUZZ_CHECK(poll(&readable, 1, 10000) == 1);
  return ExampleSocket(accept4(listening.socket.fd(), nullptr, nullptr, SOCK_NONBLOCK));
}

}  // namespace
}  // namespace tfdear

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfdear;
  static const Listening listening;
  if (size == 0) return 0;
  ExampleClient::Options options;
  options.address = listening.address;
  options.token.fill(7);
  options.timeout = kTime;
  std::array<std::atomic<int>, kAsked> told{};
  std::unique_ptr<ExampleClient> client;
  const auto receive = [&told](const ExampleClient::Answer& answer) {
    TFDEAR_FUZZ_CHECK(0 <= answer.example && answer.example < kAsked);
    TFDEAR_FUZZ_CHECK(answer.bytes == nullptr || answer.status.ok());
    ++told[answer.example];
  };
  TFDEAR_FUZZ_CHECK(ExampleClient::Start(options, receive, &client).ok());
  for (int64_t example = 0; example < kAsked; ++example) client->Ask(example);
  {
    ExampleSocket socket = Accepted(listening);
    ExampleGreeting greeting;
    TFDEAR_FUZZ_CHECK(socket.Receive(&greeting, sizeof(greeting), kTime, -1).ok());
    if (data[0] % 4 > 0) (void)socket.Send(&greeting, sizeof(greeting), kTime, -1);
    (void)socket.Send(data + 1, size - 1, kTime, -1);
    shutdown(socket.fd(), SHUT_WR);
    // What is asked later than the connection ended is asked on another one: none of it here.
    const auto end = std::chrono::steady_clock::now() + kTime;
    for (const auto& times : told) {
      while (times == 0 && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  }
  client = nullptr;
  for (const auto& times : told) TFDEAR_FUZZ_CHECK(times == 1);
  return 0;
}
