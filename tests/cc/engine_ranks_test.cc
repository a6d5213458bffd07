// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Ranks as threads, each with an engine of its own: they agree on plans while they sum, and what is
// held back goes with them.

#include <array>

#include "custom_ops/engine/engine.h"
#include "tests/cc/step_testing.h"

namespace tfdear {
namespace {

constexpr int64_t kCount = 3000;
const std::vector<TensorSpec> kTensors(4, TensorSpec{DataType::kFloat32, kCount, false});

using Body = std::function<void(Engine* engine, int rank)>;

// Runs `body` on ranks with a started engine, which ends when all of them are through.
void RunEngineObjects(int size, const Engine::Options& options, const Body& body) {
  std::array<std::unique_ptr<BlobExchange>, 2> exchanges;
  for (auto& exchange : exchanges) exchange = std::make_unique<BlobExchange>(size);
  std::array<std::vector<Sockets>, 2> sockets = {ConnectAll(size), ConnectAll(size)};
  Rendezvous all_are_through(size);
  RunThreads(size, [&](int rank) {
    std::vector<int> everyone(size);
    std::iota(everyone.begin(), everyone.end(), 0);
    std::array<std::unique_ptr<ProcessGroup>, kNumLanes> groups;
    for (LaneKind kind : {LaneKind::kGradients, LaneKind::kControl}) {
      const int lane = static_cast<int>(kind);
      std::unique_ptr<TcpBackend> backend;
      TFDEAR_EXPECT_OK(
          TcpBackend::Create(rank, size, kTestTimeout, std::move(sockets[lane][rank]), &backend));
      TFDEAR_EXPECT_OK(backend->Connect(exchanges[lane]->Meet(rank, backend->Listen())));
      groups[lane] = std::make_unique<ProcessGroup>("world", everyone, std::move(backend));
    }
    Engine engine;
    TFDEAR_EXPECT_OK(engine.Start(options, std::move(groups)));
    body(&engine, rank);
    all_are_through.Wait();
  });
}

int64_t LayoutOf(Engine* engine, const Plan& plan) {
  const int64_t layout = engine->CreateLayout("gradients", LaneKind::kGradients);
  for (const TensorSpec& tensor : kTensors) TFDEAR_EXPECT_OK(engine->AddTensor(layout, tensor));
  TFDEAR_EXPECT_OK(engine->SetPlan(layout, plan.Encode()));
  return layout;
}

std::vector<std::vector<int>> BucketsOf(Engine* engine, int64_t layout) {
  int64_t executions = 0;
  Plan plan;
  TFDEAR_EXPECT_OK(Plan::Decode(engine->PlanOf(layout, &executions), &plan));
  return plan.buckets;
}

TEST(EngineRanks, AllTakeUpThePlanOfRank0AtTheExecutionThatTheyKnow) {
  constexpr int kSize = 3;
  const Plan first = PlanFor(kTensors, 1, Schedule::kDear);
  const Plan second = PlanFor(kTensors, size_t{1} << 20, Schedule::kWfbp);
  Engine::Options options;
  options.first_agreement = 2;
  options.max_delay_ms = 1;
  Rendezvous proposed(kSize);
  RunEngineObjects(kSize, options, [&](Engine* engine, int rank) {
    const int64_t layout = LayoutOf(engine, first);
    if (rank == 0) TFDEAR_EXPECT_OK(engine->Propose(layout, second.Encode(), 3));
    proposed.Wait();
    // At execution 2 the plan of rank 0, at 5 that it stays, and as nobody says more, so it does.
    for (int execution = 0; execution < 9; ++execution) {
      EXPECT_EQ(Step(engine, kTensors, layout, rank), std::vector<float>(4, 6)) << execution;
      EXPECT_EQ(BucketsOf(engine, layout), execution < 2 ? first.buckets : second.buckets);
    }
  });
}

TEST(EngineRanks, APlanThatDoesNotHoldIsRefusedWhereItWasProposed) {
  Engine::Options options;
  options.first_agreement = 1;
  RunEngineObjects(2, options, [&](Engine* engine, int rank) {
    const int64_t layout = LayoutOf(engine, PlanFor(kTensors, 1, Schedule::kDear));
    Plan half = PlanFor(kTensors, 1, Schedule::kDear);
    half.steps.pop_back();
    EXPECT_EQ(engine->Propose(layout, half.Encode(), 1).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(engine->Propose(layout, {}, 0).code(), StatusCode::kInvalidArgument);
    for (int execution = 0; execution < 3; ++execution) {
      EXPECT_EQ(Step(engine, kTensors, layout, rank), std::vector<float>(4, 3));
    }
  });
}

// Everything that a rank gave arrives in the end, also across a change of plan.
TEST(EngineRanks, WhatIsHeldBackGoesIntoTheNextPlan) {
  constexpr int kSteps = 6;
  const StepKind selected{Operation::kAllReduce, Group::kWorld, WireFormat::kSelected};
  auto sparse = [&](const Plan& buckets) {
    Plan plan = buckets;
    plan.steps.clear();
    for (int b = 0; b < static_cast<int>(plan.buckets.size()); ++b) {
      plan.steps.push_back({selected, b});
    }
    return plan;
  };
  const Plan first = sparse(PlanFor(kTensors, 1, Schedule::kWfbp));
  const Plan second = sparse(PlanFor(kTensors, size_t{1} << 20, Schedule::kWfbp));
  Engine::Options options;
  options.first_agreement = 3;
  Rendezvous proposed(2);
  std::array<std::vector<std::vector<float>>, 2> sums;
  RunEngineObjects(2, options, [&](Engine* engine, int rank) {
    Compression compression;
    compression.hierarchical = false;
    TFDEAR_EXPECT_OK(engine->Compress(compression));
    TFDEAR_EXPECT_OK(engine->SetDensity(0.1));
    const int64_t layout = LayoutOf(engine, first);
    if (rank == 0) TFDEAR_EXPECT_OK(engine->Propose(layout, second.Encode(), 100));
    proposed.Wait();
    for (int step = 0; step < kSteps; ++step) {
      // The last step sends everything that was held back.
      if (step == kSteps - 1) TFDEAR_EXPECT_OK(engine->SetDensity(1));
      sums[rank].push_back(Step(engine, kTensors, layout, rank));
    }
    EXPECT_EQ(BucketsOf(engine, layout), second.buckets);
  });
  EXPECT_EQ(sums[0], sums[1]);
  for (size_t tensor = 0; tensor < kTensors.size(); ++tensor) {
    float total = 0;
    for (const auto& of_step : sums[0]) total += of_step[tensor];
    EXPECT_EQ(total, 3.0f * kSteps) << tensor;
  }
}

}  // namespace
}  // namespace tfdear
