// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Collectives over Gloo's connections, and how those are made.

#include "custom_ops/engine/transport/gloo/gloo_transport.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

using Milliseconds = std::chrono::milliseconds;

Status Make(int rank, int size, const std::string& address, Milliseconds timeout,
            std::unique_ptr<TcpBackend>* result, int connections = 1) {
  std::unique_ptr<GlooTransport> transport;
  TFDEAR_RETURN_IF_ERROR(
      GlooTransport::Create(rank, size, address, timeout, connections, &transport));
  *result = std::make_unique<TcpBackend>(std::move(transport));
  return Status();
}

// Runs `body` on ranks that are connected over Gloo.
void RunOverGloo(int size, int direct_ranks,
                 const std::function<void(CollectiveBackend* backend, int rank)>& body) {
  auto make = [&](int rank, int size, Milliseconds timeout,
                  std::unique_ptr<CollectiveBackend>* result) {
    std::unique_ptr<TcpBackend> backend;
    TFDEAR_RETURN_IF_ERROR(Make(rank, size, "127.0.0.1", timeout, &backend, 2));
    backend->set_direct_ranks(direct_ranks);
    backend->set_segment_bytes(4096);
    *result = std::move(backend);
    return Status();
  };
  RunRanksOver(make, size, [&](std::unique_ptr<CollectiveBackend> backend) {
    body(backend.get(), backend->rank());
  });
}

TEST(GlooTransport, CarriesEveryCollective) {
  for (int size : {1, 2, 3}) {
    for (int direct_ranks : {0, 8}) {
      RunOverGloo(size, direct_ranks, [&](CollectiveBackend* backend, int rank) {
        uint64_t sequence = 0;
        const int ranks = size * (size + 1) / 2;
        for (size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{100003}}) {
          const DataType type = DataType::kFloat32;
          const Signature name("x");
          std::vector<float> data(count, static_cast<float>(rank + 1));
          TFDEAR_EXPECT_OK(backend->AllReduce(data.data(), count, type, name, sequence++));
          EXPECT_EQ(data, std::vector<float>(count, static_cast<float>(ranks)));
          TFDEAR_EXPECT_OK(backend->ReduceScatter(data.data(), count, type, name, sequence++));
          TFDEAR_EXPECT_OK(backend->AllGather(data.data(), count, type, name, sequence++));
          EXPECT_EQ(data, std::vector<float>(count, static_cast<float>(ranks * size)));
          std::vector<float> value(count, static_cast<float>(rank));
          TFDEAR_EXPECT_OK(
              backend->Broadcast(value.data(), count * sizeof(float), size - 1, name, sequence++));
          EXPECT_EQ(value, std::vector<float>(count, static_cast<float>(size - 1)));
          const std::vector<size_t> bytes(size, count * sizeof(float));
          std::vector<float> sent(size * count, static_cast<float>(rank)), received(size * count);
          TFDEAR_EXPECT_OK(
              backend->AllToAllV(sent.data(), bytes, received.data(), bytes, name, sequence++));
          for (size_t i = 0; i < received.size(); ++i) {
            ASSERT_EQ(received[i], static_cast<float>(i / count));
          }
        }
        TFDEAR_EXPECT_OK(backend->Barrier(Signature("end"), sequence));
      });
    }
  }
}

TEST(GlooTransport, RefusesWrongArguments) {
  std::unique_ptr<TcpBackend> backend;
  EXPECT_EQ(Make(2, 2, "127.0.0.1", kTestTimeout, &backend).code(), StatusCode::kInvalidArgument);
  for (const char* address : {"", "0.0.0.0", "::", "no.such.host.invalid"}) {
    const Status status = Make(0, 2, address, kTestTimeout, &backend);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << address;
  }
  EXPECT_EQ(Make(0, 2, "127.0.0.1", kTestTimeout, &backend, 0).code(),
            StatusCode::kInvalidArgument);
  // Reserved for documentation: never an address of this machine.
  EXPECT_EQ(Make(0, 2, "192.0.2.1", kTestTimeout, &backend).code(), StatusCode::kUnavailable);

  TFDEAR_EXPECT_OK(Make(0, 2, "localhost", kTestTimeout, &backend));
}

TEST(GlooTransport, RanksMustHaveTheSameNumberOfConnections) {
  BlobExchange exchange(2);
  RunThreads(2, [&](int rank) {
    std::unique_ptr<TcpBackend> backend;
    TFDEAR_EXPECT_OK(Make(rank, 2, "127.0.0.1", kTestTimeout, &backend, 2 + rank));
    const Status status = backend->Connect(exchange.Meet(rank, backend->Listen()));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    const std::string expected = "expected " + std::to_string(2 + rank) + " connections to rank " +
                                 std::to_string(1 - rank) + ", which has " +
                                 std::to_string(3 - rank);
    EXPECT_TRUE(Contains(status.message(), expected)) << status.message();
  });
}

TEST(GlooTransport, WorksOverIpv6Loopback) {
  BlobExchange exchange(2);
  std::unique_ptr<TcpBackend> probe;
  if (!Make(0, 2, "::1", kTestTimeout, &probe).ok()) GTEST_SKIP() << "no IPv6 loopback here";
  RunThreads(2, [&](int rank) {
    std::unique_ptr<TcpBackend> backend;
    TFDEAR_EXPECT_OK(Make(rank, 2, "::1", kTestTimeout, &backend));
    const std::string blob = backend->Listen();
    EXPECT_TRUE(Contains(blob, "[::1]:")) << blob;
    TFDEAR_EXPECT_OK(backend->Connect(exchange.Meet(rank, blob)));
    int64_t value = rank + 1;
    TFDEAR_EXPECT_OK(backend->AllReduce(&value, 1, DataType::kInt64, Signature("x"), 0));
    EXPECT_EQ(value, 3);
  });
}

TEST(GlooTransport, ASenderDoesNotRunAheadWithOnePeerOfADirectExchange) {
  constexpr size_t kSegmentBytes = 64 * 1024;
  Rendezvous checked(3);
  for (bool gather : {false, true}) {
    auto make = [&](int rank, int size, std::chrono::milliseconds timeout,
                    std::unique_ptr<CollectiveBackend>* result) {
      std::unique_ptr<TcpBackend> backend;
      TFDEAR_RETURN_IF_ERROR(Make(rank, size, "127.0.0.1", timeout, &backend));
      backend->set_segment_bytes(kSegmentBytes);
      *result = std::move(backend);
      return Status();
    };
    RunRanksOver(
        make, 3,
        [&](std::unique_ptr<CollectiveBackend> backend) {
          const uint64_t before = backend->bytes_sent();
          if (backend->rank() != 2) {  // rank 2 never comes
            std::vector<float> data(3 * 16 * kSegmentBytes / sizeof(float));
            const std::vector<Range> shards = ShardsOf(data.size(), 3);
            const Signature name("x");
            const Status status =
                gather ? backend->AllGather(data.data(), shards, DataType::kFloat32, name, 0)
                       : backend->ReduceScatter(data.data(), shards, DataType::kFloat32, name, 0);
            EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.message();
            EXPECT_TRUE(Contains(status.message(), "rank 2 took no data")) << status.message();
            EXPECT_EQ(backend->bytes_sent() - before, 2 * 2 * kSegmentBytes);
          }
          checked.Wait();
        },
        std::chrono::milliseconds(500));
  }
}

TEST(GlooTransport, NamesThePeerThatDoesNotAnswer) {
  HardTimeout hard_timeout;
  // Both bind, then one never connects: rank 1 listens, so rank 0 sees silence or, as the
  // connecting side, a rank that never confirms.
  std::unique_ptr<TcpBackend> present, absent;
  TFDEAR_EXPECT_OK(Make(0, 2, "127.0.0.1", Milliseconds(300), &present));
  TFDEAR_EXPECT_OK(Make(1, 2, "127.0.0.1", Milliseconds(300), &absent));
  const Status status = present->Connect({present->Listen(), absent->Listen()});
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.message();
  EXPECT_TRUE(Contains(status.message(), "rank 1")) << status.message();
  EXPECT_EQ(present->failed_peer(), 1);
}

TEST(GlooTransport, NamesThePeerThatEnded) {
  HardTimeout hard_timeout;
  std::unique_ptr<TcpBackend> present, ended;
  TFDEAR_EXPECT_OK(Make(0, 2, "127.0.0.1", Milliseconds(300), &present));
  TFDEAR_EXPECT_OK(Make(1, 2, "127.0.0.1", Milliseconds(300), &ended));
  const std::string blob = ended->Listen();
  ended.reset();
  const Status status = present->Connect({present->Listen(), blob});
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(Contains(status.message(), "no connection to rank 1 at 127.0.0.1:"))
      << status.message();
}

TEST(GlooTransport, RefusesWrongBlobsInWords) {
  std::unique_ptr<TcpBackend> backend;
  TFDEAR_EXPECT_OK(Make(0, 2, "127.0.0.1", kTestTimeout, &backend));
  const std::string own = backend->Listen();
  for (const std::string& blob : {std::string(), std::string("nonsense"), own}) {
    const Status status = backend->Connect({own, blob});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_TRUE(Contains(status.message(), "rank")) << status.message();
  }
  EXPECT_EQ(backend->Connect({own}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tfdear
