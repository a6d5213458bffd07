// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Reads wait for the updates in flight on their variable, and only for those.

#include "custom_ops/engine/updates/pending_updates.h"

#include <atomic>
#include <random>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

std::vector<Event> EventsOf(const EventRecord& record) {
  uint64_t position = 0;
  return record.Read(&position);
}

using Milliseconds = std::chrono::milliseconds;

const Status kBroken(StatusCode::kInternal, "the update function failed");
const Status kLost(StatusCode::kUnavailable, "rank 2 was lost");

// The outcome of a read: "waits", "ok" or the words of its error. Counts calls, to find a second.
class Read {
 public:
  Read(PendingUpdates* pending, int64_t variable) {
    pending->Await(variable, [state = state_](const Status& status) {
      std::lock_guard<std::mutex> lock(state->mutex);
      state->outcome = status.ok() ? "ok" : status.message();
      ++state->calls;
    });
  }
  std::string outcome() const {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->calls > 1 ? "called twice" : state_->outcome;
  }

 private:
  struct State {
    std::mutex mutex;
    std::string outcome = "waits";
    int calls = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST(PendingUpdates, ReadPassesAtOnceWhenNothingIsInFlight) {
  EventRecord events;
  PendingUpdates pending(&events);
  EXPECT_EQ(Read(&pending, 5).outcome(), "ok") << "never updated";
  pending.Defer({5});
  pending.Finish({5}, Status());
  EXPECT_EQ(Read(&pending, 5).outcome(), "ok") << "updated before";
  EXPECT_EQ(pending.in_flight(), 0);
}

TEST(PendingUpdates, WhoWaitsIsKnownBeforeItIsTold) {
  EventRecord events;
  std::vector<int64_t> told;
  PendingUpdates* known = nullptr;
  PendingUpdates pending(&events, [&](int64_t variable) {
    told.push_back(variable);
    EXPECT_TRUE(known->HasReaders({5})) << variable;
  });
  known = &pending;
  pending.Defer({5});
  EXPECT_FALSE(pending.HasReaders({5, 6}));
  const Read read(&pending, 5);
  EXPECT_TRUE(pending.HasReaders({6, 5}));
  EXPECT_FALSE(pending.HasReaders({6}));
  pending.WaitAll(Milliseconds(1)).ok();
  EXPECT_EQ(told, (std::vector<int64_t>{5, PendingUpdates::kAll}));
  pending.Finish({5}, Status());
  EXPECT_FALSE(pending.HasReaders({5, 6}));
}

TEST(PendingUpdates, ReadWaitsForEveryUpdateBeforeIt) {
  EventRecord events;
  PendingUpdates pending(&events);
  pending.Defer({0});
  Read first(&pending, 0);
  pending.Defer({0});
  Read second(&pending, 0);
  EXPECT_EQ(pending.in_flight(), 2);
  EXPECT_EQ(first.outcome(), "waits");
  pending.Finish({0}, Status());
  EXPECT_EQ(second.outcome(), "waits");
  pending.Finish({0}, Status());
  EXPECT_EQ(first.outcome(), "ok");
  EXPECT_EQ(second.outcome(), "ok");
  EXPECT_EQ(pending.in_flight(), 0);
}

TEST(PendingUpdates, VariablesDoNotWaitForEachOther) {
  EventRecord events;
  PendingUpdates pending(&events);
  pending.Defer({0, 3});  // A variable and its slot, say.
  pending.Defer({1});
  Read owner(&pending, 0), slot(&pending, 3), other(&pending, 1), untouched(&pending, 2);
  EXPECT_EQ(untouched.outcome(), "ok");
  EXPECT_EQ(pending.in_flight(), 3);
  pending.Finish({0, 3}, Status());
  EXPECT_EQ(owner.outcome(), "ok");
  EXPECT_EQ(slot.outcome(), "ok");
  EXPECT_EQ(other.outcome(), "waits");
  pending.Finish({1}, Status());
  EXPECT_EQ(other.outcome(), "ok");
}

TEST(PendingUpdates, ErrorStaysWithTheVariable) {
  EventRecord events;
  PendingUpdates pending(&events);
  pending.Defer({0});
  pending.Defer({1});
  Read waiting(&pending, 0), other(&pending, 1);
  pending.Finish({0}, kBroken);
  pending.Finish({1}, Status());
  EXPECT_EQ(waiting.outcome(), kBroken.message());
  EXPECT_EQ(other.outcome(), "ok");
  // A later update that works on the value left behind does not heal it.
  pending.Defer({0});
  pending.Finish({0}, Status());
  EXPECT_EQ(Read(&pending, 0).outcome(), kBroken.message());
  EXPECT_EQ(Read(&pending, 1).outcome(), "ok");
}

TEST(PendingUpdates, FirstErrorOfAVariableStays) {
  EventRecord events;
  PendingUpdates pending(&events);
  pending.Defer({0});
  pending.Defer({0});
  pending.Finish({0}, kBroken);
  pending.Finish({0}, kLost);
  EXPECT_EQ(Read(&pending, 0).outcome(), kBroken.message());
}

TEST(PendingUpdates, FailWakesWhoWaitsAndFailsLaterReads) {
  EventRecord events;
  PendingUpdates pending(&events);
  pending.Defer({0});
  Read waiting(&pending, 0);
  pending.Fail(kLost);
  EXPECT_EQ(waiting.outcome(), kLost.message());
  EXPECT_EQ(Read(&pending, 0).outcome(), kLost.message());
  EXPECT_EQ(Read(&pending, 9).outcome(), "ok") << "no update ever was put off on it";
  pending.Fail(kBroken);
  EXPECT_EQ(Read(&pending, 0).outcome(), kLost.message()) << "the first cause stays";
  EXPECT_EQ(pending.WaitAll(kTestTimeout).message(), kLost.message());
  // The update comes back all the same.
  pending.Finish({0}, kLost);
  EXPECT_EQ(pending.in_flight(), 0);
  EXPECT_EQ(waiting.outcome(), kLost.message()) << "called once";
}

TEST(PendingUpdates, WaitAllReturnsWhenTheLastUpdateIsDone) {
  EventRecord events;
  PendingUpdates pending(&events);
  TFDEAR_EXPECT_OK(pending.WaitAll(Milliseconds(0)));
  pending.Defer({0, 1});
  std::atomic<bool> finished{false};
  RunThreads(2, [&](int thread) {
    if (thread == 0) {
      TFDEAR_EXPECT_OK(pending.WaitAll(kTestTimeout));
      EXPECT_TRUE(finished.load());
      return;
    }
    std::this_thread::sleep_for(Milliseconds(20));
    finished = true;
    pending.Finish({0, 1}, Status());
  });
}

TEST(PendingUpdates, WaitAllEndsAtItsDeadlineWithTheNumberInFlight) {
  EventRecord events;
  PendingUpdates pending(&events);
  pending.Defer({0, 1, 2});
  const Status status = pending.WaitAll(Milliseconds(30));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("3 variable updates"), std::string::npos) << status.message();
}

TEST(PendingUpdates, WaitAllReportsAnUpdateThatFailed) {
  // Else a script whose last update fails, and that reads nothing afterwards, would exit with 0.
  EventRecord events;
  PendingUpdates pending(&events);
  pending.Defer({0});
  pending.Defer({1});
  pending.Finish({1}, kBroken);
  pending.Finish({0}, Status());
  EXPECT_EQ(pending.WaitAll(kTestTimeout).message(), kBroken.message());
}

TEST(PendingUpdates, FailEndsAWaitAllInProgress) {
  EventRecord events;
  PendingUpdates pending(&events);
  pending.Defer({0});
  RunThreads(2, [&](int thread) {
    if (thread == 0) {
      EXPECT_EQ(pending.WaitAll(kTestTimeout).message(), kLost.message());
    } else {
      std::this_thread::sleep_for(Milliseconds(20));
      pending.Fail(kLost);
    }
  });
}

TEST(PendingUpdates, ReaderMayComeBack) {
  // What a read wakes puts off the next update and reads again, in the thread that woke it.
  EventRecord events;
  PendingUpdates pending(&events);
  pending.Defer({0});
  std::string again = "not called";
  pending.Await(0, [&](const Status&) {
    pending.Defer({0});
    pending.Await(0, [&](const Status& status) { again = status.ok() ? "ok" : status.message(); });
    pending.Finish({0}, Status());
  });
  pending.Finish({0}, Status());
  EXPECT_EQ(again, "ok");
}

TEST(PendingUpdates, EventsTellWhatAReadSaw) {
  EventRecord events;
  PendingUpdates pending(&events);
  pending.Defer({4});
  Read read(&pending, 4);
  EXPECT_TRUE(EventsOf(events).empty()) << "it has not passed yet";
  pending.Finish({4}, Status());
  const auto recorded = EventsOf(events);
  ASSERT_EQ(recorded.size(), 2u);
  EXPECT_EQ(recorded[0].kind, EventKind::kAwait);
  EXPECT_LE(recorded[0].begin_us, recorded[0].end_us);
  EXPECT_EQ(recorded[1].kind, EventKind::kRead);
  EXPECT_EQ(recorded[1].subject, 4);
  EXPECT_EQ(recorded[1].ticket, 1) << "updates put off";
  EXPECT_EQ(recorded[1].detail, 1) << "updates applied";
}

TEST(PendingUpdates, NoReadPassesTooEarlyAmongThreads) {
  constexpr int kVariables = 5;
  constexpr int kUpdates = 4000;
  EventRecord events(4 * kUpdates);
  PendingUpdates pending(&events);
  std::atomic<int64_t> applied[kVariables] = {};
  std::atomic<int> outcomes{0};
  std::mutex mutex;
  std::vector<int64_t> todo;  // Updates in flight, finished in random order by two threads.
  std::atomic<bool> all_deferred{false};
  RunThreads(3, [&](int thread) {
    std::minstd_rand random(thread + 1);
    if (thread == 0) {
      int64_t deferred[kVariables] = {};
      for (int i = 0; i < kUpdates; ++i) {
        const int64_t variable = random() % kVariables;
        pending.Defer({variable});
        const int64_t expected = ++deferred[variable];
        {
          std::lock_guard<std::mutex> lock(mutex);
          todo.push_back(variable);
        }
        pending.Await(variable, [&, variable, expected](const Status& status) {
          EXPECT_TRUE(status.ok());
          EXPECT_GE(applied[variable].load(), expected);
          ++outcomes;
        });
      }
      all_deferred = true;
      return;
    }
    while (true) {
      const bool last = all_deferred.load();
      int64_t variable = -1;
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (!todo.empty()) {
          std::swap(todo[random() % todo.size()], todo.back());
          variable = todo.back();
          todo.pop_back();
        }
      }
      if (variable >= 0) {
        ++applied[variable];
        pending.Finish({variable}, Status());
      } else if (last) {
        return;
      }
    }
  });
  EXPECT_EQ(outcomes.load(), kUpdates);
  EXPECT_EQ(pending.in_flight(), 0);
  for (const Event& event : EventsOf(events)) {
    if (event.kind != EventKind::kRead) continue;
    ASSERT_GE(event.detail, event.ticket) << "a read of variable " << event.subject << " passed";
  }
}

}  // namespace
}  // namespace tfdear
