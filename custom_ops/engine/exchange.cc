// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#include "custom_ops/engine/exchange.h"

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <exception>
#include <utility>

namespace tfdear {
namespace {

// Longer than any run, short enough not to overflow a clock; see [Note: how waits end].
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

// Finaliser of splitmix64: every bit of the input changes half of the output's.
uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

std::string Describe(const char* operation, const Signature& signature, uint64_t sequence) {
  return std::string(operation) + " '" + signature.text() + "' (sequence " +
         std::to_string(sequence) + ")";
}

uint64_t HashOf(const char* text) { return Signature(text).hash(); }

}  // namespace

Exchange::Exchange(GlooTransport* transport, const char* operation, const Signature& signature,
                   uint64_t sequence, uint64_t round)
    : transport_(transport),
      what_(Describe(operation, signature, sequence)),
      key_(Mix(Mix(Mix(signature.hash() ^ HashOf(operation)) ^ sequence) ^ round)) {
  std::lock_guard<std::mutex> lock(transport_->mutex_);
  status_ = transport_->FailureLocked();
  transport_->exchange_active_ = true;
}

Exchange::~Exchange() {
  // gloo's buffers take themselves back: their destructor waits for a copy in progress.
  receives_.clear();
  sends_.clear();
  bool close;
  {
    std::lock_guard<std::mutex> lock(transport_->mutex_);
    transport_->exchange_active_ = false;
    close = !transport_->cause_.ok();
  }
  if (close) transport_->CloseConnections();
}

uint64_t Exchange::SlotOf(uint64_t tag, size_t bytes) const {
  // The length is in the address because gloo ends the process when a message is longer than the
  // receiver expects; this way such a message waits for its deadline, which has words.
  return Mix(Mix(key_ ^ tag) ^ bytes);
}

void Exchange::FailFromException(int peer, const char* what) {
  status_ = transport_->Fail(
      Status(
          StatusCode::kUnavailable,
          what_ + ": " + transport_->NameOf(peer) +
              " closed its connection; it ended, or failed first. See its own messages. (gloo: " +
              what + ")"),
      peer);
}

void Exchange::Send(int peer, uint64_t tag, const void* data, size_t bytes) {
  if (!status_.ok() || bytes == 0) return;
  try {
    Message message;
    message.peer = peer;
    message.is_send = true;
    // gloo has one buffer class for both directions; it only reads from this one.
    message.buffer = transport_->context_->createUnboundBuffer(const_cast<void*>(data), bytes);
    message.buffer->send(peer, SlotOf(tag, bytes), 0, bytes);
    sends_.push_back(std::move(message));
    transport_->bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  } catch (const std::exception& error) {
    FailFromException(peer, error.what());
  }
}

Exchange::Message* Exchange::Receive(int peer, uint64_t tag, void* data, size_t bytes) {
  receives_.emplace_back();
  Message* const message = &receives_.back();
  message->peer = peer;
  if (!status_.ok() || bytes == 0) return message;
  try {
    message->buffer = transport_->context_->createUnboundBuffer(data, bytes);
    message->buffer->recv(peer, SlotOf(tag, bytes), 0, bytes);
  } catch (const std::exception& error) {
    FailFromException(peer, error.what());
  }
  return message;
}

Status Exchange::Wait(Message* message) {
  if (!status_.ok() || message->buffer == nullptr) return status_;
  GlooTransport& transport = *transport_;
  {
    std::lock_guard<std::mutex> lock(transport.mutex_);
    status_ = transport.FailureLocked();
    if (!status_.ok()) return status_;
    transport.waiting_buffer_ = message->buffer.get();
    transport.waiting_is_send_ = message->is_send;
    transport.waiting_what_ = &what_;
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
    if (!delivered && exception.empty()) {  // woken by the watchdog or by Abort()
      status_ = transport.FailureLocked();
      if (status_.ok()) status_ = Status(StatusCode::kInternal, what_ + ": gloo gave up a wait");
    }
  }
  if (!exception.empty()) FailFromException(message->peer, exception.c_str());
  message->buffer.reset();
  return status_;
}

Status Exchange::WaitForSends() {
  for (Message& message : sends_) {
    if (!Wait(&message).ok()) break;
  }
  sends_.clear();
  return status_;
}

}  // namespace tfdear
