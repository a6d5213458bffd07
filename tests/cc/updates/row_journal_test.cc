// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// What journals do, do not do, and refuse. (Their numbers: row_history_test.cc. Changes for some
// rows only: touched_rows_test.cc.)

#include "custom_ops/engine/updates/row_journal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/cc/updates/journal_pair_testing.h"

namespace tfdear {
namespace {

constexpr int64_t kRows = 10, kWidth = 3;

Table Ones(const UpdateProgram& update, int64_t rows = kRows, int64_t width = kWidth) {
  Table table(1 + update.slots, std::vector<float>(rows * width, update.first_slots));
  std::fill(table[0].begin(), table[0].end(), 1.0f);
  return table;
}

// A gradient for some rows, different in each element.
std::vector<float> GradientOf(const std::vector<int64_t>& rows, float scale = 0.25f) {
  std::vector<float> gradient(kRows * kWidth);
  for (int64_t row : rows) {
    for (int64_t i = row * kWidth; i < (row + 1) * kWidth; ++i) gradient[i] = scale * (i + 1);
  }
  return gradient;
}

class RowJournalTest : public ::testing::Test {
 protected:
  // A step that touches some rows.
  void Step(JournalPair* pair, const UpdateProgram& update, const std::vector<int64_t>& rows) {
    const auto gradient = GradientOf(rows);
    const int64_t change = pair->Append(update, ArraysOf(update), gradient);
    pair->Apply(change, rows, gradient);
    ExpectOk(pair->journal.Complete(change));
  }
};

TEST_F(RowJournalTest, PartsLeaveTheBitsOfTheWhole) {
  const UpdateProgram adam = UpdateProgramNamed("adam");
  Table whole = Ones(adam), parts = whole;
  RowJournal one(kRows, kWidth), two(kRows, kWidth);
  const std::vector<int64_t> rows = {7, 2, 9, 0, 4};
  for (int step = 0; step < 5; ++step) {
    std::vector<float> values(rows.size() * kWidth);
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * (i + step);
    int64_t change;
    ExpectOk(one.Append({adam.program, {0, 1, 2}, adam.scalars, true}, &change));
    ExpectOk(two.Append({adam.program, {0, 1, 2}, adam.scalars, true}, &change));
    ExpectOk(one.Apply(change, rows.data(), 5, values.data(), Pointers(&whole)));
    ExpectOk(two.Apply(change, rows.data() + 2, 3, values.data() + 2 * kWidth, Pointers(&parts)));
    ExpectOk(two.Apply(change, rows.data(), 2, values.data(), Pointers(&parts)));
    ExpectOk(one.Complete(change));
    ExpectOk(two.Complete(change));
  }
  EXPECT_EQ(whole, parts);
}

TEST_F(RowJournalTest, RowsThatAChangeDoesNotTouchNeedNotWaitForIt) {
  for (const char* name : {"momentum", "adam"}) {
    const UpdateProgram update = UpdateProgramNamed(name);
    JournalPair pair(kRows, kWidth, Ones(update));
    Step(&pair, update, {0, 1, 5});
    const auto first = GradientOf({0, 2}), second = GradientOf({0, 5}, 2.0f);
    const int64_t change = pair.Append(update, ArraysOf(update), first);
    auto bring = [&](std::vector<int64_t> rows) {
      return pair.journal.BringThroughAll(rows.data(), rows.size(), Pointers(&pair.table));
    };
    EXPECT_EQ(bring({1}).code(), StatusCode::kInvalidArgument);
    ExpectOk(pair.journal.Declare(change, {2, 0}));
    EXPECT_EQ(bring({1, 2}).code(), StatusCode::kInvalidArgument);
    ExpectOk(bring({1, 9}));
    pair.ExpectUpToDate({1, 9}, 2);
    const auto wrong = GradientOf({1});
    EXPECT_EQ(pair.TryApply(change, {1}, wrong).code(), StatusCode::kInvalidArgument);
    // The next change gets to a row that the first one leaves before the first is complete.
    pair.Apply(change, {0}, first);
    const int64_t next = pair.Append(update, ArraysOf(update), second);
    ExpectOk(pair.journal.Declare(next, {0, 5}));
    pair.Apply(next, {5, 0}, second);
    ExpectOk(pair.journal.Complete(next));
    ExpectOk(bring({1, 5, 0}));
    pair.ExpectUpToDate({0, 1, 5}, 3);
    EXPECT_EQ(bring({2}).code(), StatusCode::kInvalidArgument);
    pair.Apply(change, {2}, first);
    ExpectOk(pair.journal.Complete(change));
    ExpectOk(bring(Range(kRows)));
    pair.ExpectUpToDate(Range(kRows), 3);
  }
}

TEST_F(RowJournalTest, APartMayComeBeforeOthersOfTheChangeBefore) {
  const UpdateProgram momentum = UpdateProgramNamed("momentum");
  JournalPair pair(kRows, kWidth, Ones(momentum));
  const auto first = GradientOf({0, 1, 2}), second = GradientOf({1, 5}, 2.0f);
  const int64_t change = pair.Append(momentum, {0, 1}, first);
  const int64_t next = pair.Append(momentum, {0, 1}, second);
  pair.Apply(change, {1}, first);
  pair.Apply(next, {1}, second);
  pair.ExpectUpToDate({1}, 2);
  // The row 5 might still get a gradient of the first change.
  const Table before = pair.table;
  EXPECT_EQ(pair.TryApply(next, {5}, second).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pair.journal.complete(), 0);
  EXPECT_EQ(pair.table, before);
  pair.Apply(change, {2, 0}, first);
  ExpectOk(pair.journal.Complete(change));
  pair.Apply(next, {5}, second);
  // With what is complete only; a row may have more.
  ExpectOk(pair.BringUpToDate({0, 1, 9}));
  pair.ExpectUpToDate({0, 9}, 1);
  pair.ExpectUpToDate({1, 5}, 2);
  ExpectOk(pair.journal.Complete(next));
  ExpectOk(pair.BringUpToDate(Range(kRows)));
  pair.ExpectUpToDate(Range(kRows), 2);
}

TEST_F(RowJournalTest, RowsAreBroughtUpToAGivenChange) {
  const UpdateProgram momentum = UpdateProgramNamed("momentum");
  JournalPair pair(kRows, kWidth, Ones(momentum));
  Step(&pair, momentum, {3, 4});
  Step(&pair, momentum, {});
  Step(&pair, momentum, {});
  const int64_t row = 3;
  ExpectOk(pair.journal.BringUpToDate(&row, 1, 2, Pointers(&pair.table)));
  pair.ExpectUpToDate({3}, 2);
  pair.ExpectUpToDate({4}, 1);
  EXPECT_FALSE(pair.journal.BringUpToDate(&row, 1, 4, Pointers(&pair.table)).ok());
}

TEST_F(RowJournalTest, WhatIsWrongChangesNothing) {
  const UpdateProgram adam = UpdateProgramNamed("adam");
  JournalPair pair(kRows, kWidth, Ones(adam));
  Step(&pair, adam, {1, 2});
  const auto gradient = GradientOf({1, 2, 3});
  const int64_t change = pair.Append(adam, {0, 1, 2}, gradient);
  pair.Apply(change, {3}, gradient);
  const Table before = pair.table;
  const std::vector<float> values(4 * kWidth, 1.0f);
  auto apply = [&](int64_t number, std::vector<int64_t> rows, RowJournal::Arrays arrays) {
    return pair.journal.Apply(number, rows.data(), rows.size(), values.data(), arrays);
  };
  const RowJournal::Arrays arrays = Pointers(&pair.table);
  const Status outside = apply(change, {1, 2, 10}, arrays);
  EXPECT_EQ(outside.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(outside.message().find("10"), std::string::npos) << outside.message();
  for (const Status& status :
       {apply(change, {1, -1}, arrays), apply(change, {1, 2, 1}, arrays),  // repeated
        apply(change, {1, 3}, arrays),                                     // once more
        apply(change - 1, {4}, arrays),                                    // complete
        apply(change + 1, {4}, arrays), apply(-1, {4}, arrays),            // no such change
        apply(change, {1}, {arrays[0], arrays[1]}),                        // a slot is missing
        apply(change, {1}, {arrays[0], nullptr, arrays[2]}),               //
        pair.journal.Complete(change + 1), pair.BringUpToDate({1, 10}),
        pair.journal.Abandon(change)}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  }
  int64_t number;
  for (const RowChange& wrong :
       {RowChange{nullptr, {0}, {}, true}, RowChange{adam.program, {0, 1}, adam.scalars, true},
        RowChange{adam.program, {0, 1, 2}, {}, true},
        RowChange{adam.program, {0, 1, 1}, adam.scalars, true},
        RowChange{adam.program, {0, 1, -2}, adam.scalars, true},
        RowChange{adam.program, {0, 1, 1000}, adam.scalars, true},
        RowChange{adam.program, {0, 1, 2}, adam.scalars, false}}) {
    EXPECT_FALSE(pair.journal.Append(wrong, &number).ok());
  }
  EXPECT_EQ(pair.table, before);
  // All rows get their gradient as if nothing had been.
  pair.Apply(change, {2, 1}, gradient);
  ExpectOk(pair.journal.Complete(change));
  ExpectOk(pair.BringUpToDate(Range(kRows)));
  pair.ExpectUpToDate(Range(kRows), 2);
}

TEST_F(RowJournalTest, AChangeThatIsAbandonedIsNotMade) {
  const UpdateProgram momentum = UpdateProgramNamed("momentum");
  JournalPair pair(kRows, kWidth, Ones(momentum));
  Step(&pair, momentum, {1});
  int64_t change;
  ExpectOk(pair.journal.Append({momentum.program, {0, 1}, momentum.scalars, true}, &change));
  ExpectOk(pair.journal.Abandon(change));
  EXPECT_EQ(pair.journal.complete(), 2);
  ExpectOk(pair.BringUpToDate(Range(kRows)));
  pair.ExpectUpToDate(Range(kRows), 1);
}

TEST_F(RowJournalTest, RowsCostWhatTheyMiss) {
  struct Case {
    std::string name;
    int64_t of_a_touched_row;  // Changes made when it is read after it missed 500.
  };
  for (const Case& expected : {Case{"sgd", 0}, Case{"adagrad", 0}, Case{"adam", 500},
                               Case{"momentum", 500}, Case{"ftrl", -1}}) {
    SCOPED_TRACE(expected.name);
    const UpdateProgram update = UpdateProgramNamed(expected.name);
    JournalPair pair(kRows, kWidth, Ones(update));
    Step(&pair, update, {0, 1, 2});
    EXPECT_EQ(pair.journal.made(), 3);
    UpdateProgram slower = update;
    for (int i = 0; i < 500; ++i) {
      // What leaves a row as it is, whatever the learning rate, is passed over with every rate.
      if (expected.of_a_touched_row < 500 && expected.name != "ftrl") slower.scalars[0] *= 0.99f;
      Step(&pair, slower, {});
    }
    EXPECT_EQ(pair.journal.made(), 3);
    ExpectOk(pair.BringUpToDate({0}));
    const int64_t made = pair.journal.made() - 3;
    if (expected.of_a_touched_row >= 0) {
      EXPECT_EQ(made, expected.of_a_touched_row);
    } else {
      EXPECT_LT(made, 100);
    }
    // A row that nobody has touched: its slots are zero, or it is as above.
    ExpectOk(pair.BringUpToDate({7}));
    const int64_t of_others = pair.journal.made() - 3 - made;
    EXPECT_LE(of_others, expected.name == "ftrl" ? 100 : 0);
    pair.ExpectUpToDate({0, 7}, pair.journal.size());
  }
}

TEST_F(RowJournalTest, ARowWhoseMomentumIsGoneCostsNothing) {
  const UpdateProgram momentum = UpdateProgramNamed("momentum");
  JournalPair pair(kRows, kWidth, Ones(momentum));
  Step(&pair, momentum, {0});
  for (int i = 0; i < 3000; ++i) {
    UpdateProgram slower = momentum;
    slower.scalars[0] = 1.0f / (i + 1);
    Step(&pair, slower, {});
  }
  ExpectOk(pair.BringUpToDate({0}));
  pair.ExpectUpToDate({0}, 3001);
  EXPECT_LT(pair.journal.made(), 1000);
}

TEST_F(RowJournalTest, KeepsFewChanges) {
  const UpdateProgram adam = UpdateProgramNamed("adam");
  constexpr int64_t kMaxEntries = 16;
  JournalPair pair(kRows, kWidth, Ones(adam), kMaxEntries);
  for (int step = 0; step < 200; ++step) {
    Step(&pair, adam, {step % 3});
    EXPECT_LE(pair.journal.kept(), 2 * kMaxEntries + 2);
  }
  EXPECT_EQ(pair.journal.size(), 200);
  ExpectOk(pair.journal.BringAllUpToDate(Pointers(&pair.table)));
  EXPECT_EQ(pair.journal.kept(), 0);
  pair.ExpectUpToDate(Range(kRows), 200);
  // A rank may hold no row at all, or no column of any.
  JournalPair none(0, kWidth, Table(3), kMaxEntries);
  for (int step = 0; step < 50; ++step) Step(&none, adam, {});
  EXPECT_EQ(none.journal.kept(), 0);
  JournalPair empty(kRows, 0, Table(3), kMaxEntries);
  for (int step = 0; step < 200; ++step) {
    Step(&empty, adam, {step % 3});
    EXPECT_LE(empty.journal.kept(), 2 * kMaxEntries + 2);
  }
  ExpectOk(empty.journal.BringAllUpToDate(Pointers(&empty.table)));
  EXPECT_EQ(empty.journal.kept(), 0);
}

TEST_F(RowJournalTest, ArraysMayBeOthersWhenAllIsUpToDate) {
  const UpdateProgram adam = UpdateProgramNamed("adam"), decay = WeightDecay();
  const std::vector<float> values(kWidth, 0.5f);
  const std::vector<int64_t> row = {1};
  for (auto rows : {RowChange::Rows::kAll, RowChange::Rows::kTouched}) {
    Table table = Ones(adam);
    RowJournal journal(kRows, kWidth);
    int64_t change;
    ExpectOk(journal.Append({adam.program, {0, 1, 2}, adam.scalars, true, rows}, &change));
    ExpectOk(journal.Apply(change, row.data(), 1, values.data(), Pointers(&table)));
    ExpectOk(journal.Complete(change));
    ExpectOk(journal.BringAllUpToDate(Pointers(&table)));
    EXPECT_EQ(journal.kept(), 0);
    ExpectOk(journal.BringUpToDate(row.data(), 1, {table[0].data()}));
    // A change that waits for a gradient is kept where only some rows get it.
    ExpectOk(journal.Append({decay.program, {0}, decay.scalars, false, rows}, &change));
    ExpectOk(journal.BringAllUpToDate({table[0].data()}));
    EXPECT_EQ(journal.kept(), rows == RowChange::Rows::kAll ? 0 : 1);
    ExpectOk(journal.Append({adam.program, {0, 1, 2}, adam.scalars, true, rows}, &change));
    EXPECT_FALSE(journal.Apply(change, row.data(), 1, values.data(), {table[0].data()}).ok());
  }
}

TEST_F(RowJournalTest, CallsFromSeveralThreads) {
  const UpdateProgram momentum = UpdateProgramNamed("momentum");
  JournalPair pair(kRows, kWidth, Ones(momentum), 8);
  for (int step = 0; step < 50; ++step) {
    const auto gradient = GradientOf({0, 1, 2, 3});
    const int64_t change = pair.Append(momentum, {0, 1}, gradient);
    std::vector<std::thread> threads;
    for (int64_t row = 0; row < 4; ++row) {
      threads.emplace_back([&, row] { pair.Apply(change, {row}, gradient); });
    }
    threads.emplace_back([&] { ExpectOk(pair.BringUpToDate({5, 6})); });
    for (std::thread& thread : threads) thread.join();
    ExpectOk(pair.journal.Complete(change));
  }
  ExpectOk(pair.BringUpToDate(Range(kRows)));
  pair.ExpectUpToDate(Range(kRows), 50);
}

}  // namespace
}  // namespace tfdear
