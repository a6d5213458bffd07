// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// What Python says of a layout while its function is traced.
#include <algorithm>
#include <utility>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/engine.h"

namespace tfdear {

int64_t Engine::CreateLayout(const std::string& name, LaneKind lane) {
  MutexLock lock(mutex_);
  layouts_.push_back(std::make_unique<LayoutEntry>());
  layouts_.back()->name = name;
  layouts_.back()->lane = lane;
  return static_cast<int64_t>(layouts_.size()) - 1;
}

Status Engine::Find(int64_t layout, bool open_to_change, LayoutEntry** entry) {
  if (layout < 0 || layout >= static_cast<int64_t>(layouts_.size())) {
    return Status(StatusCode::kInvalidArgument,
                  "there is no reduction layout " + std::to_string(layout) +
                      " in this process: a function that was traced under a DearStrategy runs only "
                      "in the process that traced it");
  }
  *entry = layouts_[layout].get();
  if (*entry == nullptr) return InvalidArgument(kOfClosedStrategy);
  if (open_to_change && (*entry)->current != nullptr) {
    return Status(StatusCode::kInternal,
                  "reduction layout '" + (*entry)->name + "' was changed after its first use");
  }
  return Status();
}

Status Engine::CheckTensor(const LayoutEntry& entry, int tensor) {
  if (tensor >= 0 && tensor < static_cast<int>(entry.tensors.size())) return Status();
  return Status(StatusCode::kInvalidArgument, "reduction layout '" + entry.name + "' has " +
                                                  std::to_string(entry.tensors.size()) +
                                                  " tensors, no tensor " + std::to_string(tensor));
}

Status Engine::AddTensor(int64_t layout, const TensorSpec& tensor) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  Status status = Find(layout, /*open_to_change=*/true, &entry);
  if (status.ok()) {
    entry->tensors.push_back(tensor);
    entry->variables.push_back(-1);
  }
  return status;
}

Status Engine::SetVariable(int64_t layout, int tensor, int64_t variable, const std::string& name,
                           const std::string& comparable, const std::string& kind) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/true, &entry));
  TFDEAR_RETURN_IF_ERROR(CheckTensor(*entry, tensor));
  entry->variables[tensor] = variable;
  entry->tensors[tensor].name = name;
  entry->tensors[tensor].comparable = comparable;
  entry->tensors[tensor].kind = kind;
  return Status();
}

Status Engine::SetPartition(int64_t layout, int tensor, TablePartition partition) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/true, &entry));
  TFDEAR_RETURN_IF_ERROR(CheckTensor(*entry, tensor));
  if (!entry->tensors[tensor].sparse) {
    return Internal("tensor ", tensor, " of '", entry->name,
                    "' has no rows that could go to the ranks that hold them");
  }
  entry->tensors[tensor].partition = std::make_shared<const TablePartition>(std::move(partition));
  return Status();
}

Status Engine::SetTable(int64_t layout, int tensor, int64_t variable, WholeTable whole) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/true, &entry));
  TFDEAR_RETURN_IF_ERROR(CheckTensor(*entry, tensor));
  entry->tensors[tensor].whole = whole;
  entry->tensors[tensor].row_counts = table_counts_.Of(variable);
  return Status();
}

// [Note: traces of one step]
// A function is traced again for a batch of another size, and every trace has a layout. Ranks need
// not trace alike: in the last batch some have fewer examples than before, others as many. But they
// count executions to know when to agree on plans (see below), and hold gradients back from one
// step to the next, which belong to variables and not to a trace. So layouts of the gradients of
// the same variables are one: the first of them.
void Engine::FindShared(int64_t layout) {
  LayoutEntry& entry = *layouts_[layout];
  if (entry.shared >= 0) return;
  entry.shared = layout;
  const bool known =
      std::find(entry.variables.begin(), entry.variables.end(), -1) == entry.variables.end();
  auto alike = [](const TensorSpec& a, const TensorSpec& b) {
    // Who wants norms waits for layers to be added.
    return a == b && a.norms == b.norms && (a.partition == nullptr) == (b.partition == nullptr);
  };
  for (int64_t other = 0; known && other < layout; ++other) {
    if (layouts_[other] == nullptr) continue;
    const LayoutEntry& earlier = *layouts_[other];
    if (earlier.variables == entry.variables && earlier.lane == entry.lane &&
        earlier.name == entry.name && earlier.momentum == entry.momentum &&
        std::equal(earlier.tensors.begin(), earlier.tensors.end(), entry.tensors.begin(),
                   entry.tensors.end(), alike)) {
      entry.shared = other;
      return;
    }
  }
}

int64_t Engine::SharedWith(int64_t layout) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  const bool found = Find(layout, /*open_to_change=*/false, &entry).ok();
  return found && entry->shared >= 0 ? entry->shared : layout;
}

Status Engine::SetLane(int64_t layout, LaneKind lane) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  Status status = Find(layout, /*open_to_change=*/false, &entry);
  if (!status.ok() || entry->lane == lane) return status;
  status = Find(layout, /*open_to_change=*/true, &entry);
  if (status.ok()) entry->lane = lane;
  return status;
}

Status Engine::SetOptimizer(int64_t layout, float momentum) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/true, &entry));
  entry->optimizer = true;
  entry->momentum = momentum;
  return Status();
}

Status Engine::RequestNorms(int64_t layout, int tensor) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/true, &entry));
  TFDEAR_RETURN_IF_ERROR(CheckTensor(*entry, tensor));
  entry->tensors[tensor].norms = true;
  return Status();
}

std::vector<size_t> Engine::BucketBytes(int64_t layout) {
  MutexLock lock(mutex_);
  LayoutEntry* entry = nullptr;
  std::vector<size_t> bytes;
  if (!Find(layout, /*open_to_change=*/false, &entry).ok() || entry->current == nullptr)
    return bytes;
  for (const Bucket& bucket : entry->current->buckets) {
    bytes.push_back(bucket.count * SizeOf(bucket.type));
  }
  return bytes;
}

}  // namespace tfdear
