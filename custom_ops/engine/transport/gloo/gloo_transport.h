// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/transport/message_transport.h"
#include "custom_ops/engine/transport/received_memory.h"

namespace gloo::transport {
class Context;
class UnboundBuffer;
}  // namespace gloo::transport

namespace tfdear {

class GlooPoster;

// A transport on the connections of Gloo, for trusted networks and for comparison.
//
// [Note: how waits end]
// gloo ends a wait that runs out of time by closing ALL connections of the rank, which its
// neighbours would take for the death of this rank. So gloo is told to wait practically for ever,
// and a watchdog thread here wakes the waiting thread at its deadline by the same call that
// Abort() uses. The connections stay open until Abort() or destruction.
class GlooTransport : public MessageTransport {
 public:
  // Binds to `bind_address` and nothing else. `timeout` bounds Connect() and, later, every wait.
  // `connections` to each peer, equal on all ranks.
  static Status Create(int rank, int size, const std::string& bind_address,
                       std::chrono::milliseconds timeout, int connections,
                       std::unique_ptr<GlooTransport>* result);
  ~GlooTransport() override;
  GlooTransport(const GlooTransport&) = delete;
  GlooTransport& operator=(const GlooTransport&) = delete;

  std::string Listen() override;
  Status Connect(const std::vector<std::string>& blob_of_rank) override;
  std::unique_ptr<Channel> Open(const char* operation, const Signature& signature,
                                uint64_t sequence, uint64_t round) override;
  void Abort(const Status& cause) override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  size_t connections() const override { return connections_; }
  int waiting_for() const override { return waiting_for_.load(std::memory_order_relaxed); }
  uint64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }
  FailureState* failure() override { return &failure_; }
  void set_give_way(std::function<void()> give_way) override { give_way_ = std::move(give_way); }

 private:
  friend class GlooExchange;

  GlooTransport(int rank, int size, std::chrono::milliseconds timeout, int connections);

  Status ConnectPeer(int peer, const std::vector<std::string>& addresses,
                     std::chrono::steady_clock::time_point deadline);
  void Watch();
  void CloseConnections() TFDEAR_EXCLUDES(mutex_);
  // Records an exception of gloo, which almost always means a closed connection, and returns what
  // the caller is to report. Wakes the waiting thread if that is another one.
  Status PeerFailed(int peer, const std::string& what) TFDEAR_EXCLUDES(mutex_);
  void WakeWaiterLocked() TFDEAR_REQUIRES(mutex_);

  std::function<void()> give_way_;
  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  const int connections_;
  // What gloo calls a context is one connection to every peer.
  std::vector<std::shared_ptr<gloo::transport::Context>> contexts_;
  std::unique_ptr<GlooPoster> poster_;
  ReceivedMemory memory_;  // For the thread that runs collectives.

  // Has a lock of its own, but changes with mutex_ held: no wait begins between a failure and the
  // wake-up of whoever waits.
  FailureState failure_;

  Mutex mutex_;
  // The running collective: "all_reduce 'text' (sequence 3)".
  const std::string* active_ TFDEAR_GUARDED_BY(mutex_) = nullptr;
  bool connections_closed_ TFDEAR_GUARDED_BY(mutex_) = false;
  bool stopping_ TFDEAR_GUARDED_BY(mutex_) = false;
  gloo::transport::UnboundBuffer* waiting_buffer_ TFDEAR_GUARDED_BY(mutex_) = nullptr;
  bool waiting_is_send_ TFDEAR_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point wait_deadline_ TFDEAR_GUARDED_BY(mutex_);
  std::condition_variable watchdog_wakes_;

  Mutex closing_mutex_;  // Held while connections are closed; taken without mutex_.
  std::atomic<int> waiting_for_{-1};
  std::atomic<uint64_t> bytes_sent_{0};
  std::thread watchdog_;
};

}  // namespace tfdear
