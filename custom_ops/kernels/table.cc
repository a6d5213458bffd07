// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/kernels/table.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "custom_ops/engine/base/id_places.h"
#include "custom_ops/engine/updates/row_sums.h"
#include "custom_ops/kernels/conversions.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tfdear {

using tensorflow::Tensor;
using tensorflow::Var;

namespace {

VariablePtr Share(Var* variable) {
  variable->Ref();
  return VariablePtr(variable);
}

}  // namespace

// Writes go where nobody else looks: a variable whose elements somebody still holds gets new ones.
class Table::Locked {
 public:
  absl::Status Lock(VariablePtr table, const std::vector<VariablePtr>& slots, int64_t rows,
                    int64_t width) {
    if (table == nullptr) return absl::FailedPreconditionError("a table was deleted while in use");
    table_ = std::move(table);
    std::vector<Var*> variables = {table_.get()};
    for (const VariablePtr& slot : slots) variables.push_back(slot.get());
    std::vector<Var*> in_order = variables;
    // The order in which TensorFlow's kernels lock several: nobody waits in a circle.
    std::sort(in_order.begin(), in_order.end());
    for (Var* variable : in_order) {
      locks_.push_back(std::make_unique<tensorflow::mutex_lock>(*variable->mu()));
    }
    for (Var* variable : variables) {
      Tensor* const value = variable->tensor();
      if (!variable->is_initialized || value->dtype() != tensorflow::DT_FLOAT ||
          value->dims() != 2 || value->dim_size(0) != rows || value->dim_size(1) != width) {
        return absl::FailedPreconditionError(absl::StrCat(
            "a sharded table or one of its slots is not what it was when it was created: expected ",
            rows, " rows of ", width, " float32, received ", value->DebugString(0)));
      }
      if (!value->RefCountIsOne()) {
        Tensor copy(value->dtype(), value->shape());
        if (!copy.IsInitialized()) {
          return absl::ResourceExhaustedError("no memory for a copy of a sharded table");
        }
        std::copy_n(value->flat<float>().data(), rows * width, copy.flat<float>().data());
        *value = std::move(copy);
      }
      arrays_.push_back(value->flat<float>().data());
    }
    return absl::OkStatus();
  }

  const RowJournal::Arrays& arrays() const { return arrays_; }

 private:
  VariablePtr table_;  // First: it goes when it is not locked any more.
  std::vector<std::unique_ptr<tensorflow::mutex_lock>> locks_;
  RowJournal::Arrays arrays_;
};

Table::Table(const VariablePtr& variable, int64_t rows, int64_t width)
    : rows_(rows), width_(width), journal_(rows, width), variable_(variable.get()) {}

absl::Status Table::Make(const VariablePtr& variable, std::shared_ptr<Table>* table) {
  tensorflow::tf_shared_lock lock(*variable->mu());
  const Tensor& value = *variable->tensor();
  if (!variable->is_initialized || value.dtype() != tensorflow::DT_FLOAT || value.dims() != 2) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a sharded table must be a matrix of float32. Received: ", value.DebugString(0)));
  }
  table->reset(new Table(variable, value.dim_size(0), value.dim_size(1)));
  return absl::OkStatus();
}

// All tables, by their numbers.
class Table::Registry {
 public:
  static Registry* Get() {
    static auto* const registry = new Registry;
    return registry;
  }

  absl::Status Of(const VariablePtr& variable, int64_t number, std::shared_ptr<Table>* table) {
    tensorflow::mutex_lock lock(mutex_);
    const auto found = tables_.find(number);
    if (found != tables_.end() && found->second->variable_.GetNewRef().get() == variable.get()) {
      *table = found->second;
      return absl::OkStatus();
    }
    for (auto entry = tables_.begin(); entry != tables_.end();) {
      entry = entry->second->variable_.GetNewRef() == nullptr ? tables_.erase(entry) : ++entry;
    }
    TF_RETURN_IF_ERROR(Make(variable, table));
    tables_[number] = *table;
    return absl::OkStatus();
  }

  std::shared_ptr<Table> Find(int64_t number) {
    tensorflow::mutex_lock lock(mutex_);
    const auto found = tables_.find(number);
    return found == tables_.end() ? nullptr : found->second;
  }

 private:
  tensorflow::mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<Table>> tables_ TF_GUARDED_BY(mutex_);
};

absl::Status Table::Of(tensorflow::OpKernelContext* context, const Tensor& handle, int64_t number,
                       std::shared_ptr<Table>* table) {
  VariablePtr variable;
  TF_RETURN_IF_ERROR(
      LookupResource(context, handle.scalar<tensorflow::ResourceHandle>()(), &variable));
  return Registry::Get()->Of(variable, number, table);
}

std::shared_ptr<Table> Table::Find(int64_t number) { return Registry::Get()->Find(number); }

int Table::ArrayOf(const Var* variable) {
  if (variable_.GetNewRef().get() == variable) return 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].get() == variable) return static_cast<int>(i) + 1;
  }
  slots_.push_back(Share(const_cast<Var*>(variable)));
  return static_cast<int>(slots_.size());
}

absl::Status Table::Append(Change change, int64_t* number) {
  tensorflow::mutex_lock lock(mutex_);
  RowChange noted;
  noted.program = std::move(change.program);
  for (const VariablePtr& variable : change.variables) {
    noted.arrays.push_back(ArrayOf(variable.get()));
  }
  noted.scalars = std::move(change.scalars);
  noted.has_gradient = change.has_gradient;
  noted.rows = change.rows;
  const bool has_gradient = noted.has_gradient;
  const auto table = std::find(noted.arrays.begin(), noted.arrays.end(), 0);
  const bool writes = table != noted.arrays.end() &&
                      noted.program->Writes(static_cast<int>(table - noted.arrays.begin()));
  TF_RETURN_IF_ERROR(ToAbsl(journal_.Append(std::move(noted), number)));
  if (writes) ++version_;
  if (has_gradient) in_flight_.Begin(*number);
  return absl::OkStatus();
}

absl::Status Table::Declare(int64_t change, const std::vector<std::vector<int32_t>>& parts,
                            HeldRows held) {
  std::vector<int64_t> local;
  for (const std::vector<int32_t>& part : parts) {
    for (int32_t id : part) {
      if (id % held.stride == held.offset) local.push_back(id / held.stride);
    }
  }
  tensorflow::mutex_lock lock(mutex_);
  return ToAbsl(journal_.Declare(change, std::move(local)));
}

void Table::Fail(int64_t change, const Status& cause) {
  if (cause.code() == StatusCode::kCancelled) {
    {
      tensorflow::mutex_lock lock(mutex_);
      if (journal_.Abandon(change).ok()) ++version_;
    }
    in_flight_.FinishAll(change);
    return;
  }
  in_flight_.Finish(change, 0, cause);
}

absl::Status Table::Complete(int64_t change) {
  tensorflow::mutex_lock lock(mutex_);
  return ToAbsl(journal_.Complete(change));
}

absl::Status Table::SumOf(const GradientRows& rows, HeldRows held, HeldGradient* result) {
  // Rows that were exchanged have only the columns that are here.
  const int64_t first_column = rows.columns == width_ ? 0 : rows.first_column;
  if (rows.count > 0 && rows.columns < first_column + width_) {
    return absl::InvalidArgumentError(absl::StrCat("the gradient of a sharded table has rows of ",
                                                   rows.columns, " elements. Expected at least ",
                                                   first_column + width_));
  }
  HeldGradient sum;
  {
    tensorflow::mutex_lock lock(mutex_);
    std::swap(sum, spare_);
  }
  sum.rows.clear();
  sum.values.clear();
  sum.values.reserve(rows.count * width_);
  IdPlaces places(rows.count);
  for (int64_t i = 0; i < rows.count; ++i) {
    if (rows.indices[i] % held.stride != held.offset) continue;
    const float* const row = rows.values + i * rows.columns + first_column;
    const auto [place, is_new] = places.Add(rows.indices[i], static_cast<int64_t>(sum.rows.size()));
    if (is_new) {
      sum.rows.push_back(rows.indices[i] / held.stride);
      sum.values.insert(sum.values.end(), row, row + width_);
    } else {
      float* const values = sum.values.data() + place * width_;
      for (int64_t column = 0; column < width_; ++column) values[column] += row[column];
    }
  }
  *result = std::move(sum);
  return absl::OkStatus();
}

absl::Status Table::Apply(int64_t change, const GradientRows& rows, HeldRows held) {
  HeldGradient gradient;
  TF_RETURN_IF_ERROR(SumOf(rows, held, &gradient));
  tensorflow::mutex_lock lock(mutex_);
  Locked locked;
  TF_RETURN_IF_ERROR(locked.Lock(variable_.GetNewRef(), slots_, rows_, width_));
  TF_RETURN_IF_ERROR(ToAbsl(journal_.Apply(change, gradient.rows.data(), gradient.rows.size(),
                                           gradient.values.data(), locked.arrays())));
  std::swap(spare_, gradient);
  return absl::OkStatus();
}

absl::Status Table::Sum(const Change& change, const GradientRows& rows, HeldRows held,
                        std::vector<double>* sums) {
  HeldGradient gradient;
  TF_RETURN_IF_ERROR(SumOf(rows, held, &gradient));
  tensorflow::mutex_lock lock(mutex_);
  if (journal_.complete() < journal_.size()) {
    return absl::FailedPreconditionError("a table was summed while an update of it was in flight");
  }
  std::vector<int> numbers;
  for (const VariablePtr& variable : change.variables) numbers.push_back(ArrayOf(variable.get()));
  Locked locked;
  TF_RETURN_IF_ERROR(locked.Lock(variable_.GetNewRef(), slots_, rows_, width_));
  TF_RETURN_IF_ERROR(ToAbsl(journal_.BringAllUpToDate(locked.arrays())));
  std::vector<const float*> arrays;
  for (int number : numbers) arrays.push_back(locked.arrays()[number]);
  SumOverRows(*change.program, arrays, change.scalars, rows_, width_,
              {gradient.rows.data(), gradient.rows.size(), gradient.values.data()}, sums);
  std::swap(spare_, gradient);
  return absl::OkStatus();
}

absl::Status Table::Read(const int32_t* ids, int64_t count, HeldRows held, const MakeRows& make,
                         int64_t* version) {
  std::vector<int64_t> local;
  local.reserve(count);
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] % held.stride == held.offset) local.push_back(ids[i] / held.stride);
  }
  tensorflow::mutex_lock lock(mutex_);
  Locked locked;
  TF_RETURN_IF_ERROR(locked.Lock(variable_.GetNewRef(), slots_, rows_, width_));
  TF_RETURN_IF_ERROR(ToAbsl(journal_.BringThroughAll(local.data(), local.size(), locked.arrays())));
  *version = version_;
  Tensor* result = nullptr;
  TF_RETURN_IF_ERROR(make(static_cast<int64_t>(local.size()), &result));
  float* to = result->flat<float>().data();
  for (int64_t row : local) to = std::copy_n(locked.arrays()[0] + row * width_, width_, to);
  return absl::OkStatus();
}

int64_t Table::version() {
  tensorflow::mutex_lock lock(mutex_);
  return version_;
}

std::pair<int64_t, int64_t> Table::Changes() {
  tensorflow::mutex_lock lock(mutex_);
  return {journal_.size(), journal_.complete()};
}

absl::Status Table::ReadRange(Var* variable, int64_t begin, int64_t end, int64_t changes,
                              const MakeRows& make) {
  end = std::min(end, rows_);
  begin = std::min(begin, end);
  std::vector<int64_t> rows(end - begin);
  std::iota(rows.begin(), rows.end(), begin);
  tensorflow::mutex_lock lock(mutex_);
  const int array = ArrayOf(variable);
  Locked locked;
  TF_RETURN_IF_ERROR(locked.Lock(variable_.GetNewRef(), slots_, rows_, width_));
  TF_RETURN_IF_ERROR(ToAbsl(
      changes < 0 ? journal_.BringUpToDate(rows.data(), rows.size(), locked.arrays())
                  : journal_.BringUpToDate(rows.data(), rows.size(), changes, locked.arrays())));
  Tensor* result = nullptr;
  TF_RETURN_IF_ERROR(make(end - begin, &result));
  std::copy_n(locked.arrays()[array] + begin * width_, (end - begin) * width_,
              result->flat<float>().data());
  return absl::OkStatus();
}

absl::Status Table::Settle(bool forgets_noted) {
  tensorflow::mutex_lock lock(mutex_);
  ++version_;
  // Where nothing is to be made up, values that somebody still holds need no copies.
  if (journal_.kept() > 0) {
    Locked locked;
    TF_RETURN_IF_ERROR(locked.Lock(variable_.GetNewRef(), slots_, rows_, width_));
    TF_RETURN_IF_ERROR(ToAbsl(journal_.BringAllUpToDate(locked.arrays())));
  }
  if (forgets_noted) journal_.ForgetNoted();
  // If nothing refers to them any more; those in use come again with the next change.
  if (journal_.kept() == 0) slots_.clear();
  return absl::OkStatus();
}

absl::Status TableOfOp::Read(tensorflow::OpKernelConstruction* context) {
  TF_RETURN_IF_ERROR(context->GetAttr("number", &number));
  if (context->HasAttr("stride")) {
    TF_RETURN_IF_ERROR(context->GetAttr("stride", &held.stride));
    TF_RETURN_IF_ERROR(context->GetAttr("offset", &held.offset));
  }
  if (context->HasAttr("first_column")) {
    TF_RETURN_IF_ERROR(context->GetAttr("first_column", &first_column));
  }
  if (!context->HasAttr("rows")) return absl::OkStatus();
  std::string name;
  TF_RETURN_IF_ERROR(context->GetAttr("rows", &name));
  if (name == "touched") rows = RowChange::Rows::kTouched;
  if (name == "noted") rows = RowChange::Rows::kNoted;
  return absl::OkStatus();
}

}  // namespace tfdear
