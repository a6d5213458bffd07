// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/examples/example_wire.h"
#include "custom_ops/engine/record/event_record.h"

namespace tfdear {

// Gives examples of this node to ranks of other ones that ask for them; see [Note: reads of other
// nodes' examples]. A thread accepts connections, another one serves each. Thread safe.
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
    std::string host;  // To listen on, numeric.
    ExampleToken token;
    int64_t examples = 0;
    EventRecord* events = nullptr;  // May be none.
    // How long a client may take to show its token, or to take bytes that were sent.
    std::chrono::milliseconds greeting_time{5000};
    std::chrono::milliseconds timeout{600000};
    // Connections at a time; more are closed.
    int most_connections = 1024;
  };

  // What has happened so far.
  struct Counts {
    std::atomic<int64_t> served{0};
    std::atomic<int64_t> served_bytes{0};
    std::atomic<int64_t> refused{0};  // Connections without the token, or that broke the rules.
  };

  static Status Start(const Options& options, Source source,
                      std::unique_ptr<ExampleServer>* result);
  ~ExampleServer();

  // For ExampleSocket::Connect().
  const std::string& address() const { return address_; }
  const Counts& counts() const { return counts_; }

 private:
  struct Connection {
    ExampleSocket socket;
    std::thread thread;
    std::atomic<bool> over{false};
  };

  ExampleServer(const Options& options, Source source)
      : options_(options), source_(std::move(source)) {}
  void Accept();
  void CollectEndedLocked() TFDEAR_REQUIRES(mutex_);
  // Serves a connection until it ends; why it did.
  Status Serve(ExampleSocket* socket);
  // Adds the numbers of a request to those that were asked for.
  Status ReceiveRequest(ExampleSocket* socket, std::vector<uint64_t>* asked);
  // Answers what can be answered now, and leaves what comes later.
  Status Answer(ExampleSocket* socket, std::vector<uint64_t>* asked, int64_t* bytes);

  const Options options_;
  const Source source_;
  std::string address_;
  ExampleSocket listening_;
  int stop_ = -1;  // An eventfd, readable at the end.
  Counts counts_;
  std::thread accepting_;
  Mutex mutex_;
  std::list<Connection> connections_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
