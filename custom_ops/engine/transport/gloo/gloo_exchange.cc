// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/gloo/gloo_exchange.h"

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace tfdear {
namespace {

// With fewer, one connection runs dry between segments. Not many more, either: a sender that may
// put whole shards on the line for all peers at once overruns the queue of the link, and lost
// packets cost more than waiting.
constexpr size_t kLeastReceivesAhead = 4;

// Longer than any run, short enough not to overflow a clock; see [Note: how waits end].
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

}  // namespace

GlooExchange::GlooExchange(GlooTransport* transport, const char* operation,
                           const Signature& signature, uint64_t sequence, uint64_t round)
    : transport_(transport),
      what_(DescribeCall(operation, signature, sequence)),
      key_(KeyOfCall(operation, signature, sequence, round)) {
  MutexLock lock(transport_->mutex_);
  status_ = transport_->failure_.status();
  transport_->active_ = &what_;
}

GlooExchange::~GlooExchange() {
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> unfinished;
  for (std::deque<GlooMessage>* messages : {&sends_, &receives_}) {
    for (GlooMessage& message : *messages) {
      if (message.buffer != nullptr) unfinished.push_back(std::move(message.buffer));
    }
  }
  if (!unfinished.empty()) transport_->poster_->Discard(&unfinished);
  bool close;
  {
    MutexLock lock(transport_->mutex_);
    transport_->active_ = nullptr;
    close = transport_->failure_.aborted();
  }
  if (close) transport_->CloseConnections();
}

void GlooExchange::Prepare(GlooMessage* message, uint64_t tag) {
  try {
    message->buffer =
        transport_->contexts_[tag % transport_->contexts_.size()]->createUnboundBuffer(
            message->target, message->bytes);
  } catch (const std::exception& error) {
    status_ = transport_->PeerFailed(message->peer, error.what());
    return;
  }
  // The length is part of it because gloo ends the process when a message is longer than its
  // receiver expects. This way the receiver waits until its deadline, and its error explains.
  const uint64_t slot = MixBits(MixBits(key_ ^ tag) ^ message->bytes);
  unposted_.push_back(
      {message->buffer.get(), message->peer, slot, message->bytes, message->is_send});
}

Channel::Message* GlooExchange::Send(int peer, uint64_t tag, const void* data, size_t bytes) {
  // gloo has one buffer class for both directions; it only reads from this one.
  char* const source = static_cast<char*>(const_cast<void*>(data));
  GlooMessage* const message = &sends_.emplace_back(peer, bytes, source, /*is_send=*/true);
  if (!status_.ok() || bytes == 0) return message;
  Prepare(message, tag);
  transport_->bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  return message;
}

Channel::Message* GlooExchange::Receive(int peer, uint64_t tag, void* target, size_t bytes) {
  GlooMessage* const message =
      &receives_.emplace_back(peer, bytes, static_cast<char*>(target), /*is_send=*/false);
  if (!status_.ok() || bytes == 0) return message;
  if (target == nullptr) {
    message->memory = transport_->memory_.Take(bytes);
    message->target = message->memory.data();
  }
  Prepare(message, tag);
  return message;
}

void GlooExchange::GiveWay() {
  if (transport_->give_way_) transport_->give_way_();
}

Status GlooExchange::Wait(Message* waited_for, const Use& use) {
  auto* const message = static_cast<GlooMessage*>(waited_for);
  if (!status_.ok() || message->buffer == nullptr) return status_;
  GlooTransport& transport = *transport_;
  if (!unposted_.empty()) transport.poster_->Post(&unposted_);
  {
    MutexLock lock(transport.mutex_);
    status_ = transport.failure_.status();
    if (!status_.ok()) return status_;
    transport.waiting_buffer_ = message->buffer.get();
    transport.waiting_is_send_ = message->is_send;
    transport.wait_deadline_ = std::chrono::steady_clock::now() + transport.timeout_;
    transport.waiting_for_.store(message->peer, std::memory_order_relaxed);
  }
  bool delivered = false;
  std::string exception;
  try {
    delivered = message->is_send ? message->buffer->waitSend(nullptr, kForever)
                                 : message->buffer->waitRecv(nullptr, kForever);
  } catch (const std::exception& error) {
    exception = error.what();
  }
  {
    MutexLock lock(transport.mutex_);
    transport.waiting_buffer_ = nullptr;
    transport.waiting_for_.store(-1, std::memory_order_relaxed);
    if (!delivered && exception.empty()) {  // woken by this transport, for a reason it recorded
      status_ = transport.failure_.status();
      if (status_.ok()) status_ = Internal(what_, ": gloo gave up a wait");
    }
  }
  if (!exception.empty()) status_ = transport.PeerFailed(message->peer, exception);
  // After an error the event thread may be about to start this message: left to the destructor.
  if (!status_.ok()) return status_;
  message->buffer.reset();
  if (use) use(message->target);
  if (!message->memory.empty()) transport_->memory_.GiveBack(std::move(message->memory));
  return status_;
}

Status GlooExchange::WaitForSends() {
  for (GlooMessage& message : sends_) {
    if (!Wait(&message).ok()) break;
  }
  return status_;
}

size_t GlooExchange::ReceivesAhead() const {
  return std::max(kLeastReceivesAhead, size_t{2} * transport_->connections());
}

// Enough for the line, and for every connection if there are several to each peer.
size_t GlooExchange::SendsAhead(size_t) const { return ReceivesAhead() / 2; }

}  // namespace tfdear
