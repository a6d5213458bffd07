// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// The queue of a process group: order, failures and their causes.

#include "custom_ops/engine/queue/process_group.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <future>
#include <limits>
#include <new>
#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "custom_ops/engine/base/sum.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

using Milliseconds = std::chrono::milliseconds;

std::shared_ptr<const Signature> Sign(const std::string& text) {
  return std::make_shared<const Signature>(text);
}

// One collective: `call` of a backend with a signature and a sequence number.
template <typename Call>
std::shared_ptr<Work> Submit(ProcessGroup* group, const std::string& text, Call call) {
  auto signature = Sign(text);
  return group->Run(signature, [=](CollectiveBackend* backend, uint64_t sequence) {
    return call(backend, *signature, sequence);
  });
}

template <typename T>
std::shared_ptr<Work> AllReduce(ProcessGroup* group, const std::string& text, T* data, size_t count,
                                DataType type) {
  return Submit(group, text, [=](auto* backend, const Signature& signature, uint64_t sequence) {
    return backend->AllReduce(data, count, type, signature, sequence);
  });
}

std::shared_ptr<Work> Barrier(ProcessGroup* group, const std::string& text) {
  return Submit(group, text, [](auto* backend, const Signature& signature, uint64_t sequence) {
    return backend->Barrier(signature, sequence);
  });
}

std::unique_ptr<ProcessGroup> GroupOfOne() {
  std::unique_ptr<TcpBackend> backend;
  const Status created = TcpBackend::Create(0, 1, kTestTimeout, Sockets(1), &backend);
  EXPECT_TRUE(created.ok()) << created.message();
  return std::make_unique<ProcessGroup>("alone", std::vector<int>{7}, std::move(backend));
}

TEST(Work, CallsBackOnceAtTheEndOrAtOnce) {
  Work work;
  std::vector<std::string> calls;
  work.OnDone([&](const Status& status) { calls.push_back("first " + status.message()); });
  work.OnDone([&](const Status& status) { calls.push_back("second " + status.message()); });
  EXPECT_FALSE(work.done());
  EXPECT_TRUE(calls.empty());
  work.Finish(Status(StatusCode::kAborted, "why"));
  work.Finish(Status());
  work.OnDone([&](const Status& status) { calls.push_back("late " + status.message()); });
  EXPECT_EQ(calls, (std::vector<std::string>{"first why", "second why", "late why"}));
  EXPECT_EQ(work.Wait().code(), StatusCode::kAborted);
}

TEST(ProcessGroup, RunsCollectivesAndCountsThem) {
  for (int size : {1, 3}) {
    RunGroups(size, [&](ProcessGroup* group) {
      EXPECT_EQ(group->name(), "world");
      EXPECT_EQ(group->size(), size);
      EXPECT_EQ(group->ranks()[group->rank()], 10 + group->rank());
      std::vector<int32_t> reduced(7, group->rank() + 1);
      std::vector<std::shared_ptr<Work>> works = {
          AllReduce(group, "a", reduced.data(), reduced.size(), DataType::kInt32),
          Barrier(group, "b")};
      for (auto& work : works) TFDEAR_EXPECT_OK(work->Wait());
      EXPECT_EQ(reduced, std::vector<int32_t>(7, size * (size + 1) / 2));
      // The last Work is done before the queue counts it as over.
      EXPECT_TRUE(Eventually([&] { return group->counters().collectives == works.size(); }));
      EXPECT_EQ(group->counters().bytes_sent > 0, size > 1);
      EXPECT_FALSE(group->Failure().has_value());
      EXPECT_EQ(group->failed_peer(), -1);
    });
  }
}

TEST(ProcessGroup, RunsInTheOrderOfSubmission) {
  RunGroups(2, [](ProcessGroup* group) {
    std::vector<int> started, finished;  // touched by the group's thread alone until the end
    std::vector<uint64_t> sequences;
    std::vector<std::vector<float>> buffers(100);
    std::shared_ptr<Work> last;
    for (int i = 0; i < 100; ++i) {
      // Long ones first: a queue that ran them side by side would mix them up.
      buffers[i].assign((100 - i) * 500, 1.0f);
      last = group->Run(Sign("bucket " + std::to_string(i)),
                        [&, i](CollectiveBackend* backend, uint64_t sequence) {
                          started.push_back(i);
                          sequences.push_back(sequence);
                          return backend->AllReduce(buffers[i].data(), buffers[i].size(),
                                                    DataType::kFloat32, Signature("x"), sequence);
                        });
      last->OnDone([&, i](const Status& status) {
        TFDEAR_EXPECT_OK(status);
        finished.push_back(i);
      });
    }
    // Callbacks run after Wait() may have returned; the next entry starts after them.
    TFDEAR_EXPECT_OK(Barrier(group, "end")->Wait());
    std::vector<int> expected(100);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(started, expected);
    EXPECT_EQ(finished, expected);
    EXPECT_EQ(sequences, std::vector<uint64_t>(expected.begin(), expected.end()));
  });
}

TEST(ProcessGroup, TakesWorkFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 100;
  RunGroups(2, [](ProcessGroup* group) {
    std::vector<std::vector<int64_t>> values(kThreads, std::vector<int64_t>(kEach, 1));
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::vector<std::shared_ptr<Work>> works;
        for (int i = 0; i < kEach; ++i) {
          // All alike, so that it does not matter which thread's comes first on which rank.
          works.push_back(AllReduce(group, "same", &values[t][i], 1, DataType::kInt64));
        }
        for (auto& work : works) TFDEAR_EXPECT_OK(work->Wait());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& row : values) EXPECT_EQ(row, std::vector<int64_t>(kEach, 2));
    EXPECT_TRUE(Eventually([&] { return group->counters().collectives == kThreads * kEach; }));
  });
}

TEST(ProcessGroup, InvalidArgumentsFailTheirOwnWorkOnly) {
  auto group = GroupOfOne();
  float value = 5;
  EXPECT_EQ(Submit(group.get(), "x",
                   [&](auto* backend, const Signature& signature, uint64_t sequence) {
                     return backend->Broadcast(&value, 4, 3, signature, sequence);
                   })
                ->Wait()
                .code(),
            StatusCode::kInvalidArgument);
  TFDEAR_EXPECT_OK(AllReduce(group.get(), "x", &value, 1, DataType::kFloat32)->Wait());
  EXPECT_FALSE(group->Failure().has_value());
}

TEST(ProcessGroup, ExceptionsOfABodyAreErrors) {
  for (bool memory : {true, false}) {
    auto group = GroupOfOne();
    group->set_cause_grace(Milliseconds(50));
    auto work = group->Run(Sign("too large"), [memory](CollectiveBackend*, uint64_t) -> Status {
      if (!memory) throw std::runtime_error("odd");
      throw std::bad_alloc();
    });
    const Status status = work->Wait();
    EXPECT_EQ(status.code(), memory ? StatusCode::kResourceExhausted : StatusCode::kInternal);
    EXPECT_TRUE(Contains(status.message(), "too large: ")) << status.message();
    EXPECT_TRUE(Contains(status.message(), memory ? "no memory" : "odd")) << status.message();
    EXPECT_TRUE(Contains(status.message(), "rank 7")) << status.message();
    // Its peers would wait for the rest of it: the group cannot go on.
    EXPECT_FALSE(Barrier(group.get(), "next")->Wait().ok());
  }
}

// A process whose memory is used up in the middle of a collective, as the kernel limits it.
TEST(ProcessGroup, MemoryThatRunsOutInACollectiveIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve more memory than the limit";
#endif
  HardTimeout hard_timeout;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    bool right = true;
    const size_t count = size_t{64} << 20;
    RunRanks(2, [&](std::unique_ptr<TcpBackend> backend) {
      static Rendezvous connected(2);
      ProcessGroup group("world", {0, 1}, std::move(backend));
      group.set_cause_grace(Milliseconds(10));
      connected.Wait();
      if (group.rank() == 0) {
        const rlimit limit{size_t{256} << 20, size_t{256} << 20};
        right = right && setrlimit(RLIMIT_AS, &limit) == 0;
      }
      connected.Wait();
      auto work = group.Run(Sign("large"), [&](CollectiveBackend*, uint64_t) {
        std::vector<int64_t> scratch(count);
        return Status();
      });
      static std::mutex mutex;
      std::lock_guard<std::mutex> lock(mutex);
      right = right && work->Wait().code() == StatusCode::kResourceExhausted;
    });
    _exit(right && !testing::Test::HasFailure() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

#if defined(__x86_64__)
TEST(ProcessGroup, SumsKeepDenormalsWhateverTheCreatorDoes) {
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040u);  // As a library built with -ffast-math sets it; threads inherit it.
  auto group = GroupOfOne();
  _mm_setcsr(mode);
  const float tiny = std::numeric_limits<float>::denorm_min();
  std::vector<float> sum(100, tiny);
  const std::vector<float> more(100, tiny);
  auto work = group->Run(Sign("sum"), [&](CollectiveBackend*, uint64_t) {
    SumInto(DataType::kFloat32, sum.data(), more.data(), sum.size());
    return Status();
  });
  TFDEAR_EXPECT_OK(work->Wait());
  EXPECT_EQ(sum, std::vector<float>(100, 2 * tiny));
}
#endif

TEST(ProcessGroup, DestructionFailsWhatIsLeft) {
  auto group = GroupOfOne();
  std::atomic<bool> started{false};
  auto running = group->Run(Sign("long"), [&](CollectiveBackend* backend, uint64_t sequence) {
    started = true;
    Status status;  // ends when the destructor's Abort() reaches the backend
    EXPECT_TRUE(Eventually([&] {
      status = backend->Barrier(Signature("x"), sequence);
      return !status.ok();
    }));
    return status;
  });
  auto queued = Barrier(group.get(), "queued");
  EXPECT_TRUE(Eventually([&] { return started.load(); }));
  group.reset();
  EXPECT_TRUE(running->done());
  EXPECT_TRUE(queued->done());
  for (auto& work : {running, queued}) {
    EXPECT_EQ(work->Wait().code(), StatusCode::kAborted);
    EXPECT_TRUE(Contains(work->Wait().message(), "'alone' was closed while"));
  }
}

TEST(ProcessGroup, AClosedOneRefusesWorkAndKeepsItsCounts) {
  auto group = GroupOfOne();
  TFDEAR_EXPECT_OK(Barrier(group.get(), "before")->Wait());
  const auto before = group->counters();
  group->Close();
  group->Close();
  const auto late = Barrier(group.get(), "late");
  ASSERT_TRUE(late->done());
  EXPECT_EQ(late->Wait().code(), StatusCode::kAborted);
  EXPECT_TRUE(Contains(late->Wait().message(), "'alone' was closed")) << late->Wait().message();
  group->Abort(Status(StatusCode::kUnavailable, "too late"));
  EXPECT_FALSE(group->Current().has_value());
  EXPECT_FALSE(group->Failure().has_value());
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->counters().collectives, before.collectives);
  EXPECT_EQ(group->counters().bytes_sent, before.bytes_sent);
}

TEST(ProcessGroup, DifferentCollectivesNeverMixAndEndByAbort) {
  Rendezvous checked(2);
  RunGroups(2, [&](ProcessGroup* group) {
    const std::string mine = group->rank() == 0 ? "bucket a" : "bucket b";
    const std::vector<float> before(1000, 1.0f + group->rank());
    std::vector<float> data = before;
    auto work = AllReduce(group, mine, data.data(), 1000, DataType::kFloat32);
    auto later = Barrier(group, "later");
    EXPECT_TRUE(Eventually([&] {
      const auto current = group->Current();
      return current.has_value() && current->waiting_for == 11 - group->rank();
    }));
    const auto current = group->Current();
    EXPECT_EQ(current->signature, mine);
    EXPECT_EQ(current->sequence, 0u);
    EXPECT_GE(current->seconds, 0);
    EXPECT_FALSE(work->done());
    checked.Wait();
    group->Abort(Status(StatusCode::kInvalidArgument, "rank 10 sent a, rank 11 sent b"));
    for (auto& failed : {work, later, Barrier(group, "after")}) {
      EXPECT_EQ(failed->Wait().code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(failed->Wait().message(), "rank 10 sent a, rank 11 sent b");
    }
    EXPECT_EQ(data, before);
    EXPECT_FALSE(group->Current().has_value());
    checked.Wait();
  });
}

TEST(ProcessGroup, SameNameWithOtherLengthDoesNotMixEither) {
  Rendezvous checked(2);
  RunGroups(2, [&](ProcessGroup* group) {
    std::vector<float> data(group->rank() == 0 ? 1000 : 999, 1.0f);
    auto work = AllReduce(group, "x", data.data(), data.size(), DataType::kFloat32);
    EXPECT_TRUE(Eventually([&] {
      const auto current = group->Current();
      return current.has_value() && current->waiting_for >= 0;
    }));
    checked.Wait();
    group->Abort(Status(StatusCode::kAborted, "lengths"));
    EXPECT_EQ(work->Wait().message(), "lengths");
    checked.Wait();
  });
}

TEST(ProcessGroup, AbortUnblocksALongTransfer) {
  Rendezvous checked(3);
  RunGroups(3, [&](ProcessGroup* group) {
    std::vector<float> data(8 << 20);
    std::shared_ptr<Work> work;
    if (group->rank() != 2) {  // rank 2 never comes
      work = Submit(group, "x", [&](auto* backend, const Signature& signature, uint64_t sequence) {
        return backend->ReduceScatter(data.data(), data.size(), DataType::kFloat32, signature,
                                      sequence);
      });
      EXPECT_TRUE(Eventually([&] {
        const auto current = group->Current();
        return current.has_value() && current->waiting_for >= 0;
      }));
    }
    checked.Wait();
    group->Abort(Status(StatusCode::kUnavailable, "rank 12 raised ValueError"));
    if (work != nullptr) {
      EXPECT_EQ(work->Wait().message(), "rank 12 raised ValueError");
    }
    // Nothing writes into the memory of failed work: it may be gone. (AddressSanitizer watches.)
    std::vector<float>().swap(data);
    checked.Wait();
  });
}

TEST(ProcessGroup, DeadlineNamesTheSilentPeer) {
  Rendezvous done(2);
  RunGroups(
      2,
      [&](ProcessGroup* group) {
        group->set_cause_grace(Milliseconds(0));
        TFDEAR_EXPECT_OK(Barrier(group, "start")->Wait());
        if (group->rank() == 0) {
          std::vector<float> data(100000);
          auto work = AllReduce(group, "bucket 3", data.data(), data.size(), DataType::kFloat32);
          const Status status = work->Wait();
          EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.message();
          for (const char* part : {"rank 10, process group 'world'", "all_reduce 'bucket 3'",
                                   "(sequence 1)", "rank 11 sent nothing for 500 ms"}) {
            EXPECT_TRUE(Contains(status.message(), part)) << part << "\n" << status.message();
          }
          EXPECT_EQ(group->failed_peer(), 11);
          EXPECT_EQ(Barrier(group, "after")->Wait().message(), status.message());
        }
        done.Wait();
      },
      Milliseconds(500));
}

TEST(ProcessGroup, WaitsForTheRootCauseAndBlamesNobodyElse) {
  // Rank 11 goes. Rank 12 waits for it in the ring; rank 10 waits for rank 12, which is innocent.
  Rendezvous gone(3), checked(2);
  RunRanks(3, [&](std::unique_ptr<TcpBackend> backend) {
    const int rank = backend->rank();
    auto group =
        std::make_unique<ProcessGroup>("world", std::vector<int>{10, 11, 12}, std::move(backend));
    TFDEAR_EXPECT_OK(Barrier(group.get(), "start")->Wait());
    if (rank == 1) group.reset();
    gone.Wait();
    if (rank == 1) return;
    std::vector<float> data(100000);
    auto work = AllReduce(group.get(), "x", data.data(), data.size(), DataType::kFloat32);
    if (rank == 2) {
      EXPECT_TRUE(Eventually([&] { return group->Failure().has_value(); }));
      EXPECT_EQ(group->Failure()->code(), StatusCode::kUnavailable);
      EXPECT_TRUE(Contains(group->Failure()->message(), "rank 11 closed its connection"))
          << group->Failure()->message();
      EXPECT_EQ(group->failed_peer(), 11);
    }
    checked.Wait();
    EXPECT_FALSE(work->done());
    EXPECT_NE(group->failed_peer(), 12);
    group->Abort(Status(StatusCode::kUnavailable, "rank 11 was killed"));
    EXPECT_EQ(work->Wait().message(), "rank 11 was killed");
    checked.Wait();
  });
}

TEST(ProcessGroup, WithoutACauseTheTransportsOwnErrorIsTheCause) {
  Rendezvous gone(2);
  RunRanks(2, [&](std::unique_ptr<TcpBackend> backend) {
    const int rank = backend->rank();
    auto group =
        std::make_unique<ProcessGroup>("intra_node", std::vector<int>{4, 6}, std::move(backend));
    group->set_cause_grace(Milliseconds(20));
    if (rank == 1) group.reset();
    gone.Wait();
    if (rank == 1) return;
    auto work = Barrier(group.get(), "x");
    EXPECT_EQ(work->Wait().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(
        Contains(work->Wait().message(),
                 "rank 4, process group 'intra_node': barrier 'x' (sequence 0): rank 6 closed"))
        << work->Wait().message();
    EXPECT_EQ(group->failed_peer(), 6);
  });
}

// A peer that is a real process, so that it can be killed and stopped.
class PeerProcess {
 public:
  // Forks rank 1 of 2: it joins a barrier and then sleeps until it is killed.
  explicit PeerProcess(Milliseconds timeout) {
    const auto [own, others] = ConnectedSockets();
    pid_ = fork();
    if (pid_ == 0) {
      alarm(120);  // no orphan survives a failed test for long
      close(own);
      std::unique_ptr<TcpBackend> backend = Connect(1, others, timeout);
      if (backend == nullptr) _exit(1);
      if (!backend->Barrier(Signature("start"), 0).ok()) _exit(2);
      while (true) pause();
    }
    close(others);
    group_ =
        std::make_unique<ProcessGroup>("world", std::vector<int>{0, 1}, Connect(0, own, timeout));
    group_->set_cause_grace(Milliseconds(0));
    TFDEAR_EXPECT_OK(Barrier(group_.get(), "start")->Wait());
  }
  ~PeerProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  ProcessGroup* group() { return group_.get(); }
  void Signal(int number) {
    kill(pid_, number);
    int status;
    waitpid(pid_, &status, WUNTRACED);
  }

 private:
  static std::unique_ptr<TcpBackend> Connect(int rank, int socket, Milliseconds timeout) {
    Sockets sockets(2);
    sockets.Add(1 - rank, socket);
    std::unique_ptr<TcpBackend> backend;
    const bool connected =
        TcpBackend::Create(rank, 2, timeout, std::move(sockets), &backend).ok() &&
        backend->Connect({"same", "same"}).ok();
    return connected ? std::move(backend) : nullptr;
  }

  pid_t pid_ = -1;
  std::unique_ptr<ProcessGroup> group_;
};

TEST(PeerProcess, KilledPeerIsNamed) {
  HardTimeout hard_timeout;
  PeerProcess peer(kTestTimeout);
  peer.Signal(SIGKILL);
  std::vector<float> data(1 << 20);
  // Large: writes hit the closed socket, which must not raise SIGPIPE in this process.
  auto work = AllReduce(peer.group(), "x", data.data(), data.size(), DataType::kFloat32);
  EXPECT_EQ(work->Wait().code(), StatusCode::kUnavailable) << work->Wait().message();
  EXPECT_EQ(peer.group()->failed_peer(), 1);
}

TEST(PeerProcess, PeerKilledInTheMiddleOfACollectiveIsNamed) {
  HardTimeout hard_timeout;
  PeerProcess peer(kTestTimeout);
  std::vector<float> data(1 << 20);
  auto work = AllReduce(peer.group(), "x", data.data(), data.size(), DataType::kFloat32);
  EXPECT_TRUE(Eventually([&] {
    const auto current = peer.group()->Current();
    return current.has_value() && current->waiting_for == 1;
  }));
  peer.Signal(SIGKILL);
  EXPECT_EQ(work->Wait().code(), StatusCode::kUnavailable) << work->Wait().message();
  EXPECT_EQ(peer.group()->failed_peer(), 1);
}

TEST(PeerProcess, StoppedPeerIsNamedAtTheDeadline) {
  HardTimeout hard_timeout;
  PeerProcess peer(Milliseconds(2000));
  peer.Signal(SIGSTOP);
  std::vector<float> data(1 << 20);
  auto work = AllReduce(peer.group(), "x", data.data(), data.size(), DataType::kFloat32);
  EXPECT_EQ(work->Wait().code(), StatusCode::kDeadlineExceeded) << work->Wait().message();
  EXPECT_EQ(peer.group()->failed_peer(), 1);
}

TEST(ProcessGroup, WorkOfAnotherGroupComesFirst) {
  RunGroups(1, [](ProcessGroup* group) {
    auto signature = std::make_shared<Signature>("second");
    auto nothing = [](CollectiveBackend*, uint64_t) { return Status(); };
    std::atomic<bool> started{false};
    auto start = [&](CollectiveBackend*, uint64_t) {
      started = true;
      return Status();
    };
    auto before = std::make_shared<Work>();
    auto work = group->Run(signature, start, before);
    auto next = group->Run(signature, nothing);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(started);
    EXPECT_FALSE(next->done()) << "the order of the queue stays";
    // A collective that did not begin has no deadline to miss.
    EXPECT_FALSE(group->Current().has_value());
    before->Finish(Status());
    TFDEAR_EXPECT_OK(work->Wait());
    EXPECT_TRUE(started);
    TFDEAR_EXPECT_OK(next->Wait());
    // What failed elsewhere fails here, and the group goes on.
    auto failed = std::make_shared<Work>();
    failed->Finish(Status(StatusCode::kUnavailable, "rank 3 was lost"));
    started = false;
    EXPECT_EQ(group->Run(signature, start, failed)->Wait().message(), "rank 3 was lost");
    EXPECT_FALSE(started);
    EXPECT_FALSE(group->Failure().has_value());
    TFDEAR_EXPECT_OK(group->Run(signature, nothing)->Wait());
  });
}

TEST(ProcessGroup, PreparationsGoOnWhileTheLineIsInUse) {
  std::promise<void> prepared;
  std::shared_future<void> is_prepared = prepared.get_future().share();
  RunGroups(2, [&](ProcessGroup* group) {
    // The first collective ends only after the preparation of the second one.
    if (group->rank() == 1) {
      EXPECT_EQ(is_prepared.wait_for(kTestTimeout), std::future_status::ready);
    }
    auto first = Barrier(group, "first");
    auto second = Sign("second");
    int value = 0;
    auto work = group->Run(
        second,
        [&](CollectiveBackend* backend, uint64_t sequence) {
          return backend->AllReduce(&value, 1, DataType::kInt32, *second, sequence);
        },
        /*after=*/nullptr,
        [&] {
          value = 3;
          if (group->rank() == 0) prepared.set_value();
          return Status();
        });
    TFDEAR_EXPECT_OK(first->Wait());
    TFDEAR_EXPECT_OK(work->Wait());
    EXPECT_EQ(value, 6);
  });
}

TEST(ProcessGroup, PreparationsComeAfterWhatTheirCollectivesWaitFor) {
  auto group = GroupOfOne();
  const auto signature = Sign("x");
  std::vector<int> order;
  auto before = std::make_shared<Work>();
  auto note = [&](int number) {
    return [&order, number] {
      order.push_back(number);
      return Status();
    };
  };
  auto body = [&](CollectiveBackend*, uint64_t) { return note(2)(); };
  auto work = group->Run(signature, body, before, note(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(order.empty());
  EXPECT_FALSE(group->Current().has_value());
  before->Finish(Status());
  TFDEAR_EXPECT_OK(work->Wait());
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  // Neither is called if that failed.
  auto failed = std::make_shared<Work>();
  failed->Finish(Status(StatusCode::kUnavailable, "rank 3 was lost"));
  EXPECT_EQ(group->Run(signature, body, failed, note(1))->Wait().message(), "rank 3 was lost");
  EXPECT_EQ(order.size(), 2u);
  TFDEAR_EXPECT_OK(group->Run(signature, body)->Wait());
}

TEST(ProcessGroup, ErrorsOfAPreparationAreThoseOfItsBody) {
  auto body = [](CollectiveBackend*, uint64_t) -> Status {
    ADD_FAILURE() << "called without its preparation";
    return Status();
  };
  auto group = GroupOfOne();
  group->set_cause_grace(Milliseconds(50));
  auto refused = [] { return Status(StatusCode::kInvalidArgument, "too many"); };
  EXPECT_EQ(group->Run(Sign("x"), body, nullptr, refused)->Wait().message(), "too many");
  TFDEAR_EXPECT_OK(Barrier(group.get(), "next")->Wait());
  auto exhausted = []() -> Status { throw std::bad_alloc(); };
  const Status status = group->Run(Sign("large"), body, nullptr, exhausted)->Wait();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Contains(status.message(), "large: ")) << status.message();
  EXPECT_FALSE(Barrier(group.get(), "next")->Wait().ok());
}

TEST(ProcessGroup, WhatIsLeftEndsAfterItsPreparation) {
  auto group = GroupOfOne();
  auto before = std::make_shared<Work>();
  auto prepares = std::make_shared<Work>();
  auto nothing = [](CollectiveBackend*, uint64_t) { return Status(); };
  std::atomic<bool> over{false};
  // It keeps the group's thread until the group was aborted.
  auto first =
      group->Run(Sign("first"), [&](CollectiveBackend*, uint64_t) { return before->Wait(); });
  auto second = group->Run(Sign("second"), nothing, nullptr, [&] {
    prepares->Finish(Status());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    over = true;
    return Status();
  });
  second->OnDone([&](const Status&) { EXPECT_TRUE(over); });
  TFDEAR_EXPECT_OK(prepares->Wait());
  group->Abort(Status(StatusCode::kAborted, "enough"));
  before->Finish(Status());
  EXPECT_EQ(second->Wait().message(), "enough");
  EXPECT_TRUE(over);
  (void)first->Wait();
}

}  // namespace
}  // namespace tfdear
