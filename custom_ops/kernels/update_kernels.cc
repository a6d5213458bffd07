// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/injected_delay.h"
#include "custom_ops/engine/engine.h"
#include "custom_ops/kernels/conversions.h"
#include "custom_ops/kernels/layer_operands.h"
#include "custom_ops/kernels/program_of_op.h"
#include "custom_ops/kernels/program_run.h"
#include "custom_ops/kernels/released_interpreter.h"
#include "custom_ops/kernels/table.h"
#include "custom_ops/kernels/ticket.h"
#include "custom_ops/kernels/update_of_rows.h"
#include "custom_ops/kernels/update_threads.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfdear {
namespace {

using tensorflow::FunctionLibraryRuntime;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// A program passes over so many within some microseconds.
constexpr int64_t kElementsOfShortProgram = 16 << 10;

int64_t ElementsOf(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
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
// The update of a variable is a TensorFlow function or a program, run here when the sum of its
// gradient is there. Program order is kept by two ops: DearDeferUpdate takes the handles of what
// the update writes, so automatic control dependencies place it after every earlier use of them;
// DearAwait, emitted before every later use, completes when the update has run. What the update
// only reads was captured by value in the calling graph, so it sees the values of its own step.
class DeferUpdateOp : public tensorflow::OpKernel {
 public:
  explicit DeferUpdateOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("f", &function_));
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
    OP_REQUIRES_OK(context, context->GetAttr("sparse", &sparse_));
    OP_REQUIRES_OK(context, context->GetAttr("writes", &writes_));
    OP_REQUIRES_OK(context, context->GetAttr("T", &type_));
    OP_REQUIRES_OK(context, context->GetAttr("table_of_lookup", &table_of_lookup_));
    OP_REQUIRES_OK(context, context->GetAttr("norms", &norms_));
    OP_REQUIRES_OK(context, context->GetAttr("norms_argument", &norms_argument_));
    OP_REQUIRES_OK(context, table_.Read(context));
    OP_REQUIRES_OK(context, program_.Read(context, /*some_only_read=*/table_.number >= 0));
    UpdateThreads();
  }

  // The runtime that updates run in belongs to the function that calls this op and goes with it,
  // for example when a model is deleted right after training. Every receiver is called, with an
  // error at the latest when the engine's deadline has passed, so this wait ends.
  ~DeferUpdateOp() override {
    const ReleasedInterpreter released;
    in_flight_->WaitForAll();
  }

  void Compute(OpKernelContext* context) override {
    auto reduction = GetTicket<Reduction>(context);
    if (reduction == nullptr) return;
    if (table_.number >= 0) return DeferRows(context, reduction.get());
    if (program_.program() != nullptr) return DeferProgram(context, reduction.get());
    FunctionLibraryRuntime* runtime = context->function_library();
    FunctionLibraryRuntime::Handle handle = tensorflow::kInvalidHandle;
    OP_REQUIRES_OK(context, Instantiate(runtime, &handle));

    tensorflow::OpInputList captured;
    OP_REQUIRES_OK(context, context->input_list("captured", &captured));
    auto arguments = std::make_shared<std::vector<Tensor>>(captured.begin(), captured.end());
    LayerOperands operands;
    if (norms_ != "none") OP_REQUIRES_OK(context, ReadLayer(context, &operands));
    Defer(reduction.get(), [runtime, handle, arguments, sparse = sparse_, type = type_,
                            norms_argument = norms_ == "none" ? -1 : norms_argument_](
                               const UpdatePtr& update, const Reduced& sum) {
      std::vector<Tensor> inputs = ToTensors(sum, type, sparse);
      const size_t first = inputs.size();
      inputs.insert(inputs.end(), arguments->begin(), arguments->end());
      if (norms_argument >= 0) {
        Tensor norms(tensorflow::DT_FLOAT, tensorflow::TensorShape({2}));
        std::copy(sum.norms.begin(), sum.norms.end(), norms.flat<float>().data());
        inputs[first + norms_argument] = norms;
      }
      Run(update, runtime, handle, inputs);
    });
    if (operands.owner != nullptr) {
      OP_REQUIRES_OK(context, ToAbsl(reduction->AddLayer(index_, std::move(operands))));
    }
  }

 private:
  // Defers an update that is a program, which needs no runtime.
  void DeferProgram(OpKernelContext* context, Reduction* reduction) {
    auto run = std::make_shared<ProgramRun>();
    run->program = program_.program();
    OP_REQUIRES_OK(context, program_.Operands(context, &run->variables, &run->scalars));
    Defer(
        reduction,
        [run](const UpdatePtr& update, const Reduced& sum) {
          const int64_t begin = EventRecord::NowMicros();
          RecordEnd(*update, begin, run->Run(sum));
          update->in_flight->End();
        },
        kElementsOfShortProgram);
  }

  // Defers an update of the rows of a table. It takes its place among the table's changes now, in
  // program order, and its rows when their gradients are there.
  void DeferRows(OpKernelContext* context, Reduction* reduction) {
    tensorflow::OpInputList tables;
    OP_REQUIRES_OK(context, context->input_list("table", &tables));
    std::shared_ptr<Table> table;
    OP_REQUIRES_OK(context, Table::Of(context, tables[0], table_.number, &table));
    Table::Change change;
    change.program = program_.program();
    change.has_gradient = true;
    change.rows = table_.rows;
    OP_REQUIRES_OK(context, program_.Operands(context, &change.variables, &change.scalars));
    std::shared_ptr<UpdateOfRows> rows;
    OP_REQUIRES_OK(context, UpdateOfRows::Begin(table, std::move(change), table_, &rows));
    const UpdatePtr update = Begin(reduction);
    const auto fail = [rows, update](const Status& cause) {
      rows->Fail(cause);
      if (rows->End()) GiveUp(*update, cause);
    };
    const auto run = [rows, update](int part, int parts, const Reduced& sum) {
      UpdateThreads()->Schedule([rows, update, part, parts, sum] {
        InjectDelay(Engine::Get()->max_delay_ms());
        const int64_t begin = EventRecord::NowMicros();
        bool last = false;
        const absl::Status status = rows->Apply(part, parts, sum, &last);
        if (!status.ok()) rows->Fail(Internal(status.message()));
        Record(*update, begin, EventKind::kRowUpdate);
        if (!last && status.ok()) return;
        if (rows->End()) End(*update, status.ok() ? Status() : Internal(status.message()));
      });
    };
    const auto apply = [rows, fail, run](int part, int parts, const Reduced& sum) {
      rows->WhenReady(sum, [fail, run, part, parts, sum](const Status& status) {
        status.ok() ? run(part, parts, sum) : fail(status);
      });
    };
    const int place = reduction->layout().table_of_tensor[index_];
    if (place < 0) {  // The table is whole on every rank, or there is one.
      reduction->WhenReduced(index_, [fail, apply](const Status& status, const Reduced& sum) {
        status.ok() ? apply(0, 1, sum) : fail(status);
      });
      return;
    }
    tensorflow::OpInputList lookups;
    OP_REQUIRES_OK(context, context->input_list("lookup", &lookups));
    const auto lookup = lookups.size() == 0 ? nullptr : TicketIn<TableLookup>(lookups[0]);
    reduction->tables()->WhenThere(
        place, lookup, table_of_lookup_, writes_,
        {[rows](const std::vector<std::vector<int32_t>>& parts) { rows->Declare(parts); },
         [fail, apply](const Status& status, int part, int parts, const Reduced& sum) {
           status.ok() ? apply(part, parts, sum) : fail(status);
         }});
  }

  // An update that was put off.
  struct Update {
    std::shared_ptr<RunsInFlight> in_flight;
    std::vector<int64_t> writes;
    int64_t ticket;
  };
  using UpdatePtr = std::shared_ptr<const Update>;

  // Puts an update off: reads of what it writes wait from here on.
  UpdatePtr Begin(Reduction* reduction) {
    Engine::Get()->pending()->Defer(writes_);
    in_flight_->Begin();
    return UpdatePtr(new Update{in_flight_, writes_, reduction->number()});
  }

  // `run` is called with the update and the sum, on a thread for updates. `most_elements`: up to so
  // many, the updates of a bucket run one after another: another thread would take longer to wake.
  template <typename RunUpdate>
  void Defer(Reduction* reduction, RunUpdate run, int64_t most_elements = 0) {
    // The receiver owns all it needs: the step that called this op may long be over.
    const UpdatePtr update = Begin(reduction);
    reduction->WhenReduced(
        index_, [update, run, most_elements](const Status& status, const Reduced& sum) {
          if (!status.ok()) return GiveUp(*update, status);
          auto call = [update, run, sum] {
            InjectDelay(Engine::Get()->max_delay_ms());
            run(update, sum);
          };
          const bool is_on_update_thread = UpdateThreads()->CurrentThreadId() >= 0;
          if (is_on_update_thread && ElementsOf(sum.shape) <= most_elements) {
            call();
          } else {
            UpdateThreads()->Schedule(std::move(call));
          }
        });
  }

  // There is no sum. An update of a step that was given up is not made, and nobody waits for it.
  static void GiveUp(const Update& update, const Status& cause) {
    const bool given_up = cause.code() == StatusCode::kCancelled;
    Engine::Get()->pending()->Finish(update.writes, given_up ? Status() : cause);
    update.in_flight->End();
  }

  static void Record(const Update& update, int64_t begin, EventKind kind) {
    Engine::Get()->events()->Add({kind, update.ticket, update.writes[0],
                                  static_cast<int64_t>(update.writes.size()), begin,
                                  EventRecord::NowMicros()});
  }

  // Who reads what it wrote goes on.
  static void Finish(const Update& update, const Status& status) {
    Engine::Get()->pending()->Finish(
        update.writes,
        status.ok() ? Status() : Internal("an optimizer update failed: ", status.message()));
  }

  static void End(const Update& update, const Status& status) {
    Finish(update, status);
    update.in_flight->End();
  }

  static void RecordEnd(const Update& update, int64_t begin, const Status& status) {
    Record(update, begin, EventKind::kUpdate);
    Finish(update, status);
  }

  // Takes hold of the values that this step's norms are of. Earlier updates of these variables are
  // done, as this op comes after them, and later ones come after this update: the values stay.
  absl::Status ReadLayer(OpKernelContext* context, LayerOperands* operands) {
    tensorflow::OpInputList handles, step;
    TF_RETURN_IF_ERROR(context->input_list("moments", &handles));
    TF_RETURN_IF_ERROR(context->input_list("step", &step));
    auto values = std::make_shared<std::vector<Tensor>>();
    for (const Tensor& handle : handles) {
      tensorflow::core::RefCountPtr<tensorflow::Var> variable;
      TF_RETURN_IF_ERROR(
          LookupResource(context, handle.scalar<tensorflow::ResourceHandle>()(), &variable));
      tensorflow::tf_shared_lock lock(*variable->mu());
      if (!variable->is_initialized || variable->tensor()->dtype() != tensorflow::DT_FLOAT) {
        return absl::FailedPreconditionError(
            "norms were asked for of a variable that is not initialized or not of float32");
      }
      values->push_back(*variable->tensor());
    }
    if (values->empty()) return absl::InvalidArgumentError("norms were asked for of nothing");
    const std::vector<Tensor> moments(values->begin() + 1, values->end());
    operands->owner = values;
    return DescribeLayer(norms_, values->front(), moments, {step.begin(), step.end()},
                         &operands->layer);
  }

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

  static void Run(const UpdatePtr& update, FunctionLibraryRuntime* runtime,
                  FunctionLibraryRuntime::Handle handle, const std::vector<Tensor>& inputs) {
    // All that the run needs while it lasts, freed when it is done.
    struct State {
      explicit State(int64_t step)
          : container(step, [](const std::string&) {}), runner([this](std::function<void()> work) {
              if (OnThisThread() == this) {
                work();
              } else {
                UpdateThreads()->Schedule(std::move(work));
              }
            }) {}
      // The state of the run that this thread is in. An update is a few small kernels, one after
      // another: they run right here, since a change of threads takes longer than most of them.
      static State*& OnThisThread() {
        thread_local State* state = nullptr;
        return state;
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
    options.run_all_kernels_inline = true;
    const int64_t begin = EventRecord::NowMicros();
    bool done_here = false;
    State* const outer = std::exchange(State::OnThisThread(), state);
    runtime->Run(options, handle, inputs, &state->results,
                 [update, state, begin, done_here = &done_here](const absl::Status& status) {
                   RecordEnd(*update, begin, status.ok() ? Status() : Internal(status.message()));
                   // Not here, in a callback of the run that still uses it.
                   if (State::OnThisThread() == state) {
                     *done_here = true;
                   } else {
                     UpdateThreads()->Schedule([update, state] {
                       delete state;
                       update->in_flight->End();
                     });
                   }
                 });
    State::OnThisThread() = outer;
    if (done_here) {
      delete state;
      update->in_flight->End();
    }
  }

  tensorflow::NameAttrList function_;
  tensorflow::DataType type_;
  int index_;
  bool sparse_;
  std::vector<int64_t> writes_;
  std::string norms_;
  int norms_argument_;
  int table_of_lookup_;
  ProgramOfOp program_;  // If the update is one.
  TableOfOp table_;      // If rows of one are updated.
  const std::shared_ptr<RunsInFlight> in_flight_ = std::make_shared<RunsInFlight>();
  tensorflow::mutex mutex_;
  FunctionLibraryRuntime::Handle handle_ = tensorflow::kInvalidHandle;
};

using tensorflow::DEVICE_CPU;
REGISTER_KERNEL_BUILDER(Name("DearDeferUpdate").Device(DEVICE_CPU), DeferUpdateOp);

}  // namespace
}  // namespace tfdear
