// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/transport/channel.h"
#include "custom_ops/engine/transport/gloo/gloo_poster.h"
#include "custom_ops/engine/transport/gloo/gloo_transport.h"

namespace tfdear {

// The messages of one collective over gloo's connections. A message is addressed by (signature,
// sequence, tag, length), and delivered only if sender and receiver agree on all of it. The
// destructor cancels whatever is still under way; no memory is touched after it.
class GlooExchange : public Channel {
 public:
  GlooExchange(GlooTransport* transport, const char* operation, const Signature& signature,
               uint64_t sequence, uint64_t round);
  ~GlooExchange() override;
  GlooExchange(const GlooExchange&) = delete;
  GlooExchange& operator=(const GlooExchange&) = delete;

  // Both only prepare a message; the next Wait() starts all that are prepared. Tags: one message
  // per peer and tag; those of successive messages follow one another, as they choose among the
  // connections.
  Message* Send(int peer, uint64_t tag, const void* data, size_t bytes) override;
  Message* Receive(int peer, uint64_t tag, void* target, size_t bytes) override;
  using Channel::Wait;
  Status Wait(Message* message, const Use& use) override;
  Status WaitForSends() override;
  size_t ReceivesAhead() const override;
  size_t SendsAhead(size_t messages) const override;
  void GiveWay() override;

 private:
  struct GlooMessage : Message {
    GlooMessage(int peer, size_t bytes, char* target, bool is_send)
        : Message{peer, bytes, target}, is_send(is_send) {}
    const bool is_send;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    std::vector<char> memory;  // Where it arrives without a target.
  };

  void Prepare(GlooMessage* message, uint64_t tag);

  GlooTransport* const transport_;
  const std::string what_;
  const uint64_t key_;
  Status status_;
  std::deque<GlooMessage> sends_;
  std::deque<GlooMessage> receives_;
  std::vector<GlooPoster::Operation> unposted_;
};

}  // namespace tfdear
