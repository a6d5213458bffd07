// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/transport/channel.h"
#include "custom_ops/engine/transport/failure_state.h"

namespace tfdear {

// The connections of one rank to all its peers, with deadlines and Abort(). Collectives exchange
// messages over them, one collective at a time and from one thread at a time; Abort() and the
// getters are safe from any thread.
//
// A peer may be reached by several connections, among which the messages of a collective take
// turns: for networks that give a single one less than the link has.
class MessageTransport {
 public:
  virtual ~MessageTransport() = default;

  // What this rank has to publish, and the connections to all, by what each has published.
  virtual std::string Listen() = 0;
  virtual Status Connect(const std::vector<std::string>& blob_of_rank) = 0;

  // The messages of one collective; the channel must end before the next one's is opened.
  // `operation` is the collective's name; `round` tells collectives with equal signature and
  // sequence apart.
  virtual std::unique_ptr<Channel> Open(const char* operation, const Signature& signature,
                                        uint64_t sequence, uint64_t round) = 0;

  virtual void Abort(const Status& cause) = 0;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int waiting_for() const = 0;
  virtual uint64_t bytes_sent() const = 0;
  virtual FailureState* failure() = 0;

  // To each peer.
  virtual size_t connections() const { return 1; }
  // Uses so many connections to each peer from the next collective on, as all ranks do; an error
  // where their number is fixed. By the thread that runs collectives.
  virtual Status SetConnections(size_t number) {
    return InvalidArgument("this transport cannot change to ", number, " connections to each peer");
  }

  // What is called between two segments of a collective; before the first.
  virtual void set_give_way(std::function<void()> give_way) = 0;
};

}  // namespace tfdear
