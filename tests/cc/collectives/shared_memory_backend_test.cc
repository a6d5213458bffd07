// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// What ends collectives through shared memory: deadlines, Abort(), lost peers; and what is left.
// The collectives themselves: collectives_test.cc.

#include "custom_ops/engine/collectives/shared_memory_backend.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <set>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Ranks = std::function<void(std::unique_ptr<CollectiveBackend>)>;

void RunOverSharedMemory(int size, const Ranks& body, Milliseconds timeout = kTestTimeout) {
  RunRanksOver(MakeSharedMemoryBackend, size, body, timeout);
}

std::vector<std::string> NamesIn(const char* directory) {
  std::vector<std::string> names;
  DIR* const open = opendir(directory);
  while (const dirent* entry = open == nullptr ? nullptr : readdir(open)) {
    names.push_back(entry->d_name);
  }
  if (open != nullptr) closedir(open);
  return names;
}

size_t MappedSegments() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += Contains(line, "memfd:tfdear");
  return count;
}

TEST(SharedMemory, LeavesNothingBehindAndHoldsNoDescriptorOfMemory) {
  const size_t files = NamesIn("/proc/self/fd").size();
  const std::vector<std::string> before = NamesIn("/dev/shm");
  Rendezvous connected(3);
  const BackendFactory make = WithFusionMemory(size_t{64} << 20);
  RunRanksOver(make, 3, [&](std::unique_ptr<CollectiveBackend> backend) {
    connected.Wait();
    if (backend->rank() == 0) {
      EXPECT_EQ(NamesIn("/dev/shm"), before);
      for (const std::string& name : NamesIn("/proc/self/fd")) {
        char target[256] = {};
        const std::string path = "/proc/self/fd/" + name;
        if (readlink(path.c_str(), target, sizeof(target) - 1) < 0) continue;
        EXPECT_FALSE(Contains(target, "memfd:tfdear")) << target;
      }
      EXPECT_EQ(MappedSegments(), 18u) << "a ring and an arena of every rank, on every rank";
    }
    connected.Wait();
  });
  EXPECT_EQ(MappedSegments(), 0u);
  EXPECT_EQ(NamesIn("/proc/self/fd").size(), files);
}

TEST(SharedMemory, BlobsAreNotTheSameTwice) {
  std::set<std::string> blobs;
  for (int i = 0; i < 10; ++i) {
    std::unique_ptr<CollectiveBackend> backend;
    TFDEAR_EXPECT_OK(MakeSharedMemoryBackend(0, 2, kTestTimeout, &backend));
    blobs.insert(backend->Listen());
  }
  EXPECT_EQ(blobs.size(), 10u);
}

TEST(SharedMemory, DifferentCollectivesNeverMixAndEndByAbort) {
  Rendezvous checked(2);
  RunOverSharedMemory(2, [&](std::unique_ptr<CollectiveBackend> owned) {
    ProcessGroup group("intra_node", {10, 11}, std::move(owned));
    const std::string mine = group.rank() == 0 ? "bucket a" : "bucket b";
    const std::vector<float> before(1000, 1.0f + group.rank());
    std::vector<float> data = before;
    auto signature = std::make_shared<const Signature>(mine);
    auto work = group.Run(signature, [&](CollectiveBackend* member, uint64_t sequence) {
      return member->AllReduce(data.data(), 1000, DataType::kFloat32, *signature, sequence);
    });
    EXPECT_TRUE(Eventually([&] {
      const auto current = group.Current();
      return current.has_value() && current->waiting_for == 11 - group.rank();
    }));
    checked.Wait();
    EXPECT_FALSE(work->done());
    group.Abort(Status(StatusCode::kInvalidArgument, "rank 10 sent a, rank 11 sent b"));
    EXPECT_EQ(work->Wait().message(), "rank 10 sent a, rank 11 sent b");
    EXPECT_EQ(data, before);
    checked.Wait();
  });
}

TEST(SharedMemory, DeadlineTellsWhatWasSentInstead) {
  Rendezvous done(2);
  RunOverSharedMemory(
      2,
      [&](std::unique_ptr<CollectiveBackend> backend) {
        backend->NameRanks({10, 11});
        std::vector<float> data(100, 1.0f);
        const std::string mine = backend->rank() == 0 ? "bucket a" : "bucket b";
        const Status status =
            backend->AllReduce(data.data(), 100, DataType::kFloat32, Signature(mine), 7);
        EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.message();
        if (backend->rank() == 0) {
          for (const char* part : {"all_reduce 'bucket a' (sequence 7)",
                                   "rank 11 sent nothing for 2000 ms but 400 "
                                   "bytes of all_reduce 'bucket b' (sequence 7)"}) {
            EXPECT_TRUE(Contains(status.message(), part)) << part << "\n" << status.message();
          }
          EXPECT_EQ(backend->failed_peer(), 1);
        }
        // Errors are final.
        EXPECT_EQ(backend->Barrier(Signature("after"), 8).message(), status.message());
        done.Wait();
      },
      Milliseconds(2000));
}

TEST(SharedMemory, OtherLengthsAndSequencesDoNotMix) {
  for (const bool other_length : {true, false}) {
    Rendezvous done(2);
    RunOverSharedMemory(
        2,
        [&](std::unique_ptr<CollectiveBackend> backend) {
          const bool odd = backend->rank() == 1;
          std::vector<float> data(other_length && odd ? 999 : 1000, 1.0f);
          const uint64_t sequence = !other_length && odd ? 1 : 0;
          EXPECT_EQ(backend
                        ->AllReduce(data.data(), data.size(), DataType::kFloat32, Signature("x"),
                                    sequence)
                        .code(),
                    StatusCode::kDeadlineExceeded);
          EXPECT_EQ(data[0], 1.0f);
          done.Wait();
        },
        Milliseconds(2000));
  }
}

// Rank 2 never comes: the others fill their rings and wait for it to read.
TEST(SharedMemory, AbortEndsALongTransferAtOnce) {
  Rendezvous checked(3);
  RunOverSharedMemory(3, [&](std::unique_ptr<CollectiveBackend> backend) {
    std::vector<float> data(8 << 20);
    std::atomic<bool> ended{false};
    std::thread collective;
    if (backend->rank() != 2) {
      collective = std::thread([&] {
        const Status status =
            backend->ReduceScatter(data.data(), data.size(), DataType::kFloat32, Signature("x"), 0);
        EXPECT_EQ(status.message(), "rank 12 raised ValueError");
        ended = true;
      });
      EXPECT_TRUE(Eventually([&] { return backend->waiting_for() == 2; }));
    }
    checked.Wait();
    EXPECT_FALSE(ended.load());
    // Not rank 2, whose closed connection the others could see before they are told the cause.
    if (backend->rank() != 2) {
      backend->Abort(Status(StatusCode::kUnavailable, "rank 12 raised ValueError"));
      collective.join();
    }
    checked.Wait();
    if (backend->rank() == 2) return;
    EXPECT_EQ(backend->waiting_for(), -1);
    EXPECT_EQ(backend->Barrier(Signature("x"), 1).message(), "rank 12 raised ValueError");
  });
}

TEST(SharedMemory, AbortEndsASharedSumAtOnce) {
  Rendezvous checked(2);
  RunRanksOver(WithFusionMemory(size_t{64} << 20), 2, [&](std::unique_ptr<CollectiveBackend> rank) {
    char* const data = rank->fusion_memory()->Allocate(4000);
    std::thread collective;
    if (rank->rank() == 0) {
      collective = std::thread([&] {
        char* sum = nullptr;
        const Status status = rank->ReduceScatterShared(
            data, 0, ShardsOf(1000, 2), DataType::kFloat32, Signature("x"), 0, &sum);
        EXPECT_EQ(status.message(), "enough");
      });
      EXPECT_TRUE(Eventually([&] { return rank->waiting_for() == 1; }));
      rank->Abort(Status(StatusCode::kAborted, "enough"));
      collective.join();
    }
    checked.Wait();
  });
}

// Aborts hit every moment between two sleeps.
TEST(SharedMemory, AbortIsNeverMissed) {
  for (int i = 0; i < 200; ++i) {
    Rendezvous go(2);
    RunOverSharedMemory(2, [&](std::unique_ptr<CollectiveBackend> backend) {
      if (backend->rank() == 1) {
        go.Wait();
        std::this_thread::sleep_for(std::chrono::microseconds(i));
        // Ranks leave together: a destroyed backend would wake the other one too.
        go.Wait();
        return;
      }
      std::thread collective(
          [&] { EXPECT_EQ(backend->Barrier(Signature("x"), 0).message(), "enough"); });
      go.Wait();
      std::this_thread::sleep_for(std::chrono::microseconds(i));
      backend->Abort(Status(StatusCode::kAborted, "enough"));
      collective.join();
      go.Wait();
    });
  }
}

TEST(SharedMemory, WhatAPeerSentBeforeItLeftStillArrives) {
  Rendezvous gone(2);
  RunOverSharedMemory(2, [&](std::unique_ptr<CollectiveBackend> backend) {
    // From rank 1 to rank 0, and nothing back: rank 1 need not wait for anybody.
    const bool sender = backend->rank() == 1;
    std::vector<char> data(100000, sender ? 'x' : '?');
    const std::vector<size_t> nothing = {0, 0};
    auto exchange = [&] {
      return backend->AllToAllV(data.data(), sender ? std::vector<size_t>{100000, 0} : nothing,
                                data.data(), sender ? nothing : std::vector<size_t>{0, 100000},
                                Signature("last"), 0);
    };
    if (sender) {
      TFDEAR_EXPECT_OK(exchange());
      backend.reset();
    }
    gone.Wait();
    if (sender) return;
    TFDEAR_EXPECT_OK(exchange());
    EXPECT_EQ(data, std::vector<char>(100000, 'x'));
    const Status status = backend->Barrier(Signature("after"), 1);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_TRUE(Contains(status.message(), "barrier 'after' (sequence 1): rank 1 closed"))
        << status.message();
    EXPECT_EQ(backend->failed_peer(), 1);
  });
}

TEST(SharedMemory, ARootWaitsUntilItsValuesWereRead) {
  // Else it could go on, and end, while the others are in another collective.
  Rendezvous checked(2);
  RunOverSharedMemory(2, [&](std::unique_ptr<CollectiveBackend> owned) {
    ProcessGroup group("intra_node", {0, 1}, std::move(owned));
    const bool root = group.rank() == 0;
    auto signature = std::make_shared<const Signature>(root ? "left" : "right");
    char value = 0;
    auto work = group.Run(signature, [&](CollectiveBackend* member, uint64_t sequence) {
      return member->Broadcast(&value, 1, 0, *signature, sequence);
    });
    EXPECT_TRUE(Eventually([&] { return group.Current().has_value(); }));
    checked.Wait();
    EXPECT_FALSE(work->done());
    checked.Wait();
    group.Abort(Status(StatusCode::kInvalidArgument, "left and right"));
    EXPECT_EQ(work->Wait().message(), "left and right");
    checked.Wait();
  });
}

// A peer that is a real process, so that it can be killed and stopped.
class PeerProcess {
 public:
  // Forks rank 1 of 2: it joins a barrier and then sleeps until it is killed.
  explicit PeerProcess(Milliseconds timeout, size_t arena_bytes = 0) {
    const BackendFactory make = WithFusionMemory(arena_bytes);
    int to_child[2], to_parent[2];
    if (pipe(to_child) != 0 || pipe(to_parent) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      alarm(120);  // no orphan survives a failed test for long
      std::unique_ptr<CollectiveBackend> backend;
      if (!make(1, 2, timeout, &backend).ok()) _exit(1);
      const std::string own = backend->Listen();
      WriteLine(to_parent[1], own);
      if (!backend->Connect({ReadLine(to_child[0]), own}).ok()) _exit(2);
      if (!backend->Barrier(Signature("start"), 0).ok()) _exit(3);
      while (true) pause();
    }
    TFDEAR_EXPECT_OK(make(0, 2, timeout, &backend_));
    const std::string own = backend_->Listen();
    WriteLine(to_child[1], own);
    TFDEAR_EXPECT_OK(backend_->Connect({own, ReadLine(to_parent[0])}));
    TFDEAR_EXPECT_OK(backend_->Barrier(Signature("start"), 0));
    for (int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(fd);
  }
  ~PeerProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  CollectiveBackend* backend() { return backend_.get(); }
  void Signal(int number) { kill(pid_, number); }

 private:
  static void WriteLine(int fd, const std::string& line) {
    const std::string text = line + "\n";
    if (write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) abort();
  }
  static std::string ReadLine(int fd) {
    std::string line;
    for (char character; read(fd, &character, 1) == 1 && character != '\n';) line += character;
    return line;
  }

  pid_t pid_ = -1;
  std::unique_ptr<CollectiveBackend> backend_;
};

Status LargeAllReduce(CollectiveBackend* backend) {
  std::vector<float> data(4 << 20);
  return backend->AllReduce(data.data(), data.size(), DataType::kFloat32, Signature("x"), 1);
}

TEST(SharedMemoryPeer, KilledPeerIsNamed) {
  HardTimeout hard_timeout;
  const std::vector<std::string> before = NamesIn("/dev/shm");
  PeerProcess peer(kTestTimeout);
  peer.Signal(SIGKILL);
  const Status status = LargeAllReduce(peer.backend());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.message();
  EXPECT_TRUE(Contains(status.message(), "all_reduce 'x' (sequence 1): rank 1 closed"))
      << status.message();
  EXPECT_EQ(peer.backend()->failed_peer(), 1);
  EXPECT_EQ(NamesIn("/dev/shm"), before);
}

TEST(SharedMemoryPeer, PeerKilledInTheMiddleOfACollectiveIsNamed) {
  HardTimeout hard_timeout;
  PeerProcess peer(kTestTimeout);
  Status status;
  std::thread collective([&] { status = LargeAllReduce(peer.backend()); });
  EXPECT_TRUE(Eventually([&] { return peer.backend()->waiting_for() == 1; }));
  peer.Signal(SIGKILL);
  collective.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.message();
  EXPECT_EQ(peer.backend()->failed_peer(), 1);
}

// Its fusion buffer, from which this rank would sum, is still mapped when it is gone.
TEST(SharedMemoryPeer, PeerKilledBeforeASharedSumIsNamed) {
  HardTimeout hard_timeout;
  PeerProcess peer(kTestTimeout, size_t{64} << 20);
  const auto memory = peer.backend()->fusion_memory();
  ASSERT_NE(memory, nullptr);
  char* const data = memory->Allocate(4000);
  char* sum = nullptr;
  Status status;
  std::thread collective([&] {
    status = peer.backend()->ReduceScatterShared(data, 0, ShardsOf(1000, 2), DataType::kFloat32,
                                                 Signature("x"), 1, &sum);
  });
  EXPECT_TRUE(Eventually([&] { return peer.backend()->waiting_for() == 1; }));
  peer.Signal(SIGKILL);
  collective.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.message();
  EXPECT_TRUE(Contains(status.message(), "reduce_scatter 'x' (sequence 1): rank 1 closed"))
      << status.message();
  EXPECT_EQ(peer.backend()->failed_peer(), 1);
}

TEST(SharedMemoryPeer, StoppedPeerIsNamedAtTheDeadline) {
  HardTimeout hard_timeout;
  PeerProcess peer(Milliseconds(2000));
  peer.Signal(SIGSTOP);
  const Status status = LargeAllReduce(peer.backend());
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.message();
  // Which of the two depends on whether it was stopped before it had counted the barrier as read.
  EXPECT_TRUE(Contains(status.message(), "rank 1 sent nothing for 2000 ms") ||
              Contains(status.message(), "rank 1 took no data for 2000 ms"))
      << status.message();
  EXPECT_EQ(peer.backend()->failed_peer(), 1);
}

TEST(SharedMemoryConnect, NamesThePeerThatDoesNotCome) {
  HardTimeout hard_timeout;
  std::unique_ptr<CollectiveBackend> present, absent;
  TFDEAR_EXPECT_OK(MakeSharedMemoryBackend(0, 2, Milliseconds(2000), &present));
  TFDEAR_EXPECT_OK(MakeSharedMemoryBackend(1, 2, Milliseconds(2000), &absent));
  const Status status = present->Connect({present->Listen(), absent->Listen()});
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.message();
  EXPECT_TRUE(Contains(status.message(), "rank 1")) << status.message();
  EXPECT_EQ(present->failed_peer(), 1);
}

TEST(SharedMemoryConnect, ProbeTellsWhatCannotBeReached) {
  std::unique_ptr<CollectiveBackend> backend, peer;
  auto probe = [&](const std::function<std::string(std::string)>& change) {
    TFDEAR_EXPECT_OK(MakeSharedMemoryBackend(0, 2, kTestTimeout, &backend));
    TFDEAR_EXPECT_OK(MakeSharedMemoryBackend(1, 2, kTestTimeout, &peer));
    return backend->Probe({backend->Listen(), change(peer->Listen())});
  };
  TFDEAR_EXPECT_OK(probe([](std::string blob) { return blob; }));
  const Status elsewhere =
      probe([](std::string blob) { return blob.replace(blob.find("net:["), 5, "net:[1"); });
  EXPECT_EQ(elsewhere.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(elsewhere.message(), "rank 1: it is on another node"))
      << elsewhere.message();
  const Status wrong_token = probe([](std::string blob) {
    blob.back() = blob.back() == '0' ? '1' : '0';
    return blob;
  });
  EXPECT_EQ(wrong_token.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(wrong_token.message(), "is other memory")) << wrong_token.message();
  const Status ended = probe([&](std::string blob) {
    peer.reset();
    return blob;
  });
  EXPECT_EQ(ended.code(), StatusCode::kUnavailable) << ended.message();
}

TEST(SharedMemoryConnect, RefusesWrongBlobsInWords) {
  std::unique_ptr<CollectiveBackend> backend;
  TFDEAR_EXPECT_OK(MakeSharedMemoryBackend(0, 2, kTestTimeout, &backend));
  const std::string own = backend->Listen();
  for (const std::string& blob :
       {std::string(), std::string("nonsense"), own, std::string("shared_memory 1 2 nothing")}) {
    const Status status = backend->Connect({own, blob});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_TRUE(Contains(status.message(), "rank 1")) << status.message();
  }
  EXPECT_EQ(backend->Connect({own}).code(), StatusCode::kInvalidArgument);
}

TEST(SharedMemory, RefusesWrongArguments) {
  std::unique_ptr<CollectiveBackend> backend;
  EXPECT_EQ(MakeSharedMemoryBackend(2, 2, kTestTimeout, &backend).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeSharedMemoryBackend(0, 1, Milliseconds(0), &backend).code(),
            StatusCode::kInvalidArgument);
  TFDEAR_EXPECT_OK(MakeSharedMemoryBackend(0, 1, kTestTimeout, &backend));
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

// More ranks than processors, rings that fill: nobody waits for ever.
TEST(SharedMemory, ManyRanksFillTheirRings) {
  RunOverSharedMemory(9, [&](std::unique_ptr<CollectiveBackend> backend) {
    std::vector<int32_t> data(1 << 20, backend->rank());
    for (uint64_t sequence = 0; sequence < 2; ++sequence) {
      std::fill(data.begin(), data.end(), backend->rank());
      TFDEAR_EXPECT_OK(
          backend->AllReduce(data.data(), data.size(), DataType::kInt32, Signature("x"), sequence));
      EXPECT_EQ(data, std::vector<int32_t>(1 << 20, 36));
    }
  });
}

}  // namespace
}  // namespace tfdear
