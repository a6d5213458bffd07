// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Sums in two levels: the same everywhere, whatever the grid and the plan; steps of the levels run
// at once; failures end both.

#include <algorithm>
#include <array>
#include <optional>
#include <random>

#include "tests/cc/engine_testing.h"

namespace tfdear {
namespace {

constexpr size_t kHuge = size_t{1} << 30;
const Schedule kSchedules[] = {Schedule::kDear, Schedule::kWfbp, Schedule::kSequential};

TensorSpec Dense(int64_t count, DataType type = DataType::kFloat32) {
  return TensorSpec{type, count, false};
}

// A rank of a grid: its groups, and what a reduction needs beside them.
struct GridRank {
  int row = 0;
  int column = 0;
  int rows = 1;
  int columns = 1;
  EventRecord events;
  std::shared_ptr<FusionBufferPool> pool = std::make_shared<FusionBufferPool>();
  // Last: their threads use what is above.
  std::unique_ptr<ProcessGroup> intra;
  std::unique_ptr<ProcessGroup> inter;
  std::optional<Lane> lane;

  int rank() const { return row * columns + column; }
  int size() const { return rows * columns; }
  Levels levels() const { return {intra != nullptr, inter != nullptr}; }

  std::shared_ptr<Reduction> Open(std::shared_ptr<const ReductionLayout> layout,
                                  int max_delay_ms = 0) {
    auto reduction =
        std::make_shared<Reduction>(std::move(layout), rank(), size(), pool, &events, &*lane,
                                    max_delay_ms, LevelGroups{intra.get(), inter.get()});
    lane->Open(reduction);
    return reduction;
  }
};

void RunGrid(int rows, int columns, const std::function<void(GridRank*)>& body,
             int direct_ranks = 8) {
  std::vector<Sockets> world = ConnectAll(rows * columns);
  std::vector<std::vector<Sockets>> of_row, of_column;
  for (int r = 0; r < rows; ++r) of_row.push_back(ConnectAll(columns));
  for (int c = 0; c < columns; ++c) of_column.push_back(ConnectAll(rows));
  auto connect = [&](const std::string& name, std::vector<Sockets>* sockets, std::vector<int> ranks,
                     int place) {
    std::unique_ptr<TcpBackend> backend;
    const int size = static_cast<int>(ranks.size());
    TFDEAR_EXPECT_OK(
        TcpBackend::Create(place, size, kTestTimeout, std::move((*sockets)[place]), &backend));
    backend->set_direct_ranks(direct_ranks);
    return std::make_unique<ProcessGroup>(name, ranks, std::move(backend));
  };
  RunThreads(rows * columns, [&](int thread) {
    GridRank rank;
    rank.rows = rows;
    rank.columns = columns;
    rank.row = thread / columns;
    rank.column = thread % columns;
    std::vector<int> everyone(rows * columns), row, column;
    std::iota(everyone.begin(), everyone.end(), 0);
    for (int c = 0; c < columns; ++c) row.push_back(rank.row * columns + c);
    for (int r = 0; r < rows; ++r) column.push_back(r * columns + rank.column);
    rank.lane.emplace(LaneKind::kGradients, connect("gradients", &world, everyone, thread));
    if (columns > 1) {
      rank.intra = connect("gradients_intra", &of_row[rank.row], row, rank.column);
    }
    if (rows > 1) {
      rank.inter = connect("gradients_inter", &of_column[rank.column], column, rank.row);
    }
    body(&rank);
  });
}

// Numbers whose float sums depend on the order of summation.
std::vector<float> InputOf(int tensor, int64_t count, int rank) {
  std::minstd_rand random(1000 * tensor + rank + 1);
  std::vector<float> data(count);
  for (float& x : data) {
    x = (static_cast<float>(random() % 2001) - 1000.0f) / 7.0f *
        static_cast<float>(uint64_t{1} << random() % 30);
  }
  return data;
}

// Inside the rows in the order of the columns, between the rows in their order.
std::vector<float> SumOf(int tensor, int64_t count, int rows, int columns) {
  std::vector<float> total(count);
  for (int r = 0; r < rows; ++r) {
    std::vector<float> of_row = InputOf(tensor, count, r * columns);
    for (int c = 1; c < columns; ++c) {
      const auto input = InputOf(tensor, count, r * columns + c);
      for (int64_t i = 0; i < count; ++i) of_row[i] += input[i];
    }
    for (int64_t i = 0; i < count; ++i) total[i] = r == 0 ? of_row[i] : total[i] + of_row[i];
  }
  return total;
}

std::vector<Event> StepsOf(const GridRank& rank) {
  uint64_t position = 0;
  std::vector<Event> steps;
  for (const Event& event : rank.events.Read(&position)) {
    if (event.kind != EventKind::kContribute) steps.push_back(event);
  }
  return steps;
}

Plan PlanOf(std::vector<std::vector<int>> buckets, std::vector<Plan::Step> steps) {
  Plan plan;
  plan.buckets = std::move(buckets);
  plan.steps = std::move(steps);
  return plan;
}

// Reduces all tensors three times and compares the bits with the sum in the order of the grid.
void ExpectSums(GridRank* rank, const std::vector<TensorSpec>& tensors, const Plan& plan,
                int max_delay_ms = 0) {
  TFDEAR_EXPECT_OK(plan.Check(tensors, rank->levels()));
  const auto layout = ReductionLayout::Make("gradients", tensors, plan);
  std::vector<std::shared_ptr<Reduction>> reductions;
  std::vector<std::unique_ptr<Received>> all;
  // All at once: a step of the first may still run while the last one begins.
  for (int step = 0; step < 3; ++step) {
    reductions.push_back(rank->Open(layout, max_delay_ms));
    all.push_back(std::make_unique<Received>());
    all.back()->ListenTo(reductions.back().get());
    for (int tensor = static_cast<int>(tensors.size()) - 1; tensor >= 0; --tensor) {
      const int64_t count = tensors[tensor].count < 0 ? 77 : tensors[tensor].count;
      const auto data = InputOf(tensor, count, rank->rank());
      TFDEAR_EXPECT_OK(reductions.back()->Contribute(tensor, data.data(), {count}));
    }
  }
  for (auto& received : all) {
    ASSERT_TRUE(received->WaitFor(static_cast<int>(tensors.size())));
    for (int tensor = 0; tensor < static_cast<int>(tensors.size()); ++tensor) {
      const int64_t count = tensors[tensor].count < 0 ? 77 : tensors[tensor].count;
      const auto result = received->Get(tensor);
      TFDEAR_EXPECT_OK(result.status);
      if (!result.status.ok()) continue;
      const float* sums = static_cast<const float*>(result.sum.data);
      EXPECT_EQ(std::vector<float>(sums, sums + count),
                SumOf(tensor, count, rank->rows, rank->columns))
          << "tensor " << tensor << " on rank " << rank->rank();
    }
  }
}

using Grid = std::array<int, 2>;
class LevelReductionTest : public testing::TestWithParam<Grid> {};

TEST_P(LevelReductionTest, SumsAreThoseOfTheGrid) {
  const std::vector<TensorSpec> tensors = {Dense(1),    Dense(0), Dense(17), Dense(300),  Dense(5),
                                           Dense(5001), Dense(3), Dense(-1), Dense(40000)};
  RunGrid(GetParam()[0], GetParam()[1], [&](GridRank* rank) {
    for (Schedule schedule : kSchedules) {
      for (size_t bucket_bytes : {size_t{1}, size_t{4096}, kHuge}) {
        ExpectSums(rank, tensors,
                   PlanFor(tensors, bucket_bytes, schedule, Algorithm::kLevels, rank->levels()));
      }
    }
    ExpectSums(rank, tensors,
               PlanFor(tensors, 4096, Schedule::kDear, Algorithm::kLevels, rank->levels()),
               /*max_delay_ms=*/2);
  });
}

INSTANTIATE_TEST_SUITE_P(Grids, LevelReductionTest,
                         testing::Values(Grid{2, 2}, Grid{2, 1}, Grid{1, 2}, Grid{1, 3}, Grid{2, 3},
                                         Grid{3, 2}));

TEST(LevelReduction, ChunksOfHalvesAndOfWholes) {
  const std::vector<TensorSpec> tensors = {Dense(5), Dense(3001), Dense(1), Dense(40003)};
  const std::vector<std::vector<int>> buckets = {{3, 0}, {1, 2}};
  const Plan halves = PlanOf(buckets, {{kIntraReduceScatter, 0, 0, 2},
                                       {kIntraReduceScatter, 1},
                                       {kIntraReduceScatter, 0, 1, 2},
                                       {kInterReduceScatter, 0},
                                       {kInterReduceScatter, 1, 0, 2},
                                       {kInterAllGather, 0, 1, 3},
                                       {kInterReduceScatter, 1, 1, 2},
                                       {kInterAllGather, 1, 0, 1},
                                       {kInterAllGather, 0, 0, 3},
                                       {kInterAllGather, 0, 2, 3},
                                       {kIntraAllGather, 1, 0, 1},
                                       {kIntraAllGather, 0, 0, 4},
                                       {kIntraAllGather, 0, 3, 4},
                                       {kIntraAllGather, 0, 2, 4},
                                       {kIntraAllGather, 0, 1, 4}});
  // Every chunk has a chain of its own.
  std::vector<Plan::Step> steps;
  for (int chunk : {2, 0, 1}) {
    for (int bucket : {0, 1}) {
      for (const StepKind& kind :
           {kIntraReduceScatter, kInterReduceScatter, kInterAllGather, kIntraAllGather}) {
        steps.push_back({kind, bucket, chunk, 3});
      }
    }
  }
  const Plan wholes = PlanOf(buckets, steps);
  RunGrid(2, 2, [&](GridRank* rank) {
    ExpectSums(rank, tensors, halves);
    ExpectSums(rank, tensors, wholes, /*max_delay_ms=*/1);
  });
}

TEST(LevelReduction, RingsGiveTheSameBitsEverywhere) {
  std::array<std::vector<float>, 6> sums;
  RunGrid(
      2, 3,
      [&](GridRank* rank) {
        const std::vector<TensorSpec> tensors = {Dense(30011)};
        const auto layout = FixedSizeLayout("gradients", tensors, kHuge, Schedule::kDear,
                                            Algorithm::kLevels, rank->levels());
        auto reduction = rank->Open(layout);
        Received received;
        received.ListenTo(reduction.get());
        const auto data = InputOf(0, 30011, rank->rank());
        TFDEAR_EXPECT_OK(reduction->Contribute(0, data.data(), {30011}));
        ASSERT_TRUE(received.WaitFor(1));
        const auto result = received.Get(0);
        const float* begin = static_cast<const float*>(result.sum.data);
        sums[rank->rank()].assign(begin, begin + 30011);
      },
      /*direct_ranks=*/0);
  for (const auto& sum : sums) EXPECT_EQ(sum, sums[0]);
}

// While one bucket is summed between the nodes, a node works on the next one.
TEST(LevelReduction, LevelsWorkAtOnce) {
  const std::vector<TensorSpec> tensors(8, Dense(1 << 18));
  RunGrid(2, 2, [&](GridRank* rank) {
    const auto layout = FixedSizeLayout("gradients", tensors, 1, Schedule::kDear,
                                        Algorithm::kLevels, rank->levels());
    // Connecting took bytes too.
    const uint64_t intra = rank->intra->counters().bytes_sent;
    const uint64_t inter = rank->inter->counters().bytes_sent;
    const uint64_t world = rank->lane->group()->counters().bytes_sent;
    auto reduction = rank->Open(layout);
    Received received;
    received.ListenTo(reduction.get());
    for (int tensor = 0; tensor < 8; ++tensor) {
      TFDEAR_EXPECT_OK(reduction->Contribute(tensor, nullptr, {1 << 18}, 0));
    }
    ASSERT_TRUE(received.WaitFor(8));
    const std::vector<Event> steps = StepsOf(*rank);
    std::array<std::vector<Event>, 8> of_bucket;
    for (const Event& event : steps) of_bucket[event.subject].push_back(event);
    for (const auto& chain : of_bucket) {
      ASSERT_EQ(chain.size(), 4u);
      EXPECT_EQ(chain[0].kind, EventOf(kIntraReduceScatter));
      EXPECT_EQ(chain[1].kind, EventOf(kInterReduceScatter));
      EXPECT_EQ(chain[2].kind, EventOf(kInterAllGather));
      EXPECT_EQ(chain[3].kind, EventOf(kIntraAllGather));
      for (int i = 1; i < 4; ++i) EXPECT_LE(chain[i - 1].end_us, chain[i].begin_us);
      // Between the nodes travels half of the bucket.
      EXPECT_EQ(chain[0].detail, 4 << 18);
      EXPECT_EQ(chain[1].detail, 4 << 17);
    }
    int at_once = 0;
    for (const Event& a : steps) {
      if (a.kind != EventOf(kInterReduceScatter) && a.kind != EventOf(kInterAllGather)) {
        continue;
      }
      for (const Event& b : steps) {
        const bool intra =
            b.kind == EventOf(kIntraReduceScatter) || b.kind == EventOf(kIntraAllGather);
        if (intra && b.begin_us < a.end_us && a.begin_us < b.end_us) {
          EXPECT_NE(a.subject, b.subject);
          ++at_once;
        }
      }
    }
    EXPECT_GT(at_once, 0);
    // Half of each bucket crosses twice, of it what belongs to the other node.
    EXPECT_EQ(rank->inter->counters().bytes_sent - inter, 8u * 2 * (4 << 17) / 2);
    EXPECT_EQ(rank->intra->counters().bytes_sent - intra, 8u * 2 * (4 << 18) / 2);
    EXPECT_EQ(rank->lane->group()->counters().bytes_sent - world, 0u);
  });
}

TEST(LevelReduction, AFailureBetweenTheNodesEndsWhatWaitsForIt) {
  const Status lost(StatusCode::kUnavailable, "rank 2 was lost");
  const std::vector<TensorSpec> tensors(3, Dense(1000));
  Rendezvous everyone_waits(4);
  RunGrid(2, 2, [&](GridRank* rank) {
    const auto layout = FixedSizeLayout("gradients", tensors, 1, Schedule::kDear,
                                        Algorithm::kLevels, rank->levels());
    auto reduction = rank->Open(layout);
    Received received;
    received.ListenTo(reduction.get());
    // The second node gives only its first bucket: the first node's steps wait for the others.
    for (int tensor = 2; tensor >= (rank->row == 0 ? 0 : 2); --tensor) {
      TFDEAR_EXPECT_OK(reduction->Contribute(tensor, nullptr, {1000}, 0));
    }
    if (rank->row == 0) {
      EXPECT_TRUE(Eventually([&] {
        const auto current = rank->inter->Current();
        return current.has_value() && current->signature.find("bucket 1/3") != std::string::npos;
      }));
    }
    everyone_waits.Wait();
    rank->inter->Abort(lost);
    rank->intra->Abort(lost);
    rank->lane->Fail(lost);
    ASSERT_TRUE(received.WaitFor(3));
    for (int tensor = 0; tensor < 2; ++tensor) {
      EXPECT_EQ(received.Get(tensor).status.code(), StatusCode::kUnavailable);
      EXPECT_EQ(received.Get(tensor).calls, 1);
    }
  });
}

}  // namespace
}  // namespace tfdear
