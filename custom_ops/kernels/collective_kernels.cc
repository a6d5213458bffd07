// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/engine.h"
#include "custom_ops/engine/row_exchange.h"
#include "custom_ops/engine/shard.h"
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

// Bytes of one row (everything but the first dimension).
size_t RowBytes(const Tensor& tensor) {
  size_t bytes = tensorflow::DataTypeSize(tensor.dtype());
  for (int d = 1; d < tensor.dims(); ++d) bytes *= tensor.dim_size(d);
  return bytes;
}

// Memory that a peer's input decides about: TensorFlow says by an empty tensor that there is none.
Status MakeTensor(const Tensor& like, const TensorShape& shape, Tensor* made) {
  *made = Tensor(like.dtype(), shape);
  if (made->IsInitialized()) return Status();
  return Status(StatusCode::kResourceExhausted, "no memory for the result of a collective, " +
                                                    shape.DebugString() + " of type " +
                                                    tensorflow::DataTypeString(like.dtype()));
}

// A tensor like the given one, with another number of rows.
Status MakeRows(const Tensor& like, size_t rows, Tensor* made) {
  TensorShape shape = like.shape();
  shape.set_dim(0, static_cast<int64_t>(rows));
  return MakeTensor(like, shape, made);
}

char* Bytes(Tensor* tensor) { return const_cast<char*>(tensor->tensor_data().data()); }

// What must agree on all ranks, in words: the type and every dimension but the first.
std::string RowWords(const char* collective, const Tensor& tensor) {
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

// A kernel that runs one collective. `Collective` says in words what it sends, and sends it.
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
        std::make_shared<Signature>(Collective::Words(*call)),
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
  static std::string Words(const Call& call) { return RowWords("all_gather", call.input); }

  static Status Run(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    Call* call) {
    const size_t row_bytes = RowBytes(call->input);
    ArrivingRows rows;
    TFDEAR_RETURN_IF_ERROR(
        AnnounceRows(backend, signature, sequence, call->input.dim_size(0), row_bytes, &rows));
    Tensor output;
    TFDEAR_RETURN_IF_ERROR(MakeRows(call->input, rows.total, &output));
    const Status status = backend->AllGatherV(call->input.tensor_data().data(), Bytes(&output),
                                              rows.bytes_of_member, signature, sequence);
    call->outputs = {output};
    return status;
  }
};

struct ReduceScatter {
  static absl::Status Check(const Call& call) { return CheckRows(call); }
  static std::string Words(const Call& call) {
    return std::string("reduce_scatter ") + tensorflow::DataTypeString(call.input.dtype()) +
           call.input.shape().DebugString();
  }

  static Status Run(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    Call* call) {
    // Blocks of equal size, so that the backend's shards are whole rows: block r holds the rows
    // that rank r gets.
    const int size = backend->size();
    const size_t rows = call->input.dim_size(0);
    const size_t row_bytes = RowBytes(call->input);
    const size_t element = tensorflow::DataTypeSize(call->input.dtype());
    const size_t block_bytes = (rows + size - 1) / size * row_bytes;
    std::vector<char> blocks(block_bytes * size, 0);
    const char* input = call->input.tensor_data().data();
    for (int r = 0; r < size; ++r) {
      const Range range = ShardOf(rows, r, size);
      std::copy(input + range.begin * row_bytes, input + range.end * row_bytes,
                blocks.begin() + r * block_bytes);
    }
    Status status = backend->ReduceScatter(blocks.data(), blocks.size() / element,
                                           ToEngine(call->input.dtype()), signature, sequence);
    if (!status.ok()) return status;
    const Range mine = ShardOf(rows, backend->rank(), size);
    Tensor output;
    TFDEAR_RETURN_IF_ERROR(MakeRows(call->input, mine.size(), &output));
    std::copy_n(blocks.begin() + backend->rank() * block_bytes, mine.size() * row_bytes,
                Bytes(&output));
    call->outputs = {output};
    return status;
  }
};

struct AllToAll {
  static absl::Status Check(const Call& call) {
    TF_RETURN_IF_ERROR(CheckRows(call));
    const auto splits = call.splits.flat<int64_t>();
    int64_t total = 0;
    bool negative = false;
    for (int64_t i = 0; i < splits.size(); ++i) {
      total += splits(i);
      negative = negative || splits(i) < 0;
    }
    if (splits.size() != call.group_size || negative || total != call.input.dim_size(0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "splits must hold one non-negative number of rows per rank (", call.group_size,
          ") that add up to the rows of the input (", call.input.dim_size(0), "). Received splits ",
          call.splits.SummarizeValue(16)));
    }
    return absl::OkStatus();
  }

  static std::string Words(const Call& call) { return RowWords("all_to_all", call.input); }

  static Status Run(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    Call* call) {
    const int size = backend->size();
    const auto splits = call->splits.flat<int64_t>();
    const size_t row_bytes = RowBytes(call->input);
    ArrivingRows rows;
    TFDEAR_RETURN_IF_ERROR(AnnounceSplits(backend, signature, sequence,
                                          std::vector<int64_t>(splits.data(), splits.data() + size),
                                          row_bytes, &rows));
    std::vector<size_t> send(size);
    Tensor received_splits(tensorflow::DT_INT64, TensorShape({size}));
    for (int r = 0; r < size; ++r) {
      received_splits.flat<int64_t>()(r) = rows.of_member[r];
      send[r] = splits(r) * row_bytes;
    }
    Tensor output;
    TFDEAR_RETURN_IF_ERROR(MakeRows(call->input, rows.total, &output));
    const Status status = backend->AllToAllV(call->input.tensor_data().data(), send, Bytes(&output),
                                             rows.bytes_of_member, signature, sequence);
    call->outputs = {output, received_splits};
    return status;
  }
};

struct Broadcast {
  static absl::Status Check(const Call& call) { return CheckType(call); }

  static std::string Words(const Call& call) {
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
  static std::string Words(const Call& call) { return "barrier"; }
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
