// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#ifndef TFDEAR_TESTS_CC_TESTING_H_
#define TFDEAR_TESTS_CC_TESTING_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "custom_ops/engine/collectives/shared_memory_backend.h"
#include "custom_ops/engine/collectives/tcp_backend.h"
#include "custom_ops/engine/queue/process_group.h"

namespace tfdear {

inline constexpr std::chrono::milliseconds kTestTimeout{60000};

#define TFDEAR_EXPECT_OK(expression)                                \
  do {                                                              \
    const ::tfdear::Status status_to_check = (expression);          \
    EXPECT_TRUE(status_to_check.ok()) << status_to_check.message(); \
  } while (false)

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Ends the process if a test hangs. No test relies on it; each has deadlines of its own.
class HardTimeout {
 public:
  explicit HardTimeout(unsigned seconds = 300) { alarm(seconds); }
  ~HardTimeout() { alarm(0); }
};

// The meeting point of ranks that are threads of one process: what a key-value store is between
// processes.
class BlobExchange {
 public:
  explicit BlobExchange(int size) : blobs_(size), missing_(size) {}

  std::vector<std::string> Meet(int rank, std::string blob) {
    std::unique_lock<std::mutex> lock(mutex_);
    blobs_[rank] = std::move(blob);
    --missing_;
    complete_.notify_all();
    complete_.wait(lock, [this] { return missing_ == 0; });
    return blobs_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable complete_;
  std::vector<std::string> blobs_;
  int missing_;
};

inline void RunThreads(int size, const std::function<void(int rank)>& body) {
  HardTimeout hard_timeout;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

// Makes a rank's backend, not connected yet.
using BackendFactory = std::function<Status(int rank, int size, std::chrono::milliseconds timeout,
                                            std::unique_ptr<CollectiveBackend>*)>;

// Connects two sockets over the loopback interface.
inline std::pair<int, int> ConnectedSockets() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const int first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(bind(listener, any, length), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(getsockname(listener, any, &length), 0);
  EXPECT_EQ(connect(first, any, length), 0);
  const int second = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_GE(second, 0);
  close(listener);
  return {first, second};
}

// The sockets of all ranks of a group, each connected to all others.
inline std::vector<Sockets> ConnectAll(int size, int connections = 1) {
  std::vector<Sockets> of_rank;
  for (int rank = 0; rank < size; ++rank) of_rank.emplace_back(size);
  for (int first = 0; first < size; ++first) {
    for (int second = 0; second < first; ++second) {
      for (int i = 0; i < connections; ++i) {
        const auto [one, other] = ConnectedSockets();
        of_rank[first].Add(second, one);
        of_rank[second].Add(first, other);
      }
    }
  }
  return of_rank;
}

inline Status MakeSharedMemoryBackend(int rank, int size, std::chrono::milliseconds timeout,
                                      std::unique_ptr<CollectiveBackend>* result) {
  std::unique_ptr<SharedMemoryBackend> backend;
  TFDEAR_RETURN_IF_ERROR(SharedMemoryBackend::Create(rank, size, timeout, &backend));
  *result = std::move(backend);
  return Status();
}

// The same with memory for fusion buffers: addresses of `arena_bytes` on every rank.
inline BackendFactory WithFusionMemory(size_t arena_bytes) {
  return [arena_bytes](int rank, int size, std::chrono::milliseconds timeout,
                       std::unique_ptr<CollectiveBackend>* result) {
    std::unique_ptr<SharedMemoryBackend> backend;
    TFDEAR_RETURN_IF_ERROR(SharedMemoryBackend::Create(rank, size, timeout, &backend, arena_bytes));
    *result = std::move(backend);
    return Status();
  };
}

// Runs `body` on `size` ranks, each a thread with a connected backend of its own.
inline void RunRanksOver(const BackendFactory& make, int size,
                         const std::function<void(std::unique_ptr<CollectiveBackend>)>& body,
                         std::chrono::milliseconds timeout = kTestTimeout) {
  BlobExchange exchange(size);
  RunThreads(size, [&](int rank) {
    std::unique_ptr<CollectiveBackend> backend;
    const Status created = make(rank, size, timeout, &backend);
    ASSERT_TRUE(created.ok()) << created.message();
    const Status connected = backend->Connect(exchange.Meet(rank, backend->Listen()));
    ASSERT_TRUE(connected.ok()) << connected.message();
    body(std::move(backend));
  });
}

// The same over TCP on the loopback interface.
inline void RunRanks(int size, const std::function<void(std::unique_ptr<TcpBackend>)>& body,
                     std::chrono::milliseconds timeout = kTestTimeout) {
  BlobExchange exchange(size);
  std::vector<Sockets> sockets = ConnectAll(size);
  RunThreads(size, [&](int rank) {
    std::unique_ptr<TcpBackend> backend;
    const Status created =
        TcpBackend::Create(rank, size, timeout, std::move(sockets[rank]), &backend);
    ASSERT_TRUE(created.ok()) << created.message();
    const Status connected = backend->Connect(exchange.Meet(rank, backend->Listen()));
    ASSERT_TRUE(connected.ok()) << connected.message();
    body(std::move(backend));
  });
}

// The same with process groups. Global ranks are 10, 11, ..: a test that mixes up group ranks and
// global ranks fails.
inline void RunGroups(int size, const std::function<void(ProcessGroup*)>& body,
                      std::chrono::milliseconds timeout = kTestTimeout) {
  RunRanks(
      size,
      [&](std::unique_ptr<TcpBackend> backend) {
        std::vector<int> ranks(size);
        std::iota(ranks.begin(), ranks.end(), 10);
        ProcessGroup group("world", ranks, std::move(backend));
        body(&group);
      },
      timeout);
}

// Threads wait here for each other; reusable.
class Rendezvous {
 public:
  explicit Rendezvous(int size) : size_(size) {}
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t generation = generation_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++generation_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return generation_ != generation; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  const int size_;
  int arrived_ = 0;
  uint64_t generation_ = 0;
};

// Polls until `condition` holds; false after `limit`.
inline bool Eventually(const std::function<bool()>& condition,
                       std::chrono::milliseconds limit = kTestTimeout) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

inline const std::vector<DataType>& AllDataTypes() {
  static const std::vector<DataType> types = {DataType::kFloat16, DataType::kBFloat16,
                                              DataType::kFloat32, DataType::kFloat64,
                                              DataType::kInt32,   DataType::kInt64};
  return types;
}

// Small integers as elements of any type: exact in all of them, sums included.
template <typename Number>
void StoreAs(char* to, double value) {
  const Number number = static_cast<Number>(value);
  std::memcpy(to, &number, sizeof(number));
}

inline void StoreNumber(DataType type, char* to, int value) {
  switch (type) {
    case DataType::kFloat32:
      return StoreAs<float>(to, value);
    case DataType::kFloat64:
      return StoreAs<double>(to, value);
    case DataType::kInt32:
      return StoreAs<int32_t>(to, value);
    case DataType::kInt64:
      return StoreAs<int64_t>(to, value);
    case DataType::kBFloat16:
    case DataType::kFloat16: {
      const float number = static_cast<float>(value);
      uint32_t bits;
      std::memcpy(&bits, &number, sizeof(bits));
      uint16_t half = static_cast<uint16_t>(bits >> 16);  // bfloat16: exact up to 256
      if (type == DataType::kFloat16) {
        const uint32_t magnitude = bits & 0x7fffffffu;
        half = static_cast<uint16_t>(((bits >> 16) & 0x8000u) |
                                     (magnitude == 0 ? 0 : (magnitude - 0x38000000u) >> 13));
      }
      std::memcpy(to, &half, sizeof(half));
      return;
    }
  }
}

// [value(0), value(1), ...] as `count` elements of `type`.
inline std::vector<char> MakeData(DataType type, size_t count,
                                  const std::function<int(size_t)>& value) {
  std::vector<char> data(count * SizeOf(type));
  for (size_t i = 0; i < count; ++i) StoreNumber(type, data.data() + i * SizeOf(type), value(i));
  return data;
}

}  // namespace tfdear

#endif  // TFDEAR_TESTS_CC_TESTING_H_
