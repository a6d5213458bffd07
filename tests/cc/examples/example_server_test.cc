// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Servers and clients of examples, over real sockets.
#include "custom_ops/engine/examples/example_server.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/engine/examples/crc32c.h"
#include "custom_ops/engine/examples/example_client.h"
#include "custom_ops/engine/examples/example_store.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

constexpr int64_t kExamples = 1000;
const std::chrono::milliseconds kTime{5000};

ExampleToken TokenOf(unsigned char byte) {
  ExampleToken token;
  token.fill(byte);
  return token;
}

std::string ContentOf(int64_t example) {
  return std::string(example * 37 % 5000, static_cast<char>(example)) + std::to_string(example);
}

// Has all examples but those whose numbers end in 9, which it lacks, and in 8 until Release().
class Served {
 public:
  Served() {
    for (int64_t example = 0; example < kExamples; ++example) {
      contents_.push_back(ContentOf(example));
    }
    ExampleServer::Options options;
    options.host = "127.0.0.1";
    options.token = TokenOf(7);
    options.examples = kExamples;
    options.greeting_time = std::chrono::milliseconds(300);
    options.most_connections = 20;
    TFDEAR_EXPECT_OK(ExampleServer::Start(
        options, [this](int64_t example) { return LookFor(example); }, &server));
  }

  void Release() { released_ = true; }
  // How many threads have answered: one for each connection that was asked.
  int threads() {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int>(threads_.size());
  }

 private:
  ExampleServer::Look LookFor(int64_t example) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      threads_.insert(std::this_thread::get_id());
    }
    if (example % 10 == 9) return {};
    if (example % 10 == 8 && !released_) return {ExampleServer::Look::kComing, nullptr, 0};
    const std::string& content = contents_[example];
    return {ExampleServer::Look::kHere, content.data(), content.size()};
  }

  std::vector<std::string> contents_;
  std::atomic<bool> released_{false};
  std::mutex mutex_;
  std::set<std::thread::id> threads_;

 public:
  std::unique_ptr<ExampleServer> server;  // Its threads use what is above.
};

// What a client received.
class Received {
 public:
  ExampleClient::Receiver receiver() {
    return [this](ExampleClient::Answer answer) {
      std::lock_guard<std::mutex> lock(mutex_);
      EXPECT_TRUE(answers_.emplace(answer.example, answer).second);
      changed_.notify_all();
    };
  }

  // Waits for so many; the answers.
  std::map<int64_t, ExampleClient::Answer> Await(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kTime, [&] { return answers_.size() >= count; });
    EXPECT_EQ(answers_.size(), count);
    return answers_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, ExampleClient::Answer> answers_;
};

std::unique_ptr<ExampleClient> StartClient(const std::string& address, Received* received,
                                           ExampleToken token = TokenOf(7),
                                           std::chrono::milliseconds timeout = kTime,
                                           double max_rate = 0) {
  ExampleClient::Options options;
  options.rank = 3;
  options.address = address;
  options.token = token;
  options.timeout = timeout;
  options.limit = std::make_shared<RateLimit>(max_rate);
  std::unique_ptr<ExampleClient> client;
  TFDEAR_EXPECT_OK(ExampleClient::Start(options, received->receiver(), &client));
  return client;
}

TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283);
  EXPECT_EQ(Crc32c("", 0), 0u);
  EXPECT_EQ(Crc32c(std::string(32, 0).data(), 32), 0x8a9136aau);
}

TEST(ExampleServer, AnswersWhatItHasAndWhatComes) {
  Served served;
  Received received;
  const auto client = StartClient(served.server->address(), &received);
  for (int64_t example = 0; example < kExamples; ++example) client->Ask(example);
  served.Release();
  int64_t bytes = 0;
  for (const auto& [example, answer] : received.Await(kExamples)) {
    TFDEAR_EXPECT_OK(answer.status);
    if (example % 10 == 9) {
      EXPECT_EQ(answer.bytes, nullptr);
      continue;
    }
    ASSERT_NE(answer.bytes, nullptr);
    EXPECT_EQ(std::string(answer.bytes->begin(), answer.bytes->end()), ContentOf(example));
    bytes += answer.bytes->size();
  }
  EXPECT_EQ(client->received_bytes(), bytes);
  EXPECT_EQ(served.server->counts().served_bytes, bytes);
  EXPECT_EQ(served.server->counts().served, kExamples);
  EXPECT_EQ(served.server->counts().refused, 0);
}

TEST(ExampleServer, WhatIsThereDoesNotWaitForWhatComes) {
  Served served;
  Received received;
  const auto client = StartClient(served.server->address(), &received);
  for (int64_t example : {8, 1, 18, 2}) client->Ask(example);
  auto answers = received.Await(2);
  EXPECT_EQ(answers.count(1) + answers.count(2), 2u);
  // Nor does what is asked for later.
  client->Ask(3);
  EXPECT_EQ(received.Await(3).count(3), 1u);
  served.Release();
  received.Await(5);
}

TEST(ExampleClient, KeepsToItsRate) {
  Served served;
  Received received;
  const auto begin = std::chrono::steady_clock::now();
  const auto client = StartClient(served.server->address(), &received, TokenOf(7), kTime, 100e3);
  size_t bytes = 0;
  for (int64_t example : {1, 2, 3, 4, 5, 6, 7, 30, 31, 32, 33, 34}) {
    client->Ask(example);
    bytes += ContentOf(example).size();
  }
  received.Await(12);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  // Of the last answer nothing is waited for.
  EXPECT_GT(time.count(), (bytes - 5000) / 100e3);
}

TEST(ExampleClient, ASilentServerIsAnErrorThatNamesIt) {
  Served served;
  Received received;
  const auto client =
      StartClient(served.server->address(), &received, TokenOf(7), std::chrono::milliseconds(200));
  client->Ask(8);
  const ExampleClient::Answer answer = received.Await(1)[8];
  EXPECT_EQ(answer.status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(answer.status.message().find("rank 3 at 127.0.0.1"), std::string::npos);
  EXPECT_NE(answer.status.message().find("asked for example 8"), std::string::npos);
}

TEST(ExampleClient, AServerThatHasEndedHoldsNothing) {
  Received received;
  auto served = std::make_unique<Served>();
  const auto client = StartClient(served->server->address(), &received);
  client->Ask(1);
  received.Await(1);
  client->Ask(8);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  served = nullptr;
  auto answers = received.Await(2);
  TFDEAR_EXPECT_OK(answers[8].status);
  EXPECT_EQ(answers[8].bytes, nullptr);
  client->Ask(2);
  answers = received.Await(3);
  TFDEAR_EXPECT_OK(answers[2].status);
  EXPECT_EQ(answers[2].bytes, nullptr);
}

TEST(ExampleClient, AStrangerGetsNothing) {
  Served served;
  Received received;
  {
    const auto client = StartClient(served.server->address(), &received, TokenOf(8));
    client->Ask(1);
    EXPECT_EQ(received.Await(1)[1].bytes, nullptr);
  }
  EXPECT_EQ(served.server->counts().served, 0);
  EXPECT_EQ(served.server->counts().refused, 1);
}

// A connection as anybody can make one.
class Stranger {
 public:
  explicit Stranger(const std::string& address) : stop_(eventfd(0, 0)) {
    TFDEAR_EXPECT_OK(ExampleSocket::Connect(address, kTime, stop_, &socket_));
  }
  ~Stranger() { close(stop_); }

  Status Send(const std::string& bytes) {
    return socket_.Send(bytes.data(), bytes.size(), kTime, stop_);
  }
  template <typename T>
  std::string BytesOf(const T& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Greet() {
    ExampleGreeting greeting;
    greeting.token = TokenOf(7);
    TFDEAR_EXPECT_OK(Send(BytesOf(greeting)));
    TFDEAR_EXPECT_OK(socket_.Receive(&greeting, sizeof(greeting), kTime, stop_));
  }
  // Whether the server ends the connection.
  bool IsClosed() {
    char byte;
    return socket_.Receive(&byte, 1, kTime, stop_).code() == StatusCode::kUnavailable;
  }

 private:
  int stop_;
  ExampleSocket socket_;
};

TEST(ExampleServer, WhatBreaksTheRulesIsClosedAndTheOthersGoOn) {
  Served served;
  served.Release();
  const std::string address = served.server->address();
  Received received;
  const auto client = StartClient(address, &received);
  std::minstd_rand random(1);
  int64_t asked = 0;
  for (int round = 0; round < 200; ++round) {
    Stranger stranger(address);
    std::string bytes;
    switch (round % 5) {
      case 0:  // Says nothing, or too little.
        bytes = std::string(round % 40, 'x');
        break;
      case 1:
        for (int i = 0; i < 100; ++i) bytes += static_cast<char>(random());
        break;
      case 2:  // Numbers out of range.
        stranger.Greet();
        bytes = stranger.BytesOf(ExampleRequest{ExampleRequest::kMost + 1 + random()});
        break;
      case 3:
        stranger.Greet();
        bytes = stranger.BytesOf(ExampleRequest{2}) + stranger.BytesOf(uint64_t{3}) +
                stranger.BytesOf(uint64_t{kExamples} + random());
        break;
      case 4:
        stranger.Greet();
        bytes = stranger.BytesOf(ExampleRequest{0});
        break;
    }
    stranger.Send(bytes);
    if (round % 5 != 0 || round % 40 == 0) {
      EXPECT_TRUE(stranger.IsClosed()) << round;
    }
    client->Ask(asked++);
  }
  for (const auto& [example, answer] : received.Await(asked)) {
    TFDEAR_EXPECT_OK(answer.status);
    EXPECT_EQ(answer.bytes == nullptr, example % 10 == 9) << example;
  }
  EXPECT_GT(served.server->counts().refused, 150);
}

TEST(ExampleServer, ConnectionsAreBounded) {
  Served served;
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(std::make_unique<Stranger>(served.server->address()));
    strangers.back()->Greet();
  }
  Stranger one_more(served.server->address());
  EXPECT_TRUE(one_more.IsClosed());
  strangers.clear();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  Stranger later(served.server->address());
  later.Greet();
}

TEST(ExampleClient, AnswersThatBreakTheRulesAreErrors) {
  for (int kind = 0; kind < 5; ++kind) {
    ExampleSocket listening;
    std::string address;
    TFDEAR_EXPECT_OK(ExampleSocket::Listen("127.0.0.1", &listening, &address));
    Received received;
    const auto client = StartClient(address, &received, TokenOf(7), std::chrono::milliseconds(500));
    client->Ask(5);
    const int stop = eventfd(0, 0);
    int fd = -1;
    while (fd < 0) fd = accept4(listening.fd(), nullptr, nullptr, SOCK_NONBLOCK);
    ExampleSocket socket(fd);
    ExampleGreeting greeting;
    TFDEAR_EXPECT_OK(socket.Receive(&greeting, sizeof(greeting), kTime, stop));
    if (kind == 0) greeting.token[3] ^= 1;
    TFDEAR_EXPECT_OK(socket.Send(&greeting, sizeof(greeting), kTime, stop));
    ExampleAnswer answer;
    answer.example = kind == 1 ? 6 : 5;
    answer.bytes = kind == 2 ? ExampleAnswer::kMostBytes + 1 : 4;
    answer.state = kind == 3 ? ExampleState::kNotHeld : ExampleState::kHere;
    answer.crc = Crc32c("abcd", 4) ^ (kind == 4 ? 1 : 0);
    if (kind > 0) {
      TFDEAR_EXPECT_OK(socket.Send(&answer, sizeof(answer), kTime, stop));
      TFDEAR_EXPECT_OK(socket.Send("abcd", 4, kTime, stop));
    }
    const Status status = received.Await(1)[5].status;
    EXPECT_EQ(status.code(), StatusCode::kInternal) << kind << ": " << status.message();
    close(stop);
  }
}

// Two nodes of one rank each.
TEST(ExampleStore, NodesGiveEachOtherTheirExamples) {
  std::vector<std::shared_ptr<ExampleStore>> stores;
  std::vector<std::string> addresses(2);
  for (int node = 0; node < 2; ++node) {
    ExampleStore::Options options;
    options.examples = 100;
    options.own_begin = 50 * node;
    options.own_end = 50 * node + 50;
    // The second one holds some of its examples only.
    options.memory_bytes = node == 0 ? 1 << 20 : 40000;
    options.timeout = kTime;
    stores.emplace_back();
    TFDEAR_EXPECT_OK(ExampleStore::Create(options, &stores[node]));
    TFDEAR_EXPECT_OK(stores[node]->Serve("127.0.0.1", TokenOf(7), &addresses[node]));
  }
  std::vector<std::thread> threads;
  for (int node = 0; node < 2; ++node) {
    ExampleClient::Options options;
    options.address = addresses[1 - node];
    options.token = TokenOf(7);
    TFDEAR_EXPECT_OK(stores[node]->AddNode(options, {{50 - 50 * node, 100 - 50 * node}}));
    stores[node]->ReadFrom({true, 5, nullptr}, 0, 0);
    threads.emplace_back([store = stores[node]] {
      for (auto examples = store->Next(3); !examples.empty(); examples = store->Next(3)) {
        for (int64_t example : examples) {
          const std::string content = ContentOf(example);
          store->Put(example, content.size(),
                     [&](char* to) { std::memcpy(to, content.data(), content.size()); });
        }
      }
    });
  }
  const ExampleOrder order(5, 0, 100);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::thread> readers;
    for (int node = 0; node < 2; ++node) {
      readers.emplace_back([&, node] {
        for (int64_t position = 0; position < 100; ++position) {
          const int64_t example = order.At(position);
          ExampleStore::Record record;
          stores[node]->Want(example);
          TFDEAR_EXPECT_OK(stores[node]->Take(
              example, [] { return false; }, &record));
          EXPECT_EQ(std::string(record.data, record.bytes), ContentOf(example));
        }
      });
    }
    for (std::thread& reader : readers) reader.join();
  }
  const ExampleStore::Progress first = stores[0]->progress(), second = stores[1]->progress();
  EXPECT_EQ(first.held, 50);
  EXPECT_LT(second.held, 50);
  EXPECT_EQ(second.fetched, 100);
  EXPECT_GT(first.fetched, 2 * second.held - 5);
  EXPECT_LE(first.fetched, 2 * second.held);
  EXPECT_EQ(first.fetched_bytes, second.served_bytes);
  for (const auto& store : stores) store->Close(Status(StatusCode::kAborted, "the end"));
  for (std::thread& thread : threads) thread.join();
}

TEST(ExampleStore, ConnectionsTakeTurns) {
  constexpr int kConnections = 3;
  Served served;
  ExampleStore::Options options;
  options.examples = kExamples;
  options.timeout = kTime;
  std::shared_ptr<ExampleStore> store;
  TFDEAR_EXPECT_OK(ExampleStore::Create(options, &store));
  ExampleClient::Options client;
  client.address = served.server->address();
  client.token = TokenOf(7);
  TFDEAR_EXPECT_OK(store->AddNode(client, {{0, kExamples}}, kConnections));
  for (int64_t example = 0; example < 5; ++example) {
    ExampleStore::Record record;
    store->Want(example);
    TFDEAR_EXPECT_OK(store->Take(
        example, [] { return false; }, &record));
    EXPECT_EQ(std::string(record.data, record.bytes), ContentOf(example));
  }
  EXPECT_EQ(served.threads(), kConnections);
}

}  // namespace
}  // namespace tfdear
