// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "custom_ops/engine/engine.h"
#include "custom_ops/kernels/cancellable.h"
#include "custom_ops/kernels/conversions.h"
#include "custom_ops/kernels/ticket.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/threadpool.h"

namespace tfdear {
namespace {

using tensorflow::FunctionLibraryRuntime;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Threads of their own for updates: not those that move bytes, which must keep the line busy, and
// not TensorFlow's, which may all be in the next forward pass.
tensorflow::thread::ThreadPool* UpdateThreads() {
  static auto* threads =
      new tensorflow::thread::ThreadPool(tensorflow::Env::Default(), "tfdear_updates", 2);
  return threads;
}

// The runs of one kernel that are under way.
class RunsInFlight {
 public:
  void Begin() {
    tensorflow::mutex_lock lock(mutex_);
    ++count_;
  }
  void End() {
    tensorflow::mutex_lock lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }
  void WaitForAll() {
    tensorflow::mutex_lock lock(mutex_);
    while (count_ > 0) none_.wait(lock);
  }

 private:
  tensorflow::mutex mutex_;
  tensorflow::condition_variable none_;
  int count_ = 0;
};

// [Note: Deferred updates]
// The update of a variable is a TensorFlow function, run here when the sum of its gradient is
// there. Program order is kept by two ops: DearDeferUpdate takes the handles of what the update
// writes, so automatic control dependencies place it after every earlier use of them; DearAwait,
// emitted before every later use, completes when the update has run. What the update only reads
// was captured by value in the calling graph, so it sees the values of its own step.
class DeferUpdateOp : public tensorflow::OpKernel {
 public:
  explicit DeferUpdateOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("f", &function_));
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
    OP_REQUIRES_OK(context, context->GetAttr("sparse", &sparse_));
    OP_REQUIRES_OK(context, context->GetAttr("writes", &writes_));
    OP_REQUIRES_OK(context, context->GetAttr("T", &type_));
  }

  // The runtime that updates run in belongs to the function that calls this op and goes with it,
  // for example when a model is deleted right after training. Every receiver is called, with an
  // error at the latest when the engine's deadline has passed, so this wait ends.
  ~DeferUpdateOp() override { in_flight_->WaitForAll(); }

  void Compute(OpKernelContext* context) override {
    auto reduction = GetTicket<Reduction>(context);
    if (reduction == nullptr) return;
    FunctionLibraryRuntime* runtime = context->function_library();
    FunctionLibraryRuntime::Handle handle;
    OP_REQUIRES_OK(context, Instantiate(runtime, &handle));

    auto arguments = std::make_shared<std::vector<Tensor>>();
    for (int i = 1; i < context->num_inputs(); ++i) arguments->push_back(context->input(i));
    Engine* engine = Engine::Get();
    engine->pending()->Defer(writes_);
    in_flight_->Begin();
    // The receiver owns all it needs: the step that called this op may long be over.
    auto receiver = [in_flight = in_flight_, engine, runtime, handle, arguments, writes = writes_,
                     sparse = sparse_, type = type_,
                     ticket = reduction->number()](const Status& status, const Reduced& sum) {
      if (!status.ok()) {
        // An update of a step that was given up is not made, and nobody waits for it.
        const bool given_up = status.code() == StatusCode::kCancelled;
        engine->pending()->Finish(writes, given_up ? Status() : status);
        in_flight->End();
        return;
      }
      std::vector<Tensor> inputs;
      inputs.reserve(arguments->size() + 2);
      const auto shape = ToTensorShape(sum.shape);
      inputs.push_back(Alias(sum.owner, sum.data, shape, type));
      if (sparse) {
        inputs.push_back(Alias(sum.indices_owner, sum.indices,
                               tensorflow::TensorShape({shape.dim_size(0)}), tensorflow::DT_INT64));
      }
      inputs.insert(inputs.end(), arguments->begin(), arguments->end());
      UpdateThreads()->Schedule(
          [in_flight, engine, runtime, handle, writes, ticket, inputs = std::move(inputs)] {
            Run(in_flight, engine, runtime, handle, ticket, inputs, writes);
          });
    };
    reduction->WhenReduced(index_, std::move(receiver));
  }

 private:
  absl::Status Instantiate(FunctionLibraryRuntime* runtime,
                           FunctionLibraryRuntime::Handle* handle) {
    tensorflow::mutex_lock lock(mutex_);
    if (handle_ == tensorflow::kInvalidHandle) {
      FunctionLibraryRuntime::InstantiateOptions options;
      options.target = runtime->device()->name();
      TF_RETURN_IF_ERROR(runtime->Instantiate(
          function_.name(), tensorflow::AttrSlice(&function_.attr()), options, &handle_));
    }
    *handle = handle_;
    return absl::OkStatus();
  }

  static void Run(std::shared_ptr<RunsInFlight> in_flight, Engine* engine,
                  FunctionLibraryRuntime* runtime, FunctionLibraryRuntime::Handle handle,
                  int64_t ticket, const std::vector<Tensor>& inputs,
                  const std::vector<int64_t>& writes) {
    InjectDelay(engine->max_delay_ms());
    // All that the run needs while it lasts, freed when it is done.
    struct State {
      explicit State(int64_t step)
          : container(step, [](const std::string&) {}),
            runner([](std::function<void()> work) { UpdateThreads()->Schedule(std::move(work)); }) {
      }
      tensorflow::CancellationManager cancellation;
      tensorflow::ScopedStepContainer container;
      std::function<void(std::function<void()>)> runner;
      std::vector<Tensor> results;
    };
    // Step ids of sessions and of eager functions are random or small: these are neither.
    static std::atomic<int64_t> next_step{int64_t{1} << 52};
    const int64_t step = next_step.fetch_add(1);
    auto* state = new State(step);
    FunctionLibraryRuntime::Options options(step);
    options.cancellation_manager = &state->cancellation;
    options.step_container = &state->container;
    options.create_rendezvous = true;
    options.runner = &state->runner;
    const int64_t begin = EventRecord::NowMicros();
    runtime->Run(options, handle, inputs, &state->results,
                 [in_flight, engine, state, writes, ticket, begin](const absl::Status& status) {
                   engine->events()->Add({EventKind::kUpdate, ticket, writes[0],
                                          static_cast<int64_t>(writes.size()), begin,
                                          EventRecord::NowMicros()});
                   engine->pending()->Finish(
                       writes, status.ok() ? Status()
                                           : Status(StatusCode::kInternal,
                                                    "an optimizer update failed: " +
                                                        std::string(status.message())));
                   // Not here, in a callback of the run that still uses it.
                   UpdateThreads()->Schedule([in_flight, state] {
                     delete state;
                     in_flight->End();
                   });
                 });
  }

  tensorflow::NameAttrList function_;
  tensorflow::DataType type_;
  int index_;
  bool sparse_;
  std::vector<int64_t> writes_;
  const std::shared_ptr<RunsInFlight> in_flight_ = std::make_shared<RunsInFlight>();
  tensorflow::mutex mutex_;
  FunctionLibraryRuntime::Handle handle_ = tensorflow::kInvalidHandle;
};

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
    auto op = Cancellable::Start(context, std::move(done));
    for (int64_t variable : variables_) {
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

 private:
  std::vector<int64_t> variables_;
};

using tensorflow::DEVICE_CPU;
REGISTER_KERNEL_BUILDER(Name("DearDeferUpdate").Device(DEVICE_CPU), DeferUpdateOp);
REGISTER_KERNEL_BUILDER(Name("DearAwait").Device(DEVICE_CPU), AwaitOp);

}  // namespace
}  // namespace tfdear
