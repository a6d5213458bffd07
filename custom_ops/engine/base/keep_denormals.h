// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tfdear {

// While it lives, the calling thread computes with denormal numbers. Whether a thread flushes them
// to zero is inherited from the thread that started it, TensorFlow's threads do, and a library
// built with -ffast-math makes the whole process do: ranks that add the same numbers would get
// different bits. Where the processor is not known, nothing happens.
class KeepDenormals {
 public:
#if defined(__x86_64__)
  KeepDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(static_cast<uint32_t>(saved_) & ~0x8040u); }
  ~KeepDenormals() { _mm_setcsr(static_cast<uint32_t>(saved_)); }
#elif defined(__aarch64__)
  KeepDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ & ~(uint64_t{1} << 24)));
  }
  ~KeepDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
#else
  KeepDenormals() {}
#endif
  KeepDenormals(const KeepDenormals&) = delete;
  KeepDenormals& operator=(const KeepDenormals&) = delete;

 private:
  uint64_t saved_ = 0;
};

}  // namespace tfdear
