// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/engine/updates/elementwise_program.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfdear {

// The program that the attributes of an op hold, and its operands among the op's inputs.
class ProgramOfOp {
 public:
  // `some_only_read`: whether variables may be that the program does not write. `outputs`: how many
  // more than the captured ones it has, which it writes for the caller.
  absl::Status Read(tensorflow::OpKernelConstruction* context, bool some_only_read,
                    int outputs = 0);
  // Null: the op has none.
  const std::shared_ptr<const ElementwiseProgram>& program() const { return program_; }
  absl::Status Operands(tensorflow::OpKernelContext* context,
                        std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>>* variables,
                        std::vector<float>* scalars) const;

 private:
  std::shared_ptr<const ElementwiseProgram> program_;
  std::vector<int> variables_;  // Which captured tensors they are.
};

}  // namespace tfdear
