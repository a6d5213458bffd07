// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/examples/example_wire.h"
#include "custom_ops/engine/examples/rate_limit.h"
#include "custom_ops/engine/record/event_record.h"

namespace tfdear {

// Asks the rank of another node for examples, in a thread that begins when the first one is wanted;
// see [Note: reads of other nodes' examples]. Thread safe.
class ExampleClient {
 public:
  // What became of an example. Without an error and without bytes: the node does not hold it.
  struct Answer {
    int64_t example = 0;
    Status status;
    std::shared_ptr<const std::vector<char>> bytes;
  };
  // Called by the client's thread, once each time that an example was asked for.
  using Receiver = std::function<void(Answer answer)>;

  struct Options {
    int rank = 0;  // The one that is asked, for messages.
    // How long it may send nothing though it was asked for something.
    std::chrono::milliseconds timeout{600000};
    // Which clients share; null: there is none.
    std::shared_ptr<RateLimit> limit;
    bool verify = true;             // Whether checksums are compared.
    EventRecord* events = nullptr;  // May be none.
  };

  // `socket`: to the rank that is asked. What is asked for when it has ended, or is not whole, is
  // not held.
  static Status Start(const Options& options, Receiver receiver, ExampleSocket socket,
                      std::unique_ptr<ExampleClient>* result);
  // Answers that have not come do not come any more.
  ~ExampleClient();

  // An error: it is not asked for.
  Status Ask(int64_t example) TFDEAR_EXCLUDES(mutex_);
  int64_t received_bytes() const { return received_bytes_; }

 private:
  ExampleClient(const Options& options, Receiver receiver)
      : options_(options), receiver_(std::move(receiver)) {}
  void Run();
  // Until the connection ends, which it does when the client is destroyed; why it did.
  Status Exchange();
  Status SendRequest(const std::vector<uint64_t>& examples);
  Status ReceiveAnswer();
  // Notes in which time examples came, now and then.
  void NoteFetched();

  const Options options_;
  const Receiver receiver_;
  ExampleSocket socket_;                // Of the thread.
  std::unordered_set<uint64_t> asked_;  // Of the thread: what has no answer yet.
  // Of the thread: since when something has been asked for that is not noted yet, and what came.
  int64_t busy_since_us_ = 0;
  int64_t busy_bytes_ = 0;
  std::atomic<int64_t> received_bytes_{0};
  int stop_ = -1;  // An eventfd, readable at the end.
  int wake_ = -1;  // Another one, readable when there is something to ask for.
  Mutex mutex_;
  std::deque<uint64_t> wanted_ TFDEAR_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tfdear
