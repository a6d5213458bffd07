// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#include "custom_ops/engine/transport/membership.h"

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

using std::chrono::milliseconds;

TEST(Membership, ARankIsOneOfItsGroupAndWaitsForSomeTime) {
  TFDEAR_EXPECT_OK(CheckMembership(0, 1, milliseconds(1)));
  TFDEAR_EXPECT_OK(CheckMembership(3, 4, milliseconds(1)));
  for (int rank : {-1, 4}) {
    const Status status = CheckMembership(rank, 4, milliseconds(1));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Contains(status.message(), "received rank " + std::to_string(rank) + " of size 4"))
        << status.message();
  }
  EXPECT_FALSE(CheckMembership(0, 0, milliseconds(1)).ok());
  EXPECT_FALSE(CheckMembership(0, 4, milliseconds(0)).ok());
}

}  // namespace
}  // namespace tfdear
