// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "custom_ops/engine/updates/elementwise_program.h"

namespace tfdear {

// A proof that a program with a gradient of zero leaves all of its variables as they are, but for
// the signs of zeros and for denormal values, which arithmetic flushes.
//
// It may be conditional: a factor or divisor that is not known must not be infinite, NaN or zero.
// It is a function of the variables and of some of the scalars. So where a run has shown that it
// changes nothing, another run with the same of these scalars changes nothing either, whatever the
// other scalars are, as long as the proof holds for those, too.
struct Idleness {
  // It is a proof only where no slot holds negative numbers or NaN.
  bool nonnegative_slots = false;
  bool conditional = false;
  uint64_t scalars = 0;  // One bit for each.
};

// `table`: which variable is the table, -1: none; the others are its slots, which hold zeros only,
// of either sign, if `slots_are_zero`. Nothing where there is no proof. Call it under
// FlushDenormals.
std::optional<Idleness> ProveIdle(const ElementwiseProgram& program,
                                  const std::vector<float>& scalars, int table,
                                  bool slots_are_zero);

// What of a program with a gradient of zero changes something where some variables hold zeros only.
//
// When a mean of gradients has decayed to nearly nothing, Adam moves no weight any more, but their
// squares decay for much longer. Then the residue, by the same operations, changes those variables
// that are not sure to stay as they are, and has what that takes. Of the same program with other
// scalars it may be another one.
struct Residue {
  std::shared_ptr<const ElementwiseProgram> of;
  std::vector<int64_t> code;   // Of `program`, whose scalars are those of `of`.
  std::vector<int> variables;  // Which of those of `of` it has.
  std::shared_ptr<const ElementwiseProgram> program;  // Null: nothing changes.
};

// What is known of a program's variables, one bit for each. It is so again after the residue.
struct KnownVariables {
  uint64_t zero = 0;  // Zeros of either sign.
  uint64_t tame = 0;  // Neither negative nor infinite nor NaN.
  uint64_t tiny = 0;  // No more than kTiny, either sign.
  // The program leaves them as they are: a mean that loses a tenth in every step stops losing it
  // where that is too small a number.
  uint64_t fixed = 0;

  bool operator==(const KnownVariables& other) const {
    return zero == other.zero && tame == other.tame && tiny == other.tiny && fixed == other.fixed;
  }
};
constexpr float kTiny = 0x1p-122f;

// Nothing where nothing can be left out, or be proved. Call it under FlushDenormals.
std::optional<Residue> FindResidue(const std::shared_ptr<const ElementwiseProgram>& program,
                                   const std::vector<float>& scalars, const KnownVariables& known);

}  // namespace tfdear
