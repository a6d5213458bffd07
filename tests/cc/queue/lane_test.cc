// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Tickets in a lane: the order on the line, withdrawal, callbacks that come back, failure.

#include "custom_ops/engine/queue/lane.h"

#include <algorithm>
#include <atomic>
#include <random>

#include "tests/cc/engine_testing.h"

namespace tfdear {
namespace {

const Status kLost(StatusCode::kUnavailable, "rank 1 was lost");

// The numbers of the tickets in the order in which their collectives ran on this rank.
class Line {
 public:
  void Add(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    numbers_.push_back(number);
  }
  std::vector<int64_t> numbers() {
    std::lock_guard<std::mutex> lock(mutex_);
    return numbers_;
  }

 private:
  std::mutex mutex_;
  std::vector<int64_t> numbers_;
};

// A ticket with one all-reduce of one number, which all ranks must call at the same place.
class SumTicket : public Ticket, public std::enable_shared_from_this<SumTicket> {
 public:
  using Done = std::function<void(const Status&, int64_t sum)>;

  SumTicket(std::string name, Line* line, Done done)
      : signature_(std::make_shared<Signature>(std::move(name))),
        line_(line),
        done_(std::move(done)) {}

  void Give(int64_t value, Lane* lane) {
    value_ = value;
    ready_ = true;
    lane->Advance();
  }

  bool Issue(ProcessGroup* group, Reactions* reactions) override {
    if (!ready_) return false;
    issued = true;
    auto self = shared_from_this();
    auto work = group->Run(signature_, [self](CollectiveBackend* backend, uint64_t sequence) {
      self->line_->Add(self->number());
      return backend->AllReduce(&self->value_, 1, DataType::kInt64, *self->signature_, sequence);
    });
    reactions->push_back([self, work] {
      work->OnDone([self](const Status& status) { self->done_(status, self->value_); });
    });
    return true;
  }
  bool Untouched() const override { return !ready_; }
  void Fail(const Status& cause) override {
    ++failures;
    done_(cause, 0);
  }

  std::atomic<int> failures{0};
  std::atomic<bool> issued{false};

 private:
  const std::shared_ptr<const Signature> signature_;
  Line* const line_;
  const Done done_;
  std::atomic<bool> ready_{false};
  int64_t value_ = 0;
};

// Counts calls by outcome.
struct Outcomes {
  std::atomic<int> good{0};
  std::atomic<int> bad{0};
  SumTicket::Done Count() {
    return [this](const Status& status, int64_t) { ++(status.ok() ? good : bad); };
  }
  bool Reach(int calls) {
    return Eventually([&] { return good + bad >= calls; });
  }
};

// A lane of a rank alone, for what needs no peers.
void Alone(const std::function<void(Lane*)>& body) {
  RunEngines(1, [&](EngineRank* rank) { body(rank->lane()); });
}

TEST(Lane, DataOfTheSecondTicketWaitForTheFirst) {
  for (int size : {1, 2, 3}) {
    RunEngines(size, [&](EngineRank* rank) {
      Line line;
      std::vector<int64_t> sums(2, -1);
      std::atomic<int> done{0};
      auto store = [&](int index) {
        return [&, index](const Status& status, int64_t sum) {
          TFDEAR_EXPECT_OK(status);
          sums[index] = sum;
          ++done;
        };
      };
      auto first = std::make_shared<SumTicket>("a", &line, store(0));
      auto second = std::make_shared<SumTicket>("b", &line, store(1));
      rank->lane()->Open(first);
      rank->lane()->Open(second);
      EXPECT_EQ(first->number(), 0);
      EXPECT_EQ(second->number(), 1);
      // One rank has the data of the first ticket first, the others those of the second.
      if (rank->rank() == 0) first->Give(1, rank->lane());
      second->Give(10, rank->lane());
      if (rank->rank() != 0) {
        EXPECT_FALSE(second->issued) << "its turn has not come";
        first->Give(1, rank->lane());
      }
      ASSERT_TRUE(Eventually([&] { return done == 2; }));
      EXPECT_EQ(line.numbers(), (std::vector<int64_t>{0, 1}));
      EXPECT_EQ(sums, (std::vector<int64_t>{size, 10 * size}));
    });
  }
}

TEST(Lane, OrderIsTheSameOnAllRanksForAnyArrival) {
  constexpr int kTickets = 200;
  RunEngines(3, [&](EngineRank* rank) {
    Lane* lane = rank->lane();
    Line line;
    std::vector<std::shared_ptr<SumTicket>> tickets;
    std::atomic<int> right{0};
    for (int i = 0; i < kTickets; ++i) {
      tickets.push_back(std::make_shared<SumTicket>("t" + std::to_string(i), &line,
                                                    [&right, i](const Status& status, int64_t sum) {
                                                      TFDEAR_EXPECT_OK(status);
                                                      EXPECT_EQ(sum, 3 * i);
                                                      ++right;
                                                    }));
      lane->Open(tickets.back());
    }
    std::vector<int> arrival(kTickets);
    std::iota(arrival.begin(), arrival.end(), 0);
    std::shuffle(arrival.begin(), arrival.end(), std::minstd_rand(rank->rank() + 1));
    std::thread helper([&] {
      for (int i = 0; i < kTickets / 2; ++i) tickets[arrival[i]]->Give(arrival[i], lane);
    });
    for (int i = kTickets / 2; i < kTickets; ++i) tickets[arrival[i]]->Give(arrival[i], lane);
    helper.join();
    ASSERT_TRUE(Eventually([&] { return right == kTickets; }));
    std::vector<int64_t> expected(kTickets);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(line.numbers(), expected);
  });
}

TEST(Lane, TicketWithoutCollectivesDoesNotStay) {
  class Nothing : public Ticket {
   public:
    bool Issue(ProcessGroup*, Reactions*) override { return true; }
    bool Untouched() const override { return true; }
    void Fail(const Status&) override {}
  };
  Alone([](Lane* lane) {
    auto ticket = std::make_shared<Nothing>();
    const std::weak_ptr<Nothing> kept = ticket;
    EXPECT_EQ(lane->opened(), 0);
    lane->Open(std::move(ticket));
    EXPECT_TRUE(kept.expired());
    EXPECT_EQ(lane->opened(), 1);
  });
}

TEST(Lane, WithdrawnTicketLetsTheNextGo) {
  RunEngines(2, [&](EngineRank* rank) {
    Line line;
    Outcomes outcomes;
    auto given_up = std::make_shared<SumTicket>("a", &line, outcomes.Count());
    auto next = std::make_shared<SumTicket>("b", &line, outcomes.Count());
    rank->lane()->Open(given_up);
    rank->lane()->Open(next);
    next->Give(1, rank->lane());
    EXPECT_FALSE(next->issued);
    EXPECT_TRUE(rank->lane()->Withdraw(given_up.get()));
    ASSERT_TRUE(outcomes.Reach(2));
    EXPECT_EQ(outcomes.good, 1);
    EXPECT_EQ(outcomes.bad, 1) << "who waited for the withdrawn sum must hear that it never comes";
    EXPECT_EQ(line.numbers(), std::vector<int64_t>{1});
    EXPECT_EQ(given_up.use_count(), 1) << "the lane must have let go of it";
  });
}

TEST(Lane, TicketWithDataIsNotWithdrawn) {
  Alone([](Lane* lane) {
    Line line;
    Outcomes outcomes;
    auto first = std::make_shared<SumTicket>("a", &line, outcomes.Count());
    auto second = std::make_shared<SumTicket>("b", &line, outcomes.Count());
    lane->Open(first);
    lane->Open(second);
    second->Give(1, lane);
    EXPECT_FALSE(lane->Withdraw(second.get())) << "other ranks may count on it";
    first->Give(1, lane);
    ASSERT_TRUE(outcomes.Reach(2));
    EXPECT_EQ(outcomes.good, 2);
    EXPECT_TRUE(lane->Withdraw(first.get())) << "issued: nothing is left to withdraw";
  });
}

TEST(Lane, CallbackMayComeBackToTheLane) {
  // With the group aborted a collective ends in the very call that submits it, so the callback runs
  // inside Advance() and must find the lane's mutex free.
  Alone([](Lane* lane) {
    Line line;
    Outcomes outcomes;
    auto never = std::make_shared<SumTicket>("never", &line, outcomes.Count());
    auto later = std::make_shared<SumTicket>("later", &line, outcomes.Count());
    std::atomic<bool> came_back{false};
    auto first = std::make_shared<SumTicket>("a", &line, [&](const Status& status, int64_t) {
      EXPECT_EQ(status.message(), kLost.message());
      lane->Open(later);
      lane->Open(never);
      lane->Advance();
      later->Give(1, lane);
      EXPECT_TRUE(lane->Withdraw(never.get()));
      lane->Fail(kLost);
      came_back = true;
    });
    lane->Open(first);
    lane->group()->Abort(kLost);
    first->Give(1, lane);
    EXPECT_TRUE(came_back);
    ASSERT_TRUE(outcomes.Reach(2));
    EXPECT_EQ(outcomes.bad, 2) << "of `later`, which failed, and `never`, which was withdrawn";
    EXPECT_TRUE(line.numbers().empty());
  });
}

TEST(Lane, CallbackOnTheGroupsThreadMayComeBackToTheLane) {
  RunEngines(2, [](EngineRank* rank) {
    Lane* lane = rank->lane();
    Line line;
    Outcomes outcomes;
    auto second = std::make_shared<SumTicket>("b", &line, outcomes.Count());
    auto first = std::make_shared<SumTicket>("a", &line, [&](const Status& status, int64_t sum) {
      TFDEAR_EXPECT_OK(status);
      second->Give(sum, lane);
    });
    lane->Open(first);
    lane->Open(second);
    first->Give(1, lane);
    ASSERT_TRUE(outcomes.Reach(1));
    EXPECT_EQ(outcomes.good, 1);
    EXPECT_EQ(line.numbers(), (std::vector<int64_t>{0, 1}));
  });
}

TEST(Lane, FailEndsEveryTicketOnce) {
  Alone([](Lane* lane) {
    Line line;
    Outcomes outcomes;
    std::vector<std::shared_ptr<SumTicket>> tickets;
    for (int i = 0; i < 4; ++i) {
      tickets.push_back(std::make_shared<SumTicket>("t", &line, outcomes.Count()));
      lane->Open(tickets.back());
    }
    tickets[2]->Give(1, lane);  // Ready, but not its turn.
    lane->Fail(kLost);
    lane->Fail(Status(StatusCode::kAborted, "a second cause"));
    auto late = std::make_shared<SumTicket>("late", &line, [&](const Status& status, int64_t) {
      EXPECT_EQ(status.message(), kLost.message()) << "the first cause stays";
      ++outcomes.bad;
    });
    lane->Open(late);
    late->Give(1, lane);
    tickets[0]->Give(1, lane);
    EXPECT_EQ(outcomes.bad, 5);
    EXPECT_EQ(outcomes.good, 0);
    for (auto& ticket : tickets) EXPECT_EQ(ticket->failures, 1);
    EXPECT_EQ(late->failures, 1);
    EXPECT_TRUE(line.numbers().empty());
    EXPECT_TRUE(lane->Withdraw(late.get()));
  });
}

TEST(Lane, FailEndsACollectiveThatWaitsForAPeer) {
  RunEngines(2, [](EngineRank* rank) {
    if (rank->rank() == 1) {  // Never calls the collective. Stays until the other has given up.
      Line line;
      Outcomes outcomes;
      auto ticket = std::make_shared<SumTicket>("a", &line, outcomes.Count());
      rank->lane()->Open(ticket);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      rank->lane()->Fail(kLost);
      EXPECT_EQ(outcomes.bad, 1);
      return;
    }
    Line line;
    std::atomic<int> calls{0};
    auto ticket = std::make_shared<SumTicket>("a", &line, [&](const Status& status, int64_t) {
      EXPECT_EQ(status.message(), kLost.message());
      ++calls;
    });
    rank->lane()->Open(ticket);
    ticket->Give(1, rank->lane());
    ASSERT_TRUE(Eventually([&] { return !line.numbers().empty(); }));
    rank->lane()->Fail(kLost);
    ASSERT_TRUE(Eventually([&] { return calls > 0; }));
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(ticket->failures, 0) << "it had left the line: its Work brings the news";
  });
}

}  // namespace
}  // namespace tfdear
