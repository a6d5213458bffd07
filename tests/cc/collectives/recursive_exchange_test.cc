// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/recursive_exchange.h"

#include <sys/resource.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/transport/tcp/tcp_transport.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

// Counts what passes through a channel.
class CountingChannel : public Channel {
 public:
  explicit CountingChannel(Channel* channel) : channel_(channel) {}

  Message* Send(int peer, uint64_t tag, const void* data, size_t bytes) override {
    ++sends;
    return channel_->Send(peer, tag, data, bytes);
  }
  Message* Receive(int peer, uint64_t tag, void* target, size_t bytes) override {
    ++receives;
    return channel_->Receive(peer, tag, target, bytes);
  }
  using Channel::Wait;
  Status Wait(Message* message, const Use& use) override { return channel_->Wait(message, use); }
  Status WaitForSends() override { return channel_->WaitForSends(); }
  size_t ReceivesAhead() const override { return channel_->ReceivesAhead(); }
  size_t SendsAhead(size_t messages) const override { return channel_->SendsAhead(messages); }

  int sends = 0;
  int receives = 0;

 private:
  Channel* const channel_;
};

// 64 ranks in one process have 8,064 connections.
void AllowManyFiles() {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// Calls `body(exchange, open, rank)` on ranks that are threads; `open` gives a channel for the next
// collective.
using Open = std::function<std::unique_ptr<Channel>()>;
void RunRounds(int size, const std::function<void(RecursiveExchange*, const Open&, int)>& body) {
  std::vector<Sockets> sockets = ConnectAll(size);
  RunThreads(size, [&](int rank) {
    std::unique_ptr<TcpTransport> transport;
    TFDEAR_EXPECT_OK(
        TcpTransport::Create(rank, size, kTestTimeout, std::move(sockets[rank]), &transport));
    uint64_t sequence = 0;
    RecursiveExchange exchange(rank, size);
    body(
        &exchange, [&] { return transport->Open("test", Signature("x"), sequence++, 0); }, rank);
  });
}

TEST(RecursiveExchange, SumsAndGathersForAnyNumberOfRanks) {
  for (int size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15}) {
    RunRounds(size, [&](RecursiveExchange* exchange, const Open& open, int rank) {
      for (DataType type : AllDataTypes()) {
        for (size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}, size_t{10007}}) {
          for (size_t segment_bytes : {size_t{64}, size_t{1} << 20}) {
            SCOPED_TRACE(TextOf(size, " ranks, ", Name(type), "[", count, "], ", segment_bytes));
            if (count > 1000 && segment_bytes == 64) continue;
            const size_t width = SizeOf(type);
            std::vector<Range> shards = ShardsOf(count, size);
            for (Range& shard : shards) shard = {shard.begin * width, shard.end * width};
            auto value = [](int rank, size_t i) { return static_cast<int>((i + rank) % 3) - 1; };
            auto data = MakeData(type, count, [&](size_t i) { return value(rank, i); });
            auto small = data;
            const auto total = MakeData(type, count, [&](size_t i) {
              int sum = 0;
              for (int other = 0; other < size; ++other) sum += value(other, i);
              return sum;
            });
            TFDEAR_EXPECT_OK(
                exchange->ReduceScatter(open().get(), data.data(), shards, type, segment_bytes));
            const Range own = shards[rank];
            ASSERT_EQ(std::string(data.data() + own.begin, own.size()),
                      std::string(total.data() + own.begin, own.size()));
            // Nothing of what the sums have left elsewhere may be gathered.
            for (size_t i = 0; i < data.size(); ++i) {
              if (i < own.begin || i >= own.end) data[i] = 77;
            }
            TFDEAR_EXPECT_OK(exchange->AllGather(open().get(), data.data(), shards, segment_bytes));
            ASSERT_EQ(data, total);
            TFDEAR_EXPECT_OK(exchange->AllReduce(open().get(), small.data(), shards, type));
            ASSERT_EQ(small, total);
          }
        }
      }
    });
  }
}

// [Note: order of the sums]
TEST(RecursiveExchange, BitsDependOnNeitherTheShardsNorTheRank) {
  constexpr size_t kCount = 300;
  constexpr size_t kBytes = kCount * sizeof(float);
  for (int size : {3, 4, 6, 8, 11, 12, 15}) {
    std::vector<std::vector<float>> sums(size);
    RunRounds(size, [&](RecursiveExchange* exchange, const Open& open, int rank) {
      auto values = [&] {
        std::vector<float> data(kCount);
        for (size_t i = 0; i < kCount; ++i)
          data[i] = 1.0f / static_cast<float>(1 + i * size + rank);
        return data;
      };
      // All to one rank; all to another; evenly; at once.
      std::vector<std::vector<Range>> layouts(3, std::vector<Range>(size));
      for (int other = 0; other < size; ++other) {
        layouts[0][other] = {other == 0 ? 0 : kBytes, kBytes};
        layouts[1][other] = {0, other == size - 1 ? kBytes : 0};
        const Range shard = ShardOf(kCount, other, size);
        layouts[2][other] = {shard.begin * sizeof(float), shard.end * sizeof(float)};
      }
      std::vector<float> data = values();
      TFDEAR_EXPECT_OK(exchange->AllReduce(open().get(), reinterpret_cast<char*>(data.data()),
                                           layouts[2], DataType::kFloat32));
      sums[rank] = data;
      for (const auto& shards : layouts) {
        std::vector<float> again = values();
        char* const bytes = reinterpret_cast<char*>(again.data());
        TFDEAR_EXPECT_OK(
            exchange->ReduceScatter(open().get(), bytes, shards, DataType::kFloat32, 256));
        TFDEAR_EXPECT_OK(exchange->AllGather(open().get(), bytes, shards, 256));
        EXPECT_EQ(std::memcmp(bytes, data.data(), kBytes), 0) << size << " ranks";
      }
    });
    for (int rank = 1; rank < size; ++rank) EXPECT_EQ(sums[rank], sums[0]);
  }
}

// What a rank waits for: log2(P) messages where all factors are 2, at most 2 log2(P) where they are
// 2, 3 and 5, and one more, each way, where some ranks fold.
TEST(RecursiveExchange, ASmallSumOfManyRanksTakesFewMessages) {
  AllowManyFiles();
  for (const auto& [size, most] : std::map<int, int>{{17, 4 + 1}, {60, 2 + 2 + 4}, {64, 6}}) {
    RunRounds(size, [&, size = size, most = most](RecursiveExchange* exchange, const Open& open,
                                                  int rank) {
      const auto opened = open();
      CountingChannel channel(opened.get());
      int64_t value = rank;
      std::vector<Range> shards(size, Range{8, 8});
      shards[0] = {0, 8};
      TFDEAR_EXPECT_OK(
          exchange->AllReduce(&channel, reinterpret_cast<char*>(&value), shards, DataType::kInt64));
      EXPECT_EQ(value, size * (size - 1) / 2);
      EXPECT_LE(channel.receives, most);
      EXPECT_LE(channel.sends, most);
    });
  }
}

// Without a fold bytes are those of a ring: (P - 1) / P of the data in each half.
TEST(RecursiveExchange, SendsNoMoreThanARing) {
  for (int size : {9, 12, 14, 15, 16}) {
    const size_t count = 2000 * size;
    RunRanks(size, [&](std::unique_ptr<TcpBackend> backend) {
      std::vector<float> data(count, 1);
      uint64_t before = backend->bytes_sent();
      auto sent = [&] {
        return backend->bytes_sent() - std::exchange(before, backend->bytes_sent());
      };
      const Signature name("x");
      TFDEAR_EXPECT_OK(backend->ReduceScatter(data.data(), count, DataType::kFloat32, name, 0));
      EXPECT_EQ(sent(), 2000 * sizeof(float) * (size - 1));
      TFDEAR_EXPECT_OK(backend->AllGather(data.data(), count, DataType::kFloat32, name, 1));
      EXPECT_EQ(sent(), 2000 * sizeof(float) * (size - 1));
      EXPECT_EQ(data, std::vector<float>(count, size));
      TFDEAR_EXPECT_OK(backend->Barrier(name, 2));
    });
  }
}

}  // namespace
}  // namespace tfdear
