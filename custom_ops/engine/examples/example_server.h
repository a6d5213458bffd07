// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/examples/example_wire.h"
#include "custom_ops/engine/record/event_record.h"

namespace tfdear {

// Gives examples of this node to ranks of other ones that ask for them; see [Note: reads of other
// nodes' examples]. A thread serves each connection. Thread safe.
class ExampleServer {
 public:
  // What the server knows of an example now.
  struct Look {
    enum State { kHere, kComing, kNotHeld } state = kNotHeld;
    const char* data = nullptr;  // Stays where it is.
    size_t bytes = 0;
  };
  using Source = std::function<Look(int64_t example)>;

  struct Options {
    int64_t examples = 0;
    EventRecord* events = nullptr;  // May be none.
    // How long a client may take to complete a request, or to take bytes that were sent.
    std::chrono::milliseconds timeout{600000};
  };

  // What has happened so far.
  struct Counts {
    std::atomic<int64_t> served{0};
    std::atomic<int64_t> served_bytes{0};
    // Connections that broke the rules, or carried what the other side did not send.
    std::atomic<int64_t> refused{0};
  };

  // `sockets`: to those who ask.
  static Status Start(const Options& options, Source source, std::vector<ExampleSocket> sockets,
                      std::unique_ptr<ExampleServer>* result);
  ~ExampleServer();

  const Counts& counts() const { return counts_; }

 private:
  ExampleServer(const Options& options, Source source)
      : options_(options), source_(std::move(source)) {}
  // Serves a connection until it ends; why it did.
  Status Serve(ExampleSocket* socket);
  // Adds the numbers of a request to those that were asked for.
  Status ReceiveRequest(ExampleSocket* socket, std::vector<uint64_t>* asked);
  // Answers what can be answered now, and leaves what comes later.
  Status Answer(ExampleSocket* socket, std::vector<uint64_t>* asked, int64_t* bytes);

  const Options options_;
  const Source source_;
  int stop_ = -1;  // An eventfd, readable at the end.
  Counts counts_;
  std::vector<std::thread> threads_;
};

}  // namespace tfdear
