// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "custom_ops/engine/engine.h"
#include "custom_ops/kernels/cancellable.h"
#include "custom_ops/kernels/conversions.h"
#include "custom_ops/kernels/ticket.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdear {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class OpenLookupOp : public tensorflow::OpKernel {
 public:
  explicit OpenLookupOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("lookup", &lookup_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<TableLookup> opened;
    Lane* lane = nullptr;
    OP_REQUIRES_OK(context, ToAbsl(Engine::Get()->OpenLookup(lookup_, &opened, &lane)));
    SetTicket(context, TicketHandle(std::move(opened), lane));
  }

 private:
  int64_t lookup_;
};

// A kernel that has to do with one table of a lookup.
template <typename Kernel>
class OfLookup : public Kernel {
 public:
  explicit OfLookup(OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
  }

 protected:
  int index_;
};

class ContributeIdsOp : public OfLookup<tensorflow::OpKernel> {
 public:
  using OfLookup::OfLookup;

  void Compute(OpKernelContext* context) override {
    auto lookup = GetTicket<TableLookup>(context);
    if (lookup == nullptr) return;
    const auto ids = context->input(1).flat<int32_t>();
    lookup->ContributeIds(index_, std::vector<int32_t>(ids.data(), ids.data() + ids.size()));
  }
};

template <typename Element>
Tensor VectorOf(const std::vector<Element>& values) {
  Tensor tensor(tensorflow::DataTypeToEnum<Element>::value,
                TensorShape({static_cast<int64_t>(values.size())}));
  std::copy(values.begin(), values.end(), tensor.flat<Element>().data());
  return tensor;
}

class GatheredIdsOp : public OfLookup<tensorflow::AsyncOpKernel> {
 public:
  using OfLookup::OfLookup;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto lookup = GetTicket<TableLookup>(context);
    if (lookup == nullptr) return done();
    auto op = Cancellable::Start(context, std::move(done));
    lookup->WhenIdsThere(index_, [op](const Status& status, const std::vector<int32_t>& ids,
                                      const std::vector<int64_t>& counts) {
      op->End([&](OpKernelContext* ended) {
        if (!status.ok()) return ended->SetStatus(ToAbsl(status));
        ended->set_output(0, VectorOf(ids));
        ended->set_output(1, VectorOf(counts));
      });
    });
  }
};

class ContributeVectorsOp : public OfLookup<tensorflow::OpKernel> {
 public:
  using OfLookup::OfLookup;

  void Compute(OpKernelContext* context) override {
    auto lookup = GetTicket<TableLookup>(context);
    if (lookup == nullptr) return;
    auto held = std::make_shared<const Tensor>(context->input(1));
    lookup->ContributeVectors(index_, held->tensor_data().data(),
                              tensorflow::DataTypeSize(held->dtype()), held);
  }
};

class ExchangedVectorsOp : public OfLookup<tensorflow::AsyncOpKernel> {
 public:
  using OfLookup::OfLookup;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto lookup = GetTicket<TableLookup>(context);
    if (lookup == nullptr) return done();
    const auto type = context->expected_output_dtype(0);
    auto op = Cancellable::Start(context, std::move(done));
    lookup->WhenVectorsThere(index_, [op, type](const Status& status, const Reduced& vectors) {
      op->End([&](OpKernelContext* ended) {
        if (!status.ok()) return ended->SetStatus(ToAbsl(status));
        ended->set_output(0, ToTensors(vectors, type, /*sparse=*/false)[0]);
      });
    });
  }
};

using tensorflow::DEVICE_CPU;
REGISTER_KERNEL_BUILDER(Name("DearOpenLookup").Device(DEVICE_CPU), OpenLookupOp);
REGISTER_KERNEL_BUILDER(Name("DearContributeIds").Device(DEVICE_CPU), ContributeIdsOp);
REGISTER_KERNEL_BUILDER(Name("DearGatheredIds").Device(DEVICE_CPU), GatheredIdsOp);
REGISTER_KERNEL_BUILDER(Name("DearContributeVectors").Device(DEVICE_CPU), ContributeVectorsOp);
REGISTER_KERNEL_BUILDER(Name("DearExchangedVectors").Device(DEVICE_CPU), ExchangedVectorsOp);

}  // namespace
}  // namespace tfdear
