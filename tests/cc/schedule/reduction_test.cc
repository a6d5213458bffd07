// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Reductions: sums and their bits, schedules, sparse rows, the order of events, failures.

#include "custom_ops/engine/schedule/reduction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>

#include "custom_ops/engine/schedule/tensor_identity.h"
#include "tests/cc/engine_testing.h"

namespace tfdear {
namespace {

using Layout = std::shared_ptr<const ReductionLayout>;
using Shape = std::vector<int64_t>;

constexpr size_t kHuge = size_t{1} << 30;
const Status kLost(StatusCode::kUnavailable, "rank 1 was lost");
const Schedule kSchedules[] = {Schedule::kDear, Schedule::kWfbp, Schedule::kSequential};

TensorSpec Dense(int64_t count, DataType type = DataType::kFloat32) {
  return TensorSpec{type, count, false};
}
TensorSpec Sparse(DataType type = DataType::kFloat32) { return TensorSpec{type, -1, true}; }

Layout Make(const std::vector<TensorSpec>& tensors, size_t bucket_bytes, Schedule schedule) {
  return FixedSizeLayout("gradients", tensors, bucket_bytes, schedule);
}

std::vector<char> BytesOf(const Received::Result& result, DataType type) {
  size_t count = 1;
  for (int64_t dimension : result.sum.shape) count *= dimension;
  const char* data = static_cast<const char*>(result.sum.data);
  return std::vector<char>(data, data + count * SizeOf(type));
}

std::vector<Event> OfKinds(const std::vector<Event>& events, std::vector<EventKind> kinds) {
  std::vector<Event> chosen;
  for (const Event& event : events) {
    if (std::find(kinds.begin(), kinds.end(), event.kind) != kinds.end()) chosen.push_back(event);
  }
  return chosen;
}

// Collectives in words, "rs2" for the reduce-scatter of bucket 2, in the order they ran.
std::vector<std::string> LineOf(const std::vector<Event>& events) {
  const std::pair<StepKind, std::string> words[] = {
      {kReduceScatter, "rs"}, {kAllGather, "ag"}, {kAllReduce, "ar"}, {kSparseGather, "sg"}};
  std::vector<std::string> line;
  for (const Event& event : events) {
    for (const auto& [kind, word] : words) {
      if (event.kind == EventOf(kind)) line.push_back(word + std::to_string(event.subject));
    }
  }
  return line;
}

enum class Over { kTcp, kSharedMemory };

// Ranks, and where their fusion buffers are.
class ReductionTest : public testing::TestWithParam<std::tuple<int, Over>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  static void RunEngines(int size, const std::function<void(EngineRank*)>& body) {
    if (std::get<1>(GetParam()) == Over::kTcp) {
      tfdear::RunEngines(size, body);
    } else {
      RunEnginesInSharedMemory(size, body);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, ReductionTest,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(Over::kTcp)));
INSTANTIATE_TEST_SUITE_P(SharedMemory, ReductionTest,
                         testing::Combine(testing::Values(2, 3, 4),
                                          testing::Values(Over::kSharedMemory)));

// Tensors of every kind, with sizes around the borders of slots, and above 8 KiB, where the backend
// takes another algorithm.
std::vector<TensorSpec> MixedTensors() {
  std::vector<TensorSpec> tensors;
  for (int64_t count : {1, 0, 16, 17, 300, 5, 5000, 3}) tensors.push_back(Dense(count));
  for (DataType type : AllDataTypes()) {
    for (int64_t count : {7, 33}) tensors.push_back(Dense(count, type));
  }
  tensors.push_back(Dense(-1));
  tensors.push_back(Dense(-1, DataType::kFloat64));
  tensors.push_back(Dense(64));
  return tensors;
}
constexpr int64_t kCountAtRunTime = 45;

int64_t CountOf(const TensorSpec& tensor) {
  return tensor.count < 0 ? kCountAtRunTime : tensor.count;
}

// The same on every call: numbers whose float sums depend on the order of summation; small
// integers for other types.
std::vector<char> InputOf(const TensorSpec& spec, int tensor, int rank) {
  const size_t count = CountOf(spec);
  std::minstd_rand random(1000 * tensor + rank + 1);
  if (spec.type != DataType::kFloat32) {
    return MakeData(spec.type, count, [&](size_t) { return static_cast<int>(random() % 9) - 4; });
  }
  std::vector<char> data(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    const float scale = static_cast<float>(uint64_t{1} << random() % 30);
    StoreAs<float>(data.data() + i * sizeof(float), (random() % 2001 - 1000.0) / 7.0 * scale);
  }
  return data;
}

// Gives all tensors of the rank, in an order drawn from `seed`, from two threads.
void ContributeAll(Reduction* reduction, int rank, unsigned seed) {
  const auto& tensors = reduction->layout().tensors;
  std::vector<int> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::minstd_rand(seed + 1));
  auto give = [&](size_t begin, size_t end) {
    std::minstd_rand random(seed + begin + 1);
    for (size_t i = begin; i < end; ++i) {
      const auto data = InputOf(tensors[order[i]], order[i], rank);
      TFDEAR_EXPECT_OK(reduction->Contribute(order[i], data.data(), {CountOf(tensors[order[i]])}));
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    }
  };
  std::thread helper(give, 0, order.size() / 2);
  give(order.size() / 2, order.size());
  helper.join();
}

// Whatever the plan, the sums are the same.
TEST_P(ReductionTest, PlansWithChunksAndTrees) {
  const std::vector<TensorSpec> tensors = {Dense(5), Dense(3000), Dense(1), Dense(40000)};
  Plan chunks;
  chunks.buckets = {{3, 0}, {1, 2}};
  chunks.steps = {{kReduceScatter, 0}, {kAllGather, 0, 1, 3}, {kReduceScatter, 1},
                  {kAllGather, 1},     {kAllGather, 0, 0, 3}, {kAllGather, 0, 2, 3}};
  Plan partitions;
  partitions.buckets = {{3}, {2, 1, 0}};
  partitions.steps = {
      {kAllReduce, 1, 0, 2}, {kAllReduce, 0, 0, 2}, {kAllReduce, 1, 1, 2}, {kAllReduce, 0, 1, 2}};
  const Plan plans[] = {chunks, partitions, PlanFor(tensors, 1, Schedule::kDear, Algorithm::kTree),
                        PlanFor(tensors, 4096, Schedule::kWfbp, Algorithm::kTree)};
  for (const Plan& plan : plans) {
    TFDEAR_EXPECT_OK(plan.Check(tensors));
    const auto layout = ReductionLayout::Make("gradients", tensors, plan);
    RunEngines(size(), [&](EngineRank* rank) {
      for (int step = 0; step < 3; ++step) {
        auto reduction = rank->Open(layout);
        Received received;
        received.ListenTo(reduction.get());
        for (int tensor : {3, 1, 2, 0}) {
          const std::vector<float> data(tensors[tensor].count, 1.0f + rank->rank() + tensor);
          TFDEAR_EXPECT_OK(reduction->Contribute(tensor, data.data(), {tensors[tensor].count}));
        }
        ASSERT_TRUE(received.WaitFor(tensors.size()));
        for (int tensor = 0; tensor < 4; ++tensor) {
          const float total = size() * (1.0f + tensor) + size() * (size() - 1) / 2;
          const auto bytes = BytesOf(received.Get(tensor), DataType::kFloat32);
          const float* sums = reinterpret_cast<const float*>(bytes.data());
          EXPECT_EQ(std::vector<float>(sums, sums + tensors[tensor].count),
                    std::vector<float>(tensors[tensor].count, total));
        }
      }
    });
  }
}

TEST_P(ReductionTest, SchedulesAndBucketsAndArrivalsGiveTheSameBits) {
  const auto tensors = MixedTensors();
  for (size_t bucket_bytes : {size_t{1}, size_t{1024}, kHuge}) {
    // By tensor: what rank 0 got in the first run.
    std::vector<std::vector<char>> reference;
    unsigned run = 0;
    for (Schedule schedule : kSchedules) {
      for (int max_delay_ms : {0, 1}) {
        SCOPED_TRACE("bucket_bytes " + std::to_string(bucket_bytes) + ", schedule " +
                     std::to_string(static_cast<int>(schedule)));
        const auto layout = Make(tensors, bucket_bytes, schedule);
        std::vector<std::vector<std::vector<char>>> sums(size());
        ++run;
        RunEngines(size(), [&](EngineRank* rank) {
          auto reduction = rank->Open(layout, max_delay_ms);
          Received received;
          received.ListenTo(reduction.get());
          ContributeAll(reduction.get(), rank->rank(), 100 * run + rank->rank());
          ASSERT_TRUE(received.WaitFor(tensors.size()));
          EXPECT_TRUE(reduction->complete());
          for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
            const auto result = received.Get(tensor);
            TFDEAR_EXPECT_OK(result.status);
            EXPECT_EQ(result.calls, 1);
            ASSERT_EQ(result.sum.shape, Shape{CountOf(tensors[tensor])});
            EXPECT_EQ(reinterpret_cast<uintptr_t>(result.sum.data) % kSlotAlignment, 0u);
            sums[rank->rank()].push_back(BytesOf(result, tensors[tensor].type));
          }
        });
        if (reference.empty()) reference = sums[0];
        for (int rank = 0; rank < size(); ++rank) {
          ASSERT_EQ(sums[rank], reference) << "rank " << rank;
        }
      }
    }
    // And the sums are right: integers exactly, floats but for rounding.
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      const TensorSpec& spec = tensors[tensor];
      if (spec.type != DataType::kFloat32 && spec.type != DataType::kInt64) continue;
      std::vector<std::vector<char>> inputs;
      for (int rank = 0; rank < size(); ++rank) inputs.push_back(InputOf(spec, tensor, rank));
      for (int64_t i = 0; i < CountOf(spec); ++i) {
        double sum = 0, magnitude = 0;
        int64_t exact = 0, integer = 0;
        float number = 0;
        for (const auto& input : inputs) {
          if (spec.type == DataType::kInt64) {
            std::memcpy(&integer, input.data() + i * sizeof(integer), sizeof(integer));
            exact += integer;
          } else {
            std::memcpy(&number, input.data() + i * sizeof(number), sizeof(number));
            sum += number;
            magnitude += std::abs(number);
          }
        }
        const char* at = reference[tensor].data() + i * SizeOf(spec.type);
        if (spec.type == DataType::kInt64) {
          std::memcpy(&integer, at, sizeof(integer));
          ASSERT_EQ(integer, exact) << "tensor " << tensor << ", element " << i;
        } else {
          std::memcpy(&number, at, sizeof(number));
          ASSERT_NEAR(number, sum, 1e-6 * magnitude) << "tensor " << tensor << ", element " << i;
        }
      }
    }
  }
}

TEST_P(ReductionTest, SeveralTicketsAtOnce) {
  // Two models in one step: B's data come before A's on half of the ranks.
  const auto layout_a = Make({Dense(100), Dense(200)}, 1, Schedule::kDear);
  const auto layout_b = Make({Dense(300), Dense(10)}, kHuge, Schedule::kDear);
  RunEngines(size(), [&](EngineRank* rank) {
    for (int step = 0; step < 5; ++step) {
      auto a = rank->Open(layout_a);
      auto b = rank->Open(layout_b);
      Received from_a, from_b;
      from_a.ListenTo(a.get());
      from_b.ListenTo(b.get());
      const bool a_first = (rank->rank() + step) % 2 == 0;
      for (Reduction* reduction : {a_first ? a.get() : b.get(), a_first ? b.get() : a.get()}) {
        for (int tensor : {0, 1}) {
          const int64_t count = reduction->layout().tensors[tensor].count;
          const std::vector<float> data(count, step + (reduction == a.get() ? 1.0f : 100.0f));
          TFDEAR_EXPECT_OK(reduction->Contribute(tensor, data.data(), {count}));
        }
      }
      ASSERT_TRUE(from_a.WaitFor(2) && from_b.WaitFor(2));
      EXPECT_EQ(static_cast<float*>(from_a.Get(1).sum.data)[199], size() * (step + 1.0f));
      EXPECT_EQ(static_cast<float*>(from_b.Get(0).sum.data)[299], size() * (step + 100.0f));
    }
    const auto line = OfKinds(rank->NewEvents(), {EventOf(kReduceScatter), EventOf(kAllGather)});
    ASSERT_EQ(line.size(), 5u * (2 * 2 + 2));
    for (size_t i = 1; i < line.size(); ++i) EXPECT_GE(line[i].ticket, line[i - 1].ticket);
  });
}

TEST_P(ReductionTest, RankThatContributesZeros) {
  const int idle = size() - 1;  // Had no examples in this step.
  for (Schedule schedule : kSchedules) {
    const auto layout = Make({Dense(100), Dense(-1), Dense(9, DataType::kInt64)}, kHuge, schedule);
    RunEngines(size(), [&](EngineRank* rank) {
      // Buffers full of what a former user left there.
      for (size_t bytes : {size_t{400}, size_t{448}, size_t{200}, size_t{128}}) {
        std::shared_ptr<FusionBuffer> dirty;
        TFDEAR_EXPECT_OK(rank->pool()->Take(bytes, &dirty));
        std::memset(dirty->data(), 0xff, bytes);
      }
      auto reduction = rank->Open(layout);
      Received received;
      received.ListenTo(reduction.get());
      const std::vector<float> ones(100, 1.0f);
      const std::vector<int64_t> sevens(9, 7);
      const bool active = rank->rank() != idle;
      TFDEAR_EXPECT_OK(reduction->Contribute(0, ones.data(), {10, 10}, active));
      TFDEAR_EXPECT_OK(reduction->Contribute(1, ones.data(), {50}, active));
      TFDEAR_EXPECT_OK(reduction->Contribute(2, sevens.data(), {9}, active));
      ASSERT_TRUE(received.WaitFor(3));
      const float sum = size() - 1;
      const auto dense = received.Get(0).sum;
      EXPECT_EQ(dense.shape, (Shape{10, 10}));
      for (int i = 0; i < 100; ++i) ASSERT_EQ(static_cast<float*>(dense.data)[i], sum);
      for (int i = 100; i < 112; ++i) {
        ASSERT_EQ(static_cast<float*>(dense.data)[i], 0.0f) << "the gap after the slot";
      }
      for (int i = 0; i < 50; ++i) {
        ASSERT_EQ(static_cast<float*>(received.Get(1).sum.data)[i], sum);
      }
      EXPECT_EQ(static_cast<int64_t*>(received.Get(2).sum.data)[8], 7 * (size() - 1));
    });
  }
}

TEST_P(ReductionTest, ContributionsAreWeighted) {
  const auto layout =
      Make({Dense(100), Sparse(), Dense(9, DataType::kInt64)}, kHuge, Schedule::kDear);
  RunEngines(size(), [&](EngineRank* rank) {
    auto reduction = rank->Open(layout);
    Received received;
    received.ListenTo(reduction.get());
    // Weights 0, 1, 2, ...: rank 0, whose numbers mean nothing, is left out.
    const double weight = rank->rank();
    const float value = weight == 0 ? std::numeric_limits<float>::quiet_NaN() : 3.0f;
    const std::vector<float> values(100, value);
    const std::vector<int64_t> sevens(9, 7);
    const std::vector<int64_t> indices = {5};
    EXPECT_EQ(reduction->Contribute(2, sevens.data(), {9}, 0.5).code(),
              StatusCode::kInvalidArgument);
    TFDEAR_EXPECT_OK(reduction->Contribute(2, sevens.data(), {9}));
    TFDEAR_EXPECT_OK(reduction->ContributeRows(1, values.data(), indices.data(), {1, 2}, weight));
    TFDEAR_EXPECT_OK(reduction->Contribute(0, values.data(), {100}, weight));
    ASSERT_TRUE(received.WaitFor(3));
    const float weights = size() * (size() - 1) / 2;
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(static_cast<float*>(received.Get(0).sum.data)[i], 3 * weights);
    }
    const auto rows = received.Get(1).sum;
    ASSERT_EQ(rows.shape, (Shape{size() - 1, 2}));
    for (int r = 1; r < size(); ++r) {
      EXPECT_EQ(static_cast<float*>(rows.data)[2 * (r - 1)], 3.0f * r);
    }
    EXPECT_EQ(static_cast<int64_t*>(received.Get(2).sum.data)[8], 7 * size());
  });
}

TEST_P(ReductionTest, SparseRowsComeInTheOrderOfTheRanks) {
  constexpr int64_t kWidth = 5;
  // Rows of each rank: one has none; in the last step none has any.
  auto rows_of = [&](int rank, int step) -> int64_t {
    return step == 2 ? 0 : (rank + step + 1) % size() * 3;
  };
  for (Schedule schedule : kSchedules) {
    const auto layout = Make({Dense(20), Sparse(), Dense(4)}, kHuge, schedule);
    RunEngines(size(), [&](EngineRank* rank) {
      for (int step = 0; step < 3; ++step) {
        auto reduction = rank->Open(layout, /*max_delay_ms=*/1);
        Received received;
        received.ListenTo(reduction.get());
        const int64_t rows = rows_of(rank->rank(), step);
        std::vector<float> values(rows * kWidth);
        std::vector<int64_t> indices(rows);
        for (int64_t row = 0; row < rows; ++row) {
          indices[row] = 100 * rank->rank() + row;
          for (int64_t i = 0; i < kWidth; ++i) values[row * kWidth + i] = indices[row] + 0.25f * i;
        }
        const std::vector<float> ones(20, 1.0f);
        TFDEAR_EXPECT_OK(reduction->Contribute(0, ones.data(), {20}));
        TFDEAR_EXPECT_OK(
            reduction->ContributeRows(1, values.data(), indices.data(), {rows, kWidth}));
        TFDEAR_EXPECT_OK(reduction->Contribute(2, ones.data(), {4}));
        ASSERT_TRUE(received.WaitFor(3));
        const auto result = received.Get(1);
        TFDEAR_EXPECT_OK(result.status);
        std::vector<int64_t> expected;
        for (int r = 0; r < size(); ++r) {
          for (int64_t row = 0; row < rows_of(r, step); ++row) expected.push_back(100 * r + row);
        }
        const int64_t total = static_cast<int64_t>(expected.size());
        ASSERT_EQ(result.sum.shape, (Shape{total, kWidth}));
        EXPECT_EQ(std::vector<int64_t>(result.sum.indices, result.sum.indices + total), expected);
        const float* sum = static_cast<const float*>(result.sum.data);
        for (int64_t i = 0; i < total * kWidth; ++i) {
          ASSERT_EQ(sum[i], expected[i / kWidth] + 0.25f * (i % kWidth)) << "value " << i;
        }
        EXPECT_EQ(static_cast<float*>(received.Get(0).sum.data)[19], size());
      }
    });
  }
}

TEST(Reduction, RowsOfTwoLengthsFailOnAllRanksInWords) {
  const auto layout = Make({Sparse(), Dense(4)}, kHuge, Schedule::kDear);
  RunEngines(3, [&](EngineRank* rank) {
    auto reduction = rank->Open(layout);
    Received received;
    received.ListenTo(reduction.get());
    const std::vector<float> values(8, 1.0f);
    const std::vector<int64_t> indices = {0, 1};
    const int64_t width = rank->rank() == 2 ? 3 : 4;
    TFDEAR_EXPECT_OK(reduction->ContributeRows(0, values.data(), indices.data(), {2, width}));
    TFDEAR_EXPECT_OK(reduction->Contribute(1, values.data(), {4}));
    ASSERT_TRUE(received.WaitFor(2));
    const Status status = received.Get(0).status;
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (const char* part : {"'gradients'", "rows of 16 bytes", "rank 2 rows of 12"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
    TFDEAR_EXPECT_OK(received.Get(1).status);
  });
}

TEST(Reduction, MemoryThatIsNotThereIsAnError) {
  RunEngines(1, [](EngineRank* rank) {
    // Sizes that no bucket has; what the caller holds does not matter, nothing is copied.
    auto reduction = rank->Open(Make({Dense(-1), Sparse()}, kHuge, Schedule::kDear));
    Received received;
    received.ListenTo(reduction.get());
    const int64_t absurd = int64_t{1} << 50;
    EXPECT_EQ(reduction->Contribute(0, nullptr, {absurd}).code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(reduction->ContributeRows(1, nullptr, nullptr, {absurd, 1}).code(),
              StatusCode::kResourceExhausted);
    EXPECT_FALSE(reduction->complete());
    rank->lane()->Fail(kLost);
    ASSERT_TRUE(received.WaitFor(2));
    EXPECT_EQ(received.Get(0).status.code(), StatusCode::kUnavailable);
  });
}

TEST(Reduction, DearGathersInForwardOrderAfterTheLastReduceScatter) {
  // Plan: bucket 0 = {5, 3, 1}, bucket 1 = {4} (sparse), bucket 2 = {2, 0}. The first variables of
  // the model are in bucket 2.
  const std::vector<TensorSpec> tensors = {Dense(8, DataType::kFloat64),
                                           Dense(8),
                                           Dense(8, DataType::kFloat64),
                                           Dense(8),
                                           Sparse(),
                                           Dense(8)};
  struct Case {
    Schedule schedule;
    std::vector<std::string> line;
  };
  const Case cases[] = {{Schedule::kDear, {"rs0", "sg1", "rs2", "ag2", "ag0"}},
                        {Schedule::kWfbp, {"ar0", "sg1", "ar2"}},
                        {Schedule::kSequential, {"ar0", "sg1", "ar2"}}};
  for (const Case& expected : cases) {
    const auto layout = Make(tensors, kHuge, expected.schedule);
    RunEngines(3, [&](EngineRank* rank) {
      for (int step = 0; step < 4; ++step) {
        auto reduction = rank->Open(layout, /*max_delay_ms=*/1);
        Received received;
        received.ListenTo(reduction.get());
        std::vector<int> order = {0, 1, 2, 3, 4, 5};
        std::shuffle(order.begin(), order.end(), std::minstd_rand(10 * step + rank->rank() + 1));
        const std::vector<double> data(8, 1.0);
        const std::vector<int64_t> indices(2, 3);
        for (int tensor : order) {
          TFDEAR_EXPECT_OK(
              tensors[tensor].sparse
                  ? reduction->ContributeRows(tensor, data.data(), indices.data(), {2, 3})
                  : reduction->Contribute(tensor, data.data(), {8}));
        }
        ASSERT_TRUE(received.WaitFor(6));
        const auto events = rank->NewEvents();
        EXPECT_EQ(LineOf(events), expected.line);
        const auto contributions = OfKinds(events, {EventKind::kContribute});
        EXPECT_EQ(contributions.size(), 6u);
        for (const Event& event : events) {
          EXPECT_EQ(event.ticket, step);
          EXPECT_LE(event.begin_us, event.end_us);
          if (expected.schedule != Schedule::kSequential || event.kind == EventKind::kContribute) {
            continue;
          }
          for (const Event& contribution : contributions) {
            EXPECT_GE(event.begin_us, contribution.begin_us) << "nothing before all is there";
          }
        }
      }
    });
  }
}

TEST(Reduction, DearStartsBeforeTheBackwardPassEnds) {
  const auto layout = Make({Dense(8), Dense(8), Dense(8)}, 1, Schedule::kDear);
  const auto sequential = Make({Dense(8), Dense(8), Dense(8)}, 1, Schedule::kSequential);
  RunEngines(2, [&](EngineRank* rank) {
    const std::vector<float> data(8, 1.0f);
    auto reduction = rank->Open(layout);
    Received received;
    received.ListenTo(reduction.get());
    TFDEAR_EXPECT_OK(reduction->Contribute(2, data.data(), {8}));
    // Nothing else was contributed, and the collective runs all the same.
    ASSERT_TRUE(Eventually([&] { return rank->lane()->group()->counters().collectives == 1; }));
    EXPECT_EQ(received.calls(), 0) << "reduced, not gathered";
    TFDEAR_EXPECT_OK(reduction->Contribute(0, data.data(), {8}));  // Not its turn.
    TFDEAR_EXPECT_OK(reduction->Contribute(1, data.data(), {8}));
    ASSERT_TRUE(received.WaitFor(3));

    auto waits = rank->Open(sequential);
    Received later;
    later.ListenTo(waits.get());
    TFDEAR_EXPECT_OK(waits->Contribute(2, data.data(), {8}));
    TFDEAR_EXPECT_OK(waits->Contribute(1, data.data(), {8}));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(LineOf(rank->NewEvents()).size(), 6u) << "of the first reduction";
    TFDEAR_EXPECT_OK(waits->Contribute(0, data.data(), {8}));
    ASSERT_TRUE(later.WaitFor(3));
  });
}

TEST(Reduction, OtherLanesRecordPlainCollectives) {
  const auto layout = Make({Dense(8)}, kHuge, Schedule::kWfbp);
  RunRanks(2, [&](std::unique_ptr<TcpBackend> backend) {
    EngineRank rank(std::move(backend), LaneKind::kControl);
    auto reduction = rank.Open(layout);
    Received received;
    received.ListenTo(reduction.get());
    const std::vector<float> data(8, 1.0f);
    TFDEAR_EXPECT_OK(reduction->Contribute(0, data.data(), {8}));
    ASSERT_TRUE(received.WaitFor(1));
    uint64_t position = 0;
    const auto events = rank.events()->Read(&position);
    ASSERT_EQ(events.size(), 1u) << "no contribution: it is no part of a backward pass";
    EXPECT_EQ(events[0].kind, EventKind::kCollective);
    EXPECT_EQ(events[0].subject, static_cast<int64_t>(LaneKind::kControl));
  });
}

TEST(Reduction, SlicesAliasOneBufferThatOutlivesTheReduction) {
  const auto layout = Make({Dense(8), Dense(8)}, kHuge, Schedule::kDear);
  RunEngines(2, [&](EngineRank* rank) {
    Received received;
    {
      auto reduction = rank->Open(layout);
      const std::vector<float> data = {1, 2, 3, 4, 5, 6, 7, 8};
      TFDEAR_EXPECT_OK(reduction->Contribute(0, data.data(), {2, 4}));
      TFDEAR_EXPECT_OK(reduction->Contribute(1, data.data(), {8}));
      reduction->WhenReduced(0, received.For(0));
      ASSERT_TRUE(received.WaitFor(1));
      reduction->WhenReduced(1, received.For(1));  // The bucket is done: called at once.
      ASSERT_EQ(received.calls(), 2);
      std::weak_ptr<Reduction> gone = reduction;
      reduction.reset();
      EXPECT_TRUE(Eventually([&] { return gone.expired(); })) << "somebody keeps the reduction";
    }
    const Reduced first = received.Get(0).sum;
    const Reduced second = received.Get(1).sum;
    EXPECT_EQ(first.owner, second.owner) << "one buffer, no copies";
    EXPECT_EQ(first.shape, (Shape{2, 4}));
    EXPECT_EQ(second.shape, Shape{8});
    EXPECT_EQ(rank->pool()->allocations(), 1);
    std::shared_ptr<FusionBuffer> other;
    TFDEAR_EXPECT_OK(rank->pool()->Take(first.owner->size(), &other));
    std::memset(other->data(), 0, other->size());
    EXPECT_EQ(static_cast<float*>(first.data)[7], 16.0f) << "its memory was given away";
    EXPECT_EQ(static_cast<float*>(second.data)[0], 2.0f);
  });
}

TEST(Reduction, RefusesWhatWasNotAnnounced) {
  RunEngines(1, [](EngineRank* rank) {
    auto reduction = rank->Open(Make({Dense(8), Sparse()}, kHuge, Schedule::kDear));
    const std::vector<float> data(8, 1.0f);
    const std::vector<float> others(8, 2.0f);
    const std::vector<int64_t> indices(8, 0);
    EXPECT_TRUE(reduction->Untouched());
    Status status = reduction->Contribute(0, data.data(), {7});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("8 elements"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("came with 7"), std::string::npos) << status.message();
    EXPECT_EQ(reduction->Contribute(1, data.data(), {8}).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(reduction->ContributeRows(0, data.data(), indices.data(), {8}).code(),
              StatusCode::kInvalidArgument);
    EXPECT_TRUE(reduction->Untouched()) << "what was refused must not count";

    Received received;
    received.ListenTo(reduction.get());
    TFDEAR_EXPECT_OK(reduction->Contribute(0, data.data(), {8}));
    EXPECT_FALSE(reduction->Untouched());
    EXPECT_FALSE(rank->lane()->Withdraw(reduction.get()));
    status = reduction->Contribute(0, others.data(), {8});
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_NE(status.message().find("twice"), std::string::npos) << status.message();
    TFDEAR_EXPECT_OK(reduction->ContributeRows(1, data.data(), indices.data(), {4, 2}));
    EXPECT_EQ(reduction->ContributeRows(1, others.data(), indices.data(), {4, 2}).code(),
              StatusCode::kInternal);
    ASSERT_TRUE(received.WaitFor(2));
    EXPECT_EQ(static_cast<float*>(received.Get(0).sum.data)[0], 1.0f) << "the first counts";
    EXPECT_EQ(static_cast<float*>(received.Get(1).sum.data)[0], 1.0f) << "the first counts";
  });
}

TEST(Reduction, LaneFailureReachesEveryReceiverOnce) {
  const auto layout = Make({Dense(8), Dense(8)}, 1, Schedule::kDear);
  RunEngines(1, [&](EngineRank* rank) {
    auto untouched = rank->Open(layout);
    auto partly = rank->Open(layout);
    Received from_untouched, from_partly, late;
    from_untouched.ListenTo(untouched.get());
    from_partly.ListenTo(partly.get());
    const std::vector<float> data(8, 1.0f);
    TFDEAR_EXPECT_OK(partly->Contribute(1, data.data(), {8}));
    rank->lane()->Fail(kLost);
    rank->lane()->Fail(Status(StatusCode::kAborted, "a second cause"));
    // What comes after the failure does no harm.
    TFDEAR_EXPECT_OK(partly->Contribute(0, data.data(), {8}));
    late.ListenTo(partly.get());
    auto opened_later = rank->Open(layout);
    Received from_later;
    from_later.ListenTo(opened_later.get());
    for (Received* received : {&from_untouched, &from_partly, &late, &from_later}) {
      EXPECT_EQ(received->calls(), 2);
      for (int tensor : {0, 1}) {
        EXPECT_EQ(received->Get(tensor).calls, 1);
        EXPECT_EQ(received->Get(tensor).status.message(), kLost.message());
        EXPECT_EQ(received->Get(tensor).sum.data, nullptr);
      }
    }
    EXPECT_TRUE(LineOf(rank->NewEvents()).empty());
  });
}

TEST(Reduction, SumsThatWereThereBeforeAFailureStay) {
  const auto layout = Make({Dense(8), Dense(8)}, 1, Schedule::kWfbp);
  RunEngines(1, [&](EngineRank* rank) {
    auto reduction = rank->Open(layout);
    Received before, after;
    before.ListenTo(reduction.get());
    const std::vector<float> data(8, 3.0f);
    TFDEAR_EXPECT_OK(reduction->Contribute(1, data.data(), {8}));
    ASSERT_TRUE(before.WaitFor(1));
    rank->lane()->Fail(kLost);
    ASSERT_TRUE(before.WaitFor(2));
    after.ListenTo(reduction.get());
    for (Received* received : {&before, &after}) {
      EXPECT_EQ(received->Get(0).status.message(), kLost.message());
      TFDEAR_EXPECT_OK(received->Get(1).status);
      EXPECT_EQ(received->Get(1).calls, 1);
      EXPECT_EQ(static_cast<float*>(received->Get(1).sum.data)[7], 3.0f);
    }
  });
}

TEST(Reduction, LaneFailureEndsACollectiveInProgress) {
  const auto layout = Make({Dense(8), Dense(8)}, 1, Schedule::kDear);
  RunEngines(2, [&](EngineRank* rank) {
    auto reduction = rank->Open(layout);
    Received received;
    received.ListenTo(reduction.get());
    const std::vector<float> data(8, 1.0f);
    TFDEAR_EXPECT_OK(reduction->Contribute(1, data.data(), {8}));
    // Rank 1 never gives the second tensor; rank 0 is stuck in its reduce-scatter.
    if (rank->rank() == 0) {
      TFDEAR_EXPECT_OK(reduction->Contribute(0, data.data(), {8}));
    }
    ASSERT_TRUE(Eventually([&] { return rank->lane()->group()->counters().collectives >= 1; }));
    if (rank->rank() == 0) {
      ASSERT_TRUE(Eventually([&] { return rank->lane()->group()->Current().has_value(); }));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    rank->lane()->Fail(kLost);
    ASSERT_TRUE(received.WaitFor(2));
    for (int tensor : {0, 1}) {
      EXPECT_EQ(received.Get(tensor).status.message(), kLost.message());
      EXPECT_EQ(received.Get(tensor).calls, 1);
    }
  });
}

TEST(Reduction, StepsAreNotMixedWhenARankGivesOneUp) {
  const auto layout = Make({Dense(8)}, kHuge, Schedule::kDear);
  RunRanks(
      2,
      [&](std::unique_ptr<TcpBackend> backend) {
        EngineRank rank(std::move(backend));
        rank.lane()->group()->set_cause_grace(std::chrono::milliseconds(1));
        const std::vector<float> data(8, 1.0f);
        if (rank.rank() == 1) {
          auto given_up = rank.Open(layout);
          EXPECT_TRUE(rank.lane()->Withdraw(given_up.get()));
        }
        auto reduction = rank.Open(layout);
        Received received;
        received.ListenTo(reduction.get());
        TFDEAR_EXPECT_OK(reduction->Contribute(0, data.data(), {8}));
        ASSERT_TRUE(received.WaitFor(1));
        const Status status = received.Get(0).status;
        EXPECT_FALSE(status.ok()) << "a gradient was added to that of another step";
        const std::string ticket = "ticket " + std::to_string(rank.rank());
        EXPECT_TRUE(Contains(status.message(), ticket)) << status.message();
      },
      std::chrono::milliseconds(1000));
}

TEST(Reduction, ReceiverMayComeBackToTheLane) {
  // As a step that starts inside the update of the one before it.
  const auto layout = Make({Dense(8)}, kHuge, Schedule::kDear);
  RunEngines(2, [&](EngineRank* rank) {
    const std::vector<float> data(8, 1.0f);
    Received received;
    auto first = rank->Open(layout);
    auto second = rank->Open(layout);
    second->WhenReduced(0, received.For(0));
    first->WhenReduced(0, [&](const Status& status, const Reduced& sum) {
      TFDEAR_EXPECT_OK(status);
      TFDEAR_EXPECT_OK(second->Contribute(0, sum.data, {8}));
      // The lane fails tickets it opened, so this must not find its mutex held either.
      auto third = rank->Open(layout);
      EXPECT_TRUE(rank->lane()->Withdraw(third.get()));
    });
    TFDEAR_EXPECT_OK(first->Contribute(0, data.data(), {8}));
    ASSERT_TRUE(received.WaitFor(1));
    EXPECT_EQ(static_cast<float*>(received.Get(0).sum.data)[7], 4.0f);
  });
}

TEST(Reduction, HandsOverTheSumsOfABucketAtOnce) {
  const auto layout = Make({Dense(8), Dense(8), Dense(8)}, 128, Schedule::kDear);
  RunEngines(2, [&](EngineRank* rank) {
    auto reduction = rank->Open(layout);
    std::mutex mutex;
    std::vector<std::function<void()>> calls;
    reduction->set_hand_over([&](std::function<void()> call) {
      std::lock_guard<std::mutex> lock(mutex);
      calls.push_back(std::move(call));
    });
    Received received;
    received.ListenTo(reduction.get());
    const std::vector<float> data(8, 1.0f);
    for (int tensor = 0; tensor < 3; ++tensor) {
      TFDEAR_EXPECT_OK(reduction->Contribute(tensor, data.data(), {8}));
    }
    // Two tensors in the first bucket, one in the other: the line has gone on meanwhile.
    ASSERT_TRUE(Eventually([&] {
      std::lock_guard<std::mutex> lock(mutex);
      return calls.size() == 2;
    }));
    EXPECT_EQ(received.calls(), 0);
    reduction.reset();  // What was handed over needs nothing of it.
    for (const auto& call : calls) call();
    EXPECT_EQ(received.calls(), 3);
    for (int tensor = 0; tensor < 3; ++tensor) {
      TFDEAR_EXPECT_OK(received.Get(tensor).status);
      EXPECT_EQ(static_cast<float*>(received.Get(tensor).sum.data)[7], 2.0f);
    }
  });
}

TEST(Reduction, TellsOfFailuresWithoutHandingThemOver) {
  const auto layout = Make({Dense(8), Dense(8)}, kHuge, Schedule::kDear);
  RunEngines(1, [&](EngineRank* rank) {
    auto reduction = rank->Open(layout);
    reduction->set_hand_over([](const std::function<void()>&) { ADD_FAILURE(); });
    Received received;
    received.ListenTo(reduction.get());
    reduction->Fail(Status(StatusCode::kAborted, "the step was given up"));
    EXPECT_EQ(received.calls(), 2);
    EXPECT_EQ(received.Get(1).status.message(), "the step was given up");
  });
}

TEST(ReductionLayout, SignaturesTellBucketsApart) {
  // Two ranks that fill buckets of one size with different tensors must not add them up.
  auto texts = [](const Layout& layout) {
    std::vector<std::string> all;
    for (const auto& step : layout->steps) all.push_back(step.signature->text());
    return all;
  };
  const auto one = texts(Make({Dense(8), Dense(24)}, kHuge, Schedule::kDear));
  EXPECT_EQ(one, texts(Make({Dense(8), Dense(24)}, kHuge, Schedule::kDear)));
  EXPECT_NE(one, texts(Make({Dense(24), Dense(8)}, kHuge, Schedule::kDear)));
  EXPECT_NE(one, texts(Make({Dense(8), Dense(24)}, kHuge, Schedule::kWfbp)));
  EXPECT_NE(one, texts(Make({Dense(9), Dense(24)}, kHuge, Schedule::kDear)))
      << "the slots have one size, the tensors have not";
  // Variables of one size count by their names.
  std::vector<TensorSpec> named(2, Dense(8));
  auto name = [&](const std::string& first, const std::string& second) {
    named[0].name = named[0].comparable = first;
    named[1].name = named[1].comparable = second;
    Identify(&named);
    return Make(named, kHuge, Schedule::kDear);
  };
  EXPECT_EQ(texts(name("left", "right")), texts(name("left", "right")));
  EXPECT_NE(texts(name("left", "right")), texts(name("right", "left")));
  const std::string details = *name("left", "right")->details[0];
  EXPECT_TRUE(Contains(details, " right ") && Contains(details, " left ")) << details;
  // Rows are gathered, but whose they are counts too.
  named = {Sparse()};
  named[0].name = named[0].comparable = "words";
  Identify(&named);
  EXPECT_NE(texts(Make(named, kHuge, Schedule::kDear)),
            texts(Make({Sparse()}, kHuge, Schedule::kDear)));
  // More tensors than an error shows: the last one still counts.
  std::vector<TensorSpec> many(20, Dense(8));
  const auto before = texts(Make(many, kHuge, Schedule::kDear));
  many[0] = Dense(9);
  EXPECT_NE(before, texts(Make(many, kHuge, Schedule::kDear)));
}

TEST(Reduction, CopiesOnSeveralThreadsAreThoseOfOne) {
  WorkerThreads workers(3);
  for (DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat64}) {
    // Indivisible, and with a gap behind it.
    const TensorSpec large = Dense(2'500'003, type);
    const std::vector<char> input = InputOf(large, 0, 0);
    for (double weight : {0.0, 0.5, 1.0}) {
      tfdear::RunEngines(1, [&](EngineRank* rank) {
        std::vector<std::vector<char>> sums;
        for (const ParallelFor& parallel_for : {ParallelFor(), workers.parallel_for()}) {
          const auto layout = Make({large, Dense(3, type)}, kHuge, Schedule::kDear);
          {
            // What is not written shows.
            std::shared_ptr<FusionBuffer> dirty;
            const size_t bytes = layout->buckets[0].count * SizeOf(type);
            TFDEAR_EXPECT_OK(rank->pool()->Take(bytes, &dirty));
            std::memset(dirty->data(), 0x5a, bytes);
          }
          auto reduction = rank->Open(layout);
          Received received;
          received.ListenTo(reduction.get());
          TFDEAR_EXPECT_OK(
              reduction->Contribute(0, input.data(), {large.count}, weight, parallel_for));
          TFDEAR_EXPECT_OK(reduction->Contribute(1, input.data(), {3}, weight, parallel_for));
          ASSERT_TRUE(received.WaitFor(2));
          // Tensor 1 comes first in the bucket, and the gap behind tensor 0 last.
          const char* const begin = static_cast<const char*>(received.Get(1).sum.data);
          const char* const data = static_cast<const char*>(received.Get(0).sum.data);
          ASSERT_LT(begin, data);
          sums.emplace_back(begin, data + AlignUp(large.count * SizeOf(type)));
        }
        EXPECT_EQ(sums[0], sums[1]);
      });
    }
  }
}

}  // namespace
}  // namespace tfdear
