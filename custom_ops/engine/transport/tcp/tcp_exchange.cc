// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/tcp/tcp_exchange.h"

#include <algorithm>
#include <new>
#include <utility>

#include "custom_ops/engine/base/errors.h"

namespace tfdear {
namespace {

// With fewer, one connection runs dry between segments. Not many more, either: a sender that may
// put whole shards on the line for all peers at once overruns the queue of the link, and lost
// packets cost more than waiting.
constexpr size_t kLeastReceivesAhead = 4;

}  // namespace

TcpExchange::TcpExchange(TcpTransport* transport, const char* operation, const Signature& signature,
                         uint64_t sequence, uint64_t round)
    : transport_(transport),
      what_(DescribeCall(operation, signature, sequence)),
      key_(KeyOfCall(operation, signature, sequence, round)),
      status_(transport->Begin(&what_)) {}

TcpExchange::~TcpExchange() { transport_->End(); }

Status TcpExchange::Reach(const std::vector<int>& peers) {
  if (status_.ok()) status_ = transport_->Reach(peers);
  return status_;
}

void TcpExchange::Start(TcpConnection::Message* message, uint64_t tag, bool is_send) {
  message->header =
      TcpConnection::Header(MixBits(MixBits(key_ ^ tag) ^ message->bytes), message->bytes);
  message->connection = transport_->ConnectionTo(message->peer, tag);
  transport_->Start(message, is_send);
}

Channel::Message* TcpExchange::Send(int peer, uint64_t tag, const void* data, size_t bytes) {
  TcpConnection::Message* const message = &sends_.emplace_back();
  message->peer = peer;
  message->bytes = bytes;
  message->source = static_cast<const char*>(data);
  if (status_.ok() && bytes > 0) Start(message, tag, /*is_send=*/true);
  return message;
}

Channel::Message* TcpExchange::Receive(int peer, uint64_t tag, void* target, size_t bytes) {
  TcpConnection::Message* const message = &receives_.emplace_back();
  message->peer = peer;
  message->bytes = bytes;
  message->target = static_cast<char*>(target);
  if (!status_.ok() || bytes == 0) return message;
  if (target == nullptr) {
    message->memory = transport_->memory_.Take(bytes);
    message->target = message->memory.data();
  }
  Start(message, tag, /*is_send=*/false);
  return message;
}

void TcpExchange::GiveWay() {
  if (transport_->give_way_) transport_->give_way_();
}

Status TcpExchange::Wait(Message* waited_for, const Use& use) {
  auto* const message = static_cast<TcpConnection::Message*>(waited_for);
  if (!status_.ok() || message->connection == nullptr) return status_;
  status_ = transport_->Await(*message, message->source != nullptr);
  if (!status_.ok()) return status_;
  if (use) use(message->target);
  if (!message->memory.empty()) transport_->memory_.GiveBack(std::move(message->memory));
  return status_;
}

Status TcpExchange::WaitForSends() {
  for (; sends_waited_for_ < sends_.size(); ++sends_waited_for_) {
    if (!Wait(&sends_[sends_waited_for_]).ok()) break;
  }
  return status_;
}

size_t TcpExchange::ReceivesAhead() const {
  return std::max(kLeastReceivesAhead, size_t{2} * transport_->connections());
}

// Enough for the line, and for every connection if there are several to each peer.
size_t TcpExchange::SendsAhead(size_t) const { return ReceivesAhead() / 2; }

}  // namespace tfdear
