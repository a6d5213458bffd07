// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Servers and clients of examples, over real sockets, in the clear and encrypted.
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
#include "custom_ops/engine/transport/streams/tls_stream.h"
#include "tests/cc/tap.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

constexpr int64_t kExamples = 1000;
const std::chrono::milliseconds kTime{20000};

std::string ContentOf(int64_t example) {
  const size_t bytes = example == 777 ? size_t{3} << 20 : example * 37 % 5000;  // One is large.
  return std::string(bytes, static_cast<char>(example)) + std::to_string(example);
}

const std::string kKey(32, 'k');

// Who asks over this socket, or answers.
ExampleSocket SocketOf(int socket, bool asks, const std::string& key,
                       const std::string& name = "256 0 1 0") {
  std::unique_ptr<ByteStream> stream;
  TFDEAR_EXPECT_OK(OpenStream(socket, {asks, key, name}, &stream));
  return ExampleSocket(std::move(stream));
}

// Has all examples but those whose numbers end in 9, which it lacks, and in 8 until Release().
class Served {
 public:
  // `key`: of all connections; none: they are in the clear.
  explicit Served(const std::string& key, int connections = 1) {
    std::vector<ExampleSocket> served;
    for (int i = 0; i < connections; ++i) {
      const auto [asking, answering] = ConnectedSockets();
      const std::string name = TextOf("256 0 1 ", i);
      sockets.push_back(SocketOf(asking, true, key, name));
      served.push_back(SocketOf(answering, false, key, name));
    }
    Start(std::move(served));
  }
  explicit Served(ExampleSocket socket) {
    std::vector<ExampleSocket> served;
    served.push_back(std::move(socket));
    Start(std::move(served));
  }

  void Release() { released_ = true; }
  // How often it has looked for an example.
  int looks(int64_t example) {
    std::lock_guard<std::mutex> lock(mutex_);
    return looks_[example];
  }
  // How many threads have answered: one for each connection that was asked.
  int threads() {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int>(threads_.size());
  }

 private:
  void Start(std::vector<ExampleSocket> served) {
    for (int64_t example = 0; example < kExamples; ++example) {
      contents_.push_back(ContentOf(example));
    }
    ExampleServer::Options options;
    options.examples = kExamples;
    TFDEAR_EXPECT_OK(ExampleServer::Start(
        options, [this](int64_t example) { return LookFor(example); }, std::move(served), &server));
  }

  ExampleServer::Look LookFor(int64_t example) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      threads_.insert(std::this_thread::get_id());
      ++looks_[example];
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
  std::map<int64_t, int> looks_;

 public:
  std::vector<ExampleSocket> sockets;     // Of those who ask.
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

std::unique_ptr<ExampleClient> StartClient(ExampleSocket socket, Received* received,
                                           std::chrono::milliseconds timeout = kTime,
                                           double max_rate = 0) {
  ExampleClient::Options options;
  options.rank = 3;
  options.timeout = timeout;
  options.limit = std::make_shared<RateLimit>(max_rate);
  std::unique_ptr<ExampleClient> client;
  TFDEAR_EXPECT_OK(ExampleClient::Start(options, received->receiver(), std::move(socket), &client));
  return client;
}

// In the clear or encrypted.
class Connections : public testing::TestWithParam<bool> {
 protected:
  static std::string key() { return GetParam() ? kKey : std::string(); }
};
INSTANTIATE_TEST_SUITE_P(All, Connections, testing::Bool(),
                         [](const auto& info) { return info.param ? "Encrypted" : "InTheClear"; });

TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283);
  EXPECT_EQ(Crc32c("", 0), 0u);
  EXPECT_EQ(Crc32c(std::string(32, 0).data(), 32), 0x8a9136aau);
}

TEST_P(Connections, AnswersWhatItHasAndWhatComes) {
  Served served(key());
  Received received;
  const auto client = StartClient(std::move(served.sockets[0]), &received);
  for (int64_t example = 0; example < kExamples; ++example) TFDEAR_EXPECT_OK(client->Ask(example));
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

TEST_P(Connections, WhatIsThereDoesNotWaitForWhatComes) {
  Served served(key());
  Received received;
  const auto client = StartClient(std::move(served.sockets[0]), &received);
  for (int64_t example : {8, 1, 18, 2}) TFDEAR_EXPECT_OK(client->Ask(example));
  auto answers = received.Await(2);
  EXPECT_EQ(answers.count(1) + answers.count(2), 2u);
  // Nor does what is asked for later.
  TFDEAR_EXPECT_OK(client->Ask(3));
  EXPECT_EQ(received.Await(3).count(3), 1u);
  served.Release();
  received.Await(5);
}

TEST(ExampleClient, KeepsToItsRate) {
  Served served("");
  Received received;
  const auto begin = std::chrono::steady_clock::now();
  const auto client = StartClient(std::move(served.sockets[0]), &received, kTime, 100e3);
  size_t bytes = 0;
  for (int64_t example : {1, 2, 3, 4, 5, 6, 7, 30, 31, 32, 33, 34}) {
    TFDEAR_EXPECT_OK(client->Ask(example));
    bytes += ContentOf(example).size();
  }
  received.Await(12);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  // Of the last answer nothing is waited for.
  EXPECT_GT(time.count(), (bytes - 5000) / 100e3);
}

TEST_P(Connections, ASilentServerIsAnErrorThatNamesIt) {
  Served served(key());
  Received received;
  const auto client =
      StartClient(std::move(served.sockets[0]), &received, std::chrono::milliseconds(200));
  TFDEAR_EXPECT_OK(client->Ask(8));
  const ExampleClient::Answer answer = received.Await(1)[8];
  EXPECT_EQ(answer.status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(answer.status.message().find("rank 3, which was"), std::string::npos);
  EXPECT_NE(answer.status.message().find("asked for example 8"), std::string::npos);
}

TEST_P(Connections, AServerThatHasEndedHoldsNothing) {
  Received received;
  auto served = std::make_unique<Served>(key());
  const auto client = StartClient(std::move(served->sockets[0]), &received);
  TFDEAR_EXPECT_OK(client->Ask(1));
  received.Await(1);
  TFDEAR_EXPECT_OK(client->Ask(8));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  served = nullptr;
  auto answers = received.Await(2);
  TFDEAR_EXPECT_OK(answers[8].status);
  EXPECT_EQ(answers[8].bytes, nullptr);
  TFDEAR_EXPECT_OK(client->Ask(2));
  answers = received.Await(3);
  TFDEAR_EXPECT_OK(answers[2].status);
  EXPECT_EQ(answers[2].bytes, nullptr);
}

// What ranks may send that do not do as they should.
class Peer {
 public:
  explicit Peer(ExampleSocket socket) : stop_(eventfd(0, 0)), socket_(std::move(socket)) {}
  ~Peer() { close(stop_); }

  Status Send(const std::string& bytes) {
    return socket_.Send(bytes.data(), bytes.size(), kTime, stop_);
  }
  Status Receive(void* bytes, size_t count) { return socket_.Receive(bytes, count, kTime, stop_); }
  // Whether the server ends the connection.
  bool IsClosed() {
    char byte;
    return socket_.Receive(&byte, 1, kTime, stop_).code() == StatusCode::kUnavailable;
  }

 private:
  int stop_;
  ExampleSocket socket_;
};

template <typename T>
std::string BytesOf(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

TEST_P(Connections, WhatBreaksTheRulesIsClosedAndTheOthersGoOn) {
  constexpr int kPeers = 200;
  Served served(key(), kPeers + 1);
  served.Release();
  Received received;
  const auto client = StartClient(std::move(served.sockets[kPeers]), &received);
  std::minstd_rand random(1);
  int64_t asked = 0;
  for (int round = 0; round < kPeers; ++round) {
    Peer peer(std::move(served.sockets[round]));
    std::string bytes;
    switch (round % 5) {
      case 0:  // Says too little, and goes.
        bytes = std::string(round % 8, 'x');
        break;
      case 1:  // Numbers so large.
        for (int i = 0; i < 100; ++i) bytes += static_cast<char>(random() | 1);
        break;
      case 2:
        bytes = BytesOf(ExampleRequest{ExampleRequest::kMost + 1 + random()});
        break;
      case 3:
        bytes = BytesOf(ExampleRequest{2}) + BytesOf(uint64_t{3}) +
                BytesOf(uint64_t{kExamples} + random());
        break;
      case 4:
        bytes = BytesOf(ExampleRequest{0});
        break;
    }
    TFDEAR_EXPECT_OK(peer.Send(bytes));
    if (round % 5 != 0) {
      EXPECT_TRUE(peer.IsClosed()) << round;
    }
    TFDEAR_EXPECT_OK(client->Ask(asked++));
  }
  for (const auto& [example, answer] : received.Await(asked)) {
    TFDEAR_EXPECT_OK(answer.status);
    EXPECT_EQ(answer.bytes == nullptr, example % 10 == 9) << example;
  }
  EXPECT_EQ(served.server->counts().refused, kPeers * 4 / 5);
}

TEST_P(Connections, AnswersThatBreakTheRulesAreErrors) {
  for (int kind = 1; kind < 5; ++kind) {
    const auto [asking, answering] = ConnectedSockets();
    Received received;
    const auto client =
        StartClient(SocketOf(asking, true, key()), &received, std::chrono::milliseconds(500));
    TFDEAR_EXPECT_OK(client->Ask(5));
    const int stop = eventfd(0, 0);
    ExampleSocket socket = SocketOf(answering, false, key());
    ExampleAnswer answer;
    answer.example = kind == 1 ? 6 : 5;
    answer.bytes = kind == 2 ? ExampleAnswer::kMostBytes + 1 : 4;
    answer.state = kind == 3 ? ExampleState::kNotHeld : ExampleState::kHere;
    answer.crc = Crc32c("abcd", 4) ^ (kind == 4 ? 1 : 0);
    TFDEAR_EXPECT_OK(socket.Send(&answer, sizeof(answer), kTime, stop));
    TFDEAR_EXPECT_OK(socket.Send("abcd", 4, kTime, stop));
    const Status status = received.Await(1)[5].status;
    EXPECT_EQ(status.code(), StatusCode::kInternal) << kind << ": " << status.message();
    // And of whom one broke them nothing is asked any more.
    TFDEAR_EXPECT_OK(client->Ask(6));
    EXPECT_EQ(received.Await(2)[6].bytes, nullptr);
    close(stop);
  }
}

// Of what came with something else the kernel does not tell again.
TEST_P(Connections, WhatComesTogetherIsTaken) {
  Served served(key());
  Peer peer(std::move(served.sockets[0]));
  std::string requests;
  for (uint64_t example : {1, 2}) requests += BytesOf(ExampleRequest{1}) + BytesOf(example);
  TFDEAR_EXPECT_OK(peer.Send(requests));
  for (uint64_t example : {1, 2}) {
    ExampleAnswer answer;
    TFDEAR_EXPECT_OK(peer.Receive(&answer, sizeof(answer)));
    EXPECT_EQ(answer.example, example);
    std::string record(answer.bytes, ' ');
    TFDEAR_EXPECT_OK(peer.Receive(record.data(), record.size()));
    EXPECT_EQ(record, ContentOf(example));
  }

  const auto [asking, answering] = ConnectedSockets();
  Received received;
  const auto client = StartClient(SocketOf(asking, true, key()), &received);
  std::string answers;
  for (uint64_t example : {1, 2}) {
    TFDEAR_EXPECT_OK(client->Ask(example));
    answers += BytesOf(ExampleAnswer{example, 4, ExampleState::kHere, Crc32c("abcd", 4)}) + "abcd";
  }
  Peer server(SocketOf(answering, false, key()));
  std::string asked(2 * (sizeof(ExampleRequest) + sizeof(uint64_t)), ' ');
  // In one request, or in two.
  TFDEAR_EXPECT_OK(server.Receive(asked.data(), asked.size() - sizeof(uint64_t)));
  if (asked[0] == 1) TFDEAR_EXPECT_OK(server.Receive(asked.data(), sizeof(uint64_t)));
  TFDEAR_EXPECT_OK(server.Send(answers));
  for (const auto& [example, answer] : received.Await(2)) {
    TFDEAR_EXPECT_OK(answer.status);
    EXPECT_NE(answer.bytes, nullptr) << example;
  }
}

TEST(EncryptedExamples, NobodyOnTheWayReadsThem) {
  const std::string content = ContentOf(134);
  for (const std::string& key : {std::string(), kKey}) {
    std::string seen;
    {
      Tap tap;
      Served served(SocketOf(tap.first, false, key));
      Received received;
      const auto client = StartClient(SocketOf(tap.second, true, key), &received);
      TFDEAR_EXPECT_OK(client->Ask(134));
      EXPECT_NE(received.Await(1)[134].bytes, nullptr);
      seen = tap.seen();
    }
    EXPECT_EQ(Contains(seen, content.substr(0, 100)), key.empty());
    EXPECT_EQ(Contains(seen, BytesOf(int64_t{134})), key.empty());
  }
}

TEST(EncryptedExamples, ABitThatIsChangedOnTheWayIsFound) {
  // In the second example, and in the third.
  for (int64_t broken : {131, 132}) {
    const size_t at = broken == 131 ? 7500 : 12500;
    Tap tap([at](char* data, size_t bytes, size_t before) {
      if (before <= at && at < before + bytes) data[at - before] ^= 4;
    });
    Served served(SocketOf(tap.first, false, kKey));
    Received received;
    const auto client = StartClient(SocketOf(tap.second, true, kKey), &received);
    for (int64_t example : {130, 131, 132}) {  // Each of nearly 5000 bytes.
      TFDEAR_EXPECT_OK(client->Ask(example));
      const ExampleClient::Answer answer = received.Await(example - 129)[example];
      EXPECT_EQ(answer.bytes != nullptr, example < broken) << example;
      if (example != broken) {  // Of whom one came changed nothing is asked any more.
        TFDEAR_EXPECT_OK(answer.status);
        continue;
      }
      EXPECT_EQ(answer.status.code(), StatusCode::kInternal);
      EXPECT_TRUE(Contains(answer.status.message(), "rank 3, which was asked for example"));
      EXPECT_TRUE(Contains(answer.status.message(), "by TLS")) << answer.status.message();
    }
  }
}

// Then who asks hears that the connection has ended, and prepares it.
TEST(EncryptedExamples, AServerAnswersNobodyWhoseBitsWereChanged) {
  Tap tap([passed = false](char* data, size_t bytes, size_t before) mutable {
    if (before > 0 && !passed) data[bytes - 1] ^= 1;
    passed = passed || before > 0;
  });
  Served served(SocketOf(tap.second, false, kKey));
  Received received;
  const auto client = StartClient(SocketOf(tap.first, true, kKey), &received);
  TFDEAR_EXPECT_OK(client->Ask(5));
  const ExampleClient::Answer answer = received.Await(1)[5];
  TFDEAR_EXPECT_OK(answer.status);
  EXPECT_EQ(answer.bytes, nullptr);
  EXPECT_EQ(served.server->counts().refused, 1);
  EXPECT_EQ(served.server->counts().served, 0);
}

TEST(EncryptedExamples, SidesThatDoNotBelongTogetherDoNotMeet) {
  const std::string name = "256 0 1 0";
  for (const auto& [key, other] :
       {std::pair{std::string(32, 'x'), name}, std::pair{kKey, std::string("256 0 1 1")},
        std::pair{kKey, std::string("256 0 2 0")}, std::pair{kKey, std::string("257 0 1 0")},
        std::pair{std::string(), name}}) {
    const auto [asking, answering] = ConnectedSockets();
    Served served(SocketOf(answering, false, kKey, name));
    Received received;
    const auto client = StartClient(SocketOf(asking, true, key, other), &received);
    TFDEAR_EXPECT_OK(client->Ask(5));
    EXPECT_EQ(received.Await(1)[5].bytes, nullptr);
    EXPECT_EQ(served.server->counts().refused, 1);
    EXPECT_EQ(served.server->counts().served, 0);
  }
}

TEST(EncryptedExamples, AHandshakeEndsAtItsDeadlineAndWithWhoWantedIt) {
  for (bool waits : {true, false}) {
    const auto [asking, silent] = ConnectedSockets();
    Received received;
    auto client = StartClient(SocketOf(asking, true, kKey), &received,
                              std::chrono::milliseconds(waits ? 200 : 600'000));
    TFDEAR_EXPECT_OK(client->Ask(5));
    if (waits) {
      const Status status = received.Await(1)[5].status;
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
      EXPECT_TRUE(Contains(status.message(), "rank 3, which was asked for example 5"));
    }
    char byte;
    ASSERT_EQ(recv(silent, &byte, 1, 0), 1);  // It has begun.
    client.reset();
    close(silent);
  }
  const auto [silent, answering] = ConnectedSockets();
  auto served = std::make_unique<Served>(SocketOf(answering, false, kKey));
  ASSERT_EQ(send(silent, "\x16\x03\x01", 3, 0), 3);  // As a handshake begins.
  served.reset();
  close(silent);
}

// Two nodes of one rank each.
TEST_P(Connections, NodesGiveEachOtherTheirExamples) {
  std::vector<std::shared_ptr<ExampleStore>> stores;
  // Each asks over one connection, and answers over another one.
  std::vector<ExampleSocket> asking(2), answering(2);
  for (int node : {0, 1}) {
    const auto [one, other] = ConnectedSockets();
    asking[node] = SocketOf(one, true, key());
    answering[1 - node] = SocketOf(other, false, key());
  }
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
    std::vector<ExampleSocket> served;
    served.push_back(std::move(answering[node]));
    TFDEAR_EXPECT_OK(stores[node]->Serve(std::move(served)));
  }
  std::vector<std::thread> threads;
  for (int node = 0; node < 2; ++node) {
    std::vector<ExampleSocket> asked;
    asked.push_back(std::move(asking[node]));
    TFDEAR_EXPECT_OK(
        stores[node]->AddNode(1 - node, {{50 - 50 * node, 100 - 50 * node}}, std::move(asked)));
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

// A store that asks a server for all examples.
std::shared_ptr<ExampleStore> StoreOf(Served* served, std::chrono::milliseconds timeout = kTime) {
  ExampleStore::Options options;
  options.examples = kExamples;
  options.timeout = timeout;
  std::shared_ptr<ExampleStore> store;
  TFDEAR_EXPECT_OK(ExampleStore::Create(options, &store));
  TFDEAR_EXPECT_OK(store->AddNode(0, {{0, kExamples}}, std::move(served->sockets)));
  return store;
}

Status Take(ExampleStore* store, int64_t example, std::string* content) {
  ExampleStore::Record record;
  const Status status = store->Take(
      example, [] { return false; }, &record);
  if (status.ok()) *content = std::string(record.data, record.bytes);
  return status;
}

TEST_P(Connections, WhoWaitsForWhatIsRefusedHasADeadlineAgain) {
  Served served(key());
  const auto store = StoreOf(&served, std::chrono::milliseconds(1000));
  store->Want(8);
  Status status;
  std::string content;
  std::thread reader([&] { status = Take(store.get(), 8, &content); });
  while (served.looks(8) == 0) std::this_thread::yield();
  served.server = nullptr;
  EXPECT_EQ(store->Next(1), (std::vector<int64_t>{8}));
  reader.join();  // Nobody prepares it.
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
}

TEST_P(Connections, WhatIsRefusedIsAskedForOnce) {
  Served served(key());
  const auto store = StoreOf(&served);
  std::string content;
  for (int64_t example : {9, 2}) store->Want(example);
  TFDEAR_EXPECT_OK(Take(store.get(), 2, &content));  // Its answer comes after the refusal.
  std::thread reader([&] {
    TFDEAR_EXPECT_OK(Take(store.get(), 9, &content));
    EXPECT_EQ(content, ContentOf(9));
  });
  while (store->progress().misses < 2) std::this_thread::yield();
  EXPECT_EQ(store->Next(1), (std::vector<int64_t>{9}));
  const std::string prepared = ContentOf(9);
  store->Put(9, prepared.size(),
             [&](char* to) { std::memcpy(to, prepared.data(), prepared.size()); });
  reader.join();
  EXPECT_EQ(served.looks(9), 1);
}

TEST_P(Connections, TakeTurns) {
  constexpr int kConnections = 3;
  Served served(key(), kConnections);
  const auto store = StoreOf(&served);
  for (int64_t example = 0; example < 5; ++example) {
    std::string content;
    store->Want(example);
    TFDEAR_EXPECT_OK(Take(store.get(), example, &content));
    EXPECT_EQ(content, ContentOf(example));
  }
  EXPECT_EQ(served.threads(), kConnections);
}

}  // namespace
}  // namespace tfdear
