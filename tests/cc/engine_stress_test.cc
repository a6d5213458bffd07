// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Ten thousand steps of three models with gradients in random order from two threads on each rank,
// tickets withdrawn on the way, deferred updates, and in half of the rounds an abort at a random
// moment. Seeds are fixed, so each round draws the same steps; only the threads' timing differs.

#include <algorithm>
#include <array>
#include <atomic>
#include <random>

#include "custom_ops/engine/updates/pending_updates.h"
#include "tests/cc/engine_testing.h"

namespace tfdear {
namespace {

using Layout = std::shared_ptr<const ReductionLayout>;

constexpr int kRounds = 80;
constexpr int kStepsPerRound = 125;
static_assert(kRounds * kStepsPerRound == 10000, "the length this test promises");
constexpr int kWindow = 3;  // Steps in flight on a rank.
constexpr int kContributors = 2;

std::vector<Layout> Models() {
  auto dense = [](int64_t count, DataType type) { return TensorSpec{type, count, false}; };
  const TensorSpec rows{DataType::kFloat32, -1, true};
  const std::vector<TensorSpec> first = {dense(5, DataType::kFloat32), rows,
                                         dense(70, DataType::kFloat32), dense(3, DataType::kInt64)};
  const std::vector<TensorSpec> second = {
      dense(-1, DataType::kFloat32), dense(3000, DataType::kFloat32), dense(1, DataType::kFloat64)};
  return {FixedSizeLayout("first", first, 256, Schedule::kDear),
          FixedSizeLayout("second", second, size_t{1} << 20, Schedule::kDear),
          FixedSizeLayout("third", first, 1024, Schedule::kWfbp)};
}

// What all ranks know of a step, drawn from the round's seed.
struct Step {
  int model;
  bool given_up;      // Its ticket is withdrawn: the data set ended.
  int64_t run_count;  // Elements of the tensor sized at run time.
  int zero_rank;      // Contributes zeros and no rows.
};

struct Plan {
  int size;
  bool aborts;
  int aborter = 0;
  int abort_step = 0;
  std::vector<Step> steps;
};

Plan Draw(int round) {
  std::minstd_rand random(7000 + round);
  Plan plan;
  plan.size = 1 + round % 4;
  plan.aborts = round / 4 % 2 == 1;
  plan.aborter = random() % plan.size;
  plan.abort_step = random() % kStepsPerRound;
  for (int i = 0; i < kStepsPerRound; ++i) {
    Step step;
    step.model = random() % 3;
    step.given_up = random() % 10 == 0;
    step.run_count = random() % 100;
    step.zero_rank = random() % 3 == 0 ? static_cast<int>(random() % plan.size) : -1;
    plan.steps.push_back(step);
  }
  return plan;
}

// Small integers: exact in every type and for every order of summation.
int ValueOf(int step, int tensor, int rank) { return (step + 3 * tensor + 5 * rank) % 11 - 5; }

int64_t CountOf(const TensorSpec& spec, const Step& step) {
  return spec.count < 0 ? step.run_count : spec.count;
}
int64_t RowsOf(int step, int rank) { return (step + rank) % 3; }

// One step on one rank.
struct Running {
  int index = 0;
  std::shared_ptr<Reduction> reduction;
  std::array<std::vector<int>, kContributors> orders;  // Tensors of each contributor.
  std::atomic<int> contributed{0};
  std::atomic<int> received{0};
};

class StressedRank {
 public:
  StressedRank(const Plan& plan, const std::vector<Layout>& models, EngineRank* rank, unsigned seed)
      : plan_(plan), models_(models), rank_(rank), seed_(seed), pending_(rank->events()) {}

  // `abort` ends the job for all ranks, from whichever thread calls it.
  void Run(const std::function<void()>& abort) {
    std::vector<std::thread> contributors;
    for (int c = 0; c < kContributors; ++c) contributors.emplace_back([this, c] { Contribute(c); });
    std::minstd_rand random(seed_);
    std::thread aborter;
    for (int index = 0; index < kStepsPerRound; ++index) {
      if (plan_.aborts && rank_->rank() == plan_.aborter && index == plan_.abort_step) {
        aborter = std::thread([&abort, micros = random() % 1500] {
          std::this_thread::sleep_for(std::chrono::microseconds(micros));
          abort();
        });
      }
      const Step& step = plan_.steps[index];
      auto running = std::make_shared<Running>();
      running->index = index;
      running->reduction = rank_->Open(models_[step.model], /*max_delay_ms=*/0);
      if (step.given_up) {
        EXPECT_TRUE(rank_->lane()->Withdraw(running->reduction.get()));
        continue;
      }
      Defer(running.get());
      std::vector<int> order(models_[step.model]->tensors.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      for (int tensor : order) running->orders[random() % kContributors].push_back(tensor);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        in_flight_.push_back(running);
      }
      changed_.notify_all();
      if (in_flight_.size() % kWindow == 0) {
        // A read of a variable of the step before last, which must wait for its update.
        pending_.Await(random() % 4, [this](const Status& status) {
          if (!status.ok()) ++failed_reads_;
          ++reads_;
        });
        ++expected_reads_;
      }
      WaitForWindow(kWindow);
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      last_ = true;
    }
    changed_.notify_all();
    for (std::thread& contributor : contributors) contributor.join();
    if (aborter.joinable()) aborter.join();
    WaitForWindow(1);
    Check();
  }

  void Fail(const Status& cause) {
    rank_->lane()->Fail(cause);
    pending_.Fail(cause);
  }

 private:
  void Defer(Running* running) {
    const auto& tensors = running->reduction->layout().tensors;
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      const int64_t variable = static_cast<int64_t>(tensor);
      pending_.Defer({variable});
      ++expected_calls_;
      running->reduction->WhenReduced(
          tensor, [this, running, tensor, variable](const Status& status, const Reduced& sum) {
            if (status.ok()) {
              CheckSum(running->index, tensor, sum);
              ++good_calls_;
            } else {
              EXPECT_NE(status.message().find("on purpose"), std::string::npos) << status.message();
            }
            pending_.Finish({variable}, status);
            ++calls_;
            // All of it under the mutex: the rank may end once its last receiver is counted.
            std::lock_guard<std::mutex> lock(mutex_);
            ++running->received;
            changed_.notify_all();
          });
    }
  }

  void CheckSum(int index, int tensor, const Reduced& sum) {
    const Step& step = plan_.steps[index];
    const TensorSpec& spec = models_[step.model]->tensors[tensor];
    if (spec.sparse) {
      int64_t row = 0;
      for (int rank = 0; rank < plan_.size; ++rank) {
        if (rank == step.zero_rank) continue;
        for (int64_t i = 0; i < RowsOf(index, rank); ++i, ++row) {
          ASSERT_LT(row, sum.shape[0]);
          EXPECT_EQ(sum.indices[row], 10 * rank + i);
          EXPECT_EQ(static_cast<float*>(sum.data)[2 * row + 1], ValueOf(index, tensor, rank));
        }
      }
      EXPECT_EQ(sum.shape, (std::vector<int64_t>{row, 2}));
      return;
    }
    int total = 0;
    for (int rank = 0; rank < plan_.size; ++rank) {
      if (rank != step.zero_rank) total += ValueOf(index, tensor, rank);
    }
    const int64_t count = CountOf(spec, step);
    ASSERT_EQ(sum.shape, std::vector<int64_t>{count});
    const auto expected = MakeData(spec.type, count, [&](size_t) { return total; });
    const char* data = static_cast<const char*>(sum.data);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), data))
        << "step " << index << ", tensor " << tensor;
  }

  void Contribute(int contributor) {
    std::minstd_rand random(seed_ + 31 * (contributor + 1));
    size_t next = 0;
    while (true) {
      std::shared_ptr<Running> running;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        ASSERT_TRUE(changed_.wait_for(lock, kTestTimeout,
                                      [&] { return next < in_flight_.size() || last_; }));
        if (next == in_flight_.size()) return;
        running = in_flight_[next++];
      }
      for (int tensor : running->orders[contributor]) Give(running.get(), tensor);
      if (random() % 20 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
      }
    }
  }

  void Give(Running* running, int tensor) {
    const Step& step = plan_.steps[running->index];
    const TensorSpec& spec = running->reduction->layout().tensors[tensor];
    const int value = ValueOf(running->index, tensor, rank_->rank());
    const bool active = rank_->rank() != step.zero_rank;
    if (spec.sparse) {
      const int64_t rows = active ? RowsOf(running->index, rank_->rank()) : 0;
      const std::vector<float> values(2 * rows, static_cast<float>(value));
      const std::vector<int64_t> indices = {10 * rank_->rank(), 10 * rank_->rank() + 1};
      TFDEAR_EXPECT_OK(
          running->reduction->ContributeRows(tensor, values.data(), indices.data(), {rows, 2}));
      return;
    }
    const int64_t count = CountOf(spec, step);
    const auto data = MakeData(spec.type, count, [&](size_t) { return value; });
    TFDEAR_EXPECT_OK(running->reduction->Contribute(tensor, data.data(), {count}, active));
  }

  // Until fewer than `window` steps have receivers that were not called.
  void WaitForWindow(size_t window) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool room = changed_.wait_for(lock, kTestTimeout, [&] {
      while (finished_ < in_flight_.size()) {
        const Running& oldest = *in_flight_[finished_];
        if (oldest.received < static_cast<int>(oldest.reduction->layout().tensors.size())) break;
        ++finished_;
      }
      return in_flight_.size() - finished_ < window;
    });
    if (!room) {
      ADD_FAILURE() << "rank " << rank_->rank() << ": step " << in_flight_[finished_]->index
                    << " was not reduced in time";
      std::abort();  // Other ranks wait for this one.
    }
  }

  void Check() {
    EXPECT_TRUE(Eventually([&] { return calls_ >= expected_calls_; }));
    EXPECT_EQ(calls_, expected_calls_) << "every receiver once";
    EXPECT_EQ(pending_.in_flight(), 0);
    EXPECT_TRUE(Eventually([&] { return reads_ >= expected_reads_; }));
    EXPECT_EQ(reads_, expected_reads_) << "every read once";
    if (!plan_.aborts) {
      EXPECT_EQ(good_calls_, expected_calls_);
      EXPECT_EQ(failed_reads_, 0);
    }
    for (const Event& event : rank_->NewEvents()) {
      if (event.kind == EventKind::kRead && !plan_.aborts) {
        EXPECT_GE(event.detail, event.ticket) << "a read passed before an update it had to see";
      }
      if (event.kind == EventOf(kReduceScatter) || event.kind == EventOf(kAllGather) ||
          event.kind == EventOf(kAllReduce) || event.kind == EventOf(kSparseGather)) {
        line_.push_back({event.ticket, event.subject, static_cast<int64_t>(event.kind)});
      }
    }
  }

 public:
  // The collectives in the order they ran.
  const std::vector<std::array<int64_t, 3>>& line() const { return line_; }
  int failed_calls() const { return calls_ - good_calls_; }

 private:
  const Plan& plan_;
  const std::vector<Layout>& models_;
  EngineRank* const rank_;
  const unsigned seed_;
  PendingUpdates pending_;

  std::mutex mutex_;  // Guards the next four.
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Running>> in_flight_;
  size_t finished_ = 0;
  bool last_ = false;

  std::vector<std::array<int64_t, 3>> line_;
  std::atomic<int> calls_{0};
  std::atomic<int> good_calls_{0};
  std::atomic<int> reads_{0};
  std::atomic<int> failed_reads_{0};
  int expected_calls_ = 0;
  int expected_reads_ = 0;
};

// Returns how many receivers were given an error.
int RunRound(int round, const std::vector<Layout>& models) {
  SCOPED_TRACE("round " + std::to_string(round));
  const Plan plan = Draw(round);
  std::vector<StressedRank*> everybody(plan.size);
  std::vector<std::vector<std::array<int64_t, 3>>> lines(plan.size);
  Rendezvous meeting(plan.size);
  std::atomic<int> failed_calls{0};
  RunEngines(plan.size, [&](EngineRank* rank) {
    StressedRank stressed(plan, models, rank, 100 * round + rank->rank() + 1);
    everybody[rank->rank()] = &stressed;
    meeting.Wait();
    // What a monitor of all ranks does: tells each of them, one after the other.
    stressed.Run([&] {
      const int first = round % plan.size;
      for (int i = 0; i < plan.size; ++i) {
        everybody[(first + i) % plan.size]->Fail(
            Status(StatusCode::kUnavailable,
                   "rank " + std::to_string(rank->rank()) + " aborted on purpose"));
      }
    });
    lines[rank->rank()] = stressed.line();
    failed_calls += stressed.failed_calls();
    meeting.Wait();
  });
  // Aborted ranks got different distances along the same line.
  for (int rank = 1; rank < plan.size; ++rank) {
    const size_t common = std::min(lines[0].size(), lines[rank].size());
    if (!plan.aborts) {
      EXPECT_EQ(lines[0].size(), lines[rank].size());
    }
    for (size_t i = 0; i < common; ++i) {
      EXPECT_EQ(lines[0][i], lines[rank][i]) << "place " << i << " of ranks 0 and " << rank;
      if (testing::Test::HasFailure()) break;
    }
  }
  return failed_calls;
}

TEST(EngineStress, TenThousandStepsWithRandomArrivalAndAborts) {
  const auto models = Models();
  int rounds_cut_short = 0;
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    if (RunRound(round, models) > 0) ++rounds_cut_short;
  }
  EXPECT_GE(rounds_cut_short, kRounds / 4) << "the aborts came too late to test anything";
}

}  // namespace
}  // namespace tfdear
