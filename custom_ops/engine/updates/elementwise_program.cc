// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/elementwise_program.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "custom_ops/engine/base/vector_clones.h"

namespace tfdear {
namespace {

// 4 KiB a tile: the handful that an instruction and its neighbours touch stay in the nearest cache.
constexpr size_t kTile = 1024;
constexpr int kMembers = 4;

// A target may be an operand as well, element for element: nothing is carried from one to the next.
#define TFDEAR_ELEMENTWISE(Name, expression)                                                    \
  TFDEAR_VECTOR_CLONES void Name(float* target, const float* x, const float* y, size_t count) { \
    _Pragma("GCC ivdep") for (size_t i = 0; i < count; ++i) target[i] = (expression);           \
    (void)y;                                                                                    \
  }
TFDEAR_ELEMENTWISE(Copy, x[i])
TFDEAR_ELEMENTWISE(Negate, -x[i])
TFDEAR_ELEMENTWISE(SquareRoot, std::sqrt(x[i]))
TFDEAR_ELEMENTWISE(Add, x[i] + y[i])
TFDEAR_ELEMENTWISE(Subtract, x[i] - y[i])
TFDEAR_ELEMENTWISE(Multiply, x[i] * y[i])
TFDEAR_ELEMENTWISE(Divide, x[i] / y[i])
#undef TFDEAR_ELEMENTWISE

using Function = void (*)(float*, const float*, const float*, size_t);

// In the order of ElementwiseProgram::Operation.
const Function kFunctions[] = {Copy, Negate, SquareRoot, Add, Subtract, Multiply, Divide};
constexpr int kOperations = static_cast<int>(std::size(kFunctions));

}  // namespace

Status ElementwiseProgram::Parse(const std::vector<int64_t>& code, int variables, int scalars,
                                 ElementwiseProgram* program) {
  auto invalid = [](const auto&... what) {
    return InvalidArgument("a program of an update ", what...);
  };
  if (code.empty() || code.size() % kMembers != 0) {
    return invalid("has ", code.size(), " numbers, which are no instructions");
  }
  ElementwiseProgram parsed;
  parsed.variables_ = variables;
  parsed.scalars_ = scalars;
  std::vector<bool> written(variables);
  const int64_t first_result = int64_t{1} + variables + scalars;
  int64_t known = first_result;
  for (size_t i = 0; i < code.size(); i += kMembers) {
    const int64_t operation = code[i], target = code[i + 1], left = code[i + 2],
                  right = code[i + 3];
    const bool to_variable = target >= 1 && target <= variables;
    if (operation < 0 || operation >= kOperations || left < 0 || left >= known || right < 0 ||
        right >= known || (!to_variable && target != known)) {
      return invalid("cannot have the instruction ", operation, " ", target, " ", left, " ", right);
    }
    if (to_variable) {
      written[target - 1] = true;
    } else {
      ++known;
    }
    parsed.instructions_.push_back({static_cast<Operation>(operation), static_cast<int>(target),
                                    static_cast<int>(left), static_cast<int>(right)});
  }
  if (std::find(written.begin(), written.end(), false) != written.end()) {
    return invalid("does not write all of its ", variables, " variables");
  }
  parsed.registers_ = static_cast<int>(known);
  *program = std::move(parsed);
  return Status();
}

void ElementwiseProgram::Run(const float* gradient, const std::vector<Array>& variables,
                             const std::vector<float>& scalars, size_t count) const {
  const int first_scalar = 1 + variables_;
  const int first_result = first_scalar + scalars_;
  std::vector<float> tiles((registers_ - first_scalar) * kTile);
  std::vector<const float*> read(registers_);
  std::vector<float*> written(registers_);
  for (int i = first_scalar; i < registers_; ++i) {
    written[i] = tiles.data() + (i - first_scalar) * kTile;
    read[i] = written[i];
    if (i < first_result) std::fill_n(written[i], kTile, scalars[i - first_scalar]);
  }
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t size = std::min(kTile, count - begin);
    read[0] = gradient + begin;
    for (int i = 0; i < variables_; ++i) {
      read[1 + i] = variables[i].source + begin;
      written[1 + i] = variables[i].target + begin;
    }
    for (const Instruction& step : instructions_) {
      kFunctions[static_cast<int>(step.operation)](written[step.target], read[step.left],
                                                   read[step.right], size);
      // What was written is what later instructions read.
      read[step.target] = written[step.target];
    }
  }
}

}  // namespace tfdear
