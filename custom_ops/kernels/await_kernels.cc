// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Reads of variables: when they may go on, and when their layers are reached.
#include <atomic>
#include <memory>
#include <vector>

#include "custom_ops/engine/engine.h"
#include "custom_ops/kernels/cancellable.h"
#include "custom_ops/kernels/conversions.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/mutex.h"

namespace tfdear {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

class AwaitOp : public tensorflow::AsyncOpKernel {
 public:
  explicit AwaitOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("variables", &variables_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    PendingUpdates* pending = Engine::Get()->pending();
    // Most reads find nothing in flight.
    if (pending->Idle(variables_)) return done();
    struct Join {
      std::atomic<size_t> missing;
      tensorflow::mutex mutex;
      Status status;
    };
    auto join = std::make_shared<Join>();
    join->missing = variables_.size();
    const std::vector<int64_t> variables = variables_;
    auto op = Cancellable::Start(context, std::move(done));
    for (int64_t variable : variables) {
      pending->Await(variable, [op, join](const Status& status) {
        if (!status.ok()) {
          tensorflow::mutex_lock lock(join->mutex);
          join->status = status;
        }
        if (join->missing.fetch_sub(1) > 1) return;
        op->End([&](OpKernelContext* ended) {
          if (!join->status.ok()) ended->SetStatus(ToAbsl(join->status));
        });
      });
    }
  }

  // Runs where it became ready: what it costs TensorFlow learns of synchronous ops only.
  bool IsExpensive() override { return false; }

 private:
  std::vector<int64_t> variables_;
};

class ForwardMarkOp : public tensorflow::OpKernel {
 public:
  explicit ForwardMarkOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("variable", &variable_));
  }

  void Compute(OpKernelContext* context) override {
    const int64_t now = EventRecord::NowMicros();
    Engine::Get()->events()->Add({EventKind::kForward, 0, variable_, 0, now, now});
  }

  bool IsExpensive() override { return false; }

 private:
  int64_t variable_;
};

using tensorflow::DEVICE_CPU;
REGISTER_KERNEL_BUILDER(Name("DearForwardMark").Device(DEVICE_CPU), ForwardMarkOp);
REGISTER_KERNEL_BUILDER(Name("DearAwait").Device(DEVICE_CPU), AwaitOp);

}  // namespace
}  // namespace tfdear
