// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/engine.h"
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

TensorShape WithRows(const Tensor& tensor, int64_t rows) {
  TensorShape shape = tensor.shape();
  shape.set_dim(0, rows);
  return shape;
}

char* Bytes(Tensor* tensor) { return const_cast<char*>(tensor->tensor_data().data()); }

// What must agree on all ranks, in words: the type and every dimension but the first.
std::string RowWords(const char* collective, const Tensor& tensor) {
  std::string text =
      std::string(collective) + " " + tensorflow::DataTypeString(tensor.dtype()) + "[?";
  for (int d = 1; d < tensor.dims(); ++d) text += "," + std::to_string(tensor.dim_size(d));
  return text + "]";
}

// The number of rows that every rank brought.
Status GatherRowCounts(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                       int64_t rows, std::vector<int64_t>* rows_of_rank) {
  rows_of_rank->assign(backend->size(), 0);
  (*rows_of_rank)[backend->rank()] = rows;
  return backend->AllGather(rows_of_rank->data(), rows_of_rank->size(), DataType::kInt64,
                            Signature(signature.text() + " rows"), sequence);
}

// One execution, alive until its collective is done, which may be after the end of the kernel: a
// cancelled step does not wait, and its function may be deleted.
struct Call {
  int group_size = 0;
  int root = 0;
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
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto collective = GetTicket<SingleCollective>(context);
    if (collective == nullptr) return done();
    auto call = std::make_shared<Call>();
    call->group_size = collective->group_size();
    call->root = root_;
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
};

struct AllGather {
  static absl::Status Check(const Call& call) { return CheckRows(call); }
  static std::string Words(const Call& call) { return RowWords("all_gather", call.input); }

  static Status Run(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    Call* call) {
    std::vector<int64_t> rows;
    Status status = GatherRowCounts(backend, signature, sequence, call->input.dim_size(0), &rows);
    if (!status.ok()) return status;
    const size_t row_bytes = RowBytes(call->input);
    std::vector<size_t> bytes;
    for (int64_t count : rows) bytes.push_back(count * row_bytes);
    const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    Tensor output(call->input.dtype(), WithRows(call->input, total));
    status = backend->AllGatherV(call->input.tensor_data().data(), Bytes(&output), bytes, signature,
                                 sequence);
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
    Tensor output(call->input.dtype(), WithRows(call->input, mine.size()));
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
    // Everyone learns the whole table of rows: one small all-gather instead of P messages.
    std::vector<int64_t> table(static_cast<size_t>(size) * size, 0);
    for (int r = 0; r < size; ++r) table[backend->rank() * size + r] = splits(r);
    Status status = backend->AllGather(table.data(), table.size(), DataType::kInt64,
                                       Signature(signature.text() + " splits"), sequence);
    if (!status.ok()) return status;
    const size_t row_bytes = RowBytes(call->input);
    std::vector<size_t> send(size), receive(size);
    Tensor received_splits(tensorflow::DT_INT64, TensorShape({size}));
    int64_t total = 0;
    for (int r = 0; r < size; ++r) {
      const int64_t rows = table[r * size + backend->rank()];
      received_splits.flat<int64_t>()(r) = rows;
      total += rows;
      send[r] = splits(r) * row_bytes;
      receive[r] = rows * row_bytes;
    }
    Tensor output(call->input.dtype(), WithRows(call->input, total));
    status = backend->AllToAllV(call->input.tensor_data().data(), send, Bytes(&output), receive,
                                signature, sequence);
    call->outputs = {output, received_splits};
    return status;
  }
};

struct Broadcast {
  static absl::Status Check(const Call& call) { return CheckType(call); }

  static std::string Words(const Call& call) {
    return std::string("broadcast ") + tensorflow::DataTypeString(call.input.dtype()) +
           call.input.shape().DebugString() + " from rank " + std::to_string(call.root);
  }

  static Status Run(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                    Call* call) {
    Tensor output(call->input.dtype(), call->input.shape());
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
