// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// The engine that kernels talk to. There is one per process and it is started once, so every test
// runs in a process of its own.

#include "custom_ops/engine/engine.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "custom_ops/api/data_api.h"
#include "tests/cc/engine_testing.h"

namespace tfdear {
namespace {

const Status kLost(StatusCode::kUnavailable, "rank 1 was lost");

std::array<std::unique_ptr<ProcessGroup>, kNumLanes> LonelyGroups() {
  std::array<std::unique_ptr<ProcessGroup>, kNumLanes> groups;
  for (LaneKind kind : {LaneKind::kGradients, LaneKind::kControl, LaneKind::kEmbeddings}) {
    std::unique_ptr<TcpBackend> backend;
    TFDEAR_EXPECT_OK(TcpBackend::Create(0, 1, kTestTimeout, Sockets(1), &backend));
    groups[static_cast<int>(kind)] =
        std::make_unique<ProcessGroup>("alone", std::vector<int>{0}, std::move(backend));
  }
  return groups;
}

void StartAlone() { TFDEAR_EXPECT_OK(Engine::Get()->Start(Engine::Options(), LonelyGroups())); }

// Of a bucket for each tensor, unless more fit.
int64_t LayoutOf(LaneKind lane, std::vector<int64_t> counts, size_t bucket_bytes = 1) {
  const int64_t layout = Engine::Get()->CreateLayout("gradients", lane);
  std::vector<TensorSpec> tensors;
  for (int64_t count : counts) {
    tensors.push_back({DataType::kFloat32, count, false});
    TFDEAR_EXPECT_OK(Engine::Get()->AddTensor(layout, tensors.back()));
  }
  const Plan plan = PlanFor(tensors, bucket_bytes, Schedule::kDear);
  TFDEAR_EXPECT_OK(Engine::Get()->SetPlan(layout, plan.Encode()));
  return layout;
}

// Runs `body` in a child of its own. Its failures are on stderr; here only whether there were any.
void InItsOwnProcess(const std::function<void()>& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(120);
    body();
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
}

TEST(Engine, RefusesUseBeforeItsStartAndASecondStart) {
  InItsOwnProcess([] {
    Engine* engine = Engine::Get();
    EXPECT_FALSE(engine->started());
    const int64_t layout = LayoutOf(LaneKind::kGradients, {8});
    std::shared_ptr<Reduction> reduction;
    std::shared_ptr<SingleCollective> collective;
    Lane* lane = nullptr;
    EXPECT_EQ(engine->Open(layout, &reduction, &lane).code(), StatusCode::kInternal);
    EXPECT_EQ(engine->OpenCollective(LaneKind::kControl, &collective, &lane).code(),
              StatusCode::kInternal);
    StartAlone();
    EXPECT_TRUE(engine->started());
    const Status again = engine->Start(Engine::Options(), LonelyGroups());
    EXPECT_EQ(again.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(again.message().find("started before"), std::string::npos) << again.message();
    // A lane whose group this rank does not have.
    EXPECT_EQ(engine->OpenCollective(LaneKind::kInterNode, &collective, &lane).code(),
              StatusCode::kInternal);
    TFDEAR_EXPECT_OK(engine->Open(layout, &reduction, &lane));
  });
}

TEST(Engine, LayoutsAreFixedByTheirFirstUse) {
  InItsOwnProcess([] {
    StartAlone();
    Engine* engine = Engine::Get();
    const int64_t layout = LayoutOf(LaneKind::kControl, {64, 1, 16}, 256);
    EXPECT_TRUE(engine->BucketBytes(layout).empty()) << "not used yet";
    TFDEAR_EXPECT_OK(engine->SetLane(layout, LaneKind::kGradients));
    std::shared_ptr<Reduction> reduction;
    Lane* lane = nullptr;
    TFDEAR_EXPECT_OK(engine->Open(layout, &reduction, &lane));
    EXPECT_EQ(lane->kind(), LaneKind::kGradients);
    EXPECT_EQ(engine->BucketBytes(layout), (std::vector<size_t>{128, 256}));
    EXPECT_EQ(engine->AddTensor(layout, {DataType::kFloat32, 8, false}).code(),
              StatusCode::kInternal);
    EXPECT_EQ(engine->SetLane(layout, LaneKind::kControl).code(), StatusCode::kInternal);
    EXPECT_EQ(engine->SetPlan(layout, {}).code(), StatusCode::kInternal);
    TFDEAR_EXPECT_OK(engine->SetLane(layout, LaneKind::kGradients));
    for (int64_t unknown : {int64_t{-1}, layout + 1}) {
      EXPECT_EQ(engine->Open(unknown, &reduction, &lane).code(), StatusCode::kInvalidArgument);
      EXPECT_TRUE(engine->BucketBytes(unknown).empty());
    }
  });
}

TEST(Engine, LayoutsAreUsedWithThePlanThatWasSetLast) {
  InItsOwnProcess([] {
    StartAlone();
    Engine* engine = Engine::Get();
    const int64_t layout = engine->CreateLayout("gradients", LaneKind::kGradients);
    const std::vector<TensorSpec> tensors(2, {DataType::kFloat32, 8, false});
    for (const TensorSpec& tensor : tensors) TFDEAR_EXPECT_OK(engine->AddTensor(layout, tensor));
    std::shared_ptr<Reduction> reduction;
    Lane* lane = nullptr;
    const Status without = engine->Open(layout, &reduction, &lane);
    EXPECT_EQ(without.code(), StatusCode::kInternal);
    EXPECT_NE(without.message().find("before it had a plan"), std::string::npos);
    EXPECT_EQ(engine->SetPlan(layout, {0, 0, 0}).code(), StatusCode::kInvalidArgument);
    TFDEAR_EXPECT_OK(engine->SetPlan(layout, PlanFor(tensors, 1, Schedule::kWfbp).Encode()));
    TFDEAR_EXPECT_OK(engine->SetPlan(layout, PlanFor(tensors, 1, Schedule::kDear).Encode()));
    TFDEAR_EXPECT_OK(engine->Open(layout, &reduction, &lane));
    ASSERT_EQ(reduction->layout().steps.size(), 4u);
    EXPECT_EQ(reduction->layout().steps[0].kind, kReduceScatter);
    int64_t executions = 0;
    engine->PlanOf(layout, &executions);
    EXPECT_EQ(executions, 1);
  });
}

TEST(Engine, SingleCollectivesRunInTheirTurn) {
  InItsOwnProcess([] {
    StartAlone();
    Engine* engine = Engine::Get();
    std::shared_ptr<SingleCollective> first, second;
    Lane* lane = nullptr;
    TFDEAR_EXPECT_OK(engine->OpenCollective(LaneKind::kControl, &first, &lane));
    TFDEAR_EXPECT_OK(engine->OpenCollective(LaneKind::kControl, &second, &lane));
    std::mutex mutex;
    std::vector<std::string> line;
    auto start = [&](SingleCollective* collective, const std::string& name) {
      auto note = [&, name](const std::string& what) {
        std::lock_guard<std::mutex> lock(mutex);
        line.push_back(what + " " + name);
      };
      collective->Start(
          std::make_shared<Signature>(name),
          [note](CollectiveBackend* backend, const Signature& signature, uint64_t sequence) {
            note("runs");
            return backend->Barrier(signature, sequence);
          },
          [note](const Status& status) { note(status.ok() ? "done" : status.message()); });
    };
    EXPECT_TRUE(first->Untouched());
    start(second.get(), "b");
    EXPECT_FALSE(second->Untouched());
    start(first.get(), "a");
    EXPECT_TRUE(Eventually([&] {
      std::lock_guard<std::mutex> lock(mutex);
      return line.size() == 4;
    }));
    // The order on the line is fixed; the word that `a` is done may come while `b` runs.
    auto place = [&](const std::string& what) {
      return std::find(line.begin(), line.end(), what) - line.begin();
    };
    EXPECT_LT(place("runs a"), place("runs b"));
    EXPECT_LT(place("runs a"), place("done a"));
    EXPECT_LT(place("runs b"), place("done b"));
    EXPECT_LT(place("done b"), 4);
    EXPECT_LT(place("done a"), 4);
    // A failed body ends with its own words, and the group stays usable.
    TFDEAR_EXPECT_OK(engine->OpenCollective(LaneKind::kControl, &first, &lane));
    std::atomic<bool> done{false};
    first->Start(
        std::make_shared<Signature>("c"),
        [](CollectiveBackend*, const Signature&, uint64_t) {
          return Status(StatusCode::kInvalidArgument, "bad sizes");
        },
        [&](const Status& status) {
          EXPECT_EQ(status.message(), "bad sizes");
          done = true;
        });
    EXPECT_TRUE(Eventually([&] { return done.load(); }));
  });
}

// Through the functions that Python calls.
TEST(Engine, AReductionThatIsClosedEarlyHoldsUpNothing) {
  InItsOwnProcess([] {
    StartAlone();
    const int64_t layout = LayoutOf(LaneKind::kGradients, {8, 8});
    char error[1000] = "";
    auto open = [&] {
      int64_t reduction = 0;
      EXPECT_EQ(tfdear_reduction_open(layout, &reduction, error, sizeof(error)), 0) << error;
      return reduction;
    };
    const std::vector<float> values(8, 3.0f);
    auto contribute = [&](int64_t reduction, int tensor) {
      return tfdear_reduction_contribute(reduction, tensor, values.data(), 8, error, sizeof(error));
    };
    std::vector<float> sum(9, -1.0f);
    auto wait = [&](int64_t reduction, int tensor, int64_t bytes) {
      int64_t since = 0;
      return tfdear_reduction_wait(reduction, tensor, sum.data(), bytes, 20, &since, error,
                                   sizeof(error));
    };
    tfdear_reduction_close(open());
    const int64_t next = open();
    for (int tensor : {0, 1}) EXPECT_EQ(contribute(next, tensor), 0) << error;
    EXPECT_EQ(wait(next, 0, 32), 0) << error;
    EXPECT_EQ(sum, (std::vector<float>{3, 3, 3, 3, 3, 3, 3, 3, -1}));
    // More than there is, as much as would be copied, is refused.
    EXPECT_NE(wait(next, 1, 36), 0);
    EXPECT_NE(std::string(error).find("has 32 bytes, its caller expected 36"), std::string::npos)
        << error;
    EXPECT_NE(wait(next, 2, 32), 0);
    tfdear_reduction_close(next);
    tfdear_reduction_close(next);
    EXPECT_NE(contribute(next, 0), 0);
    TFDEAR_EXPECT_OK(Engine::Get()->failure());
    // Nobody else can complete what this rank began.
    const int64_t half = open();
    EXPECT_EQ(contribute(half, 1), 0) << error;
    tfdear_reduction_close(half);
    EXPECT_EQ(Engine::Get()->failure().code(), StatusCode::kAborted);
  });
}

TEST(Engine, AStepThatEndsBeforeItLooksAheadKeepsNobodyWaiting) {
  InItsOwnProcess([] {
    StartAlone();
    Engine* const engine = Engine::Get();
    const int64_t number = engine->CreateLookup();
    LookupLayout::Table table;
    table.columns = 2;
    TFDEAR_EXPECT_OK(engine->AddLookupTable(number, table));
    TFDEAR_EXPECT_OK(engine->LookAhead(number));
    std::shared_ptr<TableLookup> lookup;
    Lane* lane = nullptr;
    TFDEAR_EXPECT_OK(engine->OpenLookup(number, &lookup, &lane));
    const auto vectors = std::make_shared<std::vector<float>>(2, 3.0f);
    lookup->WhenIdsThere(0, [&](const Status& status, const auto&, const auto&) {
      TFDEAR_EXPECT_OK(status);
      lookup->ContributeVectors(0, vectors->data(), sizeof(float), vectors);
    });
    lookup->ContributeIds(0, {1});
    EXPECT_TRUE(Eventually([&] { return lookup->complete(); }));
    Status told;
    lookup->ahead()->WhenIdsThere(
        0, [&](const Status& status, const auto&, const auto&) { told = status; });
    TFDEAR_EXPECT_OK(told);
    engine->GiveUp(lookup.get(), lane);
    EXPECT_EQ(told.code(), StatusCode::kCancelled);
    TFDEAR_EXPECT_OK(engine->failure());
  });
}

TEST(Engine, AbortEndsAllThatWaitsAndAllThatComes) {
  InItsOwnProcess([] {
    StartAlone();
    Engine* engine = Engine::Get();
    std::shared_ptr<Reduction> reduction;
    std::shared_ptr<SingleCollective> waiting, unstarted;
    Lane* lane = nullptr;
    const int64_t layout = LayoutOf(LaneKind::kGradients, {8});
    TFDEAR_EXPECT_OK(engine->Open(layout, &reduction, &lane));
    TFDEAR_EXPECT_OK(engine->OpenCollective(LaneKind::kGradients, &waiting, &lane));
    TFDEAR_EXPECT_OK(engine->OpenCollective(LaneKind::kControl, &unstarted, &lane));
    Received received;
    received.ListenTo(reduction.get());
    std::vector<std::string> words;
    auto note = [&](const Status& status) { words.push_back(status.message()); };
    auto never = [](CollectiveBackend*, const Signature&, uint64_t) -> Status {
      ADD_FAILURE() << "a collective ran after the abort";
      return Status();
    };
    waiting->Start(std::make_shared<Signature>("waits for the reduction"), never, note);
    const int64_t variable = engine->CreateVariable();
    engine->pending()->Defer({variable});
    engine->pending()->Await(variable, note);

    engine->Abort(kLost);
    engine->Abort(Status(StatusCode::kAborted, "a second cause"));
    EXPECT_EQ(engine->failure().message(), kLost.message());
    EXPECT_EQ(received.Get(0).status.message(), kLost.message());
    unstarted->Start(std::make_shared<Signature>("late"), never, note);
    EXPECT_EQ(words, std::vector<std::string>(3, kLost.message()));
    EXPECT_EQ(engine->Open(layout, &reduction, &lane).message(), kLost.message());
    EXPECT_EQ(engine->OpenCollective(LaneKind::kControl, &waiting, &lane).message(),
              kLost.message());
    EXPECT_EQ(engine->pending()->WaitAll(kTestTimeout).message(), kLost.message());
  });
}

}  // namespace
}  // namespace tfdear
