// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/kernels/program_run.h"

#include <algorithm>
#include <utility>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/kernels/conversions.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfdear {

using tensorflow::Tensor;

Status ProgramRun::Run(const Reduced& gradient) const {
  const size_t count = tensorflow::TensorShape(gradient.shape).num_elements();
  std::vector<tensorflow::Var*> in_order;
  for (const auto& variable : variables) in_order.push_back(variable.get());
  // The order in which TensorFlow's kernels lock several: nobody waits in a circle.
  std::sort(in_order.begin(), in_order.end());
  std::vector<std::unique_ptr<tensorflow::mutex_lock>> locks;
  for (tensorflow::Var* variable : in_order) {
    locks.push_back(std::make_unique<tensorflow::mutex_lock>(*variable->mu()));
  }
  std::vector<ElementwiseProgram::Array> arrays;
  std::vector<Tensor> targets;
  for (const auto& variable : variables) {
    Tensor* const value = variable->tensor();
    if (!variable->is_initialized || value->dtype() != tensorflow::DT_FLOAT ||
        static_cast<size_t>(value->NumElements()) != count) {
      return Internal("a variable is no longer what it was when its update was traced. Expected: ",
                      count, " elements of float32. Received: ", value->DebugString(0),
                      ". Do not assign other shapes in training");
    }
    targets.push_back(value->RefCountIsOne() ? *value : Tensor(value->dtype(), value->shape()));
    if (!targets.back().IsInitialized()) {
      return Status(
          StatusCode::kResourceExhausted,
          "this rank has no memory for a copy of a variable that something still reads. Start "
          "fewer ranks per node, or use a smaller model");
    }
    arrays.push_back({value->flat<float>().data(), targets.back().flat<float>().data()});
  }
  program->Run(static_cast<const float*>(gradient.data), arrays, scalars, count);
  for (size_t i = 0; i < variables.size(); ++i) *variables[i]->tensor() = std::move(targets[i]);
  return Status();
}

}  // namespace tfdear
