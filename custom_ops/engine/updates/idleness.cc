// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/updates/idleness.h"

#include <algorithm>
#include <cmath>

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

  bool is_zero() const { return kind == kNumber && number == 0; }
  bool is_one() const { return kind == kNumber && number == 1; }
};

Value Number(float number, bool exact = true, uint64_t scalars = 0) {
  const auto sign = number > 0 ? Value::kPositive : number == 0 ? Value::kNonnegative : Value::kAny;
  return {Value::kNumber, number, exact, 0, scalars, sign};
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
    default:
      return Value::kAny;
  }
}

class Interpreter {
 public:
  Idleness idleness;

  Value Result(Operation operation, const Value& left, const Value& right) {
    Value result = WithoutScalars(operation, left, right);
    result.scalars = left.scalars | right.scalars;
    if (result.kind == Value::kUnknown) result.sign = SignOf(operation, left, right);
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
        Require(left.is_zero() ? right : left, false);
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

}  // namespace tfdear
