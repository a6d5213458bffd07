// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Text from the store in which ranks meet as the address of memory that they share: refused.

#include <memory>
#include <string>

#include "custom_ops/engine/memory/shared_memory_segment.h"
#include "tests/cc/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfdear;
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::unique_ptr<SharedMemorySegment> segment;
  const auto read = SharedMemorySegment::Access::kRead;
  TFDEAR_FUZZ_CHECK(!SharedMemorySegment::Map(text, 4096, read, &segment).ok());
  return 0;
}
