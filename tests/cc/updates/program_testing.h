// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/engine/updates/elementwise_program.h"

namespace tfdear {

// Writes a program's code.
class ProgramWriter {
 public:
  using Operation = ElementwiseOperation;

  ProgramWriter(int variables, int scalars)
      : variables_(variables), scalars_(scalars), next_(1 + variables + scalars) {}

  static constexpr int gradient = 0;
  int variable(int number) const { return 1 + number; }
  int scalar(int number) const { return 1 + variables_ + number; }

  int operator()(Operation operation, int left, int right = 0) {
    code_.insert(code_.end(), {static_cast<int64_t>(operation), next_, left, right});
    return next_++;
  }
  int Add(int left, int right) { return (*this)(Operation::kAdd, left, right); }
  int Subtract(int left, int right) { return (*this)(Operation::kSubtract, left, right); }
  int Multiply(int left, int right) { return (*this)(Operation::kMultiply, left, right); }
  int Divide(int left, int right) { return (*this)(Operation::kDivide, left, right); }
  int Root(int operand) { return (*this)(Operation::kSquareRoot, operand); }
  int Square(int operand) { return Multiply(operand, operand); }
  void Assign(int number, int value) {
    code_.insert(code_.end(), {static_cast<int64_t>(Operation::kCopy), variable(number), value, 0});
  }
  // What Keras's moving averages do: a variable moves towards a value.
  void MoveTowards(int number, int value, int share) {
    Assign(number, Add(variable(number), Multiply(Subtract(value, variable(number)), share)));
  }

  std::shared_ptr<const ElementwiseProgram> Program() const {
    auto program = std::make_shared<ElementwiseProgram>();
    const Status status =
        ElementwiseProgram::Parse(code_, variables_, scalars_, program.get(), true);
    EXPECT_TRUE(status.ok()) << status.message();
    return program;
  }

 private:
  const int variables_, scalars_;
  int next_;
  std::vector<int64_t> code_;
};

// An update of a table (variable 0) and its slots, as Keras's optimizers make it.
struct UpdateProgram {
  std::string name;
  int slots;
  std::vector<float> scalars;  // The first is the learning rate.
  std::shared_ptr<const ElementwiseProgram> program;
  float first_slots = 0;
};

inline std::vector<UpdateProgram> UpdatePrograms() {
  using Operation = ElementwiseOperation;
  std::vector<UpdateProgram> programs;
  constexpr int gradient = ProgramWriter::gradient, table = 1;
  auto add = [&](const std::string& name, int slots, const std::vector<float>& scalars,
                 const std::function<void(ProgramWriter&)>& write, float first_slots = 0) {
    ProgramWriter writer(1 + slots, static_cast<int>(scalars.size()));
    write(writer);
    programs.push_back({name, slots, scalars, writer.Program(), first_slots});
  };
  add("sgd", 0, {0.1f},
      [](ProgramWriter& w) { w.Assign(0, w.Subtract(table, w.Multiply(gradient, w.scalar(0)))); });
  for (const bool nesterov : {false, true}) {
    add(nesterov ? "nesterov" : "momentum", 1, {0.1f, 0.9f}, [&](ProgramWriter& w) {
      const int step = w.Multiply(gradient, w.scalar(0));
      w.Assign(1, w.Subtract(w.Multiply(w.variable(1), w.scalar(1)), step));
      const int ahead =
          nesterov ? w.Subtract(w.Multiply(w.variable(1), w.scalar(1)), step) : w.variable(1);
      w.Assign(0, w.Add(table, ahead));
    });
  }
  for (const bool maximum : {false, true}) {
    add(maximum ? "amsgrad" : "adam", maximum ? 3 : 2, {0.003f, 0.1f, 0.001f, 1e-7f},
        [&](ProgramWriter& w) {
          w.MoveTowards(1, gradient, w.scalar(1));
          w.MoveTowards(2, w.Square(gradient), w.scalar(2));
          int square = w.variable(2);
          if (maximum) {
            w.Assign(3, w(Operation::kMaximum, w.variable(3), square));
            square = w.variable(3);
          }
          const int step =
              w.Divide(w.Multiply(w.variable(1), w.scalar(0)), w.Add(w.Root(square), w.scalar(3)));
          w.Assign(0, w.Subtract(table, step));
        });
  }
  add("adamax", 2, {0.01f, 0.1f, 0.999f, 1e-7f}, [](ProgramWriter& w) {
    w.MoveTowards(1, gradient, w.scalar(1));
    w.Assign(2, w(Operation::kMaximum, w.Multiply(w.scalar(2), w.variable(2)),
                  w(Operation::kAbsolute, gradient)));
    w.Assign(0, w.Subtract(table, w.Divide(w.Multiply(w.scalar(0), w.variable(1)),
                                           w.Add(w.variable(2), w.scalar(3)))));
  });
  add(
      "adagrad", 1, {0.01f, 1e-7f},
      [](ProgramWriter& w) {
        w.Assign(1, w.Add(w.variable(1), w.Square(gradient)));
        w.Assign(0, w.Subtract(table, w.Divide(w.Multiply(w.scalar(0), gradient),
                                               w.Root(w.Add(w.variable(1), w.scalar(1))))));
      },
      0.1f);
  add("rmsprop", 3, {0.01f, 0.9f, 0.1f, 1e-7f}, [](ProgramWriter& w) {
    auto average = [&](int slot, int value) {
      w.Assign(slot,
               w.Add(w.Multiply(w.scalar(1), w.variable(slot)), w.Multiply(w.scalar(2), value)));
    };
    average(1, w.Square(gradient));
    average(2, gradient);
    const int spread = w.Add(w.Subtract(w.variable(1), w.Square(w.variable(2))), w.scalar(3));
    const int step = w.Divide(w.Multiply(w.scalar(0), gradient), w.Root(spread));
    w.Assign(3, w.Add(w.Multiply(w.scalar(1), w.variable(3)), step));
    w.Assign(0, w.Subtract(table, w.variable(3)));
  });
  add("adadelta", 2, {0.5f, 0.95f, 0.05f, 1e-7f}, [](ProgramWriter& w) {
    auto average = [&](int slot, int value) {
      w.Assign(slot,
               w.Add(w.Multiply(w.scalar(1), w.variable(slot)), w.Multiply(w.scalar(2), value)));
    };
    auto rms = [&](int slot) { return w.Root(w.Add(w.variable(slot), w.scalar(3))); };
    average(1, w.Square(gradient));
    const int step = w(Operation::kNegate, w.Divide(w.Multiply(rms(2), gradient), rms(1)));
    average(2, w.Square(step));
    w.Assign(0, w.Add(table, w.Multiply(w.scalar(0), step)));
  });
  add(
      "ftrl", 2, {0.05f, 0.5f, 0.01f, -0.01f},
      [](ProgramWriter& w) {
        const int accumulated = w.Add(w.variable(1), w.Square(gradient));
        auto power = [&](int value) { return w(Operation::kPower, value, w.scalar(1)); };
        const int change =
            w.Divide(w.Subtract(power(accumulated), power(w.variable(1))), w.scalar(0));
        w.Assign(2, w.Add(w.variable(2), w.Subtract(gradient, w.Multiply(change, table))));
        const int clipped =
            w(Operation::kMaximum, w(Operation::kMinimum, w.variable(2), w.scalar(2)), w.scalar(3));
        w.Assign(0, w.Divide(w.Subtract(clipped, w.variable(2)),
                             w.Divide(power(accumulated), w.scalar(0))));
        w.Assign(1, accumulated);
      },
      0.1f);
  add("lion", 1, {0.01f, 0.9f, 0.1f, 0.99f}, [](ProgramWriter& w) {
    const int direction =
        w.Add(w.Multiply(w.variable(1), w.scalar(1)), w.Multiply(gradient, w.scalar(2)));
    w.Assign(0, w.Subtract(table, w.Multiply(w.scalar(0), w(Operation::kSign, direction))));
    w.Assign(1, w.Add(w.Multiply(w.variable(1), w.scalar(3)), w.Multiply(gradient, w.scalar(2))));
  });
  return programs;
}

inline UpdateProgram UpdateProgramNamed(const std::string& name) {
  for (UpdateProgram& update : UpdatePrograms()) {
    if (update.name == name) return update;
  }
  ADD_FAILURE() << "no update " << name;
  return {};
}

// table -= table * rate * decay.
inline UpdateProgram WeightDecay() {
  ProgramWriter w(1, 2);
  w.Assign(0, w.Subtract(1, w.Multiply(w.Multiply(1, w.scalar(1)), w.scalar(0))));
  return {"decay", 0, {0.1f, 0.01f}, w.Program()};
}

// average = average * momentum + table * (1 - momentum). Variable 1 is the average.
inline UpdateProgram MovingAverage() {
  ProgramWriter w(2, 2);
  w.Assign(1, w.Add(w.Multiply(w.scalar(0), w.variable(1)), w.Multiply(w.scalar(1), 1)));
  return {"average", 1, {0.99f, 0.01f}, w.Program()};
}

}  // namespace tfdear
