// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Which connections collectives make, when they make them themselves: those that they need, once.

#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "custom_ops/engine/collectives/tcp_backend.h"
#include "custom_ops/engine/transport/tcp/tcp_transport.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

// Where ranks that are threads connect to each other: each pair when both have asked for it.
class Switchboard {
 public:
  Switchboard() : made_of_(64) {}

  TcpTransport::Connector Of(int rank) {
    return [this, rank](const std::vector<int>& peers, Range numbers, Sockets* sockets, int*) {
      std::unique_lock<std::mutex> lock(mutex_);
      for (int peer : peers) {
        size_t& made = made_of_[rank][peer];
        EXPECT_EQ(made, numbers.begin) << rank << " has others to " << peer;
        made = numbers.end;
        Pair& pair = pairs_[{std::minmax(rank, peer), numbers.begin}];
        for (size_t i = 0; pair.asked == 0 && i < numbers.size(); ++i) {
          pair.ends.push_back(ConnectedSockets());
        }
        ++pair.asked;
        EXPECT_EQ(pair.ends.size(), numbers.size());
        for (const auto& [lower, higher] : pair.ends) {
          sockets->Add(peer, rank < peer ? lower : higher);
        }
      }
      both_.notify_all();
      for (int peer : peers) {
        const Pair& pair = pairs_[{std::minmax(rank, peer), numbers.begin}];
        EXPECT_TRUE(both_.wait_for(lock, kTestTimeout, [&] { return pair.asked == 2; }));
      }
      return Status();
    };
  }

  std::set<int> PeersOf(int rank) {
    std::set<int> peers;
    for (const auto& [peer, made] : MadeOf(rank)) peers.insert(peer);
    return peers;
  }
  // How many to each peer.
  std::map<int, size_t> MadeOf(int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    return made_of_[rank];
  }

 private:
  struct Pair {
    int asked = 0;
    std::vector<std::pair<int, int>> ends;
  };

  std::mutex mutex_;
  std::condition_variable both_;
  std::map<std::pair<std::pair<int, int>, size_t>, Pair> pairs_;
  std::vector<std::map<int, size_t>> made_of_;
};

std::unique_ptr<TcpBackend> Backend(int rank, int size, int connections,
                                    TcpTransport::Connector connector) {
  std::unique_ptr<TcpTransport> transport;
  TFDEAR_EXPECT_OK(TcpTransport::Create(rank, size, kTestTimeout, std::move(connector), connections,
                                        &transport));
  return std::make_unique<TcpBackend>(std::move(transport));
}

// Runs a collective twice on ranks that are threads; returns whom each rank was connected to.
using Body = std::function<Status(TcpBackend* backend, uint64_t sequence)>;
std::vector<std::set<int>> PeersAfter(int size, int connections, const Body& body) {
  Switchboard switchboard;
  RunThreads(size, [&](int rank) {
    const auto backend = Backend(rank, size, connections, switchboard.Of(rank));
    for (uint64_t sequence : {0, 1}) TFDEAR_EXPECT_OK(body(backend.get(), sequence));
  });
  std::vector<std::set<int>> peers;
  for (int rank = 0; rank < size; ++rank) peers.push_back(switchboard.PeersOf(rank));
  return peers;
}

Status SumOf(TcpBackend* backend, size_t count, uint64_t sequence) {
  std::vector<float> data(count, static_cast<float>(backend->rank() + 1));
  const Status status = backend->AllReduce(data.data(), ShardsOf(count, backend->size()),
                                           DataType::kFloat32, Signature("x"), sequence);
  const float sum = static_cast<float>(backend->size() * (backend->size() + 1)) / 2;
  EXPECT_EQ(data, std::vector<float>(count, sum));
  return status;
}

TEST(Connections, SmallSumsNeedAllOfEightRanksAndFewOfMore) {
  // Of 3 x 3, 2 x 2 x 2 x 2, 3 x 7 ranks; the last of 22 folds onto the first.
  const std::map<int, int> peers_of_many = {{9, 4}, {16, 4}, {21, 8}, {22, 8}, {32, 5}};
  for (int size : {1, 2, 3, 4, 8, 9, 16, 21, 22, 32}) {
    for (int connections : {1, 3}) {
      const auto peers = PeersAfter(size, connections, [](TcpBackend* backend, uint64_t sequence) {
        return SumOf(backend, 10, sequence);
      });
      for (int rank = 0; rank < size; ++rank) {
        int expected = size <= 8 ? size - 1 : peers_of_many.at(size);
        if (size == 22 && rank == 0) ++expected;
        if (size == 22 && rank == 21) expected = 1;
        EXPECT_EQ(peers[rank].size(), expected) << rank << " of " << size;
      }
    }
  }
}

TEST(Connections, ARingNeedsTwo) {
  for (int size : {2, 3, 4, 9, 12}) {
    const auto peers = PeersAfter(size, 1, [](TcpBackend* backend, uint64_t sequence) {
      backend->set_direct_ranks(0);
      return SumOf(backend, 100'000, sequence);
    });
    for (int rank = 0; rank < size; ++rank) {
      const std::set<int> neighbours = {(rank + 1) % size, (rank + size - 1) % size};
      EXPECT_EQ(peers[rank], neighbours);
    }
  }
}

TEST(Connections, ThereMayBeMoreLaterAndFewer) {
  for (int size : {2, 3, 4}) {
    Switchboard switchboard;
    RunThreads(size, [&](int rank) {
      const auto backend = Backend(rank, size, 1, switchboard.Of(rank));
      backend->set_direct_ranks(0);
      backend->set_segment_bytes(4096);
      uint64_t sequence = 0;
      for (size_t connections : {1, 4, 2, 1, 3, 6}) {
        TFDEAR_EXPECT_OK(backend->SetConnections(connections));
        // The ring, and then others, of which some have no connection yet.
        TFDEAR_EXPECT_OK(SumOf(backend.get(), 50'000, sequence++));
      }
      backend->set_direct_ranks(8);
      TFDEAR_EXPECT_OK(SumOf(backend.get(), 50'000, sequence++));
      EXPECT_EQ(backend->SetConnections(0).code(), StatusCode::kInvalidArgument);
      TFDEAR_EXPECT_OK(SumOf(backend.get(), 10, sequence++));
    });
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(switchboard.PeersOf(rank).size(), size - 1);
      for (const auto& [peer, made] : switchboard.MadeOf(rank)) EXPECT_EQ(made, 6u) << peer;
    }
  }
}

TEST(Connections, ATreeNeedsItsEdges) {
  const int size = 13;
  for (int root : {0, 5}) {
    const auto peers = PeersAfter(size, 1, [&](TcpBackend* backend, uint64_t sequence) {
      std::vector<int32_t> data(1000, backend->rank() == root ? 7 : 0);
      TFDEAR_RETURN_IF_ERROR(
          backend->Broadcast(data.data(), 4 * data.size(), root, Signature("x"), sequence));
      EXPECT_EQ(data, std::vector<int32_t>(1000, 7));
      data.assign(1000, 1);
      TFDEAR_RETURN_IF_ERROR(backend->Reduce(data.data(), data.size(), DataType::kInt32, root,
                                             Signature("x"), sequence + 10));
      if (backend->rank() == root) EXPECT_EQ(data, std::vector<int32_t>(1000, size));
      return Status();
    });
    size_t ends = 0;
    for (const std::set<int>& of_rank : peers) ends += of_rank.size();
    EXPECT_EQ(ends, 2 * (size - 1));
  }
}

TEST(Connections, CollectivesShareThem) {
  const int size = 12;
  const auto peers = PeersAfter(size, 2, [&](TcpBackend* backend, uint64_t sequence) {
    TFDEAR_RETURN_IF_ERROR(backend->Barrier(Signature("x"), 4 * sequence));
    TFDEAR_RETURN_IF_ERROR(SumOf(backend, 100'000, 4 * sequence + 1));
    // Whom nothing is sent to is connected, too: nobody knows what others send.
    std::vector<OutgoingPieces> sends(size);
    std::vector<IncomingPieces> receives(size);
    const int32_t sent = backend->rank();
    int32_t received = -1;
    const int next = (backend->rank() + 1) % size, last = (backend->rank() + size - 1) % size;
    sends[next] = {{reinterpret_cast<const char*>(&sent), sizeof(sent)}};
    receives[last] = {{reinterpret_cast<char*>(&received), sizeof(received)}};
    TFDEAR_RETURN_IF_ERROR(
        backend->AllToAllPieces(sends, receives, Signature("x"), 4 * sequence + 2));
    EXPECT_EQ(received, last);
    return Status();
  });
  for (const std::set<int>& of_rank : peers) EXPECT_EQ(of_rank.size(), size - 1);
}

TEST(Connections, WhoCannotBeReachedIsToBlame) {
  for (int culprit : {-1, 2}) {
    int calls = 0;
    const auto backend =
        Backend(0, 3, 1, [&](const std::vector<int>& peers, Range, Sockets*, int* peer) {
          EXPECT_EQ(peers, (std::vector<int>{1, 2}));
          ++calls;
          *peer = culprit;
          return Unavailable("nobody listens there");
        });
    for (uint64_t sequence : {0, 1}) {
      const Status status = backend->Barrier(Signature("x"), sequence);
      EXPECT_TRUE(Contains(status.message(), "barrier")) << status.message();
      EXPECT_TRUE(Contains(status.message(), ": nobody listens there")) << status.message();
    }
    EXPECT_EQ(backend->failed_peer(), culprit);
    EXPECT_EQ(calls, 1);
  }
}

TEST(Connections, ThoseOfAnAbortedJobAreClosed) {
  const auto [own, other] = ConnectedSockets();
  TcpBackend* aborted = nullptr;
  const auto backend = Backend(0, 2, 1, [&, own = own](const auto&, Range, Sockets* sockets, int*) {
    // While they are made.
    aborted->Abort(Status(StatusCode::kAborted, "the cause"));
    sockets->Add(1, own);
    return Status();
  });
  aborted = backend.get();
  EXPECT_EQ(backend->Barrier(Signature("x"), 0).message(), "the cause");
  char byte;
  EXPECT_EQ(recv(other, &byte, 1, 0), 0);
  close(other);
}

TEST(Connections, TooFewSocketsAreAnError) {
  const auto [own, other] = ConnectedSockets();
  const auto backend = Backend(0, 2, 2, [own = own](const auto&, Range, Sockets* sockets, int*) {
    sockets->Add(1, own);
    return Status();
  });
  const Status status = backend->Barrier(Signature("x"), 0);
  EXPECT_TRUE(Contains(status.message(), "expected 2 connections to rank 1, received 1"))
      << status.message();
  close(other);
}

}  // namespace
}  // namespace tfdear
