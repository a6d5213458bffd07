// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/kernels/program_of_op.h"

#include <utility>

#include "custom_ops/kernels/conversions.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tfdear {

using tensorflow::Tensor;

absl::Status ProgramOfOp::Read(tensorflow::OpKernelConstruction* context, bool some_only_read,
                               int outputs) {
  std::vector<int64_t> code;
  TF_RETURN_IF_ERROR(context->GetAttr("program", &code));
  TF_RETURN_IF_ERROR(context->GetAttr("program_variables", &variables_));
  if (code.empty()) return absl::OkStatus();
  int scalars = 0;
  TF_RETURN_IF_ERROR(context->GetAttr("num_scalars", &scalars));
  auto program = std::make_shared<ElementwiseProgram>();
  TF_RETURN_IF_ERROR(
      ToAbsl(ElementwiseProgram::Parse(code, static_cast<int>(variables_.size()) + outputs, scalars,
                                       program.get(), some_only_read)));
  program_ = std::move(program);
  return absl::OkStatus();
}

absl::Status ProgramOfOp::Operands(
    tensorflow::OpKernelContext* context,
    std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>>* variables,
    std::vector<float>* scalars) const {
  tensorflow::OpInputList captured, given;
  TF_RETURN_IF_ERROR(context->input_list("captured", &captured));
  TF_RETURN_IF_ERROR(context->input_list("scalars", &given));
  variables->resize(variables_.size());
  for (size_t i = 0; i < variables_.size(); ++i) {
    const Tensor& handle = captured[variables_[i]];
    TF_RETURN_IF_ERROR(
        LookupResource(context, handle.scalar<tensorflow::ResourceHandle>()(), &(*variables)[i]));
  }
  for (const Tensor& scalar : given) scalars->push_back(scalar.scalar<float>()());
  return absl::OkStatus();
}

}  // namespace tfdear
