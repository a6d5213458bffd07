// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Messages over sockets: in any order, cut anywhere, from peers that end, stay silent, or send what
// no rank sends.

#include "custom_ops/engine/transport/tcp/tcp_transport.h"

#include <linux/sockios.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<TcpTransport> Transport(int rank, int size, Sockets sockets,
                                        milliseconds timeout = kTestTimeout) {
  std::unique_ptr<TcpTransport> transport;
  TFDEAR_EXPECT_OK(TcpTransport::Create(rank, size, timeout, std::move(sockets), &transport));
  return transport;
}

// A transport of two ranks, of which the other one is a bare socket.
std::unique_ptr<TcpTransport> TransportTo(int socket, milliseconds timeout = kTestTimeout) {
  Sockets sockets(2);
  sockets.Add(1, socket);
  return Transport(0, 2, std::move(sockets), timeout);
}

std::vector<char> Bytes(size_t count, int seed) {
  std::vector<char> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 31 + seed);
  return bytes;
}

std::unique_ptr<Channel> OpenOn(TcpTransport* transport) {
  return transport->Open("test", Signature("x"), 0, 0);
}

// What Channel sends for a message of the call above.
TcpConnection::Header HeaderOf(uint64_t tag, uint64_t bytes) {
  const uint64_t key = KeyOfCall("test", Signature("x"), 0, 0);
  return TcpConnection::Header(MixBits(MixBits(key ^ tag) ^ bytes), bytes);
}

// A header and what follows it, as they travel.
std::string Frame(const TcpConnection::Header& header, const std::vector<char>& data) {
  std::string frame(sizeof(header), '\0');
  std::memcpy(frame.data(), &header, sizeof(header));
  return frame.append(data.begin(), data.end());
}

TEST(TcpTransport, MessagesArriveInTheOrderInWhichTheyAreAskedFor) {
  // More than the kernel holds, less than its buffers, and a byte; asked for in any order.
  const size_t kSizes[] = {1, 100, 16 << 10, (16 << 10) + 1, 300'000, 8 << 20, 3, 20'000};
  for (int connections : {1, 3}) {
    std::vector<Sockets> sockets = ConnectAll(2, connections);
    RunThreads(2, [&](int rank) {
      const auto transport = Transport(rank, 2, std::move(sockets[rank]));
      std::mt19937 draw(7);
      std::vector<size_t> order(std::size(kSizes));
      std::iota(order.begin(), order.end(), 0);
      std::vector<std::vector<char>> data;
      for (size_t i : order) data.push_back(Bytes(kSizes[i], i));
      for (int round = 0; round < 20; ++round) {
        const auto channel = transport->Open("test", Signature("x"), round, 0);
        std::iota(order.begin(), order.end(), 0);
        std::vector<std::vector<char>> targets;
        for (size_t i : order) {
          targets.emplace_back(kSizes[i]);
          channel->Send(1 - rank, i, data[i].data(), kSizes[i]);
        }
        std::shuffle(order.begin(), order.end(), draw);
        std::vector<Channel::Message*> messages(order.size());
        if (round % 2 == 0) {
          for (size_t i : order) {
            messages[i] = channel->Receive(1 - rank, i, targets[i].data(), kSizes[i]);
          }
          std::shuffle(order.begin(), order.end(), draw);
          for (size_t i : order) TFDEAR_EXPECT_OK(channel->Wait(messages[i]));
        } else {
          // One after another: those that come before their turn are put aside.
          for (size_t i : order) {
            TFDEAR_EXPECT_OK(
                channel->Wait(channel->Receive(1 - rank, i, targets[i].data(), kSizes[i])));
          }
        }
        TFDEAR_EXPECT_OK(channel->WaitForSends());
        EXPECT_TRUE(data == targets) << "round " << round;
      }
    });
  }
}

TEST(TcpTransport, AMessageMayComeInAnyPieces) {
  const std::vector<char> data = Bytes(1000, 3);
  for (size_t piece : {1, 7, 15, 16, 17, 1016}) {
    const auto [own, other] = ConnectedSockets();
    const auto transport = TransportTo(own);
    const std::string frame = Frame(HeaderOf(5, data.size()), data);
    std::thread sender([&, other = other] {
      for (size_t i = 0; i < frame.size(); i += piece) {
        ASSERT_GT(send(other, &frame[i], std::min(piece, frame.size() - i), 0), 0);
        if (i < 64) std::this_thread::sleep_for(milliseconds(1));
      }
    });
    std::vector<char> target(data.size());
    {
      const auto channel = OpenOn(transport.get());
      TFDEAR_EXPECT_OK(channel->Wait(channel->Receive(1, 5, target.data(), target.size())));
    }
    sender.join();
    EXPECT_EQ(target, data);
    close(other);
  }
}

// What the kernel has not handed on when a collective begins, after one that sent more than fits
// into the window of a peer that reads nothing, which stands for a busy link.
int UnsentAtTheNextCollective(bool reads_in_time) {
  const auto [own, other] = ConnectedSockets();
  const int room = 1 << 20;
  EXPECT_EQ(setsockopt(own, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), 0);
  const auto transport = TransportTo(own);
  const std::vector<char> data = Bytes(200'000, 3);
  auto unsent = [own = own] {
    int bytes = 0;
    EXPECT_EQ(ioctl(own, SIOCOUTQNSD, &bytes), 0);
    return bytes;
  };
  {
    const auto channel = OpenOn(transport.get());
    TFDEAR_EXPECT_OK(channel->Reach({1}));
    TFDEAR_EXPECT_OK(channel->Wait(channel->Send(1, 5, data.data(), data.size())));
  }
  EXPECT_GT(unsent(), 0);
  std::thread reader([&, other = other] {
    if (!reads_in_time) return;
    std::this_thread::sleep_for(milliseconds(1));
    std::vector<char> frame(sizeof(TcpConnection::Header) + data.size());
    EXPECT_EQ(recv(other, frame.data(), frame.size(), MSG_WAITALL), frame.size());
  });
  const auto next = OpenOn(transport.get());
  TFDEAR_EXPECT_OK(next->Reach({1}));
  const int left = unsent();
  reader.join();
  close(other);
  return left;
}

TEST(TcpTransport, TheLastBytesOfACollectiveLeaveBeforeTheNextOneOrAfterAWhile) {
  EXPECT_GT(UnsentAtTheNextCollective(/*reads_in_time=*/false), 0);
  // The reader may be held up for longer than the next collective waits.
  EXPECT_TRUE(Eventually([] { return UnsentAtTheNextCollective(/*reads_in_time=*/true) == 0; }));
}

TEST(TcpTransport, AConnectionThatBreaksIsNoticedAtOnceAndInAnyState) {
  const std::vector<char> data = Bytes(8 << 20, 3);
  const TcpConnection::Header header = HeaderOf(5, data.size());
  // Before a frame, in its header, behind it, in the middle of the bytes; and while sending.
  for (int state = 0; state < 5; ++state) {
    const auto [own, other] = ConnectedSockets();
    const auto transport = TransportTo(own);
    const auto channel = OpenOn(transport.get());
    std::vector<char> target(data.size());
    if (state > 0) send(other, &header, state == 1 ? 7 : sizeof(header), 0);
    if (state == 3) send(other, data.data(), 100'000, 0);
    std::thread ending([&, other = other] {
      std::this_thread::sleep_for(milliseconds(50));
      const linger at_once = {1, 0};
      if (state == 3) setsockopt(other, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
      close(other);
    });
    const auto begin = std::chrono::steady_clock::now();
    const Status status = state == 4
                              ? channel->Wait(channel->Send(1, 5, data.data(), data.size()))
                              : channel->Wait(channel->Receive(1, 5, target.data(), target.size()));
    ending.join();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << state << ": " << status.message();
    EXPECT_TRUE(Contains(status.message(), "rank 1")) << status.message();
    EXPECT_EQ(transport->failure()->failed_peer(), 1);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(20'000));
    EXPECT_FALSE(channel->Wait(channel->Receive(1, 6, target.data(), 1)).ok());
  }
}

TEST(TcpTransport, APeerThatWasKilledIsNoticedWhileItsMessageArrives) {
  const auto [own, other] = ConnectedSockets();
  const pid_t child = fork();
  if (child == 0) {
    close(own);
    const std::vector<char> data = Bytes(4 << 20, 1);
    const TcpConnection::Header header = HeaderOf(5, 64 << 20);
    send(other, &header, sizeof(header), 0);
    for (;;) send(other, data.data(), data.size(), 0);
  }
  close(other);
  const auto transport = TransportTo(own);
  std::vector<char> target(64 << 20);
  const auto channel = OpenOn(transport.get());
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(3));
    kill(child, SIGKILL);
  });
  Channel::Message* const message = channel->Receive(1, 5, target.data(), target.size());
  const Status status = channel->Wait(message);
  killer.join();
  waitpid(child, nullptr, 0);
  // Fast machines may have got all of it: then nothing follows.
  const Status next = channel->Wait(channel->Receive(1, 6, target.data(), 1));
  EXPECT_EQ((status.ok() ? next : status).code(), StatusCode::kUnavailable) << next.message();
}

TEST(TcpTransport, AWaitEndsAtItsDeadlineAndSaysWhatCameInstead) {
  for (bool sends_other : {false, true}) {
    const auto [own, other] = ConnectedSockets();
    const auto transport = TransportTo(own, milliseconds(200));
    const TcpConnection::Header header(123, 456);
    char target[8];
    const auto channel = OpenOn(transport.get());
    // What nobody asks for stays where it is, and what a rank would not send is no more than that.
    if (sends_other) send(other, &header, 9, 0);
    const Status status = channel->Wait(channel->Receive(1, 5, target, sizeof(target)));
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Contains(status.message(), "rank 1")) << status.message();
    close(other);
  }
}

TEST(TcpTransport, AMessageThatIsSlowButComesIsWaitedFor) {
  const auto [own, other] = ConnectedSockets();
  const auto transport = TransportTo(own, milliseconds(3000));
  const std::vector<char> data = Bytes(1000, 3);
  const TcpConnection::Header header = HeaderOf(5, data.size());
  std::thread sender([&, other = other] {
    send(other, &header, sizeof(header), 0);
    for (size_t i = 0; i < data.size(); i += 100) {
      std::this_thread::sleep_for(milliseconds(400));
      send(other, &data[i], 100, 0);
    }
  });
  std::vector<char> target(data.size());
  const auto channel = OpenOn(transport.get());
  TFDEAR_EXPECT_OK(channel->Wait(channel->Receive(1, 5, target.data(), target.size())));
  sender.join();
  EXPECT_EQ(target, data);
  close(other);
}

TEST(TcpTransport, AbortEndsAWait) {
  std::vector<Sockets> sockets = ConnectAll(2);
  const auto transport = Transport(0, 2, std::move(sockets[0]));
  std::thread aborting([&] {
    std::this_thread::sleep_for(milliseconds(50));
    transport->Abort(Unavailable("the job has ended"));
  });
  char target[8];
  {
    const auto channel = OpenOn(transport.get());
    const Status status = channel->Wait(channel->Receive(1, 5, target, sizeof(target)));
    EXPECT_EQ(status.message(), "the job has ended");
  }
  aborting.join();
  const auto channel = OpenOn(transport.get());
  EXPECT_FALSE(channel->Wait(channel->Send(1, 5, target, sizeof(target))).ok());
  // The peer sees the end of the connection.
  EXPECT_EQ(recv(sockets[1].Of(0)[0], target, sizeof(target), 0), 0);
}

TEST(TcpTransport, WhatNoRankSendsEndsTheConnectionAtTheMost) {
  std::mt19937 draw(11);
  for (int round = 0; round < 300; ++round) {
    const auto [own, other] = ConnectedSockets();
    const auto transport = TransportTo(own, milliseconds(5'000));
    std::vector<char> noise(draw() % 5000);
    for (char& byte : noise) byte = static_cast<char>(draw());
    // Some begin like a message that is waited for, with another length or another name.
    TcpConnection::Header header = HeaderOf(5, 100);
    if (round % 3 == 0) header = {header.name(), draw() % (uint64_t{1} << (draw() % 40))};
    if (round % 3 == 1) header = {header.name() ^ uint64_t{1} << (draw() % 64), header.bytes()};
    if (round % 4 != 3) send(other, &header, sizeof(header), 0);
    send(other, noise.data(), noise.size(), 0);
    close(other);
    char target[100];
    const auto channel = OpenOn(transport.get());
    for (int i = 0; i < 3; ++i) {
      if (!channel->Wait(channel->Receive(1, 5 + i, target, sizeof(target))).ok()) break;
    }
  }
}

TEST(TcpTransport, BytesThatAreNoFrameEndTheConnectionAtOnce) {
  const std::string sound = Frame(HeaderOf(5, 8), Bytes(8, 1));
  for (size_t bit = 0; bit <= 8 * sizeof(TcpConnection::Header); ++bit) {
    std::string frame = sound;
    if (bit < 8 * sizeof(TcpConnection::Header)) {
      frame[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    } else {
      frame.assign(frame.size(), '\0');
    }
    const auto [own, other] = ConnectedSockets();
    const auto transport = TransportTo(own);
    send(other, frame.data(), frame.size(), 0);
    char target[8];
    const auto channel = OpenOn(transport.get());
    const Status status = channel->Wait(channel->Receive(1, 5, target, sizeof(target)));
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << bit;
    EXPECT_TRUE(Contains(status.message(), "rank 1 ")) << status.message();
    EXPECT_TRUE(Contains(status.message(), "bytes that are no message")) << status.message();
    close(other);
  }
}

TEST(TcpTransport, AMessageThatCameEarlyWithAnotherLengthEndsTheConnection) {
  for (size_t length : {0, 99, 101, 1 << 20}) {
    const auto [own, other] = ConnectedSockets();
    const auto transport = TransportTo(own);
    const int peer = other;
    RunThreads(2, [&](int thread) {
      if (thread == 1) {
        // The name is that of a message of 100 bytes. Behind it comes what is waited for.
        const std::string frames = Frame({HeaderOf(6, 100).name(), length}, Bytes(length, 1)) +
                                   Frame(HeaderOf(5, 100), Bytes(100, 1));
        send(peer, frames.data(), frames.size(), MSG_NOSIGNAL);
        return;
      }
      char target[100];
      const auto channel = OpenOn(transport.get());
      TFDEAR_EXPECT_OK(channel->Wait(channel->Receive(1, 5, target, sizeof(target))));
      const Status status = channel->Wait(channel->Receive(1, 6, target, sizeof(target)));
      EXPECT_TRUE(Contains(status.message(), "another length")) << status.message();
    });
    close(other);
  }
}

TEST(TcpTransport, RefusesSocketsThatDoNotFitTheGroup) {
  std::unique_ptr<TcpTransport> transport;
  const auto refusal = [&](Sockets sockets) {
    return TcpTransport::Create(0, 3, kTestTimeout, std::move(sockets), &transport).message();
  };
  EXPECT_TRUE(Contains(refusal(Sockets(2)), "expected sockets for a group of 3"));
  EXPECT_TRUE(Contains(refusal(Sockets(3)), "expected 1 connections to rank 1, received 0"));
  Sockets uneven(3);
  for (int peer : {1, 2, 2}) {
    const auto [one, other] = ConnectedSockets();
    uneven.Add(peer, one);
    close(other);
  }
  EXPECT_TRUE(Contains(refusal(std::move(uneven)), "expected 1 connections to rank 2, received 2"));
}

}  // namespace
}  // namespace tfdear
