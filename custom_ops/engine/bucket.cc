// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/bucket.h"

#include <map>

#include "custom_ops/engine/fusion_buffer.h"

namespace tfdear {

std::vector<Bucket> PlanFixedSize(const std::vector<TensorSpec>& tensors, size_t bucket_bytes) {
  std::vector<Bucket> plan;
  std::map<DataType, size_t> filling;  // Data type -> the bucket that still takes tensors.
  for (int index = static_cast<int>(tensors.size()) - 1; index >= 0; --index) {
    const TensorSpec& tensor = tensors[index];
    const bool alone = tensor.sparse || tensor.count < 0;
    const size_t element = SizeOf(tensor.type);
    const size_t slot = alone ? 0 : AlignUp(tensor.count * element) / element;
    auto open = filling.find(tensor.type);
    const bool fits = !alone && open != filling.end() &&
                      (plan[open->second].count + slot) * element <= bucket_bytes;
    if (!fits) {
      Bucket bucket;
      bucket.type = tensor.type;
      bucket.sparse = tensor.sparse;
      plan.push_back(bucket);
      if (!alone) filling[tensor.type] = plan.size() - 1;
    }
    Bucket& bucket = alone ? plan.back() : plan[filling[tensor.type]];
    bucket.tensors.push_back(index);
    bucket.offsets.push_back(bucket.count);
    bucket.count += slot;
  }
  return plan;
}

}  // namespace tfdear
