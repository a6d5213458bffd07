// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/kernels/update_of_rows.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tfdear {

absl::Status UpdateOfRows::Begin(std::shared_ptr<Table> table, Table::Change change,
                                 const TableOfOp& place, std::shared_ptr<UpdateOfRows>* update) {
  update->reset(new UpdateOfRows(std::move(table), place));
  return (*update)->table_->Append(std::move(change), &(*update)->change_);
}

void UpdateOfRows::Declare(const std::vector<std::vector<int32_t>>& parts) {
  std::call_once(declared_, [&] { declaration_ = table_->Declare(change_, parts, place_.held); });
  if (declaration_.ok()) table_->TellReaders(change_, parts);
}

absl::Status UpdateOfRows::Apply(int part, int parts, const Reduced& rows, bool* last) {
  if (!declaration_.ok()) return declaration_;
  if (rows.shape.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of a table have two dimensions, not ", rows.shape.size()));
  }
  const GradientRows gradient{static_cast<const float*>(rows.data), rows.indices, rows.shape[0],
                              rows.shape[1], place_.first_column};
  TF_RETURN_IF_ERROR(table_->Apply(change_, gradient, place_.held));
  *last = applied_.fetch_add(1) + 1 == parts;
  if (*last) TF_RETURN_IF_ERROR(table_->Complete(change_));
  table_->Finish(change_, part);
  return absl::OkStatus();
}

}  // namespace tfdear
