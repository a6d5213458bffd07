// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "custom_ops/engine/engine.h"
#include "custom_ops/kernels/cancellable.h"
#include "custom_ops/kernels/conversions.h"
#include "custom_ops/kernels/program_of_op.h"
#include "custom_ops/kernels/table.h"
#include "custom_ops/kernels/unique_ids.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tfdear {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

bool IsCastOfNaN(int64_t id) {
  return id == std::numeric_limits<int32_t>::min() || id == std::numeric_limits<int64_t>::min();
}

template <typename Id>
class UniqueIdsOp : public tensorflow::OpKernel {
 public:
  explicit UniqueIdsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("rows", &rows_));
    OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
    int64_t number = -1;
    OP_REQUIRES_OK(context, context->GetAttr("number", &number));
    if (number >= 0) counts_ = Engine::Get()->table_counts()->Of(number);
  }

  void Compute(OpKernelContext* context) override {
    const auto ids = context->input(0).vec<Id>();
    Tensor* positions = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(0).shape(), &positions));
    std::vector<int32_t> unique;
    const int64_t wrong =
        FindUnique(ids.data(), ids.size(), rows_, &unique, positions->vec<int32_t>().data());
    const int64_t id = wrong < 0 ? 0 : static_cast<int64_t>(ids(wrong));
    OP_REQUIRES(
        context, wrong < 0,
        absl::InvalidArgumentError(absl::StrCat(
            label_, ": id ", id, IsCastOfNaN(id) ? " (what a cast makes of NaN)" : "", " at place ",
            wrong, " of the batch is not in [0, ", rows_,
            "). Give `input_dim` as many rows as there are ids, or map what is unknown to one of "
            "them")));
    Tensor* result = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({static_cast<int64_t>(unique.size())}), &result));
    std::copy(unique.begin(), unique.end(), result->vec<int32_t>().data());
    if (counts_ == nullptr) return;
    ++counts_->lookups;
    counts_->ids += ids.size();
    counts_->unique_ids += static_cast<int64_t>(unique.size());
  }

 private:
  int64_t rows_;
  std::string label_;
  std::shared_ptr<RowCounts> counts_;
};

// A kernel that has to do with one table.
template <typename Kernel>
class OfTable : public Kernel {
 public:
  explicit OfTable(OpKernelConstruction* context) : Kernel(context) {
    OP_REQUIRES_OK(context, place_.Read(context));
  }

 protected:
  std::shared_ptr<Table> TableOf(OpKernelContext* context) {
    std::shared_ptr<Table> table;
    const absl::Status status = Table::Of(context, context->input(0), place_.number, &table);
    if (!status.ok()) context->SetStatus(status);
    return table;
  }

  TableOfOp place_;
};

// Waits for the gradients that are in flight for its rows, and for no others.
class TableLookupOp : public OfTable<tensorflow::AsyncOpKernel> {
 public:
  explicit TableLookupOp(OpKernelConstruction* context) : OfTable(context) {
    OP_REQUIRES_OK(context, context->GetAttr("columns", &columns_));
    OP_REQUIRES_OK(context, context->GetAttr("looks_ahead", &looks_ahead_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto table = TableOf(context);
    if (table == nullptr) return done();
    const Tensor ids = context->input(1);
    auto op = Cancellable::Start(context, std::move(done), looks_ahead_);
    table->WhenIdle(ids.flat<int32_t>().data(), ids.NumElements(),
                    [this, op, table](const Status& status) {
                      op->End([&](OpKernelContext* ended) {
                        if (!status.ok()) return ended->SetStatus(ToAbsl(status));
                        Read(ended, table.get());
                      });
                    });
  }

 private:
  void Read(OpKernelContext* context, Table* table) {
    const Tensor& ids = context->input(1);
    Tensor* version = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({}), &version));
    OP_REQUIRES_OK(context,
                   table->Read(
                       ids.flat<int32_t>().data(), ids.NumElements(), place_.held,
                       [&](int64_t rows, Tensor** result) {
                         return context->allocate_output(0, TensorShape({rows, columns_}), result);
                       },
                       &version->scalar<int64_t>()()));
  }

  int64_t columns_;
  bool looks_ahead_ = false;
};

class TableOutputOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& vectors = context->input(1);
    const Tensor& positions = context->input(2);
    OP_REQUIRES(context, vectors.dims() == 2 && positions.dims() == 1,
                absl::InvalidArgumentError("vectors must be a matrix, and positions a vector"));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(
                       0, TensorShape({positions.NumElements(), vectors.dim_size(1)}), &output));
    const size_t bytes = vectors.dim_size(1) * tensorflow::DataTypeSize(vectors.dtype());
    const char* const from = vectors.tensor_data().data();
    char* to = const_cast<char*>(output->tensor_data().data());
    const int32_t* const position = positions.flat<int32_t>().data();
    for (int64_t i = 0; i < positions.NumElements(); ++i, to += bytes) {
      // A rank without examples computes on a row that is made up and looks nothing up.
      if (position[i] >= 0 && position[i] < vectors.dim_size(0)) {
        std::copy_n(from + position[i] * bytes, bytes, to);
      } else {
        std::fill_n(to, bytes, 0);
      }
    }
  }
};

class PooledOutputOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& sums = context->input(1);
    const int64_t count = context->input(4).scalar<int32_t>()();
    OP_REQUIRES(context, sums.dims() == 2 && sums.dim_size(0) <= count,
                absl::InvalidArgumentError("sums must be a matrix with a row for each bag"));
    if (sums.dim_size(0) == count) return context->set_output(0, sums);
    // A rank without examples computes on a row that is made up and has no bags.
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({count, sums.dim_size(1)}), &output));
    const auto from = sums.tensor_data();
    char* const to = const_cast<char*>(output->tensor_data().data());
    std::fill_n(std::copy_n(from.data(), from.size(), to), output->TotalBytes() - from.size(), 0);
  }
};

class TableValueOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override { context->set_output(0, context->input(1)); }
};

class SettleTableOp : public OfTable<tensorflow::OpKernel> {
 public:
  explicit SettleTableOp(OpKernelConstruction* context) : OfTable(context) {
    OP_REQUIRES_OK(context, context->GetAttr("forgets_noted", &forgets_noted_));
  }

  void Compute(OpKernelContext* context) override {
    auto table = TableOf(context);
    if (table != nullptr) OP_REQUIRES_OK(context, table->Settle(forgets_noted_));
  }

 private:
  bool forgets_noted_ = false;
};

class ReadShardOp : public OfTable<tensorflow::OpKernel> {
 public:
  explicit ReadShardOp(OpKernelConstruction* context) : OfTable(context) {
    OP_REQUIRES_OK(context, context->GetAttr("columns", &columns_));
  }

  void Compute(OpKernelContext* context) override {
    auto table = TableOf(context);
    if (table == nullptr) return;
    VariablePtr variable;
    OP_REQUIRES_OK(context,
                   LookupResource(context, context->input(1).scalar<tensorflow::ResourceHandle>()(),
                                  &variable));
    const auto range = context->input(2).flat<int64_t>();
    OP_REQUIRES(context, range.size() == 3 && range(0) >= 0 && range(1) >= range(0),
                absl::InvalidArgumentError(absl::StrCat(
                    "`range` must be where rows begin and end, and a number of changes. Received: ",
                    context->input(2).SummarizeValue(8))));
    OP_REQUIRES_OK(
        context,
        table->ReadRange(
            variable.get(), range(0), range(1), range(2), [&](int64_t rows, Tensor** result) {
              return context->allocate_output(0, TensorShape({rows, columns_}), result);
            }));
  }

 private:
  int64_t columns_;
};

class TableChangesOp : public OfTable<tensorflow::OpKernel> {
 public:
  using OfTable::OfTable;

  void Compute(OpKernelContext* context) override {
    auto table = TableOf(context);
    if (table == nullptr) return;
    Tensor* changes = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({2}), &changes));
    const auto [all, complete] = table->Changes();
    changes->flat<int64_t>()(0) = all;
    changes->flat<int64_t>()(1) = complete;
  }
};

// The gradient that an op of a table has, if any.
absl::Status ReadGradient(OpKernelContext* context, int64_t first_column, bool* has_gradient,
                          GradientRows* rows) {
  tensorflow::OpInputList gradients, indices;
  TF_RETURN_IF_ERROR(context->input_list("gradients", &gradients));
  TF_RETURN_IF_ERROR(context->input_list("indices", &indices));
  *has_gradient = gradients.size() > 0;
  if (!*has_gradient) return absl::OkStatus();
  const Tensor& values = gradients[0];
  if (values.dims() != 2 || indices[0].dims() != 1 ||
      values.dim_size(0) != indices[0].dim_size(0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the gradient of a sharded table must be a matrix, with an index for each row. "
        "Received values of shape ",
        values.shape().DebugString(), " and indices of shape ", indices[0].shape().DebugString()));
  }
  *rows = {values.flat<float>().data(), indices[0].flat<int64_t>().data(), values.dim_size(0),
           values.dim_size(1), first_column};
  return absl::OkStatus();
}

class ChangeTableOp : public OfTable<tensorflow::OpKernel> {
 public:
  explicit ChangeTableOp(OpKernelConstruction* context) : OfTable(context) {
    OP_REQUIRES_OK(context, program_.Read(context, /*some_only_read=*/true));
  }

  void Compute(OpKernelContext* context) override {
    auto table = TableOf(context);
    if (table == nullptr) return;
    GradientRows rows;
    Table::Change change;
    OP_REQUIRES_OK(context,
                   ReadGradient(context, place_.first_column, &change.has_gradient, &rows));
    change.program = program_.program();
    change.rows = place_.rows;
    OP_REQUIRES_OK(context, program_.Operands(context, &change.variables, &change.scalars));
    const bool has_gradient = change.has_gradient;
    int64_t number = 0;
    OP_REQUIRES_OK(context, table->Append(std::move(change), &number));
    if (!has_gradient) return;
    absl::Status status = table->Apply(number, rows, place_.held);
    if (status.ok()) status = table->Complete(number);
    // Readers wait for what was noted: they go on without it.
    if (!status.ok()) table->Fail(number, Status(StatusCode::kCancelled, "it was refused"));
    OP_REQUIRES_OK(context, status);
    table->Finish(number, 0);
  }

 private:
  ProgramOfOp program_;
};

class TableSumsOp : public OfTable<tensorflow::OpKernel> {
 public:
  explicit TableSumsOp(OpKernelConstruction* context) : OfTable(context) {
    OP_REQUIRES_OK(context, context->GetAttr("sums", &sums_));
    OP_REQUIRES_OK(context, program_.Read(context, /*some_only_read=*/true, sums_));
  }

  void Compute(OpKernelContext* context) override {
    auto table = TableOf(context);
    if (table == nullptr) return;
    GradientRows rows;
    Table::Change change;
    OP_REQUIRES_OK(context,
                   ReadGradient(context, place_.first_column, &change.has_gradient, &rows));
    change.program = program_.program();
    OP_REQUIRES_OK(context, program_.Operands(context, &change.variables, &change.scalars));
    std::vector<double> sums;
    OP_REQUIRES_OK(context, table->Sum(change, rows, place_.held, &sums));
    Tensor* result = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({sums_}), &result));
    std::copy(sums.begin(), sums.end(), result->vec<double>().data());
  }

 private:
  int sums_;
  ProgramOfOp program_;
};

using tensorflow::DEVICE_CPU;
#define TFDEAR_REGISTER(Type)                                                                    \
  REGISTER_KERNEL_BUILDER(Name("DearUniqueIds").Device(DEVICE_CPU).TypeConstraint<Type>("Tids"), \
                          UniqueIdsOp<Type>)
TFDEAR_REGISTER(int8_t);
TFDEAR_REGISTER(uint8_t);
TFDEAR_REGISTER(int16_t);
TFDEAR_REGISTER(uint16_t);
TFDEAR_REGISTER(int32_t);
TFDEAR_REGISTER(uint32_t);
TFDEAR_REGISTER(int64_t);
#undef TFDEAR_REGISTER
REGISTER_KERNEL_BUILDER(Name("DearTableLookup").Device(DEVICE_CPU), TableLookupOp);
REGISTER_KERNEL_BUILDER(Name("DearTableOutput").Device(DEVICE_CPU), TableOutputOp);
REGISTER_KERNEL_BUILDER(Name("DearPooledOutput").Device(DEVICE_CPU), PooledOutputOp);
REGISTER_KERNEL_BUILDER(Name("DearTableValue").Device(DEVICE_CPU), TableValueOp);
REGISTER_KERNEL_BUILDER(Name("DearSettleTable").Device(DEVICE_CPU), SettleTableOp);
REGISTER_KERNEL_BUILDER(Name("DearTableChanges").Device(DEVICE_CPU), TableChangesOp);
REGISTER_KERNEL_BUILDER(Name("DearReadShard").Device(DEVICE_CPU), ReadShardOp);
REGISTER_KERNEL_BUILDER(Name("DearTableSums").Device(DEVICE_CPU), TableSumsOp);
REGISTER_KERNEL_BUILDER(Name("DearChangeTable").Device(DEVICE_CPU), ChangeTableOp);

}  // namespace
}  // namespace tfdear
