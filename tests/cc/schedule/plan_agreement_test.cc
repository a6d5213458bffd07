// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// What rank 0 announces of a plan: everybody gets it, and what sizes no plan is refused.

#include "custom_ops/engine/schedule/plan_agreement.h"

#include <limits>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();

TEST(PlanAgreement, EveryoneHasRankZerosPlan) {
  RunRanks(3, [](std::unique_ptr<TcpBackend> backend) {
    PlanAgreement agreement;
    if (backend->rank() == 0) agreement = {{0, 1, 7}, 50};
    TFDEAR_EXPECT_OK(BroadcastAgreement(backend.get(), Signature("plan"), 0, &agreement));
    EXPECT_EQ(agreement.plan, (std::vector<int64_t>{0, 1, 7}));
    EXPECT_EQ(agreement.interval, 50);
  });
}

TEST(PlanAgreement, RefusesNumbersThatSizeNoPlan) {
  const std::vector<std::vector<int64_t>> headers = {
      {-1, 5}, {kLargest, 5}, {kSmallest, 5}, {int64_t{1} << 40, 5}, {0, 0}, {0, kLargest}};
  for (const std::vector<int64_t>& header : headers) {
    RunRanks(2, [&](std::unique_ptr<TcpBackend> backend) {
      if (backend->rank() == 0) {
        std::vector<int64_t> copy = header;
        TFDEAR_EXPECT_OK(backend->Broadcast(copy.data(), 16, 0, Signature("plan"), 0));
        return;
      }
      PlanAgreement agreement;
      const Status status = BroadcastAgreement(backend.get(), Signature("plan"), 0, &agreement);
      EXPECT_EQ(status.code(), StatusCode::kInternal) << status.message();
    });
  }
}

}  // namespace
}  // namespace tfdear
