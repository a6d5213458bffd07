// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/gloo/gloo_transport.h"

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <exception>

#include "custom_ops/engine/base/helper_thread.h"
#include "custom_ops/engine/base/signal_mask.h"
#include "custom_ops/engine/transport/gloo/gloo_address.h"
#include "custom_ops/engine/transport/gloo/gloo_exchange.h"
#include "custom_ops/engine/transport/gloo/gloo_poster.h"
#include "custom_ops/engine/transport/membership.h"

namespace tfdear {

using Clock = std::chrono::steady_clock;

Status GlooTransport::Create(int rank, int size, const std::string& bind_address,
                             std::chrono::milliseconds timeout, int connections,
                             std::unique_ptr<GlooTransport>* result) {
  TFDEAR_RETURN_IF_ERROR(CheckMembership(rank, size, timeout));
  if (connections < 1) {
    return InvalidArgument("expected at least 1 connection to each peer, received ", connections);
  }
  // Here and not in the members' initialisers: the threads inherit this thread's signal mask.
  ScopedHelperThreadSignals signals;
  std::unique_ptr<GlooTransport> transport(new GlooTransport(rank, size, timeout, connections));
  if (size > 1) {
    std::string numeric;
    TFDEAR_RETURN_IF_ERROR(ResolveBindAddress(bind_address, &numeric));
    GlooTransport* const self = transport.get();
    try {
      auto device = std::dynamic_pointer_cast<gloo::transport::tcp::Device>(
          gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(numeric.c_str())));
      for (int i = 0; i < connections; ++i) {
        // All on one device, so that one event thread serves them: [Note: one thread per socket].
        auto context = device->createContext(rank, size);
        // gloo waits five times its timeout for a connection; rounded up, never 0 (= for ever).
        context->setTimeout((timeout + std::chrono::milliseconds(4)) / 5);
        for (int peer = 0; peer < size; ++peer) {
          if (peer != rank) context->createPair(peer);
        }
        transport->contexts_.push_back(std::move(context));
      }
      transport->poster_ = std::make_unique<GlooPoster>(
          std::move(device),
          [self](int peer, const std::string& what) { self->PeerFailed(peer, what); });
    } catch (const std::exception& error) {
      return Unavailable("cannot listen on ", bind_address, " (", numeric,
                         "); is it an address of this machine? (gloo: ", error.what(), ")");
    }
    TFDEAR_RETURN_IF_ERROR(StartHelperThread([self] { self->Watch(); }, &transport->watchdog_));
  }
  *result = std::move(transport);
  return Status();
}

GlooTransport::GlooTransport(int rank, int size, std::chrono::milliseconds timeout, int connections)
    : rank_(rank), size_(size), timeout_(timeout), connections_(connections) {}

GlooTransport::~GlooTransport() {
  if (watchdog_.joinable()) {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    watchdog_wakes_.notify_all();
    watchdog_.join();
  }
  // The contexts first: their connections use the device, whose last owner is the poster. What was
  // sent is still delivered.
  contexts_.clear();
  poster_.reset();
}

std::string GlooTransport::Listen() {
  AddressBook book;
  book.rank = rank_;
  book.size = size_;
  book.addresses_for_peer.resize(size_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    for (const auto& context : contexts_) {
      std::string text;
      const Status status = AddressToText(context->getPair(peer)->address().bytes(), &text);
      // Published in place of the addresses: peers cannot parse it, and their errors quote it.
      if (!status.ok()) return status.message();
      book.addresses_for_peer[peer].push_back(text);
    }
  }
  return book.Serialize();
}

Status GlooTransport::Connect(const std::vector<std::string>& blob_of_rank) {
  TFDEAR_RETURN_IF_ERROR(CheckBlobs(blob_of_rank, size_));
  if (size_ == 1) return failure_.status();
  const Clock::time_point deadline = Clock::now() + timeout_;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    AddressBook book;
    const Status parsed = AddressBook::Parse(blob_of_rank[peer], &book);
    if (!parsed.ok()) {
      return Status(parsed.code(), "address of " + failure_.NameOf(peer) + ": " + parsed.message());
    }
    if (book.rank != peer || book.size != size_) {
      return InvalidArgument("expected the address of rank ", peer, " of ", size_,
                             ", received that of rank ", book.rank, " of ", book.size,
                             "; is this a leftover of an earlier start?");
    }
    TFDEAR_RETURN_IF_ERROR(ConnectPeer(peer, book.addresses_for_peer[rank_], deadline));
  }
  return failure_.status();
}

Status GlooTransport::ConnectPeer(int peer, const std::vector<std::string>& addresses,
                                  Clock::time_point deadline) {
  if (addresses.size() != contexts_.size()) {
    return InvalidArgument("expected ", contexts_.size(), " connections to ", failure_.NameOf(peer),
                           ", which has ", addresses.size(), "; give all ranks the same number");
  }
  for (size_t i = 0; i < contexts_.size(); ++i) {
    std::vector<char> bytes;
    TFDEAR_RETURN_IF_ERROR(AddressFromText(addresses[i], &bytes));
    const Clock::time_point start = Clock::now();
    if (start > deadline) {
      return failure_.Fail(
          Status(StatusCode::kDeadlineExceeded,
                 TextOf("connecting took longer than ", timeout_.count(), " ms; connected ", i,
                        " of ", contexts_.size(), " times to ", failure_.NameOf(peer),
                        ", not yet to later ranks; is the network slow, or a peer too busy?")),
          peer);
    }
    try {
      contexts_[i]->getPair(peer)->connect(bytes);
    } catch (const std::exception& error) {
      // gloo has one exception for both. A refused connection fails at once, silence does not.
      const bool silent = Clock::now() - start >= timeout_;
      return failure_.Fail(
          Status(
              silent ? StatusCode::kDeadlineExceeded : StatusCode::kUnavailable,
              TextOf("no connection to ", failure_.NameOf(peer), " at ", addresses[i],
                     silent ? TextOf(" within ", timeout_.count(), " ms") : "",
                     "; did it end, or does a firewall stand between? (gloo: ", error.what(), ")")),
          peer);
    }
  }
  return Status();
}

std::unique_ptr<Channel> GlooTransport::Open(const char* operation, const Signature& signature,
                                             uint64_t sequence, uint64_t round) {
  return std::make_unique<GlooExchange>(this, operation, signature, sequence, round);
}

void GlooTransport::Abort(const Status& cause) {
  bool close;
  {
    MutexLock lock(mutex_);
    failure_.Abort(cause);
    WakeWaiterLocked();
    close = active_ == nullptr;  // else the exchange does, once nothing of it is under way
  }
  if (close) CloseConnections();
}

void GlooTransport::CloseConnections() {
  MutexLock closing(closing_mutex_);
  {
    MutexLock lock(mutex_);
    if (connections_closed_) return;
    connections_closed_ = true;
  }
  for (const auto& context : contexts_) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      try {
        context->getPair(peer)->close();
      } catch (const std::exception&) {
        // Already broken, which is as good as closed.
      }
    }
  }
}

void GlooTransport::WakeWaiterLocked() {
  if (waiting_buffer_ == nullptr) return;
  waiting_is_send_ ? waiting_buffer_->abortWaitSend() : waiting_buffer_->abortWaitRecv();
}

Status GlooTransport::PeerFailed(int peer, const std::string& what) {
  MutexLock lock(mutex_);
  const Status status =
      failure_.PeerClosed(active_ == nullptr ? "" : *active_, peer, "gloo: " + what);
  WakeWaiterLocked();
  return status;
}

void GlooTransport::Watch() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    const Clock::time_point now = Clock::now();
    if (waiting_buffer_ != nullptr && now >= wait_deadline_ && !failure_.failed()) {
      failure_.PeerSilent(*active_, waiting_for_.load(std::memory_order_relaxed), waiting_is_send_,
                          timeout_);
      WakeWaiterLocked();
    }
    // Every wait lasts timeout_, so one that starts during this sleep cannot expire before it ends.
    Clock::time_point wake = now + timeout_;
    if (waiting_buffer_ != nullptr && wait_deadline_ > now) wake = std::min(wake, wait_deadline_);
    lock.WaitUntil(&watchdog_wakes_, wake);
  }
}

}  // namespace tfdear
