// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Norms that ranks take together while a bucket travels: values, bits, shares, order, failures.

#include "custom_ops/engine/norms/layer_norms.h"

#include <cmath>

#include "tests/cc/engine_testing.h"

namespace tfdear {
namespace {

using Weights = std::vector<std::vector<float>>;

// Sizes around the borders of shards and slots; the fourth tensor wants no norms.
const std::vector<int64_t> kCounts = {0, 1, 1003, 17, 64, 5000};
constexpr int kWithout = 3;

std::vector<TensorSpec> Specs() {
  std::vector<TensorSpec> specs;
  for (size_t t = 0; t < kCounts.size(); ++t) {
    specs.push_back({DataType::kFloat32, kCounts[t], false, t != kWithout});
  }
  return specs;
}

float WeightAt(int tensor, int64_t i) { return 0.25f * static_cast<float>(i % 13 + tensor); }
float GradientAt(int tensor, int64_t i, int rank) {
  return 0.125f * static_cast<float>(i % 7 - tensor) * (rank + 1);
}

Weights AllWeights() {
  Weights weights(kCounts.size());
  for (size_t t = 0; t < kCounts.size(); ++t) {
    for (int64_t i = 0; i < kCounts[t]; ++i) weights[t].push_back(WeightAt(t, i));
  }
  return weights;
}

LayerOperands Operands(const std::shared_ptr<Weights>& weights, int tensor) {
  LayerOperands operands;
  operands.layer.count = (*weights)[tensor].size();
  operands.layer.weight = (*weights)[tensor].data();
  operands.owner = weights;
  return operands;
}

void Contribute(Reduction* reduction, int rank) {
  for (size_t t = 0; t < kCounts.size(); ++t) {
    std::vector<float> gradient;
    for (int64_t i = 0; i < kCounts[t]; ++i) gradient.push_back(GradientAt(t, i, rank));
    TFDEAR_EXPECT_OK(reduction->Contribute(t, gradient.data(), {kCounts[t]}));
  }
}

LayerNorms Expected(int tensor, int size) {
  double weights = 0, gradients = 0;
  for (int64_t i = 0; i < kCounts[tensor]; ++i) {
    double gradient = 0;
    for (int rank = 0; rank < size; ++rank) gradient += GradientAt(tensor, i, rank);
    weights += WeightAt(tensor, i) * WeightAt(tensor, i);
    gradients += gradient * gradient;
  }
  return {static_cast<float>(std::sqrt(weights)), static_cast<float>(std::sqrt(gradients))};
}

struct Case {
  int size;
  Schedule schedule;
  Algorithm algorithm;
  size_t bucket_bytes;
};

class LayerNormsTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Cases, LayerNormsTest,
    testing::Values(Case{2, Schedule::kDear, Algorithm::kShards, size_t{1} << 30},
                    Case{3, Schedule::kDear, Algorithm::kShards, 2000},
                    Case{4, Schedule::kDear, Algorithm::kShards, 6000},
                    Case{3, Schedule::kWfbp, Algorithm::kShards, 6000},
                    Case{4, Schedule::kSequential, Algorithm::kShards, size_t{1} << 30},
                    Case{3, Schedule::kDear, Algorithm::kTree, 6000}));

TEST_P(LayerNormsTest, AreThoseOfTheSums) {
  const Case& given = GetParam();
  RunEngines(given.size, [&](EngineRank* rank) {
    auto layout =
        FixedSizeLayout("gradients", Specs(), given.bucket_bytes, given.schedule, given.algorithm);
    auto reduction = rank->Open(layout);
    auto weights = std::make_shared<Weights>(AllWeights());
    Received received;
    received.ListenTo(reduction.get());
    Contribute(reduction.get(), rank->rank());
    for (size_t t = 0; t < kCounts.size(); ++t) {
      if (t != kWithout) TFDEAR_EXPECT_OK(reduction->AddLayer(t, Operands(weights, t)));
    }
    ASSERT_TRUE(received.WaitFor(static_cast<int>(kCounts.size())));
    for (size_t t = 0; t < kCounts.size(); ++t) {
      const auto result = received.Get(t);
      TFDEAR_EXPECT_OK(result.status);
      const LayerNorms expected = t == kWithout ? LayerNorms{0, 0} : Expected(t, given.size);
      EXPECT_FLOAT_EQ(result.sum.norms[0], expected[0]) << t;
      EXPECT_FLOAT_EQ(result.sum.norms[1], expected[1]) << t;
    }
    // Nobody holds the weights any more: an update may write them in place.
    EXPECT_EQ(weights.use_count(), 1);
    int64_t bytes = 0;
    for (const Event& event : rank->NewEvents()) {
      if (event.kind == EventKind::kNorms) bytes += event.detail;
    }
    // Two arrays, a share of the elements, one border of a shard per bucket to round.
    const int64_t wanted = 6068;
    EXPECT_LE(bytes, 8 * (wanted / given.size + 200));
    EXPECT_GT(bytes, 0);
  });
}

TEST(LayerNormsOrderTest, ABucketIsSummedButNotSpreadBeforeItsLayersAreThere) {
  RunEngines(2, [](EngineRank* rank) {
    auto layout = FixedSizeLayout("gradients", Specs(), size_t{1} << 30, Schedule::kDear);
    auto reduction = rank->Open(layout);
    auto weights = std::make_shared<Weights>(AllWeights());
    Received received;
    received.ListenTo(reduction.get());
    Contribute(reduction.get(), rank->rank());
    EXPECT_FALSE(reduction->complete());
    // The reduce-scatter does not wait for them.
    std::vector<Event> seen;
    const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
    auto has = [&](EventKind kind) {
      for (const Event& event : rank->NewEvents()) seen.push_back(event);
      for (const Event& event : seen) {
        if (event.kind == kind) return true;
      }
      return false;
    };
    while (!has(EventOf(kReduceScatter)) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(has(EventOf(kReduceScatter)));
    EXPECT_FALSE(has(EventOf(kAllGather)));
    EXPECT_EQ(received.calls(), 0);
    for (size_t t = 0; t < kCounts.size(); ++t) {
      if (t != kWithout) TFDEAR_EXPECT_OK(reduction->AddLayer(t, Operands(weights, t)));
    }
    EXPECT_TRUE(reduction->complete());
    EXPECT_TRUE(received.WaitFor(static_cast<int>(kCounts.size())));
  });
}

TEST(LayerNormsOrderTest, LayersThatNobodyAskedForAreRefused) {
  RunEngines(2, [](EngineRank* rank) {
    auto reduction =
        rank->Open(FixedSizeLayout("gradients", Specs(), size_t{1} << 30, Schedule::kDear));
    auto weights = std::make_shared<Weights>(AllWeights());
    EXPECT_FALSE(reduction->AddLayer(kWithout, Operands(weights, kWithout)).ok());
    TFDEAR_EXPECT_OK(reduction->AddLayer(1, Operands(weights, 1)));
    EXPECT_FALSE(reduction->AddLayer(1, Operands(weights, 1)).ok());
  });
}

TEST(LayerNormsOrderTest, RanksThatDisagreeOnNormsAddNothingUp) {
  RunRanks(
      2,
      [](std::unique_ptr<TcpBackend> backend) {
        EngineRank rank(std::move(backend));
        rank.lane()->group()->set_cause_grace(std::chrono::milliseconds(1));
        auto specs = Specs();
        specs[2].norms = rank.rank() == 0;
        auto reduction =
            rank.Open(FixedSizeLayout("gradients", specs, size_t{1} << 30, Schedule::kDear));
        auto weights = std::make_shared<Weights>(AllWeights());
        Received received;
        received.ListenTo(reduction.get());
        Contribute(reduction.get(), rank.rank());
        for (size_t t = 0; t < kCounts.size(); ++t) {
          if (specs[t].norms) TFDEAR_EXPECT_OK(reduction->AddLayer(t, Operands(weights, t)));
        }
        ASSERT_TRUE(received.WaitFor(static_cast<int>(kCounts.size())));
        for (size_t t = 0; t < kCounts.size(); ++t) {
          const Status status = received.Get(t).status;
          EXPECT_FALSE(status.ok()) << t;
          // One rank runs into its deadline in these words, and closes the other's connection.
          const char* words = rank.rank() == 0 ? "with norms of 5" : "with norms of 4";
          EXPECT_TRUE(Contains(status.message(), words)) << status.message();
        }
      },
      std::chrono::milliseconds(1000));
}

}  // namespace
}  // namespace tfdear
