// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// The ring of the last events.

#include "custom_ops/engine/event_record.h"

#include <set>

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

TEST(EventRecord, GivesBackWhatWasAddedAndForgetsIt) {
  EventRecord record(4);
  EXPECT_TRUE(record.Drain().empty());
  record.Add({EventKind::kAllGather, 7, 3, 4096, 100, 250});
  record.Add(Numbered(8));
  const auto events = record.Drain();
  ASSERT_EQ(Tickets(events), (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(events[0].kind, EventKind::kAllGather);
  EXPECT_EQ(events[0].subject, 3);
  EXPECT_EQ(events[0].detail, 4096);
  EXPECT_EQ(events[0].begin_us, 100);
  EXPECT_EQ(events[0].end_us, 250);
  EXPECT_TRUE(record.Drain().empty());
  EXPECT_EQ(record.overwritten(), 0u);
}

TEST(EventRecord, KeepsTheLastOnesOldestFirst) {
  EventRecord record(4);
  for (int64_t i = 0; i < 11; ++i) record.Add(Numbered(i));
  EXPECT_EQ(record.overwritten(), 7u);
  EXPECT_EQ(Tickets(record.Drain()), (std::vector<int64_t>{7, 8, 9, 10}));
  // A drain in the middle of the ring: what follows wraps around its end.
  for (int64_t i = 20; i < 23; ++i) record.Add(Numbered(i));
  EXPECT_EQ(Tickets(record.Drain()), (std::vector<int64_t>{20, 21, 22}));
  EXPECT_EQ(record.overwritten(), 7u);
}

TEST(EventRecord, ThreadsLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kEach = 5000;
  EventRecord record(kThreads * kEach);
  std::vector<Event> drained;
  RunThreads(kThreads + 1, [&](int thread) {
    if (thread == kThreads) {  // Drains while the others add.
      for (int i = 0; i < 50; ++i) {
        for (const Event& event : record.Drain()) drained.push_back(event);
      }
      return;
    }
    for (int i = 0; i < kEach; ++i) record.Add(Numbered(i, thread));
  });
  for (const Event& event : record.Drain()) drained.push_back(event);
  ASSERT_EQ(drained.size(), static_cast<size_t>(kThreads * kEach));
  std::vector<int64_t> next(kThreads, 0);
  for (const Event& event : drained) {
    ASSERT_EQ(event.ticket, next[event.subject]++) << "out of order for thread " << event.subject;
  }
  EXPECT_EQ(record.overwritten(), 0u);
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
  for (int kind = 0; kind <= static_cast<int>(EventKind::kRead); ++kind) {
    names.insert(Name(static_cast<EventKind>(kind)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(EventKind::kRead) + 1);
  EXPECT_EQ(names.count("unknown"), 0u);
}

}  // namespace
}  // namespace tfdear
