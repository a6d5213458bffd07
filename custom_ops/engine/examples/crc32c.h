// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace tfdear {

// The CRC-32C (Castagnoli) of some bytes, as TFRecord files have it, by the processor's instruction
// where there is one.
uint32_t Crc32c(const void* bytes, size_t count);

}  // namespace tfdear
