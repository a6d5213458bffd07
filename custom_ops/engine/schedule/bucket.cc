// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/bucket.h"

#include "custom_ops/engine/memory/fusion_memory.h"

namespace tfdear {

namespace {

// Elements of a tensor's slot, the gap after it included.
size_t SlotOf(const TensorSpec& tensor) {
  if (tensor.sparse || tensor.count < 0) return 0;
  const size_t element = SizeOf(tensor.type);
  return AlignUp(tensor.count * element) / element;
}

}  // namespace

Bucket MakeBucket(const std::vector<TensorSpec>& tensors, const std::vector<int>& members) {
  Bucket bucket;
  bucket.type = tensors[members[0]].type;
  bucket.sparse = tensors[members[0]].sparse;
  for (int index : members) {
    bucket.tensors.push_back(index);
    bucket.offsets.push_back(bucket.count);
    bucket.count += SlotOf(tensors[index]);
  }
  return bucket;
}

}  // namespace tfdear
