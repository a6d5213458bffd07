// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Encrypted connections: the same data arrive, nobody on the way reads or changes them, and sides
// that do not belong together say so.

#include <poll.h>

#include <array>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/engine/transport/tcp/tcp_transport.h"
#include "tests/cc/tap.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

using Encryption = TcpTransport::Encryption;
const Encryption kEncryption = {std::string(32, 'k'), "world", {4, 7}};

std::unique_ptr<TcpTransport> TransportOf(int rank, int socket, const Encryption& encryption,
                                          std::chrono::milliseconds timeout = kTestTimeout) {
  Sockets sockets(2);
  sockets.Add(1 - rank, socket);
  std::unique_ptr<TcpTransport> transport;
  TFDEAR_EXPECT_OK(
      TcpTransport::Create(rank, 2, timeout, std::move(sockets), &transport, encryption));
  return transport;
}

// Both ranks connect; then rank 0 sends `bytes` bytes. What each rank was told.
std::array<Status, 2> Exchange(const std::array<Encryption, 2>& encryptions, Tap* tap, size_t bytes,
                               std::chrono::milliseconds timeout = kTestTimeout) {
  std::array<Status, 2> told;
  const std::string text = "a text that is nobody's business ";
  RunThreads(2, [&](int rank) {
    const auto transport =
        TransportOf(rank, rank == 0 ? tap->first : tap->second, encryptions[rank], timeout);
    told[rank] = transport->Connect({"tcp", "tcp"});
    if (!told[rank].ok()) return;
    const auto channel = transport->Open("test", Signature("x"), 0, 0);
    std::string data(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) data[i] = text[i % text.size()];
    if (rank == 0) {
      channel->Send(1, 5, data.data(), bytes);
      told[0] = channel->WaitForSends();
      return;
    }
    std::string target(bytes, '\0');
    told[1] = channel->Wait(channel->Receive(0, 5, target.data(), bytes));
    if (told[1].ok()) EXPECT_TRUE(target == data);
  });
  return told;
}

TEST(Tls, CarriesWhatItIsGivenAndNobodyReadsIt) {
  for (size_t bytes : {size_t{1}, size_t{100}, size_t{16384}, size_t{16385}, size_t{3} << 20}) {
    for (bool encrypted : {false, true}) {
      const Encryption encryption = encrypted ? kEncryption : Encryption();
      std::string seen;
      {
        Tap tap;
        const auto told = Exchange({encryption, encryption}, &tap, bytes);
        TFDEAR_EXPECT_OK(told[0]);
        TFDEAR_EXPECT_OK(told[1]);
        seen = tap.seen();
      }
      if (bytes >= 100) {
        EXPECT_EQ(Contains(seen, "nobody's business"), !encrypted) << bytes;
      }
    }
  }
}

TEST(Tls, ABitThatIsChangedOnTheWayIsFound) {
  constexpr size_t kBytes = 1 << 20;
  for (size_t at : {size_t{1000}, size_t{100'000}, size_t{900'000}}) {
    Tap tap([at](char* data, size_t bytes, size_t before) {
      // Not in the handshake, which is shorter.
      if (before <= at && at < before + bytes) data[at - before] ^= 4;
    });
    const auto told = Exchange({kEncryption, kEncryption}, &tap, kBytes);
    EXPECT_EQ(told[1].code(), StatusCode::kUnavailable) << at;
    EXPECT_TRUE(Contains(told[1].message(), "rank 0")) << told[1].message();
    EXPECT_TRUE(Contains(told[1].message(), "by TLS")) << told[1].message();
  }
}

TEST(Tls, SidesThatDoNotBelongTogetherDoNotMeet) {
  Encryption key = kEncryption, group = kEncryption, ranks = kEncryption;
  key.key[3] = 'x';
  group.group = "control";
  ranks.ranks = {4, 8};
  for (const Encryption& other : {key, group, ranks}) {
    Tap tap;
    const auto told = Exchange({kEncryption, other}, &tap, 10);
    EXPECT_EQ(told[0].code(), StatusCode::kUnavailable) << told[0].message();
    EXPECT_EQ(told[1].code(), StatusCode::kUnavailable) << told[1].message();
    EXPECT_TRUE(Contains(told[0].message(), "rank 1")) << told[0].message();
  }
}

TEST(Tls, AHandshakeEndsAtItsDeadlineAndByAbort) {
  for (bool aborts : {false, true}) {
    const auto [own, other] = ConnectedSockets();
    const auto transport =
        TransportOf(0, own, kEncryption, std::chrono::milliseconds(aborts ? 60'000 : 200));
    std::thread ending([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (aborts) transport->Abort(Unavailable("the job has ended"));
    });
    const Status status = transport->Connect({"tcp", "tcp"});
    ending.join();
    EXPECT_EQ(status.code(), aborts ? StatusCode::kUnavailable : StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Contains(status.message(), aborts ? "the job has ended" : "rank 1"));
    close(other);
  }
}

// The library takes a fresh key after some hundred GB. What comes behind it must not wait for more.
TEST(Tls, AFreshKeyHoldsNothingUp) {
  int ends[2];  // Over which bytes arrive as soon as they are sent.
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  std::array<std::unique_ptr<TlsStream>, 2> streams;
  TFDEAR_EXPECT_OK(TlsStream::Create(ends[0], {true, kEncryption.key, "x"}, &streams[0]));
  TFDEAR_EXPECT_OK(TlsStream::Create(ends[1], {false, kEncryption.key, "x"}, &streams[1]));
  RunThreads(2, [&](int side) {
    while (streams[side]->ShakeHands() == ByteStream::Result::kNotNow) {
      const short events = streams[side]->wants_to_write() ? POLLOUT : POLLIN;
      pollfd waiting = {streams[side]->socket(), events, 0};
      poll(&waiting, 1, 1000);
    }
  });
  for (int round = 0; round < 3; ++round) {
    std::string sent = "before", received(16, '\0');
    iovec part = {sent.data(), sent.size()};
    size_t moved = 0;
    EXPECT_EQ(streams[0]->Send(&part, 1, &moved), ByteStream::Result::kMoved);
    EXPECT_EQ(streams[0]->UpdateKey(), ByteStream::Result::kMoved);
    EXPECT_EQ(streams[0]->Send(&part, 1, &moved), ByteStream::Result::kMoved);
    for (int i = 0; i < 2; ++i) {
      iovec target = {received.data(), received.size()};
      ASSERT_EQ(streams[1]->Receive(&target, 1, &moved), ByteStream::Result::kMoved);
      EXPECT_EQ(received.substr(0, moved), sent);
    }
    iovec target = {received.data(), received.size()};
    EXPECT_EQ(streams[1]->Receive(&target, 1, &moved), ByteStream::Result::kNotNow);
  }
  // Nor is the end behind one missed.
  EXPECT_EQ(streams[0]->UpdateKey(), ByteStream::Result::kMoved);
  streams[0].reset();
  char byte;
  iovec target = {&byte, 1};
  size_t moved = 0;
  EXPECT_EQ(streams[1]->Receive(&target, 1, &moved), ByteStream::Result::kEnded);
}

// Every collective, over several connections of several ranks.
TEST(Tls, ChangesNoSum) {
  for (int size : {1, 2, 3}) {
    for (int connections : {1, 3}) {
      std::vector<Sockets> sockets = ConnectAll(size, connections);
      Encryption encryption = kEncryption;
      encryption.ranks = std::vector<int>(size);
      std::iota(encryption.ranks.begin(), encryption.ranks.end(), 10);
      auto make = [&](int rank, int size, std::chrono::milliseconds timeout,
                      std::unique_ptr<CollectiveBackend>* result) {
        std::unique_ptr<TcpTransport> transport;
        TFDEAR_RETURN_IF_ERROR(TcpTransport::Create(rank, size, timeout, std::move(sockets[rank]),
                                                    &transport, encryption));
        auto backend = std::make_unique<TcpBackend>(std::move(transport));
        backend->set_segment_bytes(10'000);
        *result = std::move(backend);
        return Status();
      };
      RunRanksOver(make, size, [&](std::unique_ptr<CollectiveBackend> backend) {
        for (size_t count : {size_t{0}, size_t{1}, size_t{100'003}}) {
          std::vector<int64_t> data(count);
          for (size_t i = 0; i < count; ++i) data[i] = static_cast<int64_t>(i) + backend->rank();
          TFDEAR_EXPECT_OK(
              backend->AllReduce(data.data(), count, DataType::kInt64, Signature("x"), count));
          for (size_t i = 0; i < count; ++i) {
            ASSERT_EQ(data[i], static_cast<int64_t>(i) * size + size * (size - 1) / 2);
          }
        }
        TFDEAR_EXPECT_OK(backend->Barrier(Signature("end"), 0));
      });
    }
  }
}

}  // namespace
}  // namespace tfdear
