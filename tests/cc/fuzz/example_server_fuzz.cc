// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Bytes from a rank that asks for a cache's examples: they are answered where it asks by the rules,
// and the connection is closed where it breaks them.

#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/examples/crc32c.h"
#include "custom_ops/engine/examples/example_server.h"
#include "tests/cc/fuzz/fuzzing.h"

namespace tfdear {
namespace {

constexpr int64_t kExamples = 1000;
constexpr std::chrono::seconds kTime{10};
constexpr char kRecord[] = "a record";

// Serves the other end of `asking`.
std::unique_ptr<ExampleServer> Serve(ExampleSocket* asking) {
  int ends[2];
  TFDEAR_FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  *asking = ExampleSocket(std::make_unique<PlainStream>(ends[0]));
  std::vector<ExampleSocket> served;
  served.emplace_back(std::make_unique<PlainStream>(ends[1]));
  ExampleServer::Options options;
  options.examples = kExamples;
  const auto source = [](int64_t example) {
    TFDEAR_FUZZ_CHECK(0 <= example && example < kExamples);
    ExampleServer::Look look;
    if (example % 3 == 0) look = {ExampleServer::Look::kHere, kRecord, sizeof(kRecord)};
    return look;
  };
  std::unique_ptr<ExampleServer> server;
  TFDEAR_FUZZ_CHECK(ExampleServer::Start(options, source, std::move(served), &server).ok());
  return server;
}

// Takes answers until the connection ends; how many there were.
int TakeAnswers(ExampleSocket* socket) {
  int answers = 0;
  ExampleAnswer answer;
  while (socket->Receive(&answer, sizeof(answer), kTime, -1).ok()) {
    TFDEAR_FUZZ_CHECK(answer.example < kExamples);
    const bool here = answer.example % 3 == 0;
    TFDEAR_FUZZ_CHECK(answer.state == (here ? ExampleState::kHere : ExampleState::kNotHeld));
    TFDEAR_FUZZ_CHECK(answer.bytes == (here ? sizeof(kRecord) : 0));
    std::vector<char> record(answer.bytes);
    // A connection that ends while there is more to read ends at once.
    if (!socket->Receive(record.data(), record.size(), kTime, -1).ok()) break;
    if (here) TFDEAR_FUZZ_CHECK(Crc32c(record.data(), record.size()) == answer.crc);
    ++answers;
  }
  return answers;
}

// The answers that are due to these bytes.
int AnswersDue(FuzzInput input) {
  int due = 0;
  while (input.size() >= sizeof(uint64_t)) {
    const uint64_t count = input.Take<uint64_t>();
    if (count == 0 || count > ExampleRequest::kMost) break;
    if (input.size() < count * sizeof(uint64_t)) break;
    bool valid = true;
    for (uint64_t i = 0; i < count; ++i) valid &= input.Take<uint64_t>() < kExamples;
    if (!valid) break;
    due += static_cast<int>(count);
  }
  return due;
}

}  // namespace
}  // namespace tfdear

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfdear;
  ExampleSocket socket;
  const auto server = Serve(&socket);
  // It may have been closed meanwhile.
  (void)socket.Send(data, size, kTime, -1);
  shutdown(socket.fd(), SHUT_WR);
  TFDEAR_FUZZ_CHECK(TakeAnswers(&socket) <= AnswersDue(FuzzInput(data, size)));
  return 0;
}
