// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/collectives/row_exchange.h"
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

class OpenCollectiveOp : public tensorflow::OpKernel {
 public:
  explicit OpenCollectiveOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("lane", &lane_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<SingleCollective> collective;
    Lane* lane = nullptr;
    OP_REQUIRES_OK(context, ToAbsl(Engine::Get()->OpenCollective(static_cast<LaneKind>(lane_),
                                                                 &collective, &lane)));
    SetTicket(context, TicketHandle(std::move(collective), lane));
  }

 private:
  int lane_;
};

Rows RowsOf(const Tensor& tensor) {
  size_t row_bytes = tensorflow::DataTypeSize(tensor.dtype());
  for (int d = 1; d < tensor.dims(); ++d) row_bytes *= tensor.dim_size(d);
  return {tensor.tensor_data().data(), tensor.dim_size(0), row_bytes};
}

// Memory that a peer's input decides about: TensorFlow says by an empty tensor that there is none.
Status MakeTensor(const Tensor& like, const TensorShape& shape, Tensor* made) {
  *made = Tensor(like.dtype(), shape);
  if (made->IsInitialized()) return Status();
  return Status(StatusCode::kResourceExhausted, "no memory for the result of a collective, " +
                                                    shape.DebugString() + " of type " +
                                                    tensorflow::DataTypeString(like.dtype()));
}

char* Bytes(Tensor* tensor) { return const_cast<char*>(tensor->tensor_data().data()); }

// What must agree on all ranks: the type and every dimension but the first.
std::string DescribeRows(const char* collective, const Tensor& tensor) {
  std::string text =
      std::string(collective) + " " + tensorflow::DataTypeString(tensor.dtype()) + "[?";
  for (int d = 1; d < tensor.dims(); ++d) text += "," + std::to_string(tensor.dim_size(d));
  return text + "]";
}

// One execution, alive until its collective is done, which may be after the end of the kernel: a
// cancelled step does not wait, and its function may be deleted.
struct Call {
  int group_size = 0;
  int root = 0;
  std::string label;
  Tensor input;
  Tensor splits;
  std::vector<Tensor> outputs;
};

// Makes the first output: like the input, with another number of rows.
AllocateRows OutputAllocator(Call* call) {
  return [call](size_t rows, void** memory) {
    TensorShape shape = call->input.shape();
    shape.set_dim(0, static_cast<int64_t>(rows));
    Tensor output;
    TFDEAR_RETURN_IF_ERROR(MakeTensor(call->input, shape, &output));
    *memory = Bytes(&output);
    call->outputs = {output};
    return Status();
  };
}

absl::Status CheckType(const Call& call) {
  if (tensorflow::DataTypeCanUseMemcpy(call.input.dtype())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tensors of type ", tensorflow::DataTypeString(call.input.dtype()),
      " have no fixed size and cannot be exchanged. Encode them as numbers or bytes first"));
}

absl::Status CheckRows(const Call& call) {
  if (call.input.dims() < 1) {
    return absl::InvalidArgumentError(
        "the input of this collective needs at least one dimension: "
        "its first dimension is what ranks exchange");
  }
  return CheckType(call);
}

// A kernel that runs one collective. `Collective` checks its inputs, describes what ranks have to
// agree on, for the signature, and runs it.
template <typename Collective>
class CollectiveOp : public tensorflow::AsyncOpKernel {
 public:
  explicit CollectiveOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    if (context->HasAttr("root")) OP_REQUIRES_OK(context, context->GetAttr("root", &root_));
    if (context->HasAttr("label")) OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto collective = GetTicket<SingleCollective>(context);
    if (collective == nullptr) return done();
    auto call = std::make_shared<Call>();
    call->group_size = collective->group_size();
    call->root = root_;
    call->label = label_;
    if (context->num_inputs() > 1) call->input = context->input(1);
    if (context->num_inputs() > 2) call->splits = context->input(2);
    OP_REQUIRES_OK_ASYNC(context, Collective::Check(*call), done);
    auto op = Cancellable::Start(context, std::move(done));
    collective->Start(
        std::make_shared<Signature>(Collective::Describe(*call)),
        [call](CollectiveBackend* backend, const Signature& signature, uint64_t sequence) {
          return Collective::Run(backend, signature, sequence, call.get());
        },
        [op, call](const Status& status) {
          op->End([&](OpKernelContext* ended) {
            if (!status.ok()) return ended->SetStatus(ToAbsl(status));
            for (size_t i = 0; i < call->outputs.size(); ++i) {
              ended->set_output(i, call->outputs[i]);
            }
          });
        });
  }

 private:
  int root_ = 0;
  std::string label_;
};

struct AllGather {
  static absl::Status Check(const Call& call) { return CheckRows(call); }
  static std::string Describe(const Call& call) { return DescribeRows("all_gather", call.input); }

  static Status Run(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    Call* call) {
    return AllGatherRows(backend, signature, sequence, RowsOf(call->input), OutputAllocator(call));
  }
};

struct ReduceScatter {
  static absl::Status Check(const Call& call) { return CheckRows(call); }
  static std::string Describe(const Call& call) {
    return std::string("reduce_scatter ") + tensorflow::DataTypeString(call.input.dtype()) +
           call.input.shape().DebugString();
  }

  static Status Run(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    Call* call) {
    return ReduceScatterRows(backend, signature, sequence, RowsOf(call->input),
                             ToEngine(call->input.dtype()), OutputAllocator(call));
  }
};

struct AllToAll {
  static absl::Status Check(const Call& call) {
    TF_RETURN_IF_ERROR(CheckRows(call));
    const auto splits = call.splits.flat<int64_t>();
    int64_t total = 0;
    const int64_t rows = call.input.dim_size(0);
    bool valid = splits.size() == call.group_size;
    for (int64_t i = 0; i < splits.size() && valid; ++i) {
      valid = splits(i) >= 0 && splits(i) <= rows - total;
      total += splits(i);
    }
    if (!valid || total != rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("splits must hold one non-negative number of rows per rank (",
                       call.group_size, ") that add up to the rows of the input (", rows,
                       "). Received splits ", call.splits.SummarizeValue(16)));
    }
    return absl::OkStatus();
  }

  static std::string Describe(const Call& call) { return DescribeRows("all_to_all", call.input); }

  static Status Run(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    Call* call) {
    const auto splits = call->splits.flat<int64_t>();
    std::vector<int64_t> received;
    TFDEAR_RETURN_IF_ERROR(
        AllToAllRows(backend, signature, sequence, RowsOf(call->input),
                     std::vector<int64_t>(splits.data(), splits.data() + splits.size()), &received,
                     OutputAllocator(call)));
    Tensor received_splits(tensorflow::DT_INT64, TensorShape({backend->size()}));
    std::copy(received.begin(), received.end(), received_splits.flat<int64_t>().data());
    call->outputs.push_back(received_splits);
    return Status();
  }
};

struct Broadcast {
  static absl::Status Check(const Call& call) { return CheckType(call); }

  static std::string Describe(const Call& call) {
    return std::string("broadcast ") + tensorflow::DataTypeString(call.input.dtype()) +
           call.input.shape().DebugString() +
           (call.label.empty() ? "" : " of '" + call.label + "'") + " from rank " +
           std::to_string(call.root);
  }

  static Status Run(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    Call* call) {
    Tensor output;
    TFDEAR_RETURN_IF_ERROR(MakeTensor(call->input, call->input.shape(), &output));
    const auto input = call->input.tensor_data();
    if (backend->rank() == call->root) std::copy(input.begin(), input.end(), Bytes(&output));
    Status status =
        backend->Broadcast(Bytes(&output), input.size(), call->root, signature, sequence);
    call->outputs = {output};
    return status;
  }
};

struct Barrier {
  static absl::Status Check(const Call& call) { return absl::OkStatus(); }
  static std::string Describe(const Call& call) { return "barrier"; }
  static Status Run(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    Call* call) {
    return backend->Barrier(signature, sequence);
  }
};

using tensorflow::DEVICE_CPU;
REGISTER_KERNEL_BUILDER(Name("DearOpenCollective").Device(DEVICE_CPU), OpenCollectiveOp);
REGISTER_KERNEL_BUILDER(Name("DearAllGather").Device(DEVICE_CPU), CollectiveOp<AllGather>);
REGISTER_KERNEL_BUILDER(Name("DearReduceScatter").Device(DEVICE_CPU), CollectiveOp<ReduceScatter>);
REGISTER_KERNEL_BUILDER(Name("DearAllToAll").Device(DEVICE_CPU), CollectiveOp<AllToAll>);
REGISTER_KERNEL_BUILDER(Name("DearBroadcast").Device(DEVICE_CPU), CollectiveOp<Broadcast>);
REGISTER_KERNEL_BUILDER(Name("DearBarrier").Device(DEVICE_CPU), CollectiveOp<Barrier>);

}  // namespace
}  // namespace tfdear
