// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_store.h"

#include <chrono>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/engine/examples/example_reader.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

constexpr size_t kRecordBytes = 5000;
constexpr std::chrono::seconds kLong{20};
constexpr std::chrono::seconds kShort{2};  // Where the wait ends with it.
const auto kNever = [] { return false; };

std::shared_ptr<ExampleStore> MakeStore(int64_t examples, size_t memory, int64_t begin = 0,
                                        int64_t end = -1,
                                        std::chrono::milliseconds timeout = kLong) {
  ExampleStore::Options options;
  options.examples = examples;
  options.own_begin = begin;
  options.own_end = end < 0 ? examples : end;
  options.memory_bytes = memory;
  options.timeout = timeout;
  std::shared_ptr<ExampleStore> store;
  TFDEAR_EXPECT_OK(ExampleStore::Create(options, &store));
  return store;
}

std::string ContentOf(int64_t example) {
  return std::string(kRecordBytes, static_cast<char>('a' + example % 26)) + std::to_string(example);
}

void Prepare(ExampleStore* store, int64_t example) {
  const std::string content = ContentOf(example);
  store->Put(example, content.size(),
             [&](char* to) { std::memcpy(to, content.data(), content.size()); });
}

// Prepares whatever a store asks for, until it is closed.
class Preparer {
 public:
  explicit Preparer(std::shared_ptr<ExampleStore> store) : store_(std::move(store)) {
    thread_ = std::thread([this] {
      for (auto examples = store_->Next(3); !examples.empty(); examples = store_->Next(3)) {
        for (int64_t example : examples) Prepare(store_.get(), example);
      }
    });
  }
  ~Preparer() {
    store_->Close(Status(StatusCode::kAborted, "the end"));
    thread_.join();
  }

 private:
  std::shared_ptr<ExampleStore> store_;
  std::thread thread_;
};

void ExpectTaken(ExampleStore* store, int64_t example) {
  ExampleStore::Record record;
  store->Want(example);
  TFDEAR_EXPECT_OK(store->Take(example, kNever, &record));
  EXPECT_EQ(std::string(record.data, record.bytes), ContentOf(example));
}

TEST(ExampleStore, PreparesInTheOrderOfReadingAndKeepsAll) {
  const auto store = MakeStore(100, size_t{1} << 20);
  store->ReadFrom({true, 3, nullptr}, 0, 90);
  const ExampleOrder first(3, 0, 100), second(3, 1, 100);
  std::vector<int64_t> expected;
  for (int64_t position = 90; position < 100; ++position) expected.push_back(first.At(position));
  for (int64_t position = 0; expected.size() < 100; ++position) {
    const int64_t example = second.At(position);
    if (std::find(expected.begin(), expected.end(), example) == expected.end()) {
      expected.push_back(example);
    }
  }
  EXPECT_EQ(store->Next(200), expected);
  for (int64_t example : expected) Prepare(store.get(), example);
  for (int64_t example = 0; example < 100; ++example) ExpectTaken(store.get(), example);
  const ExampleStore::Progress progress = store->progress();
  EXPECT_EQ(progress.held, 100);
  EXPECT_EQ(progress.prepared, 100);
  EXPECT_EQ(progress.hits, 100);
  EXPECT_FALSE(progress.full);
}

TEST(ExampleStore, WhoBeginsElsewhereIsFollowedUntilAllIsThere) {
  const auto store = MakeStore(10, size_t{1} << 20);
  const ReadingOrder order{false, 0, nullptr};
  store->ReadFrom(order, 0, 0);
  EXPECT_EQ(store->Next(2, 2), (std::vector<int64_t>{0, 1}));
  store->ReadFrom(order, 0, 7);  // There is an order already.
  EXPECT_EQ(store->Next(1, 1), (std::vector<int64_t>{2}));
  store->ReadFrom(order, 1, 7, /*anew=*/true);
  EXPECT_EQ(store->Next(20, 20), (std::vector<int64_t>{7, 8, 9, 3, 4, 5, 6}));
  for (int64_t example = 0; example < 10; ++example) Prepare(store.get(), example);
  for (int64_t example = 0; example < 10; ++example) ExpectTaken(store.get(), example);
}

TEST(ExampleStore, WhatDoesNotFitIsPreparedAgainForThoseWhoWantIt) {
  const auto store = MakeStore(100, 50 * (kRecordBytes + 64));
  Preparer preparer(store);
  store->ReadFrom({false, 0, nullptr}, 0, 0);
  int64_t hits = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int64_t example = 0; example < 100; ++example) ExpectTaken(store.get(), example);
    const ExampleStore::Progress progress = store->progress();
    EXPECT_TRUE(progress.full);
    EXPECT_NEAR(progress.held, 50, 2);
    if (epoch > 0) {
      EXPECT_EQ(progress.hits - hits, progress.held);
    }
    hits = progress.hits;
  }
}

TEST(ExampleStore, WhatIsWantedComesFirst) {
  const auto store = MakeStore(100, size_t{1} << 20);
  store->ReadFrom({false, 0, nullptr}, 0, 0);
  store->Want(70);
  store->Want(60);
  EXPECT_EQ(store->Next(4), (std::vector<int64_t>{70, 60, 0, 1}));
  store->Want(60);  // It is being prepared.
  EXPECT_EQ(store->Next(2), (std::vector<int64_t>{2, 3}));
  store->Want(80);
  store->GiveUp(80);
  EXPECT_EQ(store->Next(1), (std::vector<int64_t>{4}));
}

TEST(ExampleStore, AFailureGoesToWhoeverWaitsAndIsTriedAgain) {
  const auto store = MakeStore(4, 0);
  store->Want(2);
  EXPECT_EQ(store->Next(4), (std::vector<int64_t>{2}));
  store->Fail(2, InvalidArgument("broken"));
  ExampleStore::Record record;
  EXPECT_EQ(store->Take(2, kNever, &record).message(), "broken");
  store->Want(2);
  EXPECT_EQ(store->Next(4), (std::vector<int64_t>{2}));
  Prepare(store.get(), 2);
  TFDEAR_EXPECT_OK(store->Take(2, kNever, &record));
  EXPECT_EQ(std::string(record.data, record.bytes), ContentOf(2));
}

TEST(ExampleStore, APreparationThatHangsIsAnError) {
  const auto store = MakeStore(4, size_t{1} << 20, 0, -1, kShort);
  store->Want(1);
  EXPECT_EQ(store->Next(1), (std::vector<int64_t>{1}));
  ExampleStore::Record record;
  const Status status = store->Take(1, kNever, &record);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("example 1 has not come"), std::string::npos) << status.message();
}

TEST(ExampleStore, WaitsEndWithTheirIteratorAndWithTheStore) {
  const auto store = MakeStore(4, size_t{1} << 20);
  std::atomic<bool> cancelled{false};
  ExampleStore::Record record;
  std::thread waiting([&] {
    store->Want(1);
    ExampleStore::Record unused;
    EXPECT_EQ(store
                  ->Take(
                      1, [&] { return cancelled.load(); }, &unused)
                  .code(),
              StatusCode::kCancelled);
  });
  cancelled = true;
  store->Wake();
  waiting.join();
  Prepare(store.get(), 3);
  store->Close(Status(StatusCode::kAborted, "the end"));
  EXPECT_TRUE(store->Next(1).empty());
  store->Want(2);
  EXPECT_EQ(store->Take(2, kNever, &record).message(), "the end");
  TFDEAR_EXPECT_OK(store->Take(3, kNever, &record));
}

TEST(ExampleStore, IsFilledWhenAllIsThereOrFailedOrDoesNotFit) {
  const std::chrono::milliseconds soon(20);
  const auto store = MakeStore(10, size_t{1} << 20, 2, 6);
  bool filled = true;
  TFDEAR_EXPECT_OK(store->AwaitFilled(soon, &filled));
  EXPECT_FALSE(filled);
  store->ReadFrom({false, 0, nullptr}, 0, 0);
  EXPECT_EQ(store->Next(2, 8), (std::vector<int64_t>{2, 3, 4, 5}));
  for (int64_t example : {2, 3, 5}) Prepare(store.get(), example);
  store->Fail(4, InvalidArgument("broken"));
  EXPECT_EQ(store->AwaitFilled(soon, &filled).message(), "broken");
  EXPECT_TRUE(filled);
  Prepare(store.get(), 4);
  TFDEAR_EXPECT_OK(store->AwaitFilled(soon, &filled));
  EXPECT_TRUE(filled);
  const auto mended = MakeStore(4, size_t{1} << 20);
  mended->ReadFrom({false, 0, nullptr}, 0, 0);
  EXPECT_EQ(mended->Next(4).size(), 4u);
  for (int64_t example : {0, 1}) Prepare(mended.get(), example);
  mended->Fail(2, InvalidArgument("broken"));
  Prepare(mended.get(), 2);
  mended->Fail(3, InvalidArgument("torn"));
  EXPECT_EQ(mended->AwaitFilled(soon, &filled).message(), "torn");
  const auto late = MakeStore(2, 0);
  for (int64_t example : {0, 1}) late->Want(example);
  EXPECT_EQ(late->Next(2).size(), 2u);
  late->Fail(0, InvalidArgument("broken"));
  for (int64_t example : {0, 1}) Prepare(late.get(), example);
  TFDEAR_EXPECT_OK(late->AwaitFilled(soon, &filled));
  EXPECT_TRUE(filled);
  const auto small = MakeStore(10, 100);
  small->ReadFrom({true, 0, nullptr}, 0, 0);
  const std::vector<int64_t> examples = small->Next(2, 8);
  EXPECT_EQ(examples.size(), 2u);
  Prepare(small.get(), examples[0]);
  TFDEAR_EXPECT_OK(small->AwaitFilled(soon, &filled));
  EXPECT_TRUE(filled);
}

TEST(ExampleStore, AFillingThatStandsStillIsAnError) {
  const auto store = MakeStore(10, size_t{1} << 20, 0, -1, kShort);
  store->ReadFrom({false, 0, nullptr}, 0, 0);
  store->Next(2, 2);  // They never come.
  bool filled = true;
  Status status;
  for (int look = 0; look < 100 && status.ok(); ++look) {
    status = store->AwaitFilled(std::chrono::milliseconds(100), &filled);
    EXPECT_FALSE(filled);
  }
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
}

// Two stores of one process stand for two ranks: each maps the other's segment, as processes do.
class TwoRanks {
 public:
  explicit TwoRanks(size_t memory, std::chrono::seconds timeout = kLong) {
    stores = {MakeStore(100, memory, 0, 50, timeout), MakeStore(100, memory, 50, 100, timeout)};
    TFDEAR_EXPECT_OK(stores[0]->Map(1, stores[1]->address()));
    TFDEAR_EXPECT_OK(stores[1]->Map(0, stores[0]->address()));
    for (const auto& store : stores) store->Unpublish();
  }

  std::vector<std::shared_ptr<ExampleStore>> stores;
};

TEST(ExampleStore, RanksReadEachOthersExamples) {
  TwoRanks ranks(size_t{1} << 20);
  for (const auto& store : ranks.stores) store->ReadFrom({true, 1, nullptr}, 0, 0);
  Preparer first(ranks.stores[0]), second(ranks.stores[1]);
  const ExampleOrder order(1, 0, 100);
  std::vector<std::thread> readers;
  for (int rank = 0; rank < 2; ++rank) {
    readers.emplace_back([&, rank] {
      for (int64_t position = rank; position < 100; position += 2) {
        ExpectTaken(ranks.stores[rank].get(), order.At(position));
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  for (const auto& store : ranks.stores) EXPECT_EQ(store->progress().prepared, 50);
}

TEST(ExampleStore, ARankPreparesWhatAnotherCannotKeep) {
  TwoRanks ranks(10 * (kRecordBytes + 64));
  for (const auto& store : ranks.stores) store->ReadFrom({false, 0, nullptr}, 0, 0);
  Preparer first(ranks.stores[0]), second(ranks.stores[1]);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int64_t example = 0; example < 100; ++example) {
      ExpectTaken(ranks.stores[0].get(), example);
    }
  }
}

TEST(ExampleStore, ARankPreparesWhatAnotherFailsAt) {
  TwoRanks ranks(size_t{1} << 20);
  ranks.stores[1]->ReadFrom({false, 0, nullptr}, 0, 0);
  EXPECT_EQ(ranks.stores[1]->Next(1), (std::vector<int64_t>{50}));
  ranks.stores[1]->Fail(50, InvalidArgument("broken"));
  Preparer first(ranks.stores[0]);
  ExpectTaken(ranks.stores[0].get(), 50);
}

TEST(ExampleStore, WhatAnotherRankBringsAtLastIsTaken) {
  TwoRanks ranks(size_t{1} << 20, std::chrono::seconds(60));
  ExampleStore* const reading = ranks.stores[0].get();
  ranks.stores[1]->ReadFrom({false, 0, nullptr}, 0, 0);
  EXPECT_EQ(ranks.stores[1]->Next(1), (std::vector<int64_t>{50}));
  const std::string content = ContentOf(50);
  std::promise<void> taken;
  std::thread reader, preparer;
  ranks.stores[1]->Put(50, content.size(), [&](char* to) {
    // While it is written, the other rank learns that no more fits, and is to prepare it.
    ranks.stores[1]->StopGrowing();
    reader = std::thread([&] {
      ExpectTaken(reading, 50);
      taken.set_value();
    });
    while (reading->progress().misses == 0) std::this_thread::yield();
    std::memcpy(to, content.data(), content.size());
  });
  preparer = std::thread([&] { EXPECT_TRUE(reading->Next(1).empty()); });
  EXPECT_EQ(taken.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  reading->Close(Status(StatusCode::kAborted, "the end"));
  reader.join();
  preparer.join();
}

TEST(ExampleStore, WhatAnotherRankGivesUpLateHasItsTimeHere) {
  TwoRanks ranks(size_t{1} << 20, kShort);
  ranks.stores[0]->ReadFrom({false, 0, nullptr}, 0, 0);
  ranks.stores[1]->ReadFrom({false, 0, nullptr}, 0, 0);
  std::thread other([&] {
    // It makes progress for longer than a wait may take, and then has no more room.
    for (int64_t example = 50; example < 56; ++example) {
      std::this_thread::sleep_for(kShort / 4);
      Prepare(ranks.stores[1].get(), example);
    }
    ranks.stores[1]->StopGrowing();
  });
  std::thread preparer([&] {
    for (auto examples = ranks.stores[0]->Next(1); !examples.empty();
         examples = ranks.stores[0]->Next(1)) {
      if (examples[0] == 90) Prepare(ranks.stores[0].get(), 90);
    }
  });
  ExpectTaken(ranks.stores[0].get(), 90);
  ranks.stores[0]->Close(Status(StatusCode::kAborted, "the end"));
  other.join();
  preparer.join();
}

TEST(ExampleStore, ASilentRankIsNamed) {
  TwoRanks ranks(size_t{1} << 20, kShort);
  ranks.stores[1]->ReadFrom({false, 0, nullptr}, 0, 0);
  ranks.stores[0]->Want(60);
  ExampleStore::Record record;
  const Status status = ranks.stores[0]->Take(60, kNever, &record);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 1, which prepares example 60"), std::string::npos)
      << status.message();
}

TEST(ExampleStore, AddressesFromElsewhereAreRefused) {
  const auto store = MakeStore(100, 1000, 0, 50);
  const auto other = MakeStore(100, 1000, 50, 100);
  for (const std::string& address :
       {std::string(), std::string("50"), "50 1000 " + other->address(),
        "-1 " + other->address().substr(3), std::string("50 100 10 x")}) {
    EXPECT_FALSE(store->Map(1, address).ok()) << address;
  }
  TFDEAR_EXPECT_OK(store->Map(1, other->address()));
}

TEST(ExampleReader, RowsOfBatchesAreThoseOfAllRanks) {
  const auto store = MakeStore(1003, 0);
  for (int world_size : {1, 2, 3, 4}) {
    for (int64_t batch_size : {1, 8, 64, 2000}) {
      int64_t next = 0;
      int64_t steps = 0;
      for (bool drop : {true, false}) {
        next = steps = 0;
        for (int64_t step = 0; step == 0 || step < steps; ++step) {
          for (int rank = 0; rank < world_size; ++rank) {
            ExampleReader::Options options;
            options.batch_size = batch_size;
            options.drop_remainder = drop;
            options.rank = rank;
            options.world_size = world_size;
            const ExampleReader reader(store, options, {0, 0});
            steps = reader.steps();
            if (steps == 0) break;
            const auto [begin, end] = reader.Rows(step);
            EXPECT_EQ(begin, next);
            EXPECT_LE(end - begin, (batch_size + world_size - 1) / world_size);
            next = end;
          }
        }
        EXPECT_EQ(next, drop ? 1003 / batch_size * batch_size : 1003);
      }
    }
  }
}

TEST(ExampleReader, EpochsAreCountedAsTheyBegin) {
  ExampleReader reader(MakeStore(10, 0), {}, {3, 4});
  EXPECT_EQ(reader.Begin().step, 4);
  ExampleReader::Position next = reader.Begin();
  EXPECT_EQ(next.epoch, 4);
  EXPECT_EQ(next.step, 0);
  reader.SetNext({9, 0});
  EXPECT_EQ(reader.Begin().epoch, 9);
  EXPECT_EQ(reader.Begin().epoch, 10);
}

TEST(ExampleSegment, TakesNoMoreMemoryThanItsExamples) {
  for (size_t bytes : {100, 12288, 150528}) {
    const int64_t examples = static_cast<int64_t>((size_t{40} << 20) / bytes);
    for (bool grow : {false, true}) {
      std::unique_ptr<ExampleSegment> segment;
      TFDEAR_EXPECT_OK(ExampleSegment::Create(0, examples, size_t{1} << 30, &segment));
      const size_t front = segment->populated_bytes();
      size_t taken = 0;
      int changes = 0;
      for (int64_t i = 0; i < examples; ++i) {
        // All alike, or each larger than all before.
        const size_t size = grow ? 1 + 2 * bytes * i / examples : bytes;
        const size_t before = segment->populated_bytes();
        ASSERT_NE(segment->Allocate(size), nullptr);
        const size_t alignment = AlignmentOfExample(size);
        taken += (size + alignment - 1) / alignment * alignment;
        changes += segment->populated_bytes() != before;
      }
      EXPECT_GE(segment->populated_bytes() - front, taken);
      // A quarter of a MiB at the end, and the rest of a page.
      EXPECT_LE(segment->populated_bytes() - front, taken + (256 << 10) + 4096) << bytes;
      EXPECT_LT(changes, 200) << bytes;
    }
  }
}

}  // namespace
}  // namespace tfdear
