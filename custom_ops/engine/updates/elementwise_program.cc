// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/elementwise_program.h"

#include <algorithm>

namespace tfdear {
namespace {

// 4 KiB a tile: the handful that an instruction and its neighbours touch stay in the nearest cache.
constexpr size_t kTile = 1024;
constexpr int kMembers = 4;

std::vector<ElementwiseProgram::Sources> SourcesOf(const ElementwiseProgram& program) {
  const int variables = program.variables(), scalars = program.scalars();
  if (variables > 64 || scalars > 64) return {};
  std::vector<ElementwiseProgram::Sources> sources(program.registers());
  for (int i = 0; i < variables; ++i) sources[1 + i].variables = uint64_t{1} << i;
  for (int i = 0; i < scalars; ++i) sources[1 + variables + i].scalars = uint64_t{1} << i;
  for (const auto& step : program.instructions()) {
    const auto& left = sources[step.left];
    const auto& right = IsUnary(step.operation) ? left : sources[step.right];
    sources[step.target] = {left.variables | right.variables, left.scalars | right.scalars};
  }
  return {sources.begin() + 1, sources.begin() + 1 + variables};
}

}  // namespace

Status ElementwiseProgram::Parse(const std::vector<int64_t>& code, int variables, int scalars,
                                 ElementwiseProgram* program, bool some_only_read) {
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
    if (operation < 0 || operation >= kElementwiseOperations || left < 0 || left >= known ||
        right < 0 || right >= known || (!to_variable && target != known)) {
      return invalid("cannot have the instruction ", operation, " ", target, " ", left, " ", right);
    }
    if (to_variable) {
      written[target - 1] = true;
    } else {
      ++known;
    }
    const auto kind = static_cast<Operation>(operation);
    auto is_scalar = [&](int64_t operand) { return operand > variables && operand < first_result; };
    parsed.reads_gradient_ |= left == 0 || (right == 0 && !IsUnary(kind));
    parsed.functions_.push_back(FunctionOf(kind, is_scalar(left), is_scalar(right)));
    parsed.instructions_.push_back(
        {kind, static_cast<int>(target), static_cast<int>(left), static_cast<int>(right)});
  }
  if (!some_only_read && std::find(written.begin(), written.end(), false) != written.end()) {
    return invalid("does not write all of its ", variables, " variables");
  }
  parsed.registers_ = static_cast<int>(known);
  parsed.fused_ = FusedProgram(code, variables, scalars);
  parsed.sources_ = SourcesOf(parsed);
  *program = std::move(parsed);
  return Status();
}

void ElementwiseProgram::Run(const float* gradient, const std::vector<Array>& variables,
                             const std::vector<float>& scalars, size_t count) const {
  Scratch scratch;
  Run(gradient, variables, scalars, count, &scratch);
}

void ElementwiseProgram::Run(const float* gradient, const std::vector<Array>& variables,
                             const std::vector<float>& scalars, size_t count,
                             Scratch* scratch) const {
  const int first_scalar = 1 + variables_;
  const int first_result = first_scalar + scalars_;
  if (fused_ != nullptr) {
    scratch->read.resize(variables_);
    scratch->written.resize(variables_);
    for (int i = 0; i < variables_; ++i) {
      scratch->read[i] = variables[i].source;
      scratch->written[i] = variables[i].target;
    }
    // A gradient that is not read is any array.
    return fused_(gradient == nullptr ? variables[0].source : gradient, scratch->read.data(),
                  scratch->written.data(), scalars.data(), count);
  }
  // No more than is needed: the tiles of a small run lie close together.
  const size_t tile = std::min(kTile, count);
  scratch->tiles.resize(std::max(scratch->tiles.size(), (registers_ - first_result) * tile));
  scratch->read.resize(registers_);
  scratch->written.resize(registers_);
  const float** const read = scratch->read.data();
  float** const written = scratch->written.data();
  for (int i = 0; i < scalars_; ++i) read[first_scalar + i] = &scalars[i];
  for (int i = first_result; i < registers_; ++i) {
    written[i] = scratch->tiles.data() + (i - first_result) * tile;
  }
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t size = std::min(kTile, count - begin);
    read[0] = gradient == nullptr ? nullptr : gradient + begin;
    for (int i = 0; i < variables_; ++i) {
      read[1 + i] = variables[i].source + begin;
      written[1 + i] = variables[i].target == nullptr ? nullptr : variables[i].target + begin;
    }
    for (size_t i = 0; i < instructions_.size(); ++i) {
      const Instruction& step = instructions_[i];
      functions_[i](written[step.target], read[step.left], read[step.right], size);
      // What was written is what later instructions read.
      read[step.target] = written[step.target];
    }
  }
}

bool ElementwiseProgram::Writes(int variable) const {
  return std::any_of(
      instructions_.begin(), instructions_.end(),
      [&](const Instruction& instruction) { return instruction.target == 1 + variable; });
}

}  // namespace tfdear
