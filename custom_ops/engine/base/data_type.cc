// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

#include "custom_ops/engine/base/data_type.h"

#include "custom_ops/engine/base/enum_name.h"

namespace tfdear {

size_t SizeOf(DataType type) {
  switch (type) {
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return 2;
    case DataType::kFloat32:
    case DataType::kInt32:
      return 4;
    case DataType::kFloat64:
    case DataType::kInt64:
      return 8;
  }
  return 0;
}

const char* Name(DataType type) {
  static constexpr const char* kNames[] = {"float16", "bfloat16", "float32",
                                           "float64", "int32",    "int64"};
  return NameIn(kNames, type);
}

}  // namespace tfdear
