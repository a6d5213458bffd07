// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "custom_ops/engine/base/parallel_for.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/threadpool.h"

namespace tfdear {

inline const tensorflow::DeviceBase::CpuWorkerThreads& WorkersOf(
    tensorflow::OpKernelContext* context) {
  return *context->device()->tensorflow_cpu_worker_threads();
}

// On the threads on which TensorFlow's own kernels divide their work.
inline ParallelFor OnDevice(tensorflow::OpKernelContext* context) {
  const auto& workers = WorkersOf(context);
  return ParallelForOn(workers.num_threads, [pool = workers.workers](auto helper) {
    pool->Schedule(std::move(helper));
  });
}

}  // namespace tfdear
