// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#include "custom_ops/engine/exchange.h"

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <exception>
#include <utility>

#include "custom_ops/engine/collective_call.h"

namespace tfdear {
namespace {

// Longer than any run, short enough not to overflow a clock; see [Note: how waits end].
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

}  // namespace

Exchange::Exchange(GlooTransport* transport, const char* operation, const Signature& signature,
                   uint64_t sequence, uint64_t round)
    : transport_(transport),
      what_(DescribeCall(operation, signature, sequence)),
      key_(KeyOfCall(operation, signature, sequence, round)) {
  std::lock_guard<std::mutex> lock(transport_->mutex_);
  status_ = transport_->FailureLocked();
  transport_->active_ = &what_;
}

Exchange::~Exchange() {
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> unfinished;
  for (std::deque<Message>* messages : {&sends_, &receives_}) {
    for (Message& message : *messages) {
      if (message.buffer != nullptr) unfinished.push_back(std::move(message.buffer));
    }
  }
  if (!unfinished.empty()) transport_->poster_->Discard(&unfinished);
  bool close;
  {
    std::lock_guard<std::mutex> lock(transport_->mutex_);
    transport_->active_ = nullptr;
    close = !transport_->cause_.ok();
  }
  if (close) transport_->CloseConnections();
}

uint64_t Exchange::SlotOf(uint64_t tag, size_t bytes) const {
  // The length is in the address because gloo ends the process when a message is longer than the
  // receiver expects; this way such a message waits for its deadline, which has words.
  return MixBits(MixBits(key_ ^ tag) ^ bytes);
}

void Exchange::Start(Message* message, uint64_t tag, void* data, size_t bytes) {
  try {
    message->buffer =
        transport_->contexts_[tag % transport_->contexts_.size()]->createUnboundBuffer(data, bytes);
  } catch (const std::exception& error) {
    status_ = transport_->PeerFailed(message->peer, error.what());
    return;
  }
  GlooPoster::Operation operation;
  operation.buffer = message->buffer.get();
  operation.peer = message->peer;
  operation.slot = SlotOf(tag, bytes);
  operation.bytes = bytes;
  operation.is_send = message->is_send;
  unposted_.push_back(operation);
}

Exchange::Message* Exchange::Send(int peer, uint64_t tag, const void* data, size_t bytes) {
  sends_.emplace_back();
  Message* const message = &sends_.back();
  message->peer = peer;
  message->is_send = true;
  if (!status_.ok() || bytes == 0) return message;
  // gloo has one buffer class for both directions; it only reads from this one.
  Start(message, tag, const_cast<void*>(data), bytes);
  transport_->bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  return message;
}

Exchange::Message* Exchange::Receive(int peer, uint64_t tag, void* data, size_t bytes) {
  receives_.emplace_back();
  Message* const message = &receives_.back();
  message->peer = peer;
  if (status_.ok() && bytes > 0) Start(message, tag, data, bytes);
  return message;
}

Status Exchange::Wait(Message* message) {
  if (!status_.ok() || message->buffer == nullptr) return status_;
  GlooTransport& transport = *transport_;
  if (!unposted_.empty()) transport.poster_->Post(&unposted_);
  {
    std::lock_guard<std::mutex> lock(transport.mutex_);
    status_ = transport.FailureLocked();
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
    std::lock_guard<std::mutex> lock(transport.mutex_);
    transport.waiting_buffer_ = nullptr;
    transport.waiting_for_.store(-1, std::memory_order_relaxed);
    if (!delivered && exception.empty()) {  // woken by this transport, for a reason it recorded
      status_ = transport.FailureLocked();
      if (status_.ok()) status_ = Status(StatusCode::kInternal, what_ + ": gloo gave up a wait");
    }
  }
  if (!exception.empty()) status_ = transport.PeerFailed(message->peer, exception);
  // After an error the event thread may be about to start this message: left to the destructor.
  if (status_.ok()) message->buffer.reset();
  return status_;
}

Status Exchange::WaitForSends() {
  for (Message& message : sends_) {
    if (!Wait(&message).ok()) break;
  }
  return status_;
}

}  // namespace tfdear
