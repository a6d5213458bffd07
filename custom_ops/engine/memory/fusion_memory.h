// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/work.h"

namespace tfdear {

// Start of every tensor inside a fusion buffer, in bytes: what vectorised kernels and TensorFlow's
// allocator expect, so that a gathered slice can be handed on as a tensor without a copy.
inline constexpr size_t kSlotAlignment = 64;

inline size_t AlignUp(size_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

// What computes on memory, and so may touch its bytes.
enum class Device { kHost, kCuda };

// Where the bytes of fusion buffers come from: the heap, memory that several ranks map, or a
// device. Thread safe.
class FusionMemory {
 public:
  virtual ~FusionMemory() = default;

  virtual Device device() const { return Device::kHost; }

  // Writes `weight` times `count` values, and zeros behind them up to `bytes`. A weight of 0 writes
  // zeros, whatever `values` holds; integers weigh 0 or 1. Over when the result is; null: already.
  // It ends in any case, with an error if the device fails. `values` are in its memory too. Their
  // owner may hand that back when this returns: what uses it next comes later in the device's
  // queue.
  virtual std::shared_ptr<Work> Write(DataType type, char* target, const void* values,
                                      double weight, size_t count, size_t bytes);

  // This many bytes, aligned to kSlotAlignment; null where there are none left.
  virtual char* Allocate(size_t bytes) = 0;
  // `bytes` as in Allocate(). Comes after the writes there, which nobody may have waited for. Not
  // of what is lent.
  virtual void Free(char* data, size_t bytes) = 0;

  // Whether other ranks may still read what this rank allocated: nobody may write there then.
  virtual bool Lent(const char* data) const {
    (void)data;
    return false;
  }
  // This rank no longer reads what another one lent it; once per loan.
  virtual void GiveBack(char* data) { (void)data; }

 protected:
  // The values of Write(), of which there are some, with a weight that is not 0.
  virtual void Copy(DataType type, char* target, const void* values, double weight, size_t count);
};

}  // namespace tfdear
