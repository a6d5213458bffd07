// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Bytes from a connection to the server of a cache's examples, which another process may have
// opened: it answers what is asked by the rules, closes the connection where they are broken, and
// serves the next one. The first byte says whether the job's token comes first.

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

// One for all inputs.
struct Served {
  Served() {
    token.fill(7);
    ExampleServer::Options options;
    options.host = "127.0.0.1";
    options.token = token;
    options.examples = kExamples;
    const auto source = [](int64_t example) {
      TFDEAR_FUZZ_CHECK(0 <= example && example < kExamples);
      ExampleServer::Look look;
      if (example % 3 == 0) look = {ExampleServer::Look::kHere, kRecord, sizeof(kRecord)};
      return look;
    };
    TFDEAR_FUZZ_CHECK(ExampleServer::Start(options, source, &server).ok());
  }

  ExampleToken token;
  std::unique_ptr<ExampleServer> server;
};

ExampleSocket Connected(const Served& served) {
  ExampleSocket socket;
  TFDEAR_FUZZ_CHECK(ExampleSocket::Connect(served.server->address(), kTime, -1, &socket).ok());
  return socket;
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

// The answers that are due to these bytes, sent after the token.
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
  static const Served served;
  if (size == 0) return 0;
  ExampleSocket socket = Connected(served);
  const bool with_token = data[0] % 4 > 0;
  if (with_token) {
    ExampleGreeting greeting;
    greeting.token = served.token;
    TFDEAR_FUZZ_CHECK(socket.Send(&greeting, sizeof(greeting), kTime, -1).ok());
    TFDEAR_FUZZ_CHECK(socket.Receive(&greeting, sizeof(greeting), kTime, -1).ok());
  }
  // It may have been closed meanwhile.
  (void)socket.Send(data + 1, size - 1, kTime, -1);
  shutdown(socket.fd(), SHUT_WR);
  const int answers = TakeAnswers(&socket);
  const FuzzInput input(data + 1, size - 1);
  TFDEAR_FUZZ_CHECK(answers <= (with_token ? AnswersDue(input) : 0));
  return 0;
}
