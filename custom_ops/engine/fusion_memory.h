// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#ifndef TFDEAR_ENGINE_FUSION_MEMORY_H_
#define TFDEAR_ENGINE_FUSION_MEMORY_H_

#include <cstddef>

namespace tfdear {

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

#endif  // TFDEAR_ENGINE_FUSION_MEMORY_H_
