// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/transport/message_transport.h"
#include "custom_ops/engine/transport/received_memory.h"
#include "custom_ops/engine/transport/sockets.h"
#include "custom_ops/engine/transport/streams/tls_stream.h"
#include "custom_ops/engine/transport/tcp/tcp_connection.h"

namespace tfdear {

// A transport over sockets that somebody else connects.
//
// [Note: connected when needed]
// Where a `Connector` makes connections, a collective asks for those to the peers that it names
// (Channel::Reach) and that none has named before. A ring needs two, a recursive exchange a
// few; a group that nobody uses needs none. Both ends of a connection ask for it, at the same
// place of their program, and wait for each other as they would for the collective's messages. The
// same when there shall be more of them (SetConnections()); those of which there shall be fewer
// stay idle, as closing them would look like an end of this rank.
//
// [Note: who moves bytes]
// The thread that runs a collective moves its bytes, while it waits: no other thread touches the
// sockets, so there are no locks, and no thread has to be woken for another one to go on. Between
// waits the kernel's buffers keep the line busy.
//
// [Note: the last bytes leave first]
// A socket hands the link two packets, of 64 KiB, and the next when they have left. So where a rank
// sends to many peers at once, the last bytes of each message leave behind the first ones of all
// others, and behind those of the next collective, too, if the rank has all that it needs for it.
// Who waits for them is late then, and with it all ranks. (8 ranks at 1 Gbit/s used 0.6 of the
// line for payloads of 1 MiB.) So a collective begins when the kernel has handed on what the one
// before has sent; after a while it begins all the same, as a peer may be slow to read.
class TcpTransport : public MessageTransport {
 public:
  // What encrypts the connections: a key that the ranks of this job have and nobody else, none
  // where they are in the clear; the name of the group; and its members, by the numbers that tell
  // them from those of other groups of that name.
  struct Encryption {
    std::string key;
    std::string group;
    std::vector<int> ranks;
  };

  // Connects this rank to peers, which do the same: gives the sockets with the numbers in a range
  // for each of them, or says which of them is to blame (-1: none). It is called by the thread that
  // runs a collective, and must return soon after Abort().
  using Connector = std::function<Status(const std::vector<int>& peers, Range numbers,
                                         Sockets* sockets, int* failed_peer)>;

  // `sockets`: as many for each peer. `timeout` bounds every wait.
  static Status Create(int rank, int size, std::chrono::milliseconds timeout, Sockets sockets,
                       std::unique_ptr<TcpTransport>* result, const Encryption& encryption = {});
  // Connected when it is needed, by `connections` sockets to each peer.
  static Status Create(int rank, int size, std::chrono::milliseconds timeout, Connector connector,
                       size_t connections, std::unique_ptr<TcpTransport>* result,
                       const Encryption& encryption = {});
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  // Has nothing to publish. Connect() encrypts the connections that are there.
  std::string Listen() override { return "tcp"; }
  Status Connect(const std::vector<std::string>& blob_of_rank) override;

  std::unique_ptr<Channel> Open(const char* operation, const Signature& signature,
                                uint64_t sequence, uint64_t round) override;
  void Abort(const Status& cause) override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  size_t connections() const override { return number_; }
  int waiting_for() const override { return waiting_for_.load(std::memory_order_relaxed); }
  uint64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }
  FailureState* failure() override { return &failure_; }
  Status SetConnections(size_t number) override;
  void set_give_way(std::function<void()> give_way) override { give_way_ = std::move(give_way); }

 private:
  friend class TcpExchange;
  using Clock = std::chrono::steady_clock;

  TcpTransport(int rank, int size, std::chrono::milliseconds timeout, Encryption encryption);
  Status Open();
  // Takes those to `peers` over, of which there are as many as `numbers` says.
  Status Add(const std::vector<int>& peers, Range numbers, Sockets sockets);
  Status AddConnection(int peer, size_t number, int socket) TFDEAR_REQUIRES(mutex_);
  Status ShakeHands();

  // The following are for the thread that runs collectives.
  Status Begin(const std::string* call);
  // Connects to those of the peers to whom this rank has not all its connections yet.
  Status Reach(const std::vector<int>& peers);
  Status ConnectTo(const std::vector<int>& peers, Range numbers);
  // [Note: the last bytes leave first]
  void AwaitLastBytes();
  void End();
  TcpConnection* ConnectionTo(int peer, uint64_t tag) const {
    return of_peer_[peer][tag % number_];
  }
  void Start(TcpConnection::Message* message, bool is_send);
  Status Await(const TcpConnection::Message& message, bool is_send);
  // Moves what can be moved on all connections. True if anything was.
  bool Advance();
  // Waits for news from the kernel, or for Abort().
  void Sleep(Clock::time_point until);
  Status PeerFailed(const TcpConnection& connection);
  void CloseLocked() TFDEAR_REQUIRES(mutex_);

  std::function<void()> give_way_;
  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  const Encryption encryption_;
  Connector connector_;
  size_t number_ = 1;  // Of connections to each peer.
  // They grow in the thread that runs collectives, with the mutex held.
  std::deque<TcpConnection> connections_;
  std::vector<std::vector<TcpConnection*>> of_peer_;
  // Connections whose ends have not agreed yet.
  struct Handshake {
    ByteStream* stream;
    int peer;
  };
  std::vector<Handshake> handshakes_;
  int epoll_ = -1;
  int abort_event_ = -1;
  const std::string* call_ = nullptr;  // The running collective: "all_reduce 'x' (sequence 3)".
  // Those with messages under way, and those that have sent some since the last bytes had left.
  std::vector<TcpConnection*> busy_;
  std::vector<TcpConnection*> senders_;
  ReceivedMemory memory_;

  FailureState failure_;
  Mutex mutex_;
  bool is_active_ TFDEAR_GUARDED_BY(mutex_) = false;
  bool is_closed_ TFDEAR_GUARDED_BY(mutex_) = false;
  std::atomic<int> waiting_for_{-1};
  std::atomic<uint64_t> bytes_sent_{0};
};

}  // namespace tfdear
