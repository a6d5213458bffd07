// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#ifndef TFDEAR_ENGINE_EXCHANGE_H_
#define TFDEAR_ENGINE_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/gloo_poster.h"
#include "custom_ops/engine/gloo_transport.h"
#include "custom_ops/engine/signature.h"

namespace tfdear {

// The messages of one collective on one rank. A message is known by (signature, sequence, tag,
// its length); sender and receiver name it alike, or it is never delivered. Errors stick: after
// one, nothing is sent or received and every Wait returns it. The destructor takes back whatever
// is still under way; no memory is touched after it.
class Exchange {
 public:
  struct Message {
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    int peer = -1;
    bool is_send = false;
  };

  // `operation` is the collective's name; `round` tells collectives with equal signature and
  // sequence apart.
  Exchange(GlooTransport* transport, const char* operation, const Signature& signature,
           uint64_t sequence, uint64_t round);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Both prepare a message and return at once; the next Wait starts all that are prepared. Data
  // must stay until the message was waited for.
  // Messages without bytes are not sent and need no Wait. Tags: one message per peer and tag; those
  // of successive messages follow one another, as they choose among the connections.
  Message* Send(int peer, uint64_t tag, const void* data, size_t bytes);
  Message* Receive(int peer, uint64_t tag, void* data, size_t bytes);

  Status Wait(Message* message);
  Status WaitForSends();
  Status status() const { return status_; }

 private:
  uint64_t SlotOf(uint64_t tag, size_t bytes) const;
  void Start(Message* message, uint64_t tag, void* data, size_t bytes);

  GlooTransport* const transport_;
  const std::string what_;
  const uint64_t key_;
  Status status_;
  std::deque<Message> sends_;
  std::deque<Message> receives_;
  std::vector<GlooPoster::Operation> unposted_;
};

}  // namespace tfdear

#endif  // TFDEAR_ENGINE_EXCHANGE_H_
