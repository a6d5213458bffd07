// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "custom_ops/engine/collectives/vector_exchange.h"
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

// Starts the collective of an op; the op's outputs are `call->outputs` afterwards. The call lives
// until the collective is done, which may be after the end of the kernel: a cancelled step does not
// wait.
template <typename Call>
void Start(OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done,
           const std::string& text, std::shared_ptr<Call> call) {
  auto collective = GetTicket<SingleCollective>(context);
  if (collective == nullptr) return done();
  auto op = Cancellable::Start(context, std::move(done));
  collective->Start(
      std::make_shared<Signature>(text),
      [call](CollectiveBackend* backend, const Signature& signature, uint64_t sequence) {
        return call->Run(backend, signature, sequence);
      },
      [op, call](const Status& status) {
        op->End([&](OpKernelContext* ended) {
          if (!status.ok()) return ended->SetStatus(ToAbsl(status));
          for (size_t i = 0; i < call->outputs.size(); ++i) ended->set_output(i, call->outputs[i]);
        });
      });
}

template <typename Element>
Tensor VectorOf(const std::vector<Element>& values) {
  Tensor tensor(tensorflow::DataTypeToEnum<Element>::value,
                TensorShape({static_cast<int64_t>(values.size())}));
  std::copy(values.begin(), values.end(), tensor.flat<Element>().data());
  return tensor;
}

class GatherIdsOp : public tensorflow::AsyncOpKernel {
 public:
  explicit GatherIdsOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto call = std::make_shared<Call>();
    tensorflow::OpInputList ids;
    OP_REQUIRES_OK_ASYNC(context, context->input_list("ids", &ids), done);
    call->ids.assign(ids.begin(), ids.end());
    Start(context, std::move(done), "embedding_ids of " + label_, std::move(call));
  }

 private:
  struct Call {
    std::vector<Tensor> ids;
    std::vector<Tensor> outputs;

    Status Run(CollectiveBackend* backend, const Signature& signature, uint64_t sequence) {
      std::vector<const int32_t*> own;
      std::vector<int64_t> own_counts;
      for (const Tensor& tensor : ids) {
        own.push_back(tensor.flat<int32_t>().data());
        own_counts.push_back(tensor.NumElements());
      }
      std::vector<std::vector<int32_t>> all;
      std::vector<std::vector<int64_t>> counts;
      TFDEAR_RETURN_IF_ERROR(
          GatherIds(backend, signature, sequence, own, own_counts, &all, &counts));
      for (const auto& of_table : all) outputs.push_back(VectorOf(of_table));
      for (const auto& of_table : counts) outputs.push_back(VectorOf(of_table));
      return Status();
    }
  };

  std::string label_;
};

class ExchangeVectorsOp : public tensorflow::AsyncOpKernel {
 public:
  explicit ExchangeVectorsOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    std::vector<int64_t> numbers;
    OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
    OP_REQUIRES_OK(context, context->GetAttr("columns", &columns_));
    OP_REQUIRES_OK(context, context->GetAttr("partitions", &numbers));
    auto next = numbers.begin();
    while (next != numbers.end()) {
      const int64_t count = *next++;
      OP_REQUIRES(context, count >= 0 && count <= numbers.end() - next,
                  absl::InvalidArgumentError("`partitions` does not hold what it announces"));
      partitions_.push_back({std::vector<int64_t>(next, next + count)});
      next += count;
    }
    OP_REQUIRES(
        context, partitions_.size() == columns_.size(),
        absl::InvalidArgumentError(absl::StrCat("there are ", partitions_.size(), " partitions of ",
                                                columns_.size(), " tables")));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    tensorflow::OpInputList held, ids, counts;
    OP_REQUIRES_OK_ASYNC(context, context->input_list("held", &held), done);
    OP_REQUIRES_OK_ASYNC(context, context->input_list("ids", &ids), done);
    OP_REQUIRES_OK_ASYNC(context, context->input_list("counts", &counts), done);
    auto call = std::make_shared<Call>();
    std::string text = "embedding_vectors of " + label_;
    for (int i = 0; i < held.size(); ++i) {
      const auto of_ranks = counts[i].flat<int64_t>();
      LookedUp table;
      table.partition = partitions_[i];
      table.ids = {ids[i].flat<int32_t>().data(),
                   std::vector<int64_t>(of_ranks.data(), of_ranks.data() + of_ranks.size())};
      table.held = held[i].tensor_data().data();
      table.element_bytes = tensorflow::DataTypeSize(held[i].dtype());
      table.columns = columns_[i];
      text += absl::StrCat(" ", tensorflow::DataTypeString(held[i].dtype()), "[?,", columns_[i],
                           "] ", partitions_[i].Describe());
      call->tables.push_back(std::move(table));
      call->kept.push_back(held[i]);
      call->kept.push_back(ids[i]);
    }
    Start(context, std::move(done), text, std::move(call));
  }

 private:
  struct Call {
    std::vector<LookedUp> tables;
    std::vector<Tensor>
        kept;  // What the tables point into; of each two, the first is what it holds.
    std::vector<Tensor> outputs;

    Status Run(CollectiveBackend* backend, const Signature& signature, uint64_t sequence) {
      for (size_t i = 0; i < tables.size(); ++i) {
        Tensor vectors(kept[2 * i].dtype(),
                       TensorShape({tables[i].ids.counts[backend->rank()], tables[i].columns}));
        if (!vectors.IsInitialized()) {
          return Status(StatusCode::kResourceExhausted, "no memory for looked-up vectors");
        }
        tables[i].result = const_cast<char*>(vectors.tensor_data().data());
        outputs.push_back(vectors);
      }
      return ExchangeVectors(backend, signature, sequence, tables);
    }
  };

  std::string label_;
  std::vector<int64_t> columns_;
  std::vector<TablePartition> partitions_;
};

using tensorflow::DEVICE_CPU;
REGISTER_KERNEL_BUILDER(Name("DearGatherIds").Device(DEVICE_CPU), GatherIdsOp);
REGISTER_KERNEL_BUILDER(Name("DearExchangeVectors").Device(DEVICE_CPU), ExchangeVectorsOp);

}  // namespace
}  // namespace tfdear
