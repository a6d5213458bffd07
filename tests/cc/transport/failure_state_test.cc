// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// What a transport reports after it failed, and whom it blames.

#include "custom_ops/engine/transport/failure_state.h"

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

TEST(FailureState, TheFirstErrorStays) {
  FailureState failure;
  EXPECT_FALSE(failure.failed());
  EXPECT_EQ(failure.failed_peer(), -1);
  TFDEAR_EXPECT_OK(failure.status());
  EXPECT_EQ(failure.Fail(Status(StatusCode::kInternal, "first"), 2).message(), "first");
  EXPECT_EQ(failure.PeerClosed("call", 1, "x").message(), "first");
  EXPECT_EQ(failure.status().code(), StatusCode::kInternal);
  EXPECT_EQ(failure.failed_peer(), 2);
  EXPECT_TRUE(failure.failed());
  EXPECT_FALSE(failure.aborted());
}

TEST(FailureState, TheFirstCauseIsReportedInPlaceOfAnError) {
  FailureState failure;
  failure.Fail(Status(StatusCode::kInternal, "error"), 2);
  failure.Abort(Status(StatusCode::kUnavailable, "cause"));
  failure.Abort(Status(StatusCode::kUnavailable, "later"));
  EXPECT_TRUE(failure.aborted());
  EXPECT_EQ(failure.status().message(), "cause");
  EXPECT_EQ(failure.Fail(Status(StatusCode::kInternal, "error"), 1).message(), "cause");
  EXPECT_EQ(failure.failed_peer(), 2);
}

TEST(FailureState, NobodyIsBlamedForAnAbort) {
  FailureState failure;
  failure.Abort(Status());
  EXPECT_TRUE(failure.failed());
  EXPECT_EQ(failure.status().code(), StatusCode::kAborted);
  EXPECT_EQ(failure.Fail(Status(StatusCode::kInternal, "error"), 1).code(), StatusCode::kAborted);
  EXPECT_EQ(failure.failed_peer(), -1);
}

TEST(FailureState, MessagesNameTheGlobalRankAndTheCall) {
  FailureState closed, silent;
  EXPECT_EQ(closed.NameOf(1), "rank 1");
  closed.NameRanks({10, 11});
  silent.NameRanks({10, 11});
  EXPECT_EQ(closed.PeerClosed("", 1, "gloo: end").message(),
            "rank 11 closed its connection; it ended, or failed first. See its own messages. "
            "(gloo: end)");
  const Status status = silent.PeerSilent("barrier 'x'", 0, /*sending=*/false,
                                          std::chrono::milliseconds(50), " but 4 bytes of y");
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Contains(status.message(),
                       "barrier 'x': rank 10 sent nothing for 50 ms but 4 bytes of y. It is stuck"))
      << status.message();
  EXPECT_EQ(silent.failed_peer(), 0);
}

}  // namespace
}  // namespace tfdear
