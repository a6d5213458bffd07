// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "custom_ops/engine/engine.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdear {

// The end of an asynchronous op that waits for other ranks: reached once, by what it waits for or
// by the cancellation of its step. Without the latter, an error elsewhere in a step (the data set
// ended, an index was out of range) would leave the step waiting for gradients that never come.
class Cancellable : public std::enable_shared_from_this<Cancellable> {
 public:
  // `looks_ahead`: no layer waits for it. Where the step is cancelled already the op has ended when
  // this returns, and may end any time after that: then its inputs are gone, and with its function
  // the kernel may be. So what is needed of both is copied before.
  static std::shared_ptr<Cancellable> Start(tensorflow::OpKernelContext* context,
                                            tensorflow::AsyncOpKernel::DoneCallback done,
                                            bool looks_ahead = false) {
    std::shared_ptr<Cancellable> op(new Cancellable(context, std::move(done), looks_ahead));
    if (op->manager_ == nullptr) return op;
    op->token_ = op->manager_->get_cancellation_token();
    const auto cancel = [op] {
      op->End([](tensorflow::OpKernelContext* cancelled) {
        cancelled->SetStatus(absl::CancelledError("the step was cancelled"));
      });
    };
    if (op->manager_->RegisterCallback(op->token_, cancel)) return op;
    op->manager_ = nullptr;
    cancel();
    return op;
  }

  // Sets the results with `finish` and ends the op, unless it has ended.
  void End(const std::function<void(tensorflow::OpKernelContext*)>& finish) {
    if (ended_.exchange(true)) return;
    // Before `done`, which may end the step and with it the manager. False if the callback runs
    // now: it will find the op ended.
    if (manager_ != nullptr) manager_->TryDeregisterCallback(token_);
    Engine::Get()->waits()->End(wait_);
    finish(context_);
    done_();
  }

 private:
  Cancellable(tensorflow::OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done,
              bool looks_ahead)
      : context_(context),
        done_(std::move(done)),
        wait_(Engine::Get()->waits()->Begin(context->op_kernel().name(), looks_ahead)),
        manager_(context->cancellation_manager()) {}

  tensorflow::OpKernelContext* const context_;
  const tensorflow::AsyncOpKernel::DoneCallback done_;
  const int64_t wait_;
  tensorflow::CancellationManager* manager_;
  tensorflow::CancellationToken token_ = 0;
  std::atomic<bool> ended_{false};
};

}  // namespace tfdear
