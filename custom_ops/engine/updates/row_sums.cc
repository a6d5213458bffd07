// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/row_sums.h"

#include <algorithm>
#include <numeric>

#include "custom_ops/engine/base/keep_denormals.h"
#include "custom_ops/engine/base/vector_clones.h"

namespace tfdear {
namespace {

// What a program runs on at once, if rows are not longer.
constexpr size_t kElements = 1024;
// As many sums side by side, for every instruction set alike: that fixes the order of additions.
constexpr size_t kLanes = 16;

TFDEAR_VECTOR_CLONES void AddToLanes(const float* values, size_t count, double* lanes) {
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  }
  for (size_t i = whole; i < count; ++i) lanes[i - whole] += values[i];
}

}  // namespace

void SumOverRows(const ElementwiseProgram& program, const std::vector<const float*>& arrays,
                 const std::vector<float>& scalars, int64_t rows, int64_t width,
                 const RowsOfGradient& gradient, std::vector<double>* sums) {
  const FlushDenormals flush_denormals;
  sums->assign(program.variables() - arrays.size(), 0.0);
  if (rows == 0 || width == 0) return;
  std::vector<size_t> in_order(gradient.count);
  std::iota(in_order.begin(), in_order.end(), size_t{0});
  std::sort(in_order.begin(), in_order.end(),
            [&](size_t left, size_t right) { return gradient.rows[left] < gradient.rows[right]; });
  auto next = in_order.begin();

  const int64_t rows_at_once = std::max<int64_t>(1, kElements / width);
  const size_t most = rows_at_once * width;
  std::vector<float> tiles(program.variables() * most), gradients(most);
  std::vector<double> lanes(sums->size() * kLanes);
  std::vector<ElementwiseProgram::Array> variables(program.variables());
  ElementwiseProgram::Scratch scratch;
  for (int64_t begin = 0; begin < rows; begin += rows_at_once) {
    const int64_t end = std::min(rows, begin + rows_at_once);
    const size_t count = (end - begin) * width;
    std::fill_n(gradients.data(), count, 0.0f);
    for (; next != in_order.end() && gradient.rows[*next] < end; ++next) {
      std::copy_n(gradient.values + *next * width, width,
                  gradients.data() + (gradient.rows[*next] - begin) * width);
    }
    for (size_t i = 0; i < variables.size(); ++i) {
      float* const tile = tiles.data() + i * most;
      variables[i] = {i < arrays.size() ? arrays[i] + begin * width : tile, tile};
    }
    program.Run(gradients.data(), variables, scalars, count, &scratch);
    for (size_t i = 0; i < sums->size(); ++i) {
      AddToLanes(variables[arrays.size() + i].target, count, lanes.data() + i * kLanes);
    }
  }
  for (size_t i = 0; i < sums->size(); ++i) {
    for (size_t lane = 0; lane < kLanes; ++lane) (*sums)[i] += lanes[i * kLanes + lane];
  }
}

}  // namespace tfdear
