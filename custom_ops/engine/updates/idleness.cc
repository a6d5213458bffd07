// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/idleness.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tfdear {
namespace {

using Operation = ElementwiseOperation;

// What is known of a register, the same for all elements.
struct Value {
  enum { kUnknown, kNumber, kVariable } kind = kUnknown;
  float number = 0;
  bool exact = true;     // Else the number is a zero of either sign.
  int variable = 0;      // The variable has the value that it had before the program.
  uint64_t scalars = 0;  // All that it was computed from.
  // No element is NaN or negative, or even zero, provided that no slot holds such.
  enum Sign { kAny, kNonnegative, kPositive } sign = kAny;
  // Between zero and what a tame variable had before the program (1), or minus that (-1).
  int within_sign = 0;
  int within = 0;
  // Neither negative, infinite nor NaN, if it is so of the variables that are said to be tame.
  bool is_tame = false;
  float most = std::numeric_limits<float>::infinity();  // Of either sign, if it is not NaN.

  bool is_zero() const { return kind == kNumber && number == 0; }
  bool is_one() const { return kind == kNumber && number == 1; }
};

Value Number(float number, bool exact = true, uint64_t scalars = 0) {
  const auto sign = number > 0 ? Value::kPositive : number == 0 ? Value::kNonnegative : Value::kAny;
  const bool is_tame = number >= 0 && std::isfinite(number);
  return {Value::kNumber, number, exact, 0, scalars, sign, 0, 0, is_tame, std::fabs(number)};
}

// Both must be numbers. A zero of either sign may be any operand whose sign makes no other
// difference than that of a zero.
Value Fold(Operation operation, const Value& left, const Value& right) {
  const bool exact = left.exact && right.exact;
  if (!exact &&
      (operation == Operation::kUnite || (operation == Operation::kDivide && right.number == 0) ||
       (operation == Operation::kPower && left.number == 0 && right.number <= 0))) {
    return Value();
  }
  float result;
  FunctionOf(operation, false, false)(&result, &left.number, &right.number, 1);
  return Number(result, exact || result != 0);
}

// Of a result of which no more is known.
Value::Sign SignOf(Operation operation, const Value& left, const Value& right) {
  const auto least = std::min(left.sign, right.sign), most = std::max(left.sign, right.sign);
  switch (operation) {
    case Operation::kSquareRoot:
      return left.sign;
    case Operation::kAdd:
    case Operation::kMaximum:
      return least == Value::kAny ? least : most;
    case Operation::kMinimum:
      return least;
    case Operation::kMultiply:
    case Operation::kDivide: {
      const bool is_finite = right.kind == Value::kNumber && std::isfinite(right.number);
      return is_finite && right.number > 0 ? std::min(left.sign, Value::kNonnegative) : Value::kAny;
    }
    default:
      return Value::kAny;
  }
}

// The most that a result can be, of which no more is known.
float MostOf(Operation operation, const Value& left, const Value& right) {
  switch (operation) {
    case Operation::kNegate:
      return left.most;
    case Operation::kAdd:
    case Operation::kSubtract:
      return left.most + right.most;
    case Operation::kMultiply:
      return left.most * right.most;
    case Operation::kDivide:
      if (right.kind == Value::kNumber && right.number != 0) return left.most / right.most;
      return std::numeric_limits<float>::infinity();
    default:
      return std::numeric_limits<float>::infinity();
  }
}

// Sets what bounds a result of which no more is known: rounding keeps an order that numbers have.
void Bound(Operation operation, const Value& left, const Value& right, Value* result) {
  auto within = [&](const Value& value, int sign) {
    result->within_sign = sign * value.within_sign;
    result->within = value.within;
    result->is_tame = result->within_sign > 0;
  };
  auto is_part_of = [](const Value& part, const Value& whole, int sign) {
    return whole.kind == Value::kVariable && whole.within_sign > 0 && part.within_sign == sign &&
           part.within == whole.within;
  };
  auto is_share = [](const Value& value) {
    return value.kind == Value::kNumber && value.number >= 0 && value.number <= 1;
  };
  switch (operation) {
    case Operation::kNegate:
      return within(left, -1);
    case Operation::kSubtract:
      if (left.is_zero()) return within(right, -1);
      if (is_part_of(right, left, 1)) return within(left, 1);
      return;
    case Operation::kAdd:
      if (is_part_of(right, left, -1)) return within(left, 1);
      if (is_part_of(left, right, -1)) return within(right, 1);
      return;
    case Operation::kMultiply:
      if (is_share(right)) return within(left, 1);
      if (is_share(left)) return within(right, 1);
      return;
    case Operation::kMaximum:
    case Operation::kMinimum:
      result->is_tame = left.is_tame && right.is_tame;
      return;
    default:
      return;
  }
}

class Interpreter {
 public:
  Idleness idleness;

  Value Result(Operation operation, const Value& left, const Value& right) {
    Value result = WithoutScalars(operation, left, right);
    result.scalars = left.scalars | right.scalars;
    if (result.kind == Value::kUnknown) {
      const float most = MostOf(operation, left, right);
      // Under FlushDenormals, and only there, this is less than any number but zero.
      if (most == 0) return Number(0, false, result.scalars);
      result.most = most >= 0 ? most : std::numeric_limits<float>::infinity();
      result.sign = SignOf(operation, left, right);
      Bound(operation, left, right, &result);
      if (result.is_tame) result.sign = std::max(result.sign, Value::kNonnegative);
    }
    return result;
  }

 private:
  // An operand that has to be finite, or no NaN and not zero; `holds`: it is, unless a slot is
  // negative.
  void Require(const Value& operand, bool holds) {
    (holds ? idleness.nonnegative_slots : idleness.conditional) = true;
    idleness.scalars |= operand.scalars;
  }

  Value WithoutScalars(Operation operation, const Value& left, const Value& right) {
    if (left.kind == Value::kNumber && right.kind == Value::kNumber) {
      return Fold(operation, left, right);
    }
    switch (operation) {
      case Operation::kCopy:
        return left;
      case Operation::kAdd:
        if (left.is_zero()) return right;
        return right.is_zero() ? left : Value();
      case Operation::kSubtract:
        return right.is_zero() ? left : Value();
      case Operation::kMultiply:
        if (left.is_one()) return right;
        if (right.is_one()) return left;
        if (!left.is_zero() && !right.is_zero()) return Value();
        Require(left.is_zero() ? right : left, (left.is_zero() ? right : left).is_tame);
        return Number(0, false);
      case Operation::kDivide:
        if (right.is_one()) return left;
        if (!left.is_zero()) return Value();
        Require(right, right.sign == Value::kPositive);
        return Number(0, false);
      case Operation::kMaximum:
      case Operation::kMinimum: {
        const bool same = left.kind == Value::kVariable && right.kind == Value::kVariable &&
                          left.variable == right.variable;
        return same ? left : Value();
      }
      case Operation::kWhere:
        if (left.kind != Value::kNumber) return Value();
        return left.number != 0 ? right : Number(0);
      case Operation::kUnless:
        if (left.kind != Value::kNumber) return Value();
        return left.number != 0 ? Number(0) : right;
      case Operation::kUnite: {
        auto is_empty = [](const Value& value) {
          return value.is_zero() && value.exact && !std::signbit(value.number);
        };
        if (is_empty(left)) return right;
        return is_empty(right) ? left : Value();
      }
      default:
        return Value();
    }
  }
};

// The instructions of a program that its residue needs.
class Slice {
 public:
  explicit Slice(const ElementwiseProgram& program) : program_(program) {}

  // Notes the next instruction; whether its operands are +0 for sure.
  void Note(bool left_is_zero, bool right_is_zero) {
    zeros_.push_back({left_is_zero, right_is_zero});
  }

  // `changed`: which variables it is to change, one flag for each.
  Residue Cut(const std::vector<bool>& changed) {
    const auto& instructions = program_.instructions();
    const int variables = program_.variables();
    std::vector<bool> needed(program_.registers()), kept(instructions.size());
    for (int i = 0; i < variables; ++i) needed[1 + i] = changed[i];
    std::vector<bool> used = needed;
    for (size_t i = instructions.size(); i-- > 0;) {
      const auto& step = instructions[i];
      const bool to_variable = step.target <= variables;
      if (!needed[step.target] || (to_variable && !changed[step.target - 1])) continue;
      kept[i] = true;
      needed[step.target] = false;
      for (int operand : {LeftOf(i), RightOf(i)}) needed[operand] = used[operand] = true;
    }
    return Encode(kept, used);
  }

 private:
  // The register of zeros is that of the gradient.
  int LeftOf(size_t i) const { return zeros_[i].left ? 0 : program_.instructions()[i].left; }
  int RightOf(size_t i) const {
    const auto& step = program_.instructions()[i];
    return zeros_[i].right || IsUnary(step.operation) ? 0 : step.right;
  }

  Residue Encode(const std::vector<bool>& kept, const std::vector<bool>& used) {
    Residue residue;
    std::vector<int64_t> places(program_.registers());
    int64_t next = 1;
    for (int i = 0; i < program_.variables(); ++i) {
      if (!used[1 + i]) continue;
      residue.variables.push_back(i);
      places[1 + i] = next++;
    }
    for (int i = 0; i < program_.scalars(); ++i) places[1 + program_.variables() + i] = next++;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i]) continue;
      const auto& step = program_.instructions()[i];
      const int64_t left = places[LeftOf(i)], right = places[RightOf(i)];
      if (step.target > program_.variables()) places[step.target] = next++;
      residue.code.insert(residue.code.end(),
                          {static_cast<int64_t>(step.operation), places[step.target], left, right});
    }
    return residue;
  }

  struct Zeros {
    bool left, right;
  };

  const ElementwiseProgram& program_;
  std::vector<Zeros> zeros_;
};

// Of a run. In one loop an instruction takes about a quarter of the time.
size_t Cost(const ElementwiseProgram& program) {
  return program.instructions().size() * (program.is_fused() ? 1 : 4);
}

}  // namespace

std::optional<Idleness> ProveIdle(const ElementwiseProgram& program,
                                  const std::vector<float>& scalars, int table,
                                  bool slots_are_zero) {
  if (scalars.size() > 64) return std::nullopt;
  const int first_scalar = 1 + program.variables();
  std::vector<Value> values(program.registers());
  values[0] = Number(0);
  for (int i = 0; i < program.variables(); ++i) {
    const bool is_zero = slots_are_zero && i != table;
    const auto sign = i == table ? Value::kAny : Value::kNonnegative;
    values[1 + i] = is_zero ? Number(0, false) : Value{Value::kVariable, 0, true, i, 0, sign};
  }
  for (size_t i = 0; i < scalars.size(); ++i) {
    values[first_scalar + i] = Number(scalars[i], true, uint64_t{1} << i);
  }
  const std::vector<Value> before = values;
  Interpreter interpreter;
  for (const ElementwiseProgram::Instruction& step : program.instructions()) {
    const bool is_unary = IsUnary(step.operation);
    values[step.target] = interpreter.Result(step.operation, values[step.left],
                                             is_unary ? Number(0) : values[step.right]);
  }
  for (int i = 1; i < first_scalar; ++i) {
    const Value &after = values[i], &at_first = before[i];
    const bool is_same = at_first.is_zero()
                             ? after.is_zero()
                             : after.kind == Value::kVariable && after.variable == i - 1;
    if (!is_same) return std::nullopt;
  }
  return interpreter.idleness;
}

std::optional<Residue> FindResidue(const std::shared_ptr<const ElementwiseProgram>& program,
                                   const std::vector<float>& scalars, const KnownVariables& known) {
  const int variables = program->variables();
  if (scalars.size() > 64 || variables > 64) return std::nullopt;
  std::vector<int> writes(variables);
  for (const auto& step : program->instructions()) {
    if (step.target <= variables && ++writes[step.target - 1] > 1) return std::nullopt;
  }
  auto has = [](uint64_t bits, int i) { return (bits >> i & 1) != 0; };
  std::vector<Value> values(program->registers());
  values[0] = Number(0);
  for (int i = 0; i < variables; ++i) {
    Value& value = values[1 + i];
    value = {Value::kVariable, 0, true, i, 0, Value::kAny};
    if (has(known.tame, i)) {
      value.sign = Value::kNonnegative;
      value.within_sign = 1;
      value.within = i;
      value.is_tame = true;
    }
    if (has(known.tiny, i)) value.most = kTiny;
    if (has(known.zero, i)) value = Number(0, false);
  }
  for (size_t i = 0; i < scalars.size(); ++i) values[1 + variables + i] = Number(scalars[i]);
  const std::vector<Value> before = values;

  Interpreter interpreter;
  Slice slice(*program);
  std::vector<bool> changed(variables);
  auto is_nothing = [&](int operand) {
    const Value& value = values[operand];
    const bool is_result = operand > variables + static_cast<int>(scalars.size());
    return is_result && value.is_zero() && value.exact && !std::signbit(value.number);
  };
  for (const ElementwiseProgram::Instruction& step : program->instructions()) {
    const bool is_unary = IsUnary(step.operation);
    slice.Note(is_nothing(step.left), !is_unary && is_nothing(step.right));
    const Value result = interpreter.Result(step.operation, values[step.left],
                                            is_unary ? Number(0) : values[step.right]);
    values[step.target] = result;
    if (step.target > variables) continue;
    const Value& at_first = before[step.target];
    if (has(known.fixed, step.target - 1)) values[step.target] = at_first;
    const bool is_same = has(known.fixed, step.target - 1) ||
                         (at_first.is_zero() ? result.is_zero()
                                             : result.kind == Value::kVariable &&
                                                   result.variable == step.target - 1);
    if (!is_same) changed[step.target - 1] = true;
  }
  if (interpreter.idleness.conditional) return std::nullopt;
  for (int i = 0; i < variables; ++i) {
    if (!changed[i]) continue;
    if (has(known.zero | known.tiny, i)) return std::nullopt;
    if (has(known.tame, i) && !values[1 + i].is_tame) return std::nullopt;
  }
  Residue residue = slice.Cut(changed);
  residue.of = program;
  if (residue.code.empty()) return residue;
  auto rest = std::make_shared<ElementwiseProgram>();
  const Status status =
      ElementwiseProgram::Parse(residue.code, static_cast<int>(residue.variables.size()),
                                program->scalars(), rest.get(), /*some_only_read=*/true);
  if (!status.ok() || Cost(*rest) >= Cost(*program)) return std::nullopt;
  residue.program = std::move(rest);
  return residue;
}

}  // namespace tfdear
