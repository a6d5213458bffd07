// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/bucket.h"

#include <map>

#include "custom_ops/engine/fusion_buffer.h"

namespace tfdear {

namespace {

// Elements of a tensor's slot, the gap after it included.
size_t SlotOf(const TensorSpec& tensor) {
  if (tensor.sparse || tensor.count < 0) return 0;
  const size_t element = SizeOf(tensor.type);
  return AlignUp(tensor.count * element) / element;
}

void Append(const TensorSpec& tensor, int index, Bucket* bucket) {
  bucket->tensors.push_back(index);
  bucket->offsets.push_back(bucket->count);
  bucket->count += SlotOf(tensor);
}

}  // namespace

Bucket MakeBucket(const std::vector<TensorSpec>& tensors, const std::vector<int>& members) {
  Bucket bucket;
  bucket.type = tensors[members[0]].type;
  bucket.sparse = tensors[members[0]].sparse;
  for (int index : members) Append(tensors[index], index, &bucket);
  return bucket;
}

std::vector<Bucket> PlanFixedSize(const std::vector<TensorSpec>& tensors, size_t bucket_bytes) {
  std::vector<Bucket> plan;
  std::map<DataType, size_t> filling;  // Data type -> the bucket that still takes tensors.
  for (int index = static_cast<int>(tensors.size()) - 1; index >= 0; --index) {
    const TensorSpec& tensor = tensors[index];
    const bool alone = tensor.sparse || tensor.count < 0;
    auto open = filling.find(tensor.type);
    const bool fits =
        !alone && open != filling.end() &&
        (plan[open->second].count + SlotOf(tensor)) * SizeOf(tensor.type) <= bucket_bytes;
    if (fits) {
      Append(tensor, index, &plan[open->second]);
      continue;
    }
    plan.push_back(MakeBucket(tensors, {index}));
    if (!alone) filling[tensor.type] = plan.size() - 1;
  }
  return plan;
}

}  // namespace tfdear
