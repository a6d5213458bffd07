// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Engines that are stopped and started again, and what outlives a stop: tickets, numbers, threads
// that still use them. Ranks are threads, each with an engine of its own.

#include <array>
#include <atomic>
#include <filesystem>

#include "custom_ops/engine/engine.h"
#include "tests/cc/step_testing.h"

namespace tfdear {
namespace {

constexpr int64_t kCount = 1000;
const std::vector<TensorSpec> kTensors(3, TensorSpec{DataType::kFloat32, kCount, false});

using Groups = std::array<std::unique_ptr<ProcessGroup>, kNumLanes>;

// The groups of all ranks, connected.
std::vector<Groups> ConnectGroups(int size) {
  std::vector<Groups> groups(size);
  for (LaneKind kind : {LaneKind::kGradients, LaneKind::kControl}) {
    std::vector<Sockets> sockets = ConnectAll(size);
    RunThreads(size, [&](int rank) {
      std::vector<int> everyone(size);
      std::iota(everyone.begin(), everyone.end(), 0);
      std::unique_ptr<TcpBackend> backend;
      TFDEAR_EXPECT_OK(
          TcpBackend::Create(rank, size, kTestTimeout, std::move(sockets[rank]), &backend));
      TFDEAR_EXPECT_OK(backend->Connect(std::vector<std::string>(size, "job")));
      groups[rank][static_cast<int>(kind)] =
          std::make_unique<ProcessGroup>("world", everyone, std::move(backend));
    });
  }
  return groups;
}

void StartAlone(Engine* engine) {
  TFDEAR_EXPECT_OK(engine->Start(Engine::Options(), std::move(ConnectGroups(1)[0])));
}

int64_t LayoutOf(Engine* engine) {
  const int64_t layout = engine->CreateLayout("gradients", LaneKind::kGradients);
  for (const TensorSpec& tensor : kTensors) TFDEAR_EXPECT_OK(engine->AddTensor(layout, tensor));
  TFDEAR_EXPECT_OK(
      engine->SetPlan(layout, PlanFor(kTensors, size_t{1} << 20, Schedule::kDear).Encode()));
  return layout;
}

bool SaysThatItWasClosed(const Status& status) {
  return status.message().find("strategy that was closed") != std::string::npos;
}

// Entries of a folder of /proc/self: threads or descriptors.
size_t CountIn(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return std::distance(begin(entries), end(entries));
}

TEST(EngineStop, AStoppedEngineStartsAgainWithNewNumbers) {
  constexpr int kSize = 2;
  std::array<Engine, kSize> engines;
  std::array<std::vector<int64_t>, kSize> layouts;
  std::vector<size_t> threads, descriptors;
  for (int cycle = 0; cycle < 5; ++cycle) {
    std::vector<Groups> groups = ConnectGroups(kSize);
    Engine::Options options;
    options.first_agreement = cycle % 2 == 0 ? 1 : 0;
    Rendezvous all_are_through(kSize);
    RunThreads(kSize, [&](int rank) {
      Engine* const engine = &engines[rank];
      TFDEAR_EXPECT_OK(engine->Start(options, std::move(groups[rank])));
      for (int64_t old : layouts[rank]) {
        std::shared_ptr<Reduction> reduction;
        Lane* lane = nullptr;
        EXPECT_TRUE(SaysThatItWasClosed(engine->Open(old, &reduction, &lane)));
        EXPECT_TRUE(SaysThatItWasClosed(engine->AddTensor(old, kTensors[0])));
      }
      const int64_t layout = LayoutOf(engine);
      EXPECT_EQ(layout, cycle);
      layouts[rank].push_back(layout);
      for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(Step(engine, kTensors, layout, rank), std::vector<float>(3, 3)) << cycle;
      }
      all_are_through.Wait();
      TFDEAR_EXPECT_OK(engine->Stop(kTestTimeout));
      EXPECT_FALSE(engine->started());
      EXPECT_EQ(engine->lane(LaneKind::kGradients), nullptr);
      TFDEAR_EXPECT_OK(engine->Stop(kTestTimeout));
    });
    threads.push_back(CountIn("/proc/self/task"));
    descriptors.push_back(CountIn("/proc/self/fd"));
  }
  EXPECT_EQ(threads, std::vector<size_t>(threads.size(), threads[0]));
  EXPECT_EQ(descriptors, std::vector<size_t>(descriptors.size(), descriptors[0]));
}

TEST(EngineStop, WhatIsLeftInLanesHearsItAndMayStillBeUsed) {
  Engine engine;
  StartAlone(&engine);
  const int64_t layout = LayoutOf(&engine);
  std::shared_ptr<Reduction> half, untouched;
  std::shared_ptr<SingleCollective> collective;
  Lane *lane = nullptr, *control = nullptr;
  TFDEAR_EXPECT_OK(engine.Open(layout, &half, &lane));
  TFDEAR_EXPECT_OK(engine.Open(layout, &untouched, &lane));
  TFDEAR_EXPECT_OK(engine.OpenCollective(LaneKind::kControl, &collective, &control));
  Received received, later;
  received.ListenTo(half.get());
  const std::vector<float> gradient(kCount, 1.0f);
  TFDEAR_EXPECT_OK(half->Contribute(0, gradient.data(), {kCount}));
  const int64_t lookup = engine.CreateLookup();

  TFDEAR_EXPECT_OK(engine.Stop(kTestTimeout));
  ASSERT_TRUE(received.WaitFor(static_cast<int>(kTensors.size())));
  EXPECT_EQ(received.Get(0).status.code(), StatusCode::kAborted);
  EXPECT_NE(received.Get(0).status.message().find("strategy was closed"), std::string::npos);
  // A step that was traced before goes on, and ends.
  TFDEAR_EXPECT_OK(half->Contribute(1, gradient.data(), {kCount}));
  later.ListenTo(untouched.get());
  EXPECT_EQ(later.Get(0).status.code(), StatusCode::kAborted);
  Status heard;
  collective->Start(
      std::make_shared<Signature>("late"),
      [](CollectiveBackend*, const Signature&, uint64_t) {
        ADD_FAILURE() << "a collective ran after the stop";
        return Status();
      },
      [&](const Status& status) { heard = status; });
  EXPECT_EQ(heard.code(), StatusCode::kAborted);
  std::shared_ptr<SingleCollective> refused;
  EXPECT_TRUE(SaysThatItWasClosed(engine.OpenCollective(LaneKind::kControl, &refused, &lane)));

  // It is given up when its tensors go: that must not end the job of another strategy.
  StartAlone(&engine);
  engine.GiveUp(half.get(), half->lane());
  engine.GiveUp(collective.get(), control);
  half = nullptr;
  untouched = nullptr;
  collective = nullptr;
  TFDEAR_EXPECT_OK(engine.failure());
  EXPECT_TRUE(SaysThatItWasClosed(engine.LookAhead(lookup)));
  EXPECT_EQ(Step(&engine, kTensors, LayoutOf(&engine), 0), std::vector<float>(3, 1));
}

TEST(EngineStop, VariablesAndTheirNumbersStay) {
  Engine engine;
  StartAlone(&engine);
  const int64_t variable = engine.CreateVariable();
  engine.pending()->Defer({variable});
  engine.pending()->Finish({variable}, Status());
  TFDEAR_EXPECT_OK(engine.Stop(kTestTimeout));
  Status read(StatusCode::kInternal, "not read");
  engine.pending()->Await(variable, [&](const Status& status) { read = status; });
  TFDEAR_EXPECT_OK(read);
  StartAlone(&engine);
  EXPECT_EQ(engine.CreateVariable(), variable + 1);
}

TEST(EngineStop, ItStopsAlsoWhenUpdatesStayInFlight) {
  Engine engine;
  StartAlone(&engine);
  engine.pending()->Defer({engine.CreateVariable()});
  EXPECT_EQ(engine.Stop(std::chrono::milliseconds(20)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(engine.started());
}

TEST(EngineStop, CompressionIsForgotten) {
  Engine engine;
  StartAlone(&engine);
  TFDEAR_EXPECT_OK(engine.Compress(Compression()));
  TFDEAR_EXPECT_OK(engine.SetDensity(0.5));
  TFDEAR_EXPECT_OK(engine.Stop(kTestTimeout));
  StartAlone(&engine);
  EXPECT_EQ(engine.SetDensity(0.5).code(), StatusCode::kInvalidArgument);
  // Layouts of before do not count as used.
  TFDEAR_EXPECT_OK(engine.Compress(Compression()));
}

TEST(EngineStop, AnAbortedEngineStaysFailed) {
  Engine engine;
  StartAlone(&engine);
  const Status lost(StatusCode::kUnavailable, "rank 1 was lost");
  engine.Abort(lost);
  EXPECT_EQ(engine.Stop(kTestTimeout).message(), lost.message());
  EXPECT_EQ(engine.Start(Engine::Options(), Groups()).message(), lost.message());
}

// Threads that TensorFlow may still have, and the monitor, while strategies come and go.
TEST(EngineStop, OthersMayUseItMeanwhile) {
  Engine engine;
  std::atomic<bool> is_over{false};
  std::atomic<int> calls{0}, ends{0}, good{0};
  auto use = [&] {
    while (!is_over) {
      std::shared_ptr<SingleCollective> collective;
      Lane* lane = nullptr;
      if (!engine.OpenCollective(LaneKind::kControl, &collective, &lane).ok()) continue;
      ++calls;
      if (calls % 3 == 0) {  // A step that ends early.
        ++ends;
        engine.GiveUp(collective.get(), lane);
        continue;
      }
      collective->Start(
          std::make_shared<Signature>("sum"),
          [](CollectiveBackend* backend, const Signature& signature, uint64_t sequence) {
            return backend->Barrier(signature, sequence);
          },
          [&, collective](const Status& status) {
            if (status.ok()) ++good;
            ++ends;
          });
    }
  };
  auto watch = [&] {
    while (!is_over) {
      const auto lane = engine.lane(LaneKind::kControl);
      if (lane == nullptr) continue;
      lane->group()->Current();
      lane->group()->counters();
      lane->group()->Failure();
      lane->opened();
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back(use);
  threads.emplace_back(use);
  threads.emplace_back(watch);
  for (int cycle = 0; cycle < 30; ++cycle) {
    StartAlone(&engine);
    const int before = good;
    EXPECT_TRUE(Eventually([&] { return good > before + 5; }));
    TFDEAR_EXPECT_OK(engine.Stop(kTestTimeout));
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([&] { return ends == calls; })) << ends << " of " << calls;
  TFDEAR_EXPECT_OK(engine.failure());
}

}  // namespace
}  // namespace tfdear
