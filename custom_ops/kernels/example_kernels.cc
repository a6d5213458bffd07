// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Examples on their way into a cache: what is to be prepared, and the function that prepares it.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/engine/examples/example_store.h"
#include "custom_ops/engine/examples/registry.h"
#include "custom_ops/kernels/example_format.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace tfdear {
namespace {

using tensorflow::FunctionLibraryRuntime;
using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::tstring;

// The store that an op's first input names; null: it was closed, and nothing is to be prepared.
std::shared_ptr<ExampleStore> StoreOf(OpKernelContext* context) {
  return Registry<ExampleStore>::Get()->Find(context->input(0).scalar<int64_t>()());
}

class NextExamplesOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const auto store = StoreOf(context);
    const int64_t most = context->input(1).scalar<int64_t>()();
    const int64_t most_in_order = context->input(2).scalar<int64_t>()();
    std::vector<int64_t> examples;
    if (store != nullptr) {
      examples = store->Next(static_cast<size_t>(most), static_cast<size_t>(most_in_order));
    }
    Tensor* output = nullptr;
    const int64_t count = examples.size();
    OP_REQUIRES_OK(context, context->allocate_output(0, {count}, &output));
    std::copy(examples.begin(), examples.end(), output->flat<int64_t>().data());
  }
};

// The calls of a function for some records, of which several run at a time. It is over when the
// last of them is.
class Preparation : public std::enable_shared_from_this<Preparation> {
 public:
  Preparation(OpKernelContext* context, std::shared_ptr<ExampleStore> store,
              const ExampleFormat* format, FunctionLibraryRuntime::Handle function, bool skip,
              std::function<void()> done)
      : context_(context),
        store_(std::move(store)),
        format_(format),
        function_(function),
        skip_(skip),
        done_(std::move(done)),
        examples_(context->input(1)),
        names_(context->input(2)),
        errors_(context->input(3)) {}

  void Start(int parallelism) {
    const absl::Status status = TakeInputs();
    if (!status.ok()) {
      context_->SetStatus(status);
      return done_();
    }
    const int calls = static_cast<int>(std::min<int64_t>(parallelism, examples_.NumElements()));
    // One more, so that it does not end before all have started.
    running_ = calls + 1;
    for (int call = 0; call < calls; ++call) {
      (*context_->runner())([self = shared_from_this()] { self->CallNext(); });
    }
    EndOne();
  }

 private:
  absl::Status TakeInputs() {
    TF_RETURN_IF_ERROR(context_->input_list("raw", &raw_));
    TF_RETURN_IF_ERROR(context_->input_list("captured", &captured_));
    const int64_t records = examples_.NumElements();
    for (int i = 0; i < raw_.size(); ++i) {
      if (raw_[i].dims() == 0 || raw_[i].dim_size(0) != records) {
        return absl::InvalidArgumentError(absl::StrCat(
            "raw records of ", records, " examples were expected. Received a tensor of shape ",
            raw_[i].shape().DebugString()));
      }
    }
    return absl::OkStatus();
  }

  void CallNext() {
    while (true) {
      const int64_t record = next_.fetch_add(1);
      if (record >= examples_.NumElements()) return EndOne();
      const tstring& error = errors_.flat<tstring>()(record);
      if (error.empty()) return Call(record);
      const std::string why(error);
      // What could be read, and is wrong, is left out; a source that cannot be read never is.
      if (skip_ &&
          (absl::StartsWith(why, "DATA_LOSS") || absl::StartsWith(why, "INVALID_ARGUMENT"))) {
        Skip(record, why);
      } else {
        Fail(record, StatusCode::kUnavailable, "cannot be read: ", why);
      }
    }
  }

  void Call(int64_t record) {
    // A call that fails cancels what has its manager: nothing but this call.
    struct Run {
      explicit Run(tensorflow::CancellationManager* around)
          : cancellation(around == nullptr
                             ? std::make_unique<tensorflow::CancellationManager>()
                             : std::make_unique<tensorflow::CancellationManager>(around)) {}
      std::vector<Tensor> arguments, results;
      std::unique_ptr<tensorflow::CancellationManager> cancellation;
    };
    auto run = std::make_shared<Run>(context_->cancellation_manager());
    // Slices need not be aligned as tensors are.
    for (int i = 0; i < raw_.size(); ++i) {
      run->arguments.push_back(tensorflow::tensor::DeepCopy(raw_[i].SubSlice(record)));
    }
    for (int i = 0; i < captured_.size(); ++i) run->arguments.push_back(captured_[i]);
    FunctionLibraryRuntime::Options options;
    options.create_rendezvous = true;
    options.runner = context_->runner();
    options.cancellation_manager = run->cancellation.get();
    context_->function_library()->Run(
        options, function_, run->arguments, &run->results,
        [self = shared_from_this(), run, record](const absl::Status& status) {
          self->Take(record, status, run->results);
          run->cancellation = nullptr;  // The one around it may go with the op.
          self->CallNext();
        });
  }

  void Take(int64_t record, const absl::Status& status, const std::vector<Tensor>& example) {
    const absl::Status checked = status.ok() ? format_->Check(example) : status;
    if (!checked.ok()) {
      const std::string why(checked.message());
      if (skip_) return Skip(record, why);
      return Fail(record, StatusCode::kInvalidArgument, "cannot be prepared: ", why);
    }
    store_->Put(examples_.flat<int64_t>()(record), format_->BytesOf(example),
                [&](char* to) { format_->Write(example, to); });
  }

  void Fail(int64_t record, StatusCode code, const char* what, const std::string& why) {
    store_->Fail(examples_.flat<int64_t>()(record),
                 Status(code, absl::StrCat(NameOf(record), what, why)));
  }

  void Skip(int64_t record, const std::string& why) {
    if (!store_->Skip(examples_.flat<int64_t>()(record))) return;
    LOG(WARNING) << "tfdear: " << NameOf(record) << "is left out: " << why;
  }

  std::string NameOf(int64_t record) const {
    return absl::StrCat("DataCache: example ", examples_.flat<int64_t>()(record), " (",
                        std::string(names_.flat<tstring>()(record)), ") ");
  }

  void EndOne() {
    if (running_.fetch_sub(1) > 1) return;
    store_->Note(EventKind::kDataPrepare, examples_.NumElements(), begin_us_);
    done_();
  }

  OpKernelContext* const context_;
  const std::shared_ptr<ExampleStore> store_;
  const ExampleFormat* const format_;
  const FunctionLibraryRuntime::Handle function_;
  const bool skip_;
  const std::function<void()> done_;
  const Tensor examples_, names_, errors_;
  OpInputList raw_, captured_;
  std::atomic<int64_t> next_{0};
  std::atomic<int> running_{0};
  const int64_t begin_us_ = EventRecord::NowMicros();
};

class PrepareExamplesOp : public tensorflow::AsyncOpKernel {
 public:
  explicit PrepareExamplesOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    std::vector<tensorflow::DataType> types;
    std::vector<tensorflow::PartialTensorShape> shapes;
    OP_REQUIRES_OK(context, context->GetAttr("f", &function_));
    OP_REQUIRES_OK(context, context->GetAttr("parallelism", &parallelism_));
    OP_REQUIRES_OK(context, context->GetAttr("skip", &skip_));
    OP_REQUIRES_OK(context, context->GetAttr("types", &types));
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes));
    OP_REQUIRES(context, types.size() == shapes.size(),
                absl::InvalidArgumentError("an example needs as many shapes as types"));
    format_ = ExampleFormat(types, shapes);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto store = StoreOf(context);
    if (store == nullptr) return done();
    FunctionLibraryRuntime::Handle function;
    OP_REQUIRES_OK_ASYNC(context,
                         context->function_library()->Instantiate(
                             function_.name(), tensorflow::AttrSlice(&function_.attr()), &function),
                         done);
    std::make_shared<Preparation>(context, store, &format_, function, skip_, std::move(done))
        ->Start(parallelism_);
  }

 private:
  tensorflow::NameAttrList function_;
  int parallelism_ = 1;
  bool skip_ = false;
  ExampleFormat format_;
};

using tensorflow::DEVICE_CPU;
REGISTER_KERNEL_BUILDER(Name("DearNextExamples").Device(DEVICE_CPU), NextExamplesOp);
REGISTER_KERNEL_BUILDER(Name("DearPrepareExamples").Device(DEVICE_CPU), PrepareExamplesOp);

}  // namespace
}  // namespace tfdear
