// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tfdear {

// While it lives, the calling thread computes with denormal numbers, or flushes them to zero.
// Whether a thread flushes them is inherited from the thread that started it, TensorFlow's threads
// do, and a library built with -ffast-math makes the whole process do: whoever computes the same
// numbers elsewhere would get different bits. Where the processor is not known, nothing happens.
class DenormalMode {
 public:
  DenormalMode(const DenormalMode&) = delete;
  DenormalMode& operator=(const DenormalMode&) = delete;

 protected:
#if defined(__x86_64__)
  explicit DenormalMode(bool flush) : saved_(_mm_getcsr()) {
    const uint32_t others = static_cast<uint32_t>(saved_) & ~0x8040u;
    _mm_setcsr(flush ? others | 0x8040u : others);
  }
  ~DenormalMode() { _mm_setcsr(static_cast<uint32_t>(saved_)); }
#elif defined(__aarch64__)
  explicit DenormalMode(bool flush) {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    const uint64_t others = saved_ & ~(uint64_t{1} << 24);
    asm volatile("msr fpcr, %0" ::"r"(flush ? others | uint64_t{1} << 24 : others));
  }
  ~DenormalMode() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
#else
  explicit DenormalMode(bool flush) {}
  ~DenormalMode() {}
#endif

 private:
  uint64_t saved_ = 0;
};

// As sums of gradients are formed.
class KeepDenormals : public DenormalMode {
 public:
  KeepDenormals() : DenormalMode(false) {}
};

// As TensorFlow's threads compute, on which updates run.
class FlushDenormals : public DenormalMode {
 public:
  FlushDenormals() : DenormalMode(true) {}
};

}  // namespace tfdear
