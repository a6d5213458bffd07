// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/compression/sparse_exchange.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

using Vector = std::vector<float>;

// The k largest by magnitude, ties to the lowest index, NaN first: sorted, not by the code under
// test.
std::vector<size_t> LargestOf(const Vector& x, Range range, size_t k) {
  std::vector<size_t> order(range.size());
  std::iota(order.begin(), order.end(), range.begin);
  auto key = [&x](size_t i) {
    return std::isnan(x[i]) ? std::numeric_limits<double>::infinity() : std::fabs(double{x[i]});
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) > key(b); });
  order.resize(k);
  return order;
}

// All members of an exchange, step by step, as the header describes it.
struct Model {
  SparseExchangeOptions options;
  std::vector<Vector> residual, velocity;

  float Sent(float value) const {
    return options.values == ValueFormat::kBFloat16 ? RoundToBFloat16(value) : value;
  }

  // What a member selects of a range: added to `sum` and taken from what is held back.
  void Send(int member, const Vector& from, Range range, size_t k, Vector* sum) {
    for (size_t i : LargestOf(from, range, k)) {
      const float sent = Sent(from[i]);
      (*sum)[i] += sent;
      if (!options.error_feedback) continue;
      residual[member][i] = std::isfinite(from[i]) ? from[i] - sent : 0;
      if (options.momentum != 0) velocity[member][i] = 0;
    }
  }

  Vector Step(const std::vector<Vector>& inputs, size_t k) {
    const int members = static_cast<int>(inputs.size());
    const size_t count = inputs[0].size();
    residual.resize(members, Vector(count));
    velocity.resize(members, Vector(count));
    Vector sum(count);
    for (int member = 0; member < members; ++member) {
      Vector from = inputs[member];
      if (options.error_feedback) {
        for (size_t i = 0; i < count; ++i) {
          if (options.momentum != 0) {
            from[i] = velocity[member][i] = options.momentum * velocity[member][i] + from[i];
          }
          from[i] = residual[member][i] = residual[member][i] + from[i];
        }
      }
      if (options.kind == ExchangeKind::kAllGather) {
        Send(member, from, {0, count}, k, &sum);
        continue;
      }
      for (int owner = 0; owner < members; ++owner) {
        Send(member, from, ShardOf(count, owner, members), Share(count, k, owner, members), &sum);
      }
    }
    if (options.kind == ExchangeKind::kAllGather) return sum;
    Vector result(count);
    for (int owner = 0; owner < members; ++owner) {
      const Range region = ShardOf(count, owner, members);
      const auto chosen = LargestOf(sum, region, Share(count, k, owner, members));
      Vector rest = sum;
      for (size_t i : chosen) rest[i] = 0;
      for (size_t i = region.begin; options.error_feedback && i < region.end; ++i) {
        residual[owner][i] += rest[i];
      }
      for (size_t i : chosen) {
        result[i] = Sent(sum[i]);
        if (options.error_feedback && std::isfinite(sum[i]))
          residual[owner][i] += sum[i] - result[i];
      }
    }
    return result;
  }

  static size_t Share(size_t count, size_t k, int owner, int members) {
    return std::min(ShardOf(count, owner, members).size(),
                    std::max<size_t>(1, ShardOf(k, owner, members).size()));
  }
};

bool SameBits(const Vector& a, const Vector& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

Vector Gradient(int member, int step, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(1000 * step + member));
  std::normal_distribution<float> normal;
  Vector gradient(count);
  for (float& value : gradient) value = normal(random);
  return gradient;
}

// Runs steps on real connections and compares every bit with the model, on every rank.
void CompareWithModel(int members, size_t count, size_t k, SparseExchangeOptions options) {
  constexpr int kSteps = 5;
  Model model{options, {}, {}};
  std::vector<Vector> expected;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Vector> inputs;
    for (int member = 0; member < members; ++member) {
      inputs.push_back(Gradient(member, step, count));
    }
    expected.push_back(model.Step(inputs, k));
  }
  RunRanks(members, [&](std::unique_ptr<TcpBackend> backend) {
    SparseExchange exchange(options);
    const Signature signature("sparse_exchange");
    for (int step = 0; step < kSteps; ++step) {
      Vector data = Gradient(backend->rank(), step, count);
      size_t bytes = 0;
      TFDEAR_EXPECT_OK(exchange.Run(backend.get(), data.data(), count, k, signature, step, &bytes));
      EXPECT_TRUE(SameBits(data, expected[step])) << members << " " << count << " " << step;
      EXPECT_GT(bytes, 0u);
    }
    if (!options.error_feedback) return;
    EXPECT_TRUE(SameBits(exchange.residual, model.residual[backend->rank()]));
    if (options.momentum != 0) {
      EXPECT_TRUE(SameBits(exchange.velocity, model.velocity[backend->rank()]));
    }
  });
}

TEST(SparseExchangeTest, EqualsTheModelBitForBit) {
  for (const ExchangeKind kind : {ExchangeKind::kAllGather, ExchangeKind::kReduce}) {
    for (const ValueFormat values : {ValueFormat::kFloat32, ValueFormat::kBFloat16}) {
      for (int members = 1; members <= 4; ++members) {
        for (const size_t count : {1, 5, 1003}) {
          const size_t k = ElementsToSelect(0.02, count, 1, count);
          CompareWithModel(members, count, k, {kind, values, true, 0.0f, false, 0});
          CompareWithModel(members, count, k, {kind, values, true, 0.9f, false, 0});
          CompareWithModel(members, count, k, {kind, values, false, 0.0f, 0});
        }
      }
    }
  }
}

TEST(SparseExchangeTest, NothingIsLost) {
  constexpr int kMembers = 4;
  constexpr size_t kCount = 800;
  for (const ExchangeKind kind : {ExchangeKind::kAllGather, ExchangeKind::kReduce}) {
    for (const ValueFormat values : {ValueFormat::kFloat32, ValueFormat::kBFloat16}) {
      std::vector<double> contributed(kCount), delivered(kCount), held(kCount);
      std::mutex mutex;
      RunRanks(kMembers, [&](std::unique_ptr<TcpBackend> backend) {
        SparseExchange exchange({kind, values, true, 0.0f, false, 0});
        for (int step = 0; step < 6; ++step) {
          Vector data = Gradient(backend->rank(), step, kCount);
          {
            std::lock_guard<std::mutex> lock(mutex);
            for (size_t i = 0; i < kCount; ++i) contributed[i] += data[i];
          }
          size_t bytes = 0;
          TFDEAR_EXPECT_OK(exchange.Run(backend.get(), data.data(), kCount, 16,
                                        Signature("sparse_exchange"), step, &bytes));
          std::lock_guard<std::mutex> lock(mutex);
          for (size_t i = 0; i < kCount && backend->rank() == 0; ++i) delivered[i] += data[i];
        }
        Vector rest(kCount);
        exchange.Flush(rest.data(), kCount, kMembers);
        EXPECT_TRUE(exchange.residual.empty());
        std::lock_guard<std::mutex> lock(mutex);
        for (size_t i = 0; i < kCount; ++i) held[i] += rest[i];
      });
      for (size_t i = 0; i < kCount; ++i) {
        EXPECT_NEAR(delivered[i] + held[i], contributed[i], 1e-4);
      }
    }
  }
}

TEST(SparseExchangeTest, AnOptimizerWithMomentumMovesByWhatWasSelected) {
  constexpr int kMembers = 2;
  constexpr size_t kCount = 300;
  RunRanks(kMembers, [&](std::unique_ptr<TcpBackend> backend) {
    SparseExchangeOptions options;
    options.momentum = 0.75f;
    SparseExchange plain(options);
    options.optimizer_has_momentum = true;
    SparseExchange freed(options);
    Vector velocity(kCount);
    auto update = [&](const Vector& sum) {
      for (size_t i = 0; i < kCount; ++i) velocity[i] = 0.75f * velocity[i] + sum[i];
    };
    uint64_t sequence = 0;
    for (int step = 0; step < 20; ++step) {
      Vector selected = Gradient(backend->rank(), step, kCount), sum = selected;
      size_t bytes = 0;
      TFDEAR_EXPECT_OK(plain.Run(backend.get(), selected.data(), kCount, 9,
                                 Signature("sparse_exchange"), sequence++, &bytes));
      TFDEAR_EXPECT_OK(freed.Run(backend.get(), sum.data(), kCount, 9, Signature("sparse_exchange"),
                                 sequence++, &bytes));
      update(sum);
      for (size_t i = 0; i < kCount; ++i) EXPECT_NEAR(velocity[i], selected[i], 1e-4);
    }
    // Dense again: in the end the optimizer has moved as far as by everything at once.
    Vector held = plain.residual, rest(kCount);
    for (size_t i = 0; i < kCount; ++i) held[i] += 0.75f * plain.velocity[i] / 0.25f;
    TFDEAR_EXPECT_OK(backend->AllReduce(held.data(), {{0, kCount}, {kCount, kCount}},
                                        DataType::kFloat32, Signature("held"), sequence++));
    freed.Flush(rest.data(), kCount, kMembers);
    TFDEAR_EXPECT_OK(backend->AllReduce(rest.data(), {{0, kCount}, {kCount, kCount}},
                                        DataType::kFloat32, Signature("rest"), sequence++));
    Vector moved(kCount);
    for (int step = 0; step < 100; ++step) {
      update(rest);
      std::fill(rest.begin(), rest.end(), 0.0f);
      for (size_t i = 0; i < kCount; ++i) moved[i] += velocity[i];
    }
    for (size_t i = 0; i < kCount; ++i) EXPECT_NEAR(moved[i], held[i], 1e-3);
  });
}

TEST(SparseExchangeTest, BytesAreThoseOfTheAlgorithm) {
  constexpr int kMembers = 4;
  constexpr size_t kCount = 400000, kSelected = 4000;
  for (const ExchangeKind kind : {ExchangeKind::kAllGather, ExchangeKind::kReduce}) {
    RunRanks(kMembers, [&](std::unique_ptr<TcpBackend> backend) {
      SparseExchange exchange({kind, ValueFormat::kFloat32, true, 0.0f, false, 0});
      Vector data = Gradient(backend->rank(), 0, kCount);
      size_t bytes = 0;
      const uint64_t before = backend->bytes_sent();
      TFDEAR_EXPECT_OK(exchange.Run(backend.get(), data.data(), kCount, kSelected,
                                    Signature("sparse_exchange"), 0, &bytes));
      const auto sent = static_cast<double>(backend->bytes_sent() - before);
      const double pairs = kind == ExchangeKind::kAllGather
                               ? (kMembers - 1.0) * kSelected
                               : 2.0 * kSelected * (kMembers - 1) / kMembers;
      EXPECT_LE(sent, 0.55 * 8 * pairs);
      EXPECT_GE(sent, 0.45 * 8 * pairs);
    });
  }
}

TEST(SparseExchangeTest, NanTravelsFirstAndDoesNotStay) {
  for (const ExchangeKind kind : {ExchangeKind::kAllGather, ExchangeKind::kReduce}) {
    for (const ValueFormat values : {ValueFormat::kFloat32, ValueFormat::kBFloat16}) {
      RunRanks(2, [&](std::unique_ptr<TcpBackend> backend) {
        SparseExchange exchange({kind, values, true, 0.9f, false, 0});
        for (int step = 0; step < 3; ++step) {
          Vector data = Gradient(backend->rank(), step, 100);
          if (step == 0 && backend->rank() == 1) {
            data[7] = std::numeric_limits<float>::quiet_NaN();
            data[90] = std::numeric_limits<float>::infinity();
          }
          size_t bytes = 0;
          TFDEAR_EXPECT_OK(exchange.Run(backend.get(), data.data(), 100, 6,
                                        Signature("sparse_exchange"), step, &bytes));
          EXPECT_EQ(std::isnan(data[7]), step == 0);
          EXPECT_EQ(std::isinf(data[90]), step == 0);
          for (float value : exchange.residual) EXPECT_TRUE(std::isfinite(value));
        }
      });
    }
  }
}

TEST(SparseExchangeTest, PublishedSelectionOfWellBehavedGradientsIsTheSame) {
  RunRanks(2, [&](std::unique_ptr<TcpBackend> backend) {
    SparseExchangeOptions published;
    published.samplings = 40;
    SparseExchange exact(SparseExchangeOptions{}), bisecting(published);
    for (int step = 0; step < 3; ++step) {
      Vector expected = Gradient(backend->rank(), step, 5000), sum = expected;
      size_t bytes = 0;
      TFDEAR_EXPECT_OK(exact.Run(backend.get(), expected.data(), 5000, 50, Signature("exact"),
                                 2 * step, &bytes));
      TFDEAR_EXPECT_OK(bisecting.Run(backend.get(), sum.data(), 5000, 50, Signature("published"),
                                     2 * step + 1, &bytes));
      EXPECT_TRUE(SameBits(sum, expected));
      EXPECT_TRUE(SameBits(exact.residual, bisecting.residual));
    }
  });
}

TEST(SparseExchangeTest, NumberOfElements) {
  EXPECT_EQ(ElementsToSelect(0.01, 1000, 2, 500), 5u);
  EXPECT_EQ(ElementsToSelect(0.01, 1100, 2, 550), 6u);  // 5.5: halves up.
  EXPECT_EQ(ElementsToSelect(0.01, 10, 2, 5), 1u);
  EXPECT_EQ(ElementsToSelect(1.0, 7, 2, 3), 3u);
  EXPECT_EQ(ElementsToSelect(0.5, 1, 2, 0), 0u);
}

}  // namespace
}  // namespace tfdear
