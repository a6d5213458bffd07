// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/rows_in_flight.h"

#include <gtest/gtest.h>

#include <string>

namespace tfdear {
namespace {

// Who waits: "waits", "done" or the error.
class Reader {
 public:
  RowsInFlight::Done Done() {
    return [this](const Status& status) { state_ = status.ok() ? "done" : status.message(); };
  }
  const std::string& state() const { return state_; }

 private:
  std::string state_ = "waits";
};

TEST(RowsInFlight, AReaderWaitsForItsRowsAlone) {
  RowsInFlight rows;
  Reader before, early, prior, delayed, both;
  rows.WhenIdle({1}, before.Done());
  EXPECT_EQ(before.state(), "done");
  rows.Begin(0);
  rows.WhenIdle({9}, early.Done());
  rows.WhenIdle({1}, prior.Done());
  rows.WhenIdle({4}, delayed.Done());
  EXPECT_EQ(early.state(), "waits");
  Reader none;
  rows.WhenIdle({}, none.Done());
  EXPECT_EQ(none.state(), "done");
  rows.Declare(0, {{3, 1}, {4, 2}});
  EXPECT_EQ(early.state(), "done");
  EXPECT_EQ(prior.state(), "waits");
  rows.Declare(0, {{9}});  // Said again.
  rows.Finish(0, 0, Status());
  EXPECT_EQ(prior.state(), "done");
  EXPECT_EQ(delayed.state(), "waits");
  rows.WhenIdle({3, 2}, both.Done());
  EXPECT_EQ(both.state(), "waits");
  rows.Finish(0, 1, Status());
  EXPECT_EQ(delayed.state(), "done");
  EXPECT_EQ(both.state(), "done");
}

TEST(RowsInFlight, AReaderDoesNotWaitForLaterChanges) {
  RowsInFlight rows;
  Reader reader;
  rows.Begin(3);
  rows.WhenIdle({1}, reader.Done());
  rows.Begin(4);
  rows.Finish(3, 0, Status());
  EXPECT_EQ(reader.state(), "done");
  Reader later, earlier;
  rows.WhenIdle({1}, earlier.Done(), /*before=*/4);
  EXPECT_EQ(earlier.state(), "done");
  rows.WhenIdle({1}, later.Done());
  EXPECT_EQ(later.state(), "waits");
  rows.FinishAll(4);
  EXPECT_EQ(later.state(), "done");
}

TEST(RowsInFlight, AnErrorStays) {
  RowsInFlight rows;
  Reader waiting, later;
  rows.Begin(0);
  rows.WhenIdle({1}, waiting.Done());
  rows.Finish(0, 0, Status(StatusCode::kAborted, "the cause"));
  EXPECT_EQ(waiting.state(), "the cause");
  rows.WhenIdle({2}, later.Done());
  EXPECT_EQ(later.state(), "the cause");
}

}  // namespace
}  // namespace tfdear
