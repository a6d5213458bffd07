// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// The ring of the last events.

#include "custom_ops/engine/record/event_record.h"

#include <atomic>
#include <set>

#include "tests/cc/plan_testing.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

Event Numbered(int64_t ticket, int64_t subject = 0) {
  return Event{EventKind::kUpdate, ticket, subject, 0, 0, 0};
}

std::vector<int64_t> Tickets(const std::vector<Event>& events) {
  std::vector<int64_t> tickets;
  for (const Event& event : events) tickets.push_back(event.ticket);
  return tickets;
}

TEST(EventRecord, EveryReaderSeesEveryEventOnce) {
  EventRecord record(4);
  uint64_t position = 0;
  EXPECT_TRUE(record.Read(&position).empty());
  record.Add({EventOf(kAllGather), 7, 3, 4096, 100, 250});
  record.Add(Numbered(8));
  const auto events = record.Read(&position);
  ASSERT_EQ(Tickets(events), (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(events[0].kind, EventOf(kAllGather));
  EXPECT_EQ(events[0].subject, 3);
  EXPECT_EQ(events[0].detail, 4096);
  EXPECT_EQ(events[0].begin_us, 100);
  EXPECT_EQ(events[0].end_us, 250);
  EXPECT_TRUE(record.Read(&position).empty());
  record.Add(Numbered(9));
  uint64_t other = 0;
  EXPECT_EQ(Tickets(record.Read(&other)), (std::vector<int64_t>{7, 8, 9}));
  EXPECT_EQ(Tickets(record.Read(&position)), (std::vector<int64_t>{9}));
  EXPECT_EQ(position, 3u);
}

TEST(EventRecord, KeepsTheLastOnesOldestFirst) {
  EventRecord record(4);
  for (int64_t i = 0; i < 11; ++i) record.Add(Numbered(i));
  uint64_t position = 2;
  EXPECT_EQ(Tickets(record.Read(&position)), (std::vector<int64_t>{7, 8, 9, 10}));
  EXPECT_EQ(position, 11u) << "of the 9 events that it moved, 5 had been overwritten";
  // From the middle of the ring: what follows wraps around its end.
  for (int64_t i = 20; i < 23; ++i) record.Add(Numbered(i));
  EXPECT_EQ(Tickets(record.Read(&position)), (std::vector<int64_t>{20, 21, 22}));
  // A position of the future is that of a reader who wants nothing that was.
  position = 1000;
  EXPECT_TRUE(record.Read(&position).empty());
  EXPECT_EQ(position, 14u);
}

TEST(EventRecord, ReadsInPieces) {
  EventRecord record(8);
  for (int64_t i = 0; i < 7; ++i) record.Add(Numbered(i));
  uint64_t position = 0;
  EXPECT_EQ(Tickets(record.Read(&position, 3)), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(Tickets(record.Read(&position, 3)), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_TRUE(record.Read(&position, 0).empty());
  EXPECT_EQ(Tickets(record.Read(&position, 3)), (std::vector<int64_t>{6}));
}

TEST(EventRecord, ObserverSeesWhatIsAddedWhileItIsSet) {
  static std::atomic<int64_t> seen;
  seen = 0;
  EventRecord record(2);
  record.Add(Numbered(1));
  record.set_observer([](const Event& event) { seen += event.ticket; });
  record.Add(Numbered(10));
  record.Add(Numbered(100));
  record.set_observer(nullptr);
  record.Add(Numbered(1000));
  EXPECT_EQ(seen, 110);
}

TEST(EventRecord, ThreadsLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kEach = 5000;
  EventRecord record(kThreads * kEach);
  std::vector<Event> read;
  uint64_t position = 0;
  RunThreads(kThreads + 1, [&](int thread) {
    if (thread == kThreads) {  // Reads while the others add.
      for (int i = 0; i < 50; ++i) {
        for (const Event& event : record.Read(&position)) read.push_back(event);
      }
      return;
    }
    for (int i = 0; i < kEach; ++i) record.Add(Numbered(i, thread));
  });
  for (const Event& event : record.Read(&position)) read.push_back(event);
  ASSERT_EQ(read.size(), static_cast<size_t>(kThreads * kEach));
  std::vector<int64_t> next(kThreads, 0);
  for (const Event& event : read) {
    ASSERT_EQ(event.ticket, next[event.subject]++) << "out of order for thread " << event.subject;
  }
}

TEST(EventRecord, ClockDoesNotGoBack) {
  int64_t last = EventRecord::NowMicros();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = EventRecord::NowMicros();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(EventRecord, EveryKindHasANameOfItsOwn) {
  std::set<std::string> names;
  const int count = static_cast<int>(EventKind::kFirstOfPlans) + kNumStepKinds;
  for (int kind = 0; kind < count; ++kind) names.insert(Name(static_cast<EventKind>(kind)));
  EXPECT_EQ(names.size(), static_cast<size_t>(count));
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_STREQ(Name(static_cast<EventKind>(count)), "unknown");
  EXPECT_STREQ(Name(EventOf(kSparseExchange)), "sparse_exchange");
}

}  // namespace
}  // namespace tfdear
