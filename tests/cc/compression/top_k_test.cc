// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#include "custom_ops/engine/compression/top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "custom_ops/engine/base/sum.h"
#include "tests/cc/testing.h"

namespace tfdear {
namespace {

using top_k_internal::KthLargest;
using top_k_internal::Tuning;
using Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint16_t BFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

float FromBFloat16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

// The distributions of tfdear/benchmarks/studies/topk.py.
struct Distribution {
  const char* name;
  std::function<void(std::mt19937*, size_t k, Floats*)> fill;
};

template <typename Random>
std::function<void(std::mt19937*, size_t, Floats*)> Each(Random distribution) {
  return [distribution](std::mt19937* random, size_t, Floats* x) mutable {
    for (float& value : *x) value = static_cast<float>(distribution(*random));
  };
}

// Normally distributed but for one element.
std::function<void(std::mt19937*, size_t, Floats*)> But(float outlier) {
  return [outlier](std::mt19937* random, size_t, Floats* x) {
    for (float& value : *x) value = std::normal_distribution<float>()(*random);
    (*x)[(*random)() % x->size()] = outlier;
  };
}

std::vector<Distribution> Distributions() {
  return {
      {"normal", Each(std::normal_distribution<float>())},
      {"uniform", Each(std::uniform_real_distribution<float>(-1, 1))},
      {"Laplace",
       [](std::mt19937* random, size_t, Floats* x) {
         for (float& value : *x) {
           value = std::exponential_distribution<float>()(*random) *
                   ((*random)() % 2 == 0 ? 1.f : -1.f);
         }
       }},
      {"Student-t", Each(std::student_t_distribution<float>(3))},
      {"Cauchy", Each(std::cauchy_distribution<float>())},
      {"log-normal(4)", Each(std::lognormal_distribution<float>(0, 4))},
      {"log-normal(8)", Each(std::lognormal_distribution<float>(0, 8))},
      {"tied",
       [](std::mt19937* random, size_t, Floats* x) {
         for (float& value : *x) {
           value = std::round(2 * std::normal_distribution<float>()(*random));
         }
       }},
      {"outlier", But(1e30f)},
      {"one infinity", But(-kInfinity)},
      {"one NaN", But(kNan)},
      {"few non-zeros",
       [](std::mt19937* random, size_t k, Floats* x) {
         std::fill(x->begin(), x->end(), 0.f);
         for (size_t i = 0; i < k / 2; ++i) {
           (*x)[(*random)() % x->size()] = std::normal_distribution<float>()(*random);
         }
       }},
      {"all equal",
       [](std::mt19937* random, size_t, Floats* x) {
         std::fill(x->begin(), x->end(), std::normal_distribution<float>()(*random));
       }},
      {"all zero",
       [](std::mt19937* random, size_t, Floats* x) {
         for (float& value : *x) value = (*random)() % 2 == 0 ? 0.f : -0.f;
       }},
      {"denormals",
       [](std::mt19937* random, size_t, Floats* x) {
         for (float& value : *x) {
           const uint32_t bits = ((*random)() & 0x80000000u) | ((*random)() & 0x7fffffu);
           std::memcpy(&value, &bits, sizeof(value));
         }
       }},
      {"sorted, alternating",
       [](std::mt19937* random, size_t, Floats* x) {
         for (float& value : *x) value = std::abs(std::normal_distribution<float>()(*random));
         std::sort(x->begin(), x->end());
         if ((*random)() % 2 == 0) std::reverse(x->begin(), x->end());
         for (size_t i = 1; i < x->size(); i += 2) (*x)[i] = -(*x)[i];
       }},
  };
}

// By the definition: NaN first, then the larger magnitude, then the lower index.
std::vector<uint32_t> Expected(const Floats& x, size_t k) {
  std::vector<uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto comes_first = [&](uint32_t a, uint32_t b) {
    if (std::isnan(x[a]) != std::isnan(x[b])) return std::isnan(x[a]);
    const float left = std::abs(x[a]);
    const float right = std::abs(x[b]);
    if (!std::isnan(left) && left != right) return left > right;
    return a < b;
  };
  if (k < order.size())
    std::nth_element(order.begin(), order.begin() + k, order.end(), comes_first);
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

bool SameBits(const void* left, const void* right, size_t bytes) {
  return std::memcmp(left, right, bytes) == 0;
}

// All ways of computing, and each as it is when it has seen another vector before.
class Ways {
 public:
  Ways() {
    for (InstructionSet instructions : SupportedInstructionSets()) {
      for (int threads : {1, 2}) {
        ways_.emplace_back(threads, workers_.parallel_for(), Tuning{instructions, 64, 600});
      }
    }
  }

  void Check(const Floats& x, size_t k, const std::string& about) {
    const std::vector<uint32_t> expected = Expected(x, k);
    for (size_t way = 0; way < ways_.size(); ++way) {
      Floats values(k);
      std::vector<uint32_t> indices(k);
      ways_[way].Select(DataType::kFloat32, x.data(), x.size(), k, values.data(), indices.data());
      ASSERT_EQ(indices, expected) << about << ", d " << x.size() << ", k " << k << ", way " << way;
      for (size_t i = 0; i < k; ++i) {
        ASSERT_TRUE(SameBits(&values[i], &x[indices[i]], sizeof(float))) << about;
      }
    }
  }

  std::vector<TopK>& all() { return ways_; }

 private:
  WorkerThreads workers_{2};
  std::vector<TopK> ways_;
};

TEST(TopK, ExactOnEveryDistribution) {
  const HardTimeout timeout;
#if defined(__SANITIZE_THREAD__)
  constexpr int kDraws = 100;  // How threads share the work does not depend on the numbers.
#else
  constexpr int kDraws = 1000;
#endif
  std::mt19937 random(1);
  for (const Distribution& distribution : Distributions()) {
    Ways ways;
    Floats x;
    size_t k = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
      // Several draws of one size, so that guesses from earlier calls are at work too.
      if (draw % 4 == 0) {
        x.resize(1001 + random() % 4000);
        k = 1 + random() % (draw % 8 == 0 ? 20 : x.size() / 10);
      }
      distribution.fill(&random, k, &x);
      ASSERT_NO_FATAL_FAILURE(ways.Check(x, k, distribution.name));
    }
  }
}

TEST(TopK, ExactOnLongVectors) {
  const HardTimeout timeout;
  std::mt19937 random(2);
  for (const Distribution& distribution : Distributions()) {
    Ways ways;
    Floats x(100003);
    for (size_t k : {100, 100, 1000, 30000}) {
      distribution.fill(&random, k, &x);
      ASSERT_NO_FATAL_FAILURE(ways.Check(x, k, distribution.name));
    }
  }
}

TEST(TopK, NoneAllAndAlmostAll) {
  Ways ways;
  for (size_t d : {0, 1, 2, 15, 16, 63, 64, 65, 700, 3001}) {
    Floats x(d);
    for (size_t i = 0; i < d; ++i) x[i] = static_cast<float>(i * 7919 % 101) - 50;
    for (size_t k : {size_t{0}, d / 2, d == 0 ? 0 : d - 1, d}) ways.Check(x, k, "k");
  }
}

TEST(TopK, ManyNansAndInfinities) {
  Ways ways;
  std::mt19937 random(3);
  for (size_t nans : {2, 50, 3000}) {
    Floats x(3001);
    for (float& value : x) value = std::normal_distribution<float>()(random);
    for (size_t i = 0; i < nans; ++i) {
      // NaNs of any sign and payload.
      uint32_t bits = random() | 0x7f800001u;
      std::memcpy(&x[random() % x.size()], &bits, sizeof(bits));
      x[random() % x.size()] = i % 2 == 0 ? kInfinity : -kInfinity;
    }
    for (size_t k : {1, 30, 100, 2000}) ways.Check(x, k, "NaNs");
  }
}

TEST(TopK, GuessesOfEarlierCallsChangeNothing) {
  Ways ways;
  std::mt19937 random(4);
  Floats x(20011);
  float scale = 1;
  for (int step = 0; step < 60; ++step) {
    for (float& value : x) value = scale * std::normal_distribution<float>()(random);
    ASSERT_NO_FATAL_FAILURE(ways.Check(x, 200, "step " + std::to_string(step)));
    scale *= step % 7 == 0 ? 1e5f : step % 5 == 0 ? 1e-6f : 1.1f;
  }
}

TEST(TopK, SixteenBitTypes) {
  std::mt19937 random(5);
  for (const Distribution& distribution : Distributions()) {
    Ways ways;
    for (int draw = 0; draw < 30; ++draw) {
      Floats x(1001 + random() % 4000);
      const size_t k = 1 + random() % (x.size() / 10);
      distribution.fill(&random, k, &x);
      for (DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
        const bool half = type == DataType::kFloat16;
        std::vector<uint16_t> words(x.size());
        Floats rounded(x.size());
        for (size_t i = 0; i < x.size(); ++i) {
          words[i] = half || std::isnan(x[i]) ? sum_internal::HalfFromFloat(x[i]) : BFloat16(x[i]);
          if (std::isnan(x[i])) words[i] = 0x7fff;
          rounded[i] = half ? sum_internal::FloatFromHalf(words[i]) : FromBFloat16(words[i]);
        }
        const std::vector<uint32_t> expected = Expected(rounded, k);
        for (TopK& way : ways.all()) {
          std::vector<uint16_t> values(k);
          std::vector<uint32_t> indices(k);
          way.Select(type, words.data(), words.size(), k, values.data(), indices.data());
          ASSERT_EQ(indices, expected) << distribution.name << ' ' << Name(type);
          for (size_t i = 0; i < k; ++i) ASSERT_EQ(values[i], words[indices[i]]);
        }
      }
    }
  }
}

TEST(TopK, FeedbackIsSumThenSelectThenClear) {
  std::mt19937 random(6);
  for (const Distribution& distribution : Distributions()) {
    Ways ways;
    Floats residual(3001 + random() % 4000);
    const size_t d = residual.size();
    const size_t k = 1 + random() % 100;
    std::vector<Floats> residuals(ways.all().size(), residual);
    for (int step = 0; step < 20; ++step) {
      Floats x(d);
      distribution.fill(&random, k, &x);
      for (size_t i = 0; i < d; ++i) residual[i] = residual[i] + x[i];
      const std::vector<uint32_t> expected = Expected(residual, k);
      const Floats sums = residual;
      for (uint32_t index : expected) residual[index] = 0;
      for (size_t way = 0; way < ways.all().size(); ++way) {
        Floats values(k);
        std::vector<uint32_t> indices(k);
        ways.all()[way].SelectWithFeedback(x.data(), residuals[way].data(), d, k, values.data(),
                                           indices.data());
        ASSERT_EQ(indices, expected) << distribution.name << ", step " << step << ", way " << way;
        for (size_t i = 0; i < k; ++i) {
          ASSERT_TRUE(SameBits(&values[i], &sums[indices[i]], sizeof(float)));
        }
        ASSERT_TRUE(SameBits(residuals[way].data(), residual.data(), d * sizeof(float)))
            << distribution.name << ", step " << step << ", way " << way;
      }
    }
  }
}

TEST(TopK, FeedbackThatSelectsNothingStillAdds) {
  TopK top_k;
  const Floats x = {1, 2, 3};
  Floats residual = {10, 20, 30};
  top_k.SelectWithFeedback(x.data(), residual.data(), 3, 0, nullptr, nullptr);
  EXPECT_EQ(residual, (Floats{11, 22, 33}));
}

TEST(KthLargest, OfAnyKeys) {
  std::mt19937 random(7);
  for (uint32_t most : {0u, 1u, 2u, 5000u, 0x7f800001u, 0xffffffffu}) {
    for (size_t count : {1, 2, 3, 1000, 50000}) {
      std::vector<uint32_t> keys(count);
      for (uint32_t& key : keys) {
        key = static_cast<uint32_t>(random() % (uint64_t{most} + 1));
        if (random() % 2 == 0) key = static_cast<uint32_t>(key >> 16);
      }
      std::vector<uint32_t> sorted = keys;
      std::sort(sorted.begin(), sorted.end(), std::greater<uint32_t>());
      for (size_t k : {size_t{1}, (count + 1) / 2, count}) {
        std::vector<uint32_t> scratch = keys;
        ASSERT_EQ(KthLargest(scratch.data(), count, k), sorted[k - 1]);
      }
    }
  }
}

TEST(WorkerThreads, RunEveryTaskOnceForSeveralCallersAtOnce) {
  const HardTimeout timeout;
  WorkerThreads workers(3);
  const ParallelFor parallel_for = workers.parallel_for();
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 1000; ++round) {
        std::vector<int> runs(round % 9);
        parallel_for(static_cast<int>(runs.size()), [&](int i) { ++runs[i]; });
        ASSERT_EQ(runs, std::vector<int>(runs.size(), 1));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace tfdear
