// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Updates of rows as plain C, for benchmarks. All run in the calling thread, whose processor time
// they measure.

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "custom_ops/engine/base/export.h"
#include "custom_ops/engine/base/keep_denormals.h"
#include "custom_ops/engine/base/vector_clones.h"
#include "custom_ops/engine/updates/row_journal.h"

namespace tfdear {
namespace {

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Keras's Adam of mean, square and weight; scalars are two rates, the learning rate and epsilon.
const std::vector<int64_t> kAdam = {4, 8,  0,  1, 5, 9,  8,  4, 3, 1,  1,  9,  5, 10, 0, 0,
                                    4, 11, 10, 2, 5, 12, 11, 5, 3, 2,  2,  12, 5, 13, 1, 6,
                                    2, 14, 2,  0, 3, 15, 14, 7, 6, 16, 13, 15, 4, 3,  3, 16};
const std::vector<float> kScalars = {0.1f, 0.001f, 0.003f, 1e-7f};

std::shared_ptr<const ElementwiseProgram> Adam(bool fused) {
  std::vector<int64_t> code = kAdam;
  // One sum with its operands exchanged: the same, but not a program that is known.
  if (!fused) std::swap(code[38], code[39]);
  auto program = std::make_shared<ElementwiseProgram>();
  const Status status = ElementwiseProgram::Parse(code, 3, 4, program.get());
  return status.ok() && program->is_fused() == fused ? program : nullptr;
}

TFDEAR_VECTOR_CLONES void AdamByHand(const float* gradient, float* mean, float* square,
                                     float* weight, const float* scalars, size_t count) {
  const float mean_rate = scalars[0], square_rate = scalars[1];
  const float rate = scalars[2], epsilon = scalars[3];
  _Pragma("GCC ivdep") for (size_t i = 0; i < count; ++i) {
    mean[i] += (gradient[i] - mean[i]) * mean_rate;
    square[i] += (gradient[i] * gradient[i] - square[i]) * square_rate;
    weight[i] -= mean[i] * rate / (std::sqrt(square[i]) + epsilon);
  }
}

}  // namespace
}  // namespace tfdear

extern "C" {

// Adam's update of `count` elements, `times` times; the least seconds of five. `how`: 0 by one
// loop, 1 operation by operation, 2 by hand. Negative: it cannot be measured.
TFDEAR_EXPORT double tfdear_adam_seconds(int how, int64_t count, int64_t times) {
  using tfdear::ThreadSeconds;
  const tfdear::FlushDenormals flush_denormals;
  std::vector<float> gradient(count), mean(count), square(count), weight(count, 1.0f);
  for (int64_t i = 0; i < count; ++i) gradient[i] = static_cast<float>(i % 17) / 8 - 1;
  const auto program = tfdear::Adam(how == 0);
  if (program == nullptr) return -1;
  const std::vector<tfdear::ElementwiseProgram::Array> variables = {
      {mean.data(), mean.data()}, {square.data(), square.data()}, {weight.data(), weight.data()}};
  tfdear::ElementwiseProgram::Scratch scratch;
  double least = std::numeric_limits<double>::infinity();
  for (int trial = 0; trial < 5; ++trial) {
    const double begin = ThreadSeconds();
    for (int64_t i = 0; i < times; ++i) {
      if (how == 2) {
        tfdear::AdamByHand(gradient.data(), mean.data(), square.data(), weight.data(),
                           tfdear::kScalars.data(), count);
      } else {
        program->Run(gradient.data(), variables, tfdear::kScalars, count, &scratch);
      }
    }
    least = std::min(least, ThreadSeconds() - begin);
  }
  return least;
}

// Seconds in which rows are made up for that have missed so many updates of Adam. Negative: it
// cannot be measured.
TFDEAR_EXPORT double tfdear_make_up_seconds(int64_t rows, int64_t width, int64_t missed) {
  const tfdear::FlushDenormals flush_denormals;
  std::vector<float> mean(rows * width), square(rows * width), table(rows * width, 1.0f);
  std::vector<float> gradient(rows * width);
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i % 17) / 8 - 1;
  std::vector<int64_t> all(rows);
  std::iota(all.begin(), all.end(), 0);
  const tfdear::RowJournal::Arrays arrays = {table.data(), mean.data(), square.data()};
  tfdear::RowJournal journal(rows, width, 1 << 30);
  const auto program = tfdear::Adam(true);
  if (program == nullptr) return -1;
  for (int64_t step = 0; step <= missed; ++step) {
    // As Keras corrects for the start at zero: another number in every step.
    std::vector<float> scalars = tfdear::kScalars;
    const double count = static_cast<double>(step + 1);
    scalars[2] *=
        static_cast<float>(std::sqrt(1 - std::pow(0.999, count)) / (1 - std::pow(0.9, count)));
    int64_t change = 0;
    if (!journal.Append({program, {1, 2, 0}, scalars, true}, &change).ok()) return -1;
    if (step == 0 && !journal.Apply(change, all.data(), rows, gradient.data(), arrays).ok()) {
      return -1;
    }
    if (!journal.Complete(change).ok()) return -1;
  }
  const double begin = tfdear::ThreadSeconds();
  if (!journal.BringUpToDate(all.data(), rows, arrays).ok()) return -1;
  return tfdear::ThreadSeconds() - begin;
}

}  // extern "C"
