// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/transport/channel.h"
#include "custom_ops/engine/transport/tcp/tcp_transport.h"

namespace tfdear {

// The messages of one collective over a TcpTransport. What is not done when it ends is given up,
// and nothing can follow it.
class TcpExchange : public Channel {
 public:
  TcpExchange(TcpTransport* transport, const char* operation, const Signature& signature,
              uint64_t sequence, uint64_t round);
  ~TcpExchange() override;
  TcpExchange(const TcpExchange&) = delete;
  TcpExchange& operator=(const TcpExchange&) = delete;

  Status Reach(const std::vector<int>& peers) override;
  // Both only note a message; it moves in the next Wait(). Tags: one message per peer and tag;
  // those of successive messages follow one another, as they choose among the connections.
  Message* Send(int peer, uint64_t tag, const void* data, size_t bytes) override;
  Message* Receive(int peer, uint64_t tag, void* target, size_t bytes) override;
  using Channel::Wait;
  Status Wait(Message* message, const Use& use) override;
  Status WaitForSends() override;
  size_t ReceivesAhead() const override;
  size_t SendsAhead(size_t messages) const override;
  void GiveWay() override;

 private:
  void Start(TcpConnection::Message* message, uint64_t tag, bool is_send);

  TcpTransport* const transport_;
  const std::string what_;
  const uint64_t key_;
  Status status_;
  std::deque<TcpConnection::Message> sends_;
  size_t sends_waited_for_ = 0;
  std::deque<TcpConnection::Message> receives_;
};

}  // namespace tfdear
