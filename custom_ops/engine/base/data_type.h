// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace tfdear {

// Element types that collectives can sum. The numbers are part of the C interface: never renumber.
enum class DataType : int {
  kFloat16 = 0,
  kBFloat16 = 1,
  kFloat32 = 2,
  kFloat64 = 3,
  kInt32 = 4,
  kInt64 = 5,
};

// Bytes per element; 0 for a value that is no DataType.
size_t SizeOf(DataType type);

// TensorFlow's name of the type, for messages.
const char* Name(DataType type);

}  // namespace tfdear
