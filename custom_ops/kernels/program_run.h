// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "custom_ops/engine/schedule/reduction.h"
#include "custom_ops/engine/updates/elementwise_program.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfdear {

// One run of an update that is a program: all that it needs, but for the gradient.
struct ProgramRun {
  std::shared_ptr<const ElementwiseProgram> program;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables;
  std::vector<float> scalars;

  // Updates the variables, in place where nobody else holds their values; whoever does keeps what
  // it has read. Holds the locks of all variables meanwhile.
  Status Run(const Reduced& gradient) const;
};

}  // namespace tfdear
