// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
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

}  // namespace tfdear
