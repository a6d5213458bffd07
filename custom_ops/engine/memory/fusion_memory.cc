// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/memory/fusion_memory.h"

#include <cstring>

#include "custom_ops/engine/base/sum.h"

namespace tfdear {

std::shared_ptr<Work> FusionMemory::Write(DataType type, char* target, const void* values,
                                          double weight, size_t count, size_t bytes) {
  const size_t written = weight == 0 ? 0 : count * SizeOf(type);
  if (written > 0) Copy(type, target, values, weight, count);
  if (bytes > written) std::memset(target + written, 0, bytes - written);
  return nullptr;
}

void FusionMemory::Copy(DataType type, char* target, const void* values, double weight,
                        size_t count) {
  if (weight == 1) {
    std::memcpy(target, values, count * SizeOf(type));
  } else {
    CopyScaled(type, target, values, weight, count);
  }
}

}  // namespace tfdear
