// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Reductions on a device with a queue of its own, as GPUs have: calls come back before anything is
// done. The device is a thread.

#include <atomic>
#include <cstdlib>
#include <deque>
#include <random>

#include "tests/cc/engine_testing.h"

namespace tfdear {
namespace {

// Does one thing after another; the first error stays.
class Queue {
 public:
  Queue() : thread_(&Queue::Loop, this) {}
  ~Queue() {
    Hold(false);
    Add([this] {
      stopping_ = true;
      return Status();
    });
    thread_.join();
  }

  std::shared_ptr<Work> Add(std::function<Status()> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.emplace_back(std::move(job), std::make_shared<Work>());
    last_ = jobs_.back().second;
    changed_.notify_all();
    return last_;
  }
  // Over when all that was added is; null: nothing was.
  std::shared_ptr<Work> Last() {
    std::lock_guard<std::mutex> lock(mutex_);
    return last_;
  }
  void Hold(bool hold) {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = hold;
    changed_.notify_all();
  }

 private:
  void Loop() {
    Status first_error;
    while (!stopping_) {
      std::pair<std::function<Status()>, std::shared_ptr<Work>> next;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !jobs_.empty() && !held_; });
        next = std::move(jobs_.front());
        jobs_.pop_front();
      }
      const Status status = next.first();
      if (first_error.ok()) first_error = status;
      next.second->Finish(first_error);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::function<Status()>, std::shared_ptr<Work>>> jobs_;
  std::shared_ptr<Work> last_;
  bool held_ = false;
  bool stopping_ = false;  // The thread's.
  std::thread thread_;
};

// Memory that the queue of a device writes, in its own time.
class QueuedMemory : public FusionMemory {
 public:
  Device device() const override { return Device::kCuda; }
  std::shared_ptr<Work> Write(DataType type, char* target, const void* values, double weight,
                              size_t count, size_t bytes) override {
    const char* const begin = static_cast<const char*>(values);
    // The caller's memory is not the device's: it may be gone by then.
    std::vector<char> copy(begin, begin + count * SizeOf(type));
    return queue_.Add([=, copy = std::move(copy)] {
      FusionMemory::Write(type, target, copy.data(), weight, count, bytes);
      return Status();
    });
  }
  char* Allocate(size_t bytes) override {
    return static_cast<char*>(std::aligned_alloc(kSlotAlignment, bytes));
  }
  void Free(char* data, size_t) override {
    queue_.Add([data] {
      std::free(data);
      return Status();
    });
  }

  Queue* queue() { return &queue_; }

 private:
  Queue queue_;
};

// Collectives of gloo in the queue of another device.
class QueuedBackend : public CollectiveBackend {
 public:
  explicit QueuedBackend(std::unique_ptr<TcpBackend> gloo)
      : gloo_(std::move(gloo)), memory_(std::make_shared<QueuedMemory>()) {}

  int rank() const override { return gloo_->rank(); }
  int size() const override { return gloo_->size(); }
  std::string Listen() override { return gloo_->Listen(); }
  Status Connect(const std::vector<std::string>& blobs) override { return gloo_->Connect(blobs); }

  Device device() const override { return Device::kCuda; }
  std::shared_ptr<FusionMemory> fusion_memory() const override { return memory_; }
  std::shared_ptr<Work> Completion() override { return queue_.Last(); }
  Status WaitFor(const std::shared_ptr<Work>& ready) override {
    return Add([ready] { return ready->Wait(); });
  }

  using CollectiveBackend::AllGather;
  using CollectiveBackend::AllReduce;
  using CollectiveBackend::ReduceScatter;
  Status ReduceScatter(void* data, const Shards& shards, DataType type, const Signature& signature,
                       uint64_t sequence) override {
    ++collectives_;
    return Add([=] { return gloo_->ReduceScatter(data, shards, type, signature, sequence); });
  }
  Status AllGather(void* data, const Shards& shards, DataType type, const Signature& signature,
                   uint64_t sequence) override {
    ++collectives_;
    return Add([=] { return gloo_->AllGather(data, shards, type, signature, sequence); });
  }
  Status AllReduce(void* data, const Shards& shards, DataType type, const Signature& signature,
                   uint64_t sequence) override {
    ++collectives_;
    return Add([=] { return gloo_->AllReduce(data, shards, type, signature, sequence); });
  }
  Status Reduce(void* data, size_t count, DataType type, int root, const Signature& signature,
                uint64_t sequence) override {
    return Add([=] { return gloo_->Reduce(data, count, type, root, signature, sequence); });
  }
  Status AllGatherV(const void* input, void* output, const std::vector<size_t>& bytes_of_rank,
                    const Signature& signature, uint64_t sequence) override {
    return Add(
        [=] { return gloo_->AllGatherV(input, output, bytes_of_rank, signature, sequence); });
  }
  Status AllToAllPieces(const std::vector<OutgoingPieces>& sends,
                        const std::vector<IncomingPieces>& receives, const Signature& signature,
                        uint64_t sequence) override {
    return Add([=] { return gloo_->AllToAllPieces(sends, receives, signature, sequence); });
  }
  Status Broadcast(void* data, size_t bytes, int root, const Signature& signature,
                   uint64_t sequence) override {
    return Add([=] { return gloo_->Broadcast(data, bytes, root, signature, sequence); });
  }
  Status Barrier(const Signature& signature, uint64_t sequence) override {
    return Add([=] { return gloo_->Barrier(signature, sequence); });
  }
  void Abort(const Status& cause) override {
    gloo_->Abort(cause);
    queue_.Hold(false);
  }
  int waiting_for() const override { return gloo_->waiting_for(); }
  int failed_peer() const override { return gloo_->failed_peer(); }
  uint64_t bytes_sent() const override { return gloo_->bytes_sent(); }

  Queue* queue() { return &queue_; }
  Queue* memory_queue() { return memory_->queue(); }
  int collectives() const { return collectives_.load(); }

 private:
  Status Add(std::function<Status()> job) {
    queue_.Add(std::move(job));
    return Status();
  }

  std::unique_ptr<TcpBackend> gloo_;
  std::shared_ptr<QueuedMemory> memory_;
  std::atomic<int> collectives_{0};
  Queue queue_;  // Last: its jobs use what is above.
};

void RunQueued(int size, const std::function<void(EngineRank*, QueuedBackend*)>& body) {
  RunRanks(size, [&](std::unique_ptr<TcpBackend> gloo) {
    auto backend = std::make_unique<QueuedBackend>(std::move(gloo));
    QueuedBackend* const device = backend.get();
    EngineRank rank(std::move(backend));
    body(&rank, device);
  });
}

std::shared_ptr<const ReductionLayout> LayoutOf(const std::vector<int64_t>& counts,
                                                size_t bucket_bytes, Schedule schedule) {
  std::vector<TensorSpec> tensors;
  for (int64_t count : counts) tensors.push_back({DataType::kFloat32, count, false});
  return FixedSizeLayout("gradients", tensors, bucket_bytes, schedule);
}

// Numbers whose float sums depend on the order of summation.
std::vector<float> GradientOf(int tensor, int rank, int64_t count) {
  std::minstd_rand random(100 * tensor + rank + 1);
  std::vector<float> gradient(count);
  for (float& x : gradient) x = (random() % 2001 - 1000.0f) / 7.0f * (1 << random() % 20);
  return gradient;
}

// Opens a reduction and gives it everything, which comes back before the device has done anything.
std::shared_ptr<Reduction> Begin(EngineRank* rank, std::shared_ptr<const ReductionLayout> layout,
                                 Received* received, double weight = 1) {
  auto reduction = rank->Open(std::move(layout));
  received->ListenTo(reduction.get());
  const auto& tensors = reduction->layout().tensors;
  for (int tensor = static_cast<int>(tensors.size()) - 1; tensor >= 0; --tensor) {
    const auto gradient = GradientOf(tensor, rank->rank(), tensors[tensor].count);
    TFDEAR_EXPECT_OK(
        reduction->Contribute(tensor, gradient.data(), {tensors[tensor].count}, weight));
  }
  return reduction;
}

std::vector<std::vector<float>> SumsOf(Received* received, const ReductionLayout& layout) {
  std::vector<std::vector<float>> sums;
  EXPECT_TRUE(received->WaitFor(static_cast<int>(layout.tensors.size())));
  for (size_t tensor = 0; tensor < layout.tensors.size(); ++tensor) {
    const auto result = received->Get(static_cast<int>(tensor));
    TFDEAR_EXPECT_OK(result.status);
    const float* const data = static_cast<const float*>(result.sum.data);
    sums.emplace_back(data, data + (result.status.ok() ? layout.tensors[tensor].count : 0));
  }
  return sums;
}

TEST(QueuedDevice, SumsHaveTheBitsOfTheHost) {
  const std::vector<int64_t> counts = {5, 0, 3000, 1, 40000};
  for (int size : {1, 2, 3}) {
    for (size_t bucket_bytes : {size_t{1}, size_t{1} << 30}) {
      for (Schedule schedule : {Schedule::kDear, Schedule::kWfbp, Schedule::kSequential}) {
        const auto layout = LayoutOf(counts, bucket_bytes, schedule);
        std::vector<std::vector<float>> expected;
        auto step = [&](EngineRank* rank, double weight) {
          Received received;
          auto reduction = Begin(rank, layout, &received, rank->rank() == 0 ? weight : 1);
          return SumsOf(&received, *layout);
        };
        RunEngines(size, [&](EngineRank* rank) {
          const auto sums = step(rank, 0.25);
          if (rank->rank() == 0) expected = sums;
        });
        RunQueued(size, [&](EngineRank* rank, QueuedBackend*) {
          for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(step(rank, 0.25), expected);
        });
      }
    }
  }
}

TEST(QueuedDevice, TwoCollectivesAreInFlight) {
  const auto layout = LayoutOf({10, 20, 30, 40}, 1, Schedule::kWfbp);
  RunQueued(2, [&](EngineRank* rank, QueuedBackend* device) {
    ProcessGroup* const group = rank->lane()->group();
    device->queue()->Hold(true);
    Received received;
    auto reduction = Begin(rank, layout, &received);
    ASSERT_TRUE(Eventually([&] { return device->collectives() == 2; }));
    // The third waits for the first, which is the one that is under way.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(device->collectives(), 2);
    EXPECT_EQ(received.calls(), 0);
    const auto current = group->Current();
    ASSERT_TRUE(current.has_value());
    EXPECT_EQ(current->sequence, 0u);
    EXPECT_EQ(group->counters().collectives, 0u);
    // They are recorded when they are over.
    int recorded = 0;
    auto count = [&] {
      for (const Event& event : rank->NewEvents()) recorded += event.kind == EventOf(kAllReduce);
      return recorded;
    };
    EXPECT_EQ(count(), 0);
    device->queue()->Hold(false);
    SumsOf(&received, *layout);
    EXPECT_TRUE(Eventually([&] { return count() == 4; }));
    EXPECT_TRUE(Eventually([&] { return group->counters().collectives == 4; }));
    EXPECT_FALSE(group->Current().has_value());
  });
}

TEST(QueuedDevice, CollectivesWaitForWhatIsWritten) {
  const auto layout = LayoutOf({1000}, 1, Schedule::kDear);
  RunQueued(2, [&](EngineRank* rank, QueuedBackend* device) {
    device->memory_queue()->Hold(true);
    Received received;
    auto reduction = Begin(rank, layout, &received);
    ASSERT_TRUE(Eventually([&] { return device->collectives() == 2; }));
    EXPECT_EQ(received.calls(), 0);
    device->memory_queue()->Hold(false);
    std::vector<float> expected = GradientOf(0, 0, 1000);
    const auto other = GradientOf(0, 1, 1000);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += other[i];
    EXPECT_EQ(SumsOf(&received, *layout)[0], expected);
  });
}

TEST(QueuedDevice, FailuresEndWhatIsInFlight) {
  const auto layout = LayoutOf({10, 20, 30, 40}, 1, Schedule::kDear);
  RunQueued(2, [&](EngineRank* rank, QueuedBackend* device) {
    device->queue()->Hold(true);
    Received received;
    auto reduction = Begin(rank, layout, &received);
    ASSERT_TRUE(Eventually([&] { return device->collectives() == 2; }));
    rank->lane()->Fail(Status(StatusCode::kUnavailable, "rank 1 was lost"));
    ASSERT_TRUE(received.WaitFor(4));
    for (int tensor = 0; tensor < 4; ++tensor) {
      EXPECT_EQ(received.Get(tensor).status.message(), "rank 1 was lost");
    }
  });
}

TEST(QueuedDevice, WhatNeedsTheHostIsRefused) {
  const auto layout = FixedSizeLayout("rows", {{DataType::kFloat32, -1, true}}, 1, Schedule::kDear);
  RunQueued(2, [&](EngineRank* rank, QueuedBackend*) {
    auto reduction = rank->Open(layout);
    Received received;
    received.ListenTo(reduction.get());
    const float value = 1;
    const int64_t index = 3;
    TFDEAR_EXPECT_OK(reduction->ContributeRows(0, &value, &index, {1, 1}));
    ASSERT_TRUE(received.WaitFor(1));
    EXPECT_EQ(received.Get(0).status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Contains(received.Get(0).status.message(), "host memory"));
  });
}

}  // namespace
}  // namespace tfdear
