// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "custom_ops/engine/base/status.h"

namespace tfdear {

// The messages of one collective between this rank and its peers, over some transport. Both ends of
// a message name the same tag and length. One without bytes is not sent. Errors stick: after one,
// nothing is sent or received, and every wait returns it.
class Channel {
 public:
  // Owned by the channel.
  struct Message {
    int peer = -1;
    size_t bytes = 0;
    char* target = nullptr;
  };
  using Use = std::function<void(const char* values)>;

  static constexpr int kAll = -1;  // In place of a peer, where SendsToAll().

  virtual ~Channel() = default;

  // Says to whom messages will go, and from whom they will come, before the first of them: the
  // transport may have to connect to them first. If this rank names a peer, the peer names it, too.
  virtual Status Reach(const std::vector<int>& peers) { return Status(); }

  // Both start a message. Data stay, and do not change, until it was waited for; without a target
  // the transport chooses where a message arrives. Sending may wait for room, not for its receiver.
  virtual Message* Send(int peer, uint64_t tag, const void* data, size_t bytes) = 0;
  virtual Message* Receive(int peer, uint64_t tag, void* target, size_t bytes) = 0;

  // Waits for a message, then calls `use` with what was received.
  virtual Status Wait(Message* message, const Use& use) = 0;
  Status Wait(Message* message) { return Wait(message, nullptr); }
  virtual Status WaitForSends() = 0;

  // Whether one message reaches all peers.
  virtual bool SendsToAll() const { return false; }
  // How many rounds of receives, and of so many sends, to start before the first is waited for.
  virtual size_t ReceivesAhead() const = 0;
  virtual size_t SendsAhead(size_t messages) const = 0;
  // Called before more is sent: waits for what goes first.
  virtual void GiveWay() {}
};

}  // namespace tfdear
