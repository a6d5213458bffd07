// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Bytes from a rank that is asked for examples: who asked for some hears about each of them once,
// and an example that came is whole.

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "custom_ops/engine/examples/crc32c.h"
#include "custom_ops/engine/examples/example_client.h"
#include "tests/cc/fuzz/fuzzing.h"

namespace tfdear {
namespace {

constexpr std::chrono::seconds kTime{10};
constexpr int kAsked = 3;

}  // namespace
}  // namespace tfdear

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfdear;
  int ends[2];
  TFDEAR_FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  ExampleClient::Options options;
  options.timeout = kTime;
  std::array<std::atomic<int>, kAsked> told{};
  std::unique_ptr<ExampleClient> client;
  const auto receive = [&told](const ExampleClient::Answer& answer) {
    TFDEAR_FUZZ_CHECK(0 <= answer.example && answer.example < kAsked);
    TFDEAR_FUZZ_CHECK(answer.bytes == nullptr || answer.status.ok());
    ++told[answer.example];
  };
  ExampleSocket asking(std::make_unique<PlainStream>(ends[0]));
  TFDEAR_FUZZ_CHECK(ExampleClient::Start(options, receive, std::move(asking), &client).ok());
  for (int64_t example = 0; example < kAsked; ++example) {
    TFDEAR_FUZZ_CHECK(client->Ask(example).ok());
  }
  {
    ExampleSocket socket(std::make_unique<PlainStream>(ends[1]));
    (void)socket.Send(data, size, kTime, -1);
    shutdown(socket.fd(), SHUT_WR);
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
