// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "custom_ops/engine/engine.h"
#include "custom_ops/kernels/cancellable.h"
#include "custom_ops/kernels/conversions.h"
#include "custom_ops/kernels/table.h"
#include "custom_ops/kernels/ticket.h"
#include "custom_ops/kernels/unique_ids.h"
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

class OpenLookAheadOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto lookup = GetTicket<TableLookup>(context, 1);
    if (lookup == nullptr) return;
    std::shared_ptr<TableLookup> opened;
    Lane* lane = nullptr;
    OP_REQUIRES_OK(context, ToAbsl(Engine::Get()->OpenLookAhead(lookup.get(), &opened, &lane)));
    SetTicket(context, TicketHandle(std::move(opened), lane));
  }
};

class ContributeIdsOp : public OfLookup<tensorflow::OpKernel> {
 public:
  explicit ContributeIdsOp(OpKernelConstruction* context) : OfLookup(context) {
    OP_REQUIRES_OK(context, context->GetAttr("number", &number_));
  }

  void Compute(OpKernelContext* context) override {
    auto lookup = GetTicket<TableLookup>(context);
    if (lookup == nullptr) return;
    const auto ids = context->input(1).flat<int32_t>();
    const int64_t expected = lookup->ExpectedVersion(index_);
    // No handle of the table: as one more use of it, this would come behind earlier lookups in it,
    // with which it shares a ticket.
    const auto table = expected < 0 ? nullptr : Table::Find(number_);
    lookup->ContributeIds(index_, std::vector<int32_t>(ids.data(), ids.data() + ids.size()),
                          table != nullptr && table->version() == expected);
  }

 private:
  int64_t number_;
};

template <typename Id>
class ContributeNextIdsOp : public OfLookup<tensorflow::OpKernel> {
 public:
  explicit ContributeNextIdsOp(OpKernelConstruction* context) : OfLookup(context) {
    OP_REQUIRES_OK(context, context->GetAttr("rows", &rows_));
  }

  void Compute(OpKernelContext* context) override {
    auto lookup = GetTicket<TableLookup>(context);
    if (lookup == nullptr) return;
    const auto ids = context->input(1).flat<Id>();
    std::vector<int32_t> unique;
    // What is wrong with an id is for the step to say that looks it up.
    if (!context->input(2).scalar<bool>()() ||
        FindUnique(ids.data(), ids.size(), rows_, &unique, nullptr) >= 0) {
      return lookup->ContributeNoIds(index_);
    }
    lookup->ContributeIds(index_, std::move(unique));
  }

 private:
  int64_t rows_;
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
    const int index = index_;
    auto op = Cancellable::Start(context, std::move(done), lookup->is_ahead());
    lookup->WhenIdsThere(
        index, [op](const Status& status, const GatheredIds& ids, const GatheredIds& needed) {
          op->End([&](OpKernelContext* ended) {
            if (!status.ok()) return ended->SetStatus(ToAbsl(status));
            ended->set_output(0, VectorOf(ids.ids));
            ended->set_output(1, VectorOf(ids.counts));
            ended->set_output(2, VectorOf(needed.ids));
          });
        });
  }
};

class ContributeBagsOp : public OfLookup<tensorflow::OpKernel> {
 public:
  using OfLookup::OfLookup;

  void Compute(OpKernelContext* context) override {
    auto lookup = GetTicket<TableLookup>(context);
    if (lookup == nullptr) return;
    const auto positions = context->input(1).flat<int32_t>();
    const auto bag_of = context->input(2).flat<int32_t>();
    const int32_t count = context->input(3).scalar<int32_t>()();
    OP_REQUIRES(context, positions.size() == bag_of.size() && count >= 0,
                absl::InvalidArgumentError("every token must have an id and a bag"));
    Bags bags;
    OP_REQUIRES(context, MakeBags(positions.data(), bag_of.data(), bag_of.size(), count, &bags),
                absl::InvalidArgumentError(absl::StrCat("an id is in a row that is not one of the ",
                                                        count, " of its sparse tensor")));
    lookup->ContributeBags(index_, std::move(bags));
  }
};

Tensor ScalarOf(int32_t value) {
  Tensor tensor(tensorflow::DT_INT32, TensorShape({}));
  tensor.scalar<int32_t>()() = value;
  return tensor;
}

class GatheredBagsOp : public OfLookup<tensorflow::OpKernel> {
 public:
  using OfLookup::OfLookup;

  void Compute(OpKernelContext* context) override {
    auto lookup = GetTicket<TableLookup>(context);
    if (lookup == nullptr) return;
    const auto bags = lookup->BagsThere(index_);
    const GatheredBags none;
    const GatheredBags& there = bags == nullptr ? none : *bags;
    context->set_output(0, VectorOf(there.positions));
    context->set_output(1, VectorOf(there.bag_of));
    context->set_output(2, ScalarOf(static_cast<int32_t>(there.total())));
    Tensor pooled(tensorflow::DT_BOOL, TensorShape({}));
    pooled.scalar<bool>()() = bags != nullptr;
    context->set_output(3, pooled);
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
                              tensorflow::DataTypeSize(held->dtype()), held,
                              context->input(2).scalar<int64_t>()());
  }
};

class ExchangedVectorsOp : public OfLookup<tensorflow::AsyncOpKernel> {
 public:
  using OfLookup::OfLookup;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto lookup = GetTicket<TableLookup>(context);
    if (lookup == nullptr) return done();
    const auto type = context->expected_output_dtype(0);
    const int index = index_;
    auto op = Cancellable::Start(context, std::move(done));
    lookup->WhenVectorsThere(index, [op, type](const Status& status, const Reduced& vectors) {
      op->End([&](OpKernelContext* ended) {
        if (!status.ok()) return ended->SetStatus(ToAbsl(status));
        ended->set_output(0, ToTensors(vectors, type, /*sparse=*/false)[0]);
      });
    });
  }
};

using tensorflow::DEVICE_CPU;
REGISTER_KERNEL_BUILDER(Name("DearOpenLookup").Device(DEVICE_CPU), OpenLookupOp);
REGISTER_KERNEL_BUILDER(Name("DearOpenLookAhead").Device(DEVICE_CPU), OpenLookAheadOp);
#define TFDEAR_REGISTER(Type)                                                        \
  REGISTER_KERNEL_BUILDER(                                                           \
      Name("DearContributeNextIds").Device(DEVICE_CPU).TypeConstraint<Type>("Tids"), \
      ContributeNextIdsOp<Type>)
TFDEAR_REGISTER(int8_t);
TFDEAR_REGISTER(uint8_t);
TFDEAR_REGISTER(int16_t);
TFDEAR_REGISTER(uint16_t);
TFDEAR_REGISTER(int32_t);
TFDEAR_REGISTER(uint32_t);
TFDEAR_REGISTER(int64_t);
#undef TFDEAR_REGISTER
REGISTER_KERNEL_BUILDER(Name("DearContributeIds").Device(DEVICE_CPU), ContributeIdsOp);
REGISTER_KERNEL_BUILDER(Name("DearGatheredIds").Device(DEVICE_CPU), GatheredIdsOp);
REGISTER_KERNEL_BUILDER(Name("DearContributeBags").Device(DEVICE_CPU), ContributeBagsOp);
REGISTER_KERNEL_BUILDER(Name("DearGatheredBags").Device(DEVICE_CPU), GatheredBagsOp);
REGISTER_KERNEL_BUILDER(Name("DearContributeVectors").Device(DEVICE_CPU), ContributeVectorsOp);
REGISTER_KERNEL_BUILDER(Name("DearExchangedVectors").Device(DEVICE_CPU), ExchangedVectorsOp);

}  // namespace
}  // namespace tfdear
