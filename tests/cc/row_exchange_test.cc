// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Numbers of rows that peers announce: what they mean, and what is refused.

#include "custom_ops/engine/row_exchange.h"

#include <limits>

#include "custom_ops/engine/plan_agreement.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();

void ExpectRefused(const Status& status, int member, int64_t number) {
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_TRUE(Contains(status.message(), "member " + std::to_string(member))) << status.message();
  EXPECT_TRUE(Contains(status.message(), "announced " + std::to_string(number)))
      << status.message();
}

TEST(CheckedTotal, AddsUpWhatFits) {
  size_t total = 0;
  TFDEAR_EXPECT_OK(CheckedTotal({}, 4, "x", &total));
  EXPECT_EQ(total, 0u);
  TFDEAR_EXPECT_OK(CheckedTotal({3, 0, 5}, 4, "x", &total, 32));
  EXPECT_EQ(total, 8u);
  TFDEAR_EXPECT_OK(CheckedTotal({0}, 0, "x", &total));
  ExpectRefused(CheckedTotal({3, 0, 6}, 4, "x", &total, 32), 2, 6);
}

TEST(CheckedTotal, RefusesWhatIsNegativeOrWrapsAround) {
  size_t total = 0;
  ExpectRefused(CheckedTotal({1, -1}, 4, "x", &total), 1, -1);
  // Their sum is 4, or their bytes are.
  ExpectRefused(CheckedTotal({kLargest, kLargest, 6}, 1, "x", &total), 0, kLargest);
  ExpectRefused(CheckedTotal({-6, 10}, 1, "x", &total), 0, -6);
  ExpectRefused(CheckedTotal({(int64_t{1} << 62) + 1}, 4, "x", &total), 0, (int64_t{1} << 62) + 1);
  ExpectRefused(CheckedTotal({kSmallest, kSmallest}, 1, "x", &total), 0, kSmallest);
}

TEST(RowExchange, EveryoneLearnsTheRows) {
  for (int size : {1, 2, 3}) {
    RunRanks(size, [&](std::unique_ptr<GlooBackend> backend) {
      ArrivingRows arriving;
      TFDEAR_EXPECT_OK(
          AnnounceRows(backend.get(), Signature("x"), 0, 2 * backend->rank(), 12, &arriving));
      ASSERT_EQ(arriving.bytes_of_member.size(), static_cast<size_t>(size));
      for (int r = 0; r < size; ++r) EXPECT_EQ(arriving.bytes_of_member[r], 24u * r);
      EXPECT_EQ(arriving.total, static_cast<size_t>(size * (size - 1)));
      std::vector<int64_t> splits(size);
      for (int r = 0; r < size; ++r) splits[r] = 10 * backend->rank() + r;
      TFDEAR_EXPECT_OK(AnnounceSplits(backend.get(), Signature("x"), 1, splits, 4, &arriving));
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(arriving.of_member[r], 10 * r + backend->rank());
        EXPECT_EQ(arriving.bytes_of_member[r], 4u * (10 * r + backend->rank()));
      }
    });
  }
}

// Rank 1 announces `number` where the collective named `suffix` asks for its rows.
void RunWithLiar(const std::string& suffix, size_t numbers, size_t place, int64_t number,
                 const std::function<Status(CollectiveBackend*, ArrivingRows*)>& announce) {
  RunRanks(2, [&](std::unique_ptr<GlooBackend> backend) {
    if (backend->rank() == 1) {
      std::vector<int64_t> all(numbers, 4);
      all[place] = number;
      TFDEAR_EXPECT_OK(backend->AllGather(all.data(), all.size(), DataType::kInt64,
                                          Signature("x " + suffix), 0));
      return;
    }
    ArrivingRows arriving;
    ExpectRefused(announce(backend.get(), &arriving), 1, number);
  });
}

TEST(RowExchange, RefusesWhatAPeerCannotMean) {
  for (int64_t number : {int64_t{-1}, int64_t{1} << 60, kLargest, kSmallest}) {
    RunWithLiar("rows", 2, 1, number, [](CollectiveBackend* backend, ArrivingRows* arriving) {
      return AnnounceRows(backend, Signature("x"), 0, 1, 64, arriving);
    });
    RunWithLiar("splits", 4, 2, number, [](CollectiveBackend* backend, ArrivingRows* arriving) {
      return AnnounceSplits(backend, Signature("x"), 0, {1, 1}, 64, arriving);
    });
    RunWithLiar("counts", 4, 2, number, [](CollectiveBackend* backend, ArrivingRows* arriving) {
      return AnnounceRowsOfLength(backend, Signature("x"), 0, 1, 4, arriving);
    });
  }
}

TEST(RowExchange, RowsWithoutBytesAreCountedToo) {
  RunWithLiar("rows", 2, 1, kLargest, [](CollectiveBackend* backend, ArrivingRows* arriving) {
    return AnnounceRows(backend, Signature("x"), 0, 1, 0, arriving);
  });
}

TEST(PlanAgreement, EveryoneHasRankZerosPlan) {
  RunRanks(3, [](std::unique_ptr<GlooBackend> backend) {
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
    RunRanks(2, [&](std::unique_ptr<GlooBackend> backend) {
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
