// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#ifndef TFDEAR_ENGINE_MEMORY_FUSION_MEMORY_H_
#define TFDEAR_ENGINE_MEMORY_FUSION_MEMORY_H_

#include <cstddef>

namespace tfdear {

// Start of every tensor inside a fusion buffer, in bytes: what vectorised kernels and TensorFlow's
// allocator expect, so that a gathered slice can be handed on as a tensor without a copy.
inline constexpr size_t kSlotAlignment = 64;

inline size_t AlignUp(size_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

// Where the bytes of fusion buffers come from: the heap, or memory that several ranks map. Thread
// safe.
class FusionMemory {
 public:
  virtual ~FusionMemory() = default;

  // This many bytes, aligned to kSlotAlignment; null where there are none left.
  virtual char* Allocate(size_t bytes) = 0;
  // `bytes` as in Allocate(). Not of what is lent.
  virtual void Free(char* data, size_t bytes) = 0;

  // Whether other ranks may still read what this rank allocated: nobody may write there then.
  virtual bool Lent(const char* data) const {
    (void)data;
    return false;
  }
  // This rank no longer reads what another one lent it; once per loan.
  virtual void GiveBack(char* data) { (void)data; }
};

}  // namespace tfdear

#endif  // TFDEAR_ENGINE_MEMORY_FUSION_MEMORY_H_
