// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Every collective of every backend: values, bits, bytes handed to the transport.

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <numeric>
#include <random>
#include <tuple>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

const size_t kCounts[] = {0, 1, 2, 3, 5, 64, 1000, 100003};

// Element i of rank's data; sums over up to four ranks stay within +-16, exact in every type.
int Value(int rank, size_t i) { return static_cast<int>((i * 7 + rank * 3) % 9) - 4; }

int Sum(int size, size_t i) {
  int sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += Value(rank, i);
  return sum;
}

enum class Kind { kDirect, kRecursive, kRing, kSharedMemory };

// Ranks, and how they exchange.
class CollectivesTest : public testing::TestWithParam<std::tuple<int, Kind>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  static Kind kind() { return std::get<1>(GetParam()); }

  // `segment_bytes` 0: the backend's default.
  static void RunRanks(int size,
                       const std::function<void(std::unique_ptr<CollectiveBackend>)>& body,
                       size_t segment_bytes = 0) {
    std::vector<Sockets> sockets = ConnectAll(size);
    auto make = [&](int rank, int size, std::chrono::milliseconds timeout,
                    std::unique_ptr<CollectiveBackend>* result) {
      if (kind() == Kind::kSharedMemory) {
        std::unique_ptr<SharedMemoryBackend> backend;
        TFDEAR_RETURN_IF_ERROR(SharedMemoryBackend::Create(rank, size, timeout, &backend));
        if (segment_bytes > 0) backend->set_segment_bytes(segment_bytes);
        *result = std::move(backend);
        return Status();
      }
      std::unique_ptr<TcpBackend> backend;
      TFDEAR_RETURN_IF_ERROR(
          TcpBackend::Create(rank, size, timeout, std::move(sockets[rank]), &backend));
      backend->set_direct_ranks(kind() == Kind::kRing ? 0 : kind() == Kind::kRecursive ? 1 : 8);
      if (segment_bytes > 0) backend->set_segment_bytes(segment_bytes);
      *result = std::move(backend);
      return Status();
    };
    RunRanksOver(make, size, body);
  }

  // Calls `body(backend, type, count, sequence)` on all ranks for all types and counts.
  void ForAll(const std::function<void(CollectiveBackend*, DataType, size_t, uint64_t)>& body) {
    RunRanks(size(), [&](std::unique_ptr<CollectiveBackend> backend) {
      uint64_t sequence = 0;
      for (DataType type : AllDataTypes()) {
        for (size_t count : kCounts) {
          SCOPED_TRACE(std::string(Name(type)) + "[" + std::to_string(count) + "]");
          body(backend.get(), type, count, sequence++);
        }
      }
    });
  }

  std::vector<char> Input(DataType type, size_t count, int rank) {
    return MakeData(type, count, [=](size_t i) { return Value(rank, i); });
  }
  std::vector<char> Total(DataType type, size_t count) {
    return MakeData(type, count, [=](size_t i) { return Sum(size(), i); });
  }
};

TEST_P(CollectivesTest, AllReduceSums) {
  ForAll([&](CollectiveBackend* backend, DataType type, size_t count, uint64_t sequence) {
    auto data = Input(type, count, backend->rank());
    TFDEAR_EXPECT_OK(backend->AllReduce(data.data(), count, type, Signature("x"), sequence));
    EXPECT_EQ(data, Total(type, count));
  });
}

TEST_P(CollectivesTest, ReduceScatterSumsTheOwnShard) {
  ForAll([&](CollectiveBackend* backend, DataType type, size_t count, uint64_t sequence) {
    auto data = Input(type, count, backend->rank());
    const auto total = Total(type, count);
    TFDEAR_EXPECT_OK(backend->ReduceScatter(data.data(), count, type, Signature("x"), sequence));
    const Range shard = ShardOf(count, backend->rank(), size());
    for (size_t i = shard.begin * SizeOf(type); i < shard.end * SizeOf(type); ++i) {
      ASSERT_EQ(data[i], total[i]) << "byte " << i;
    }
  });
}

TEST_P(CollectivesTest, AllGatherCollectsShards) {
  ForAll([&](CollectiveBackend* backend, DataType type, size_t count, uint64_t sequence) {
    const Range shard = ShardOf(count, backend->rank(), size());
    auto data = MakeData(type, count, [&](size_t i) {
      return i >= shard.begin && i < shard.end ? static_cast<int>(i % 100) : -1;
    });
    TFDEAR_EXPECT_OK(backend->AllGather(data.data(), count, type, Signature("x"), sequence));
    EXPECT_EQ(data, MakeData(type, count, [](size_t i) { return static_cast<int>(i % 100); }));
  });
}

TEST_P(CollectivesTest, ReduceSumsOnTheRoot) {
  ForAll([&](CollectiveBackend* backend, DataType type, size_t count, uint64_t sequence) {
    const auto input = Input(type, count, backend->rank());
    const auto total = Total(type, count);
    uint64_t next = 2 * size() * sequence;
    for (int root = 0; root < size(); ++root) {
      auto data = input;
      TFDEAR_EXPECT_OK(backend->Reduce(data.data(), count, type, root, Signature("x"), next++));
      if (backend->rank() == root) {
        EXPECT_EQ(data, total) << "root " << root;
      }
      TFDEAR_EXPECT_OK(backend->Broadcast(data.data(), data.size(), root, Signature("x"), next++));
      EXPECT_EQ(data, total) << "the other half of root " << root;
    }
  });
}

TEST_P(CollectivesTest, HalvesMayBeCutIntoDifferentChunks) {
  ForAll([&](CollectiveBackend* backend, DataType type, size_t count, uint64_t sequence) {
    const auto input = Input(type, count, backend->rank());
    const auto total = Total(type, count);
    auto data = input;
    uint64_t next = 10 * sequence;
    for (int chunk : {1, 0}) {
      TFDEAR_EXPECT_OK(backend->ReduceScatter(data.data(), ShardsOf(count, size(), chunk, 2), type,
                                              Signature("x"), next++));
    }
    for (int chunk : {2, 0, 1}) {
      TFDEAR_EXPECT_OK(backend->AllGather(data.data(), ShardsOf(count, size(), chunk, 3), type,
                                          Signature("x"), next++));
    }
    EXPECT_EQ(data, total);
    data = input;
    for (int chunk : {3, 1, 0, 2}) {
      TFDEAR_EXPECT_OK(backend->AllReduce(data.data(), ShardsOf(count, size(), chunk, 4), type,
                                          Signature("x"), next++));
    }
    EXPECT_EQ(data, total);
  });
}

TEST_P(CollectivesTest, AllGatherVCollectsUnequalParts) {
  RunRanks(size(), [&](std::unique_ptr<CollectiveBackend> backend) {
    uint64_t sequence = 0;
    for (size_t unit : {0, 1, 3, 1000, 300001}) {
      for (int empty_rank : {-1, 0, size() - 1}) {
        std::vector<size_t> bytes;
        std::vector<char> expected;
        for (int rank = 0; rank < size(); ++rank) {
          bytes.push_back(rank == empty_rank ? 0 : unit * (rank * rank + 1));
          expected.insert(expected.end(), bytes.back(), static_cast<char>('a' + rank));
        }
        const std::vector<char> input(bytes[backend->rank()], 'a' + backend->rank());
        std::vector<char> output(expected.size(), '?');
        TFDEAR_EXPECT_OK(
            backend->AllGatherV(input.data(), output.data(), bytes, Signature("x"), sequence++));
        EXPECT_EQ(output, expected) << "unit " << unit;
      }
    }
  });
}

TEST_P(CollectivesTest, AllToAllVTransposes) {
  RunRanks(size(), [&](std::unique_ptr<CollectiveBackend> backend) {
    uint64_t sequence = 0;
    for (size_t unit : {0, 1, 5, 1000, 100003}) {
      auto bytes_between = [&](int from, int to) { return unit * ((from * 3 + to) % 4); };
      auto letter = [](int from, int to) { return static_cast<char>('A' + from * 8 + to); };
      const int rank = backend->rank();
      std::vector<size_t> send_bytes, recv_bytes;
      std::vector<char> input, expected;
      for (int peer = 0; peer < size(); ++peer) {
        send_bytes.push_back(bytes_between(rank, peer));
        input.insert(input.end(), send_bytes.back(), letter(rank, peer));
        recv_bytes.push_back(bytes_between(peer, rank));
        expected.insert(expected.end(), recv_bytes.back(), letter(peer, rank));
      }
      std::vector<char> output(expected.size(), '?');
      TFDEAR_EXPECT_OK(backend->AllToAllV(input.data(), send_bytes, output.data(), recv_bytes,
                                          Signature("x"), sequence++));
      EXPECT_EQ(output, expected) << "unit " << unit;
    }
  });
}

TEST_P(CollectivesTest, PiecesArriveWhereTheyBelong) {
  RunRanks(size(), [&](std::unique_ptr<CollectiveBackend> backend) {
    const int rank = backend->rank();
    uint64_t sequence = 0;
    for (size_t unit : {0, 1, 1000, 100003}) {
      // Piece p between two ranks; some are empty, and some ranks have none for each other.
      auto pieces_between = [&](int from, int to) { return (from + 2 * to) % 4; };
      auto bytes_of = [&](int from, int to, int p) { return unit * ((from + to + p) % 3); };
      auto letter = [](int from, int to, int p) {
        return static_cast<char>('A' + from * 12 + to * 3 + p);
      };
      std::vector<std::vector<char>> given, got, expected;
      std::vector<OutgoingPieces> sends(size());
      std::vector<IncomingPieces> receives(size());
      for (int peer = 0; peer < size(); ++peer) {
        // What a rank has for itself it may keep to itself.
        if (peer == rank && unit == 1) continue;
        for (int p = 0; p < pieces_between(rank, peer); ++p) {
          given.emplace_back(bytes_of(rank, peer, p), letter(rank, peer, p));
          sends[peer].push_back({given.back().data(), given.back().size()});
        }
        for (int p = 0; p < pieces_between(peer, rank); ++p) {
          expected.emplace_back(bytes_of(peer, rank, p), letter(peer, rank, p));
          got.emplace_back(expected.back().size(), '?');
          receives[peer].push_back({got.back().data(), got.back().size()});
        }
      }
      TFDEAR_EXPECT_OK(backend->AllToAllPieces(sends, receives, Signature("x"), sequence++));
      EXPECT_EQ(got, expected) << "unit " << unit;
    }
  });
}

TEST_P(CollectivesTest, BroadcastFromEveryRoot) {
  RunRanks(size(), [&](std::unique_ptr<CollectiveBackend> backend) {
    uint64_t sequence = 0;
    for (int root = 0; root < size(); ++root) {
      for (size_t bytes : kCounts) {
        std::vector<char> expected(bytes * 8);
        for (size_t i = 0; i < expected.size(); ++i) {
          expected[i] = static_cast<char>(i * 31 + root);
        }
        auto data = backend->rank() == root ? expected : std::vector<char>(bytes * 8, '?');
        TFDEAR_EXPECT_OK(
            backend->Broadcast(data.data(), data.size(), root, Signature("x"), sequence++));
        EXPECT_EQ(data, expected) << "root " << root << " bytes " << data.size();
      }
    }
  });
}

TEST_P(CollectivesTest, BarrierWaitsForEveryRank) {
  std::atomic<int> arrived{0};
  RunRanks(size(), [&](std::unique_ptr<CollectiveBackend> backend) {
    for (int i = 0; i < 20; ++i) {
      ++arrived;
      TFDEAR_EXPECT_OK(backend->Barrier(Signature("x"), i));
      EXPECT_GE(arrived.load(), size() * (i + 1));
    }
  });
}

TEST_P(CollectivesTest, ResultsAreTheSameBitsOnAllRanksAndByBothRoutes) {
  std::vector<std::vector<std::vector<char>>> results(size());
  RunRanks(size(), [&](std::unique_ptr<CollectiveBackend> backend) {
    uint64_t sequence = 0;
    for (DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat64}) {
      for (size_t count : kCounts) {
        std::mt19937_64 random(count + 1000 * backend->rank());
        std::uniform_real_distribution<float> numbers(-1.0f, 1.0f);
        std::vector<char> reduced(count * SizeOf(type));
        for (size_t i = 0; i < count; ++i) {
          const float number = numbers(random);
          char* const to = reduced.data() + i * SizeOf(type);
          if (type == DataType::kFloat32) StoreAs<float>(to, number);
          if (type == DataType::kFloat64) StoreAs<double>(to, number * 1.1);
          if (type == DataType::kBFloat16) {
            std::memcpy(to, reinterpret_cast<const char*>(&number) + 2, 2);
          }
        }
        auto scattered = reduced;
        const Signature signature("x");
        TFDEAR_EXPECT_OK(backend->AllReduce(reduced.data(), count, type, signature, sequence++));
        TFDEAR_EXPECT_OK(
            backend->ReduceScatter(scattered.data(), count, type, signature, sequence++));
        TFDEAR_EXPECT_OK(backend->AllGather(scattered.data(), count, type, signature, sequence++));
        EXPECT_EQ(scattered, reduced) << Name(type) << " " << count;
        results[backend->rank()].push_back(reduced);
      }
    }
  });
  for (int rank = 1; rank < size(); ++rank) EXPECT_EQ(results[rank], results[0]) << rank;
}

// What lets results not depend on how tensors are put into buckets.
TEST_P(CollectivesTest, SumsInTheOrderOfTheRanks) {
  if (kind() == Kind::kRing) GTEST_SKIP() << "rings start behind the shard's owner";
  if (kind() == Kind::kRecursive)
    GTEST_SKIP() << "its order is shown by recursive_exchange_test.cc";
  RunRanks(size(), [&](std::unique_ptr<CollectiveBackend> backend) {
    const std::vector<float> of_rank = {1e8f, 3.7f, -1e8f, 0.3f};
    float expected = of_rank[0];
    for (int rank = 1; rank < size(); ++rank) expected += of_rank[rank];
    uint64_t sequence = 0;
    for (size_t count : {size_t{1}, size_t{7}, size_t{300007}}) {
      std::vector<float> data(count, of_rank[backend->rank()]);
      TFDEAR_EXPECT_OK(
          backend->AllReduce(data.data(), count, DataType::kFloat32, Signature("x"), sequence++));
      EXPECT_EQ(data, std::vector<float>(count, expected)) << size() << " ranks";
    }
  });
}

TEST_P(CollectivesTest, SegmentLengthDoesNotChangeTheResult) {
  std::vector<std::vector<float>> results;
  for (size_t segment_bytes : {1, 100, 4096, 1 << 20}) {
    auto reduce = [&](std::unique_ptr<CollectiveBackend> backend) {
      std::vector<float> data(5003);
      for (size_t i = 0; i < data.size(); ++i) data[i] = 1.0f / (1 + i + backend->rank());
      TFDEAR_EXPECT_OK(
          backend->AllReduce(data.data(), data.size(), DataType::kFloat32, Signature("x"), 0));
      if (backend->rank() == 0) results.push_back(data);
    };
    RunRanks(size(), reduce, segment_bytes);
    EXPECT_EQ(results.back(), results.front()) << segment_bytes;
  }
}

TEST_P(CollectivesTest, SendsNoMoreThanItsShareOfTheBytes) {
  const double share = (size() - 1.0) / size();
  // Shared memory takes what goes to all ranks once.
  const double gathered = kind() == Kind::kSharedMemory && size() > 1 ? 1.0 / size() : share;
  for (size_t count : {size_t{1} << 20, size_t{1000}}) {
    RunRanks(size(), [&](std::unique_ptr<CollectiveBackend> backend) {
      std::vector<float> data(count, 1.0f);
      const double payload = count * sizeof(float);
      uint64_t before = backend->bytes_sent();
      auto sent = [&] {
        return backend->bytes_sent() - std::exchange(before, backend->bytes_sent());
      };
      TFDEAR_EXPECT_OK(
          backend->ReduceScatter(data.data(), count, DataType::kFloat32, Signature("x"), 0));
      EXPECT_NEAR(sent(), share * payload, 0.05 * share * payload);
      TFDEAR_EXPECT_OK(
          backend->AllGather(data.data(), count, DataType::kFloat32, Signature("x"), 1));
      EXPECT_NEAR(sent(), gathered * payload, 0.05 * gathered * payload);
      if (count == 1000) return;  // a small all-reduce trades bytes for latency
      TFDEAR_EXPECT_OK(
          backend->AllReduce(data.data(), count, DataType::kFloat32, Signature("x"), 2));
      EXPECT_NEAR(sent(), (share + gathered) * payload, 0.05 * (share + gathered) * payload);
    });
  }
}

TEST_P(CollectivesTest, SeveralCollectivesMayShareOneSequenceNumber) {
  RunRanks(size(), [&](std::unique_ptr<CollectiveBackend> backend) {
    const Signature signature("compound");
    for (uint64_t sequence = 0; sequence < 5; ++sequence) {
      std::vector<int32_t> first(3000, 1), second(3000, 10);
      TFDEAR_EXPECT_OK(
          backend->AllReduce(first.data(), 3000, DataType::kInt32, signature, sequence));
      TFDEAR_EXPECT_OK(
          backend->AllReduce(second.data(), 3000, DataType::kInt32, signature, sequence));
      EXPECT_EQ(first, std::vector<int32_t>(3000, size()));
      EXPECT_EQ(second, std::vector<int32_t>(3000, 10 * size()));
    }
  });
}

TEST_P(CollectivesTest, ManyRandomCollectives) {
  RunRanks(size(), [&](std::unique_ptr<CollectiveBackend> backend) {
    std::mt19937 random(42);  // the same on all ranks
    for (uint64_t sequence = 0; sequence < 1000; ++sequence) {
      const size_t count = random() % (random() % 20 == 0 ? 30000 : 500);
      const int kind = random() % 5;
      const Signature signature("kind " + std::to_string(kind) + " " + std::to_string(count));
      std::vector<int32_t> data(count, backend->rank() + 1);
      Status status;
      const int total = size() * (size() + 1) / 2;
      const Range shard = ShardOf(count, backend->rank(), size());
      std::vector<int32_t> expected(count, total);
      if (kind == 0) {
        status = backend->AllReduce(data.data(), count, DataType::kInt32, signature, sequence);
      } else if (kind == 1) {
        status = backend->ReduceScatter(data.data(), count, DataType::kInt32, signature, sequence);
        data = std::vector<int32_t>(data.begin() + shard.begin, data.begin() + shard.end);
        expected.resize(shard.size());
      } else if (kind == 2) {
        status = backend->AllGather(data.data(), count, DataType::kInt32, signature, sequence);
        for (int rank = 0; rank < size(); ++rank) {
          const Range range = ShardOf(count, rank, size());
          std::fill(expected.begin() + range.begin, expected.begin() + range.end, rank + 1);
        }
      } else if (kind == 3) {
        const int root = random() % size();
        status =
            backend->Broadcast(data.data(), count * sizeof(int32_t), root, signature, sequence);
        expected.assign(count, root + 1);
      } else {
        status = backend->Barrier(signature, sequence);
        expected = data;
      }
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(data, expected) << "collective " << sequence << " kind " << kind;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Direct, CollectivesTest,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(Kind::kDirect)));
INSTANTIATE_TEST_SUITE_P(Recursive, CollectivesTest,
                         testing::Combine(testing::Values(2, 4),
                                          testing::Values(Kind::kRecursive)));
INSTANTIATE_TEST_SUITE_P(Ring, CollectivesTest,
                         testing::Combine(testing::Values(2, 3, 4), testing::Values(Kind::kRing)));
INSTANTIATE_TEST_SUITE_P(SharedMemory, CollectivesTest,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(Kind::kSharedMemory)));

// More ranks than exchange large, or small, payloads directly: rings, and halving, without being
// told.
TEST(TcpBackend, ManyRanks) {
  for (int size : {9, 16, 17}) {
    RunRanks(size, [size](std::unique_ptr<TcpBackend> backend) {
      uint64_t sequence = 0;
      for (size_t count : {size_t{1}, size_t{5}, size_t{40009}}) {
        std::vector<int64_t> data(count);
        for (size_t i = 0; i < count; ++i) data[i] = static_cast<int64_t>(i) * backend->rank();
        TFDEAR_EXPECT_OK(
            backend->AllReduce(data.data(), count, DataType::kInt64, Signature("x"), sequence++));
        const int64_t ranks = size * (size - 1) / 2;
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], static_cast<int64_t>(i) * ranks);
        TFDEAR_EXPECT_OK(
            backend->ReduceScatter(data.data(), count, DataType::kInt64, Signature("y"), sequence));
        TFDEAR_EXPECT_OK(
            backend->AllGather(data.data(), count, DataType::kInt64, Signature("z"), sequence++));
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(data[i], static_cast<int64_t>(i) * ranks * size);
        }
      }
      TFDEAR_EXPECT_OK(backend->Barrier(Signature("end"), sequence));
    });
  }
}

TEST(TcpBackend, RefusesWrongArguments) {
  std::unique_ptr<TcpBackend> backend;
  TFDEAR_EXPECT_OK(TcpBackend::Create(0, 1, kTestTimeout, Sockets(1), &backend));
  float value = 3;
  EXPECT_EQ(backend->Broadcast(&value, 4, 1, Signature("x"), 0).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(backend->AllReduce(&value, 1, static_cast<DataType>(99), Signature("x"), 0).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(backend->AllReduce(nullptr, 1, DataType::kFloat32, Signature("x"), 0).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(backend->AllGatherV(&value, &value, {1, 2}, Signature("x"), 0).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(backend->AllToAllV(&value, {4}, &value, {3}, Signature("x"), 0).code(),
            StatusCode::kInvalidArgument);
  TFDEAR_EXPECT_OK(backend->AllReduce(&value, 1, DataType::kFloat32, Signature("x"), 0));
  EXPECT_EQ(value, 3);
}

constexpr uint8_t kEstablished = 1;  // the kernel's TCP_ESTABLISHED, in no header beside tcp_info

// Bytes that others have acknowledged of what this process sent over each of its TCP connections.
std::vector<uint64_t> BytesOfConnections() {
  std::vector<uint64_t> bytes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    tcp_info info = {};
    socklen_t length = sizeof(info);
    const int fd = std::stoi(entry.path().filename());
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
    if (info.tcpi_state == kEstablished) bytes.push_back(info.tcpi_bytes_acked);
  }
  return bytes;
}

TEST(TcpBackend, SeveralConnectionsShareTheBytesAndChangeNoBit) {
  constexpr size_t kCount = 1000003;
  std::vector<std::vector<float>> inputs(4, std::vector<float>(kCount));
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    for (size_t i = 0; i < kCount; ++i) inputs[rank][i] = 1.0f / (1 + i + rank);
  }
  for (int size : {2, 3, 4}) {
    for (int direct_ranks : {0, 8}) {
      std::vector<float> expected;
      for (int connections : {1, 3, 6}) {
        SCOPED_TRACE(std::to_string(size) + " ranks, " + std::to_string(connections));
        std::vector<Sockets> sockets = ConnectAll(size, connections);
        auto make = [&](int rank, int size, std::chrono::milliseconds timeout,
                        std::unique_ptr<CollectiveBackend>* result) {
          std::unique_ptr<TcpBackend> backend;
          TFDEAR_RETURN_IF_ERROR(
              TcpBackend::Create(rank, size, timeout, std::move(sockets[rank]), &backend));
          backend->set_direct_ranks(direct_ranks);
          backend->set_segment_bytes(64 * 1024);
          *result = std::move(backend);
          return Status();
        };
        RunRanksOver(make, size, [&](std::unique_ptr<CollectiveBackend> backend) {
          std::vector<float> data = inputs[backend->rank()];
          TFDEAR_EXPECT_OK(
              backend->AllReduce(data.data(), kCount, DataType::kFloat32, Signature("x"), 0));
          TFDEAR_EXPECT_OK(backend->Barrier(Signature("x"), 1));
          if (backend->rank() == 0) {
            if (connections == 1) expected = data;
            EXPECT_EQ(data, expected);
            const std::vector<uint64_t> bytes = BytesOfConnections();
            // Both ends of all of them are in this process.
            EXPECT_EQ(bytes.size(), static_cast<size_t>(size * (size - 1) * connections));
            const uint64_t total = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
            // The last ones may not be acknowledged yet.
            EXPECT_GE(total * 10, 9 * 2 * (size - 1) * kCount * sizeof(float));
            const uint64_t most = *std::max_element(bytes.begin(), bytes.end());
            // A ring sends to one neighbour.
            const int used = (direct_ranks == 0 ? size : size * (size - 1)) * connections;
            EXPECT_LE(most, total / used * 5 / 4);
          }
          TFDEAR_EXPECT_OK(backend->Barrier(Signature("x"), 2));
        });
      }
    }
  }
}

TEST(TcpBackend, GivesWayBetweenSegments) {
  for (int direct_ranks : {0, 8}) {
    RunRanks(3, [&](std::unique_ptr<TcpBackend> backend) {
      backend->set_direct_ranks(direct_ranks);
      backend->set_segment_bytes(1 << 10);
      int calls = 0;
      backend->SetGiveWay([&] { ++calls; });
      std::vector<float> data(3 << 13, 1);  // 32 segments of each rank's shard.
      TFDEAR_EXPECT_OK(
          backend->ReduceScatter(data.data(), data.size(), DataType::kFloat32, Signature("x"), 0));
      EXPECT_GE(calls, 32);
      calls = 0;
      TFDEAR_EXPECT_OK(
          backend->AllGather(data.data(), data.size(), DataType::kFloat32, Signature("y"), 1));
      EXPECT_GE(calls, 32);
      EXPECT_EQ(data, std::vector<float>(data.size(), 3));
    });
  }
}

}  // namespace
}  // namespace tfdear
