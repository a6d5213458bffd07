// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/tcp/tcp_transport.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "custom_ops/engine/transport/membership.h"
#include "custom_ops/engine/transport/tcp/tcp_exchange.h"

namespace tfdear {
namespace {

constexpr int kMostEvents = 64;
// For last bytes: a little more than a message of 128 KiB to each of 8 peers takes at 1 Gbit/s.
constexpr std::chrono::milliseconds kLongestLeaving(10);
constexpr std::chrono::microseconds kBetweenLooks(50);

// Those that nobody has taken over, which are not -1.
void CloseAll(const std::vector<int>& sockets) {
  for (int socket : sockets) {
    if (socket >= 0) close(socket);
  }
}

}  // namespace

Status TcpTransport::Create(int rank, int size, std::chrono::milliseconds timeout, Sockets sockets,
                            std::unique_ptr<TcpTransport>* result, const Encryption& encryption) {
  TFDEAR_RETURN_IF_ERROR(CheckMembership(rank, size, timeout));
  if (sockets.size() != size) {
    return InvalidArgument("expected sockets for a group of ", size, ", received those of one of ",
                           sockets.size());
  }
  std::unique_ptr<TcpTransport> transport(new TcpTransport(rank, size, timeout, encryption));
  TFDEAR_RETURN_IF_ERROR(transport->Open());
  std::vector<int> peers;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) peers.push_back(peer);
  }
  if (!peers.empty()) transport->number_ = std::max<size_t>(sockets.Of(peers[0]).size(), 1);
  TFDEAR_RETURN_IF_ERROR(transport->Add(peers, {0, transport->number_}, std::move(sockets)));
  *result = std::move(transport);
  return Status();
}

Status TcpTransport::Create(int rank, int size, std::chrono::milliseconds timeout,
                            Connector connector, size_t connections,
                            std::unique_ptr<TcpTransport>* result, const Encryption& encryption) {
  TFDEAR_RETURN_IF_ERROR(CheckMembership(rank, size, timeout));
  if (connections == 0) return InvalidArgument("expected at least one connection to each peer");
  std::unique_ptr<TcpTransport> transport(new TcpTransport(rank, size, timeout, encryption));
  TFDEAR_RETURN_IF_ERROR(transport->Open());
  transport->connector_ = std::move(connector);
  transport->number_ = connections;
  *result = std::move(transport);
  return Status();
}

TcpTransport::TcpTransport(int rank, int size, std::chrono::milliseconds timeout,
                           Encryption encryption)
    : rank_(rank),
      size_(size),
      timeout_(timeout),
      encryption_(std::move(encryption)),
      of_peer_(size) {}

TcpTransport::~TcpTransport() {
  if (epoll_ >= 0) close(epoll_);
  if (abort_event_ >= 0) close(abort_event_);
}

Status TcpTransport::Open() {
  if (!encryption_.key.empty() && encryption_.ranks.size() != static_cast<size_t>(size_)) {
    return InvalidArgument("expected the numbers of ", size_, " ranks, received ",
                           encryption_.ranks.size());
  }
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  abort_event_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (epoll_ < 0 || abort_event_ < 0) {
    return Unavailable("no descriptors for connections: ", std::strerror(errno));
  }
  epoll_event event = {};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, abort_event_, &event) != 0) {
    return Unavailable("cannot watch for the end of the job: ", std::strerror(errno));
  }
  return Status();
}

Status TcpTransport::Add(const std::vector<int>& peers, Range numbers, Sockets sockets) {
  for (int peer : peers) {
    const size_t of_peer = sockets.Of(peer).size();
    if (of_peer != numbers.size()) {
      return InvalidArgument("expected ", numbers.size(), " connections to ", failure_.NameOf(peer),
                             ", received ", of_peer, "; give all ranks the same number");
    }
  }
  MutexLock lock(mutex_);
  if (is_closed_) return failure_.status();
  for (int peer : peers) {
    std::vector<int> taken = sockets.Take(peer);
    for (size_t i = 0; i < taken.size(); ++i) {
      const Status added = AddConnection(peer, numbers.begin + i, std::exchange(taken[i], -1));
      if (!added.ok()) {
        CloseAll(taken);
        return added;
      }
    }
  }
  return Status();
}

Status TcpTransport::AddConnection(int peer, size_t number, int socket) {
  std::unique_ptr<ByteStream> stream;
  TlsStream::Options options;
  if (!encryption_.key.empty()) {
    const int low = std::min(rank_, peer), high = std::max(rank_, peer);
    options.is_client = rank_ == high;
    options.key = encryption_.key;
    options.name = TextOf(encryption_.group, " ", encryption_.ranks[low], " ",
                          encryption_.ranks[high], " ", number);
  }
  TFDEAR_RETURN_IF_ERROR(OpenStream(socket, options, &stream));
  handshakes_.push_back({stream.get(), peer});
  TcpConnection* const connection = &connections_.emplace_back(peer, std::move(stream));
  of_peer_[peer].push_back(connection);
  // Told once of each change: what a connection can do stays known until it was tried in vain.
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = connection;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) != 0) {
    return Unavailable("cannot watch a connection to ", failure_.NameOf(peer), ": ",
                       std::strerror(errno));
  }
  return Status();
}

Status TcpTransport::SetConnections(size_t number) {
  if (number == 0 || (number > number_ && connector_ == nullptr)) {
    return InvalidArgument("expected 1 to ", number_, " connections to each peer, received ",
                           number);
  }
  number_ = number;
  return Status();
}

// Peers of which there are fewer connections come first, on both ends: nobody waits in a circle.
Status TcpTransport::Reach(const std::vector<int>& peers) {
  AwaitLastBytes();
  for (size_t there_are = 0; there_are < number_; ++there_are) {
    std::vector<int> missing;
    for (int peer : peers) {
      // In a ring of two, the left neighbour is the right one.
      const bool is_named = std::find(missing.begin(), missing.end(), peer) != missing.end();
      if (of_peer_[peer].size() == there_are && !is_named) missing.push_back(peer);
    }
    if (!missing.empty()) TFDEAR_RETURN_IF_ERROR(ConnectTo(missing, {there_are, number_}));
  }
  return failure_.status();
}

void TcpTransport::AwaitLastBytes() {
  const Clock::time_point deadline = Clock::now() + kLongestLeaving;
  for (TcpConnection* connection : senders_) {
    while (connection->Unsent() > 0 && Clock::now() < deadline) {
      std::this_thread::sleep_for(kBetweenLooks);
    }
    connection->has_sent = false;
  }
  senders_.clear();
}

Status TcpTransport::ConnectTo(const std::vector<int>& peers, Range numbers) {
  TFDEAR_RETURN_IF_ERROR(failure_.status());
  Sockets sockets(size_);
  int failed_peer = -1;
  if (peers.size() == 1) waiting_for_.store(peers.front(), std::memory_order_relaxed);
  const Status connected = connector_(peers, numbers, &sockets, &failed_peer);
  waiting_for_.store(-1, std::memory_order_relaxed);
  if (!connected.ok()) {
    const std::string call = call_ == nullptr ? "" : *call_ + ": ";
    return failure_.Fail(Status(connected.code(), call + connected.message()), failed_peer);
  }
  TFDEAR_RETURN_IF_ERROR(Add(peers, numbers, std::move(sockets)));
  return ShakeHands();
}

Status TcpTransport::Connect(const std::vector<std::string>& blob_of_rank) {
  TFDEAR_RETURN_IF_ERROR(CheckBlobs(blob_of_rank, size_));
  TFDEAR_RETURN_IF_ERROR(ShakeHands());
  return failure_.status();
}

// All at once: a rank whose turn it is not would hold up the others.
Status TcpTransport::ShakeHands() {
  const Clock::time_point deadline = Clock::now() + timeout_;
  while (!handshakes_.empty() && !failure_.failed()) {
    std::vector<pollfd> waiting = {{abort_event_, POLLIN, 0}};
    std::vector<Handshake> open;
    for (const Handshake& handshake : handshakes_) {
      switch (handshake.stream->ShakeHands()) {
        case ByteStream::Result::kMoved:
          continue;
        case ByteStream::Result::kEnded:
          return failure_.Fail(
              Unavailable(failure_.NameOf(handshake.peer),
                          " closed its connection before it was encrypted; it ended, or failed "
                          "first, or has not set TFDEAR_TLS=1. See its own messages"),
              handshake.peer);
        case ByteStream::Result::kFailed:
          return failure_.Fail(Unavailable("the connection to ", failure_.NameOf(handshake.peer),
                                           " cannot be encrypted: ", handshake.stream->failure()),
                               handshake.peer);
        case ByteStream::Result::kNotNow:
          break;
      }
      const short events = handshake.stream->wants_to_write() ? POLLOUT : POLLIN;
      waiting.push_back({handshake.stream->socket(), events, 0});
      open.push_back(handshake);
    }
    handshakes_ = std::move(open);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (!handshakes_.empty() && left.count() <= 0) {
      const int peer = handshakes_.front().peer;
      return failure_.Fail(Status(StatusCode::kDeadlineExceeded,
                                  TextOf(failure_.NameOf(peer), " did not encrypt its connection ",
                                         "within ", timeout_.count(), " ms")),
                           peer);
    }
    if (!handshakes_.empty()) poll(waiting.data(), waiting.size(), static_cast<int>(left.count()));
  }
  return failure_.status();
}

std::unique_ptr<Channel> TcpTransport::Open(const char* operation, const Signature& signature,
                                            uint64_t sequence, uint64_t round) {
  return std::make_unique<TcpExchange>(this, operation, signature, sequence, round);
}

void TcpTransport::Abort(const Status& cause) {
  MutexLock lock(mutex_);
  failure_.Abort(cause);
  const uint64_t one = 1;
  const ssize_t written = write(abort_event_, &one, sizeof(one));
  (void)written;
  // Else the collective does, which may be in the middle of a call.
  if (!is_active_) CloseLocked();
}

void TcpTransport::CloseLocked() {
  if (is_closed_) return;
  is_closed_ = true;
  for (const TcpConnection& connection : connections_) shutdown(connection.socket(), SHUT_RDWR);
}

Status TcpTransport::Begin(const std::string* call) {
  MutexLock lock(mutex_);
  is_active_ = true;
  call_ = call;
  return failure_.status();
}

void TcpTransport::End() {
  for (TcpConnection* connection : busy_) {
    connection->Forget();
    connection->is_listed = false;
  }
  busy_.clear();
  MutexLock lock(mutex_);
  is_active_ = false;
  call_ = nullptr;
  if (failure_.aborted()) CloseLocked();
}

void TcpTransport::Start(TcpConnection::Message* message, bool is_send) {
  TcpConnection* const connection = message->connection;
  if (is_send) {
    bytes_sent_.fetch_add(message->bytes, std::memory_order_relaxed);
    connection->Send(message);
    if (!std::exchange(connection->has_sent, true)) senders_.push_back(connection);
  } else {
    connection->Receive(message);
  }
  if (!connection->is_listed && connection->IsBusy()) {
    connection->is_listed = true;
    busy_.push_back(connection);
  }
}

Status TcpTransport::Await(const TcpConnection::Message& message, bool is_send) {
  TcpConnection* const connection = message.connection;
  waiting_for_.store(message.peer, std::memory_order_relaxed);
  Status status;
  Clock::time_point deadline;
  while (!message.done) {
    const bool moved = Advance();
    if (message.done) break;
    if (moved) deadline = Clock::time_point();
    if (failure_.failed()) {
      status = failure_.status();
      break;
    }
    const auto broken = std::find_if(busy_.begin(), busy_.end(), [](const TcpConnection* one) {
      return !one->failure().empty();
    });
    if (broken != busy_.end()) {
      status = PeerFailed(**broken);
      break;
    }
    if (moved || (!is_send && connection->PutAside())) continue;
    const Clock::time_point now = Clock::now();
    if (deadline == Clock::time_point()) {
      deadline = now + timeout_;
    } else if (now >= deadline) {
      status =
          failure_.PeerSilent(*call_, message.peer, is_send, timeout_, connection->Unexpected());
      break;
    }
    Sleep(deadline);
  }
  waiting_for_.store(-1, std::memory_order_relaxed);
  return status;
}

bool TcpTransport::Advance() {
  bool moved = false;
  size_t kept = 0;
  for (size_t i = 0; i < busy_.size(); ++i) {
    TcpConnection* const connection = busy_[i];
    moved |= connection->Advance();
    connection->is_listed = connection->IsBusy();
    if (connection->is_listed) busy_[kept++] = connection;
  }
  busy_.resize(kept);
  return moved;
}

void TcpTransport::Sleep(Clock::time_point until) {
  for (const TcpConnection* connection : busy_) {
    if (connection->HasMore()) return;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  std::array<epoll_event, kMostEvents> events;
  const int count = epoll_wait(epoll_, events.data(), kMostEvents,
                               static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000)));
  for (int i = 0; i < count; ++i) {
    auto* const connection = static_cast<TcpConnection*>(events[i].data.ptr);
    if (connection == nullptr) continue;  // Abort().
    const uint32_t news = events[i].events;
    const bool is_over = (news & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0;
    if (is_over || (news & EPOLLIN) != 0) connection->set_readable();
    if (is_over || (news & EPOLLOUT) != 0) connection->set_writable();
  }
}

Status TcpTransport::PeerFailed(const TcpConnection& connection) {
  return failure_.PeerClosed(call_ == nullptr ? "" : *call_, connection.peer(),
                             connection.failure());
}

}  // namespace tfdear
