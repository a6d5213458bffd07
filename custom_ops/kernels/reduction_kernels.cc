// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <utility>
#include <vector>

#include "custom_ops/engine/engine.h"
#include "custom_ops/kernels/cancellable.h"
#include "custom_ops/kernels/conversions.h"
#include "custom_ops/kernels/device_threads.h"
#include "custom_ops/kernels/ticket.h"
#include "custom_ops/kernels/update_threads.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdear {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Asynchronous, because at some executions the ranks agree on a plan first.
class OpenReductionOp : public tensorflow::AsyncOpKernel {
 public:
  explicit OpenReductionOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("layout", &layout_));
    UpdateThreads();
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const int64_t layout = layout_;
    auto op = Cancellable::Start(context, std::move(done));
    Engine::Get()->Open(
        layout, [op](const Status& status, std::shared_ptr<Reduction> reduction, Lane* lane) {
          // One call for the sums of a bucket, which the line does not wait for.
          if (reduction != nullptr) {
            reduction->set_hand_over(
                [](std::function<void()> call) { UpdateThreads()->Schedule(std::move(call)); });
          }
          // Made here: if the step was cancelled meanwhile, it withdraws the reduction when it
          // goes.
          TicketHandle handle(std::move(reduction), lane);
          op->End([&](OpKernelContext* ended) {
            if (!status.ok()) return ended->SetStatus(ToAbsl(status));
            SetTicket(ended, handle);
          });
        });
  }

 private:
  int64_t layout_;
};

// A kernel that has to do with one tensor of a reduction.
template <typename Kernel>
class OfTensor : public Kernel {
 public:
  explicit OfTensor(OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
  }

 protected:
  int index_;
};

class ContributeOp : public OfTensor<tensorflow::OpKernel> {
 public:
  using OfTensor::OfTensor;

  void Compute(OpKernelContext* context) override {
    auto reduction = GetTicket<Reduction>(context);
    if (reduction == nullptr) return;
    const Tensor& tensor = context->input(1);
    const double weight = context->input(2).scalar<double>()();
    OP_REQUIRES_OK(context, ToAbsl(reduction->Contribute(index_, tensor.tensor_data().data(),
                                                         ToEngine(tensor.shape()), weight,
                                                         OnDevice(context))));
  }
};

class ContributeRowsOp : public OfTensor<tensorflow::OpKernel> {
 public:
  explicit ContributeRowsOp(OpKernelConstruction* context) : OfTensor(context) {
    OP_REQUIRES_OK(context, context->GetAttr("table_of_lookup", &table_of_lookup_));
  }

  void Compute(OpKernelContext* context) override {
    auto reduction = GetTicket<Reduction>(context);
    if (reduction == nullptr) return;
    const Tensor& values = context->input(1);
    const Tensor& indices = context->input(2);
    OP_REQUIRES(
        context,
        values.dims() >= 1 && indices.dims() == 1 && values.dim_size(0) == indices.dim_size(0),
        absl::InvalidArgumentError(
            absl::StrCat("values and indices must have the same number of rows. Received shapes ",
                         values.shape().DebugString(), " and ", indices.shape().DebugString())));
    const double weight = context->input(3).scalar<double>()();
    std::shared_ptr<TableLookup> lookup;
    if (context->num_inputs() > 4) {
      lookup = GetTicket<TableLookup>(context, 4);
      if (lookup == nullptr) return;
    }
    OP_REQUIRES_OK(context,
                   ToAbsl(reduction->ContributeRows(
                       index_, values.tensor_data().data(), indices.flat<int64_t>().data(),
                       ToEngine(values.shape()), weight, std::move(lookup), table_of_lookup_)));
  }

 private:
  int table_of_lookup_;
};

class ReducedOp : public OfTensor<tensorflow::AsyncOpKernel> {
 public:
  using OfTensor::OfTensor;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto reduction = GetTicket<Reduction>(context);
    if (reduction == nullptr) return done();
    const auto type = context->expected_output_dtype(0);
    const bool sparse = context->num_outputs() > 1;
    const int index = index_;
    auto op = Cancellable::Start(context, std::move(done));
    reduction->WhenReduced(index, [op, type, sparse](const Status& status, const Reduced& sum) {
      op->End([&](OpKernelContext* ended) {
        if (!status.ok()) return ended->SetStatus(ToAbsl(status));
        const std::vector<Tensor> tensors = ToTensors(sum, type, sparse);
        for (size_t i = 0; i < tensors.size(); ++i) ended->set_output(i, tensors[i]);
      });
    });
  }
};

using tensorflow::DEVICE_CPU;
REGISTER_KERNEL_BUILDER(Name("DearOpenReduction").Device(DEVICE_CPU), OpenReductionOp);
REGISTER_KERNEL_BUILDER(Name("DearContribute").Device(DEVICE_CPU), ContributeOp);
REGISTER_KERNEL_BUILDER(Name("DearContributeRows").Device(DEVICE_CPU), ContributeRowsOp);
REGISTER_KERNEL_BUILDER(Name("DearReduced").Device(DEVICE_CPU), ReducedOp);
REGISTER_KERNEL_BUILDER(Name("DearReducedRows").Device(DEVICE_CPU), ReducedOp);

}  // namespace
}  // namespace tfdear
