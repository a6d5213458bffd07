// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

// Before a function whose loops the compiler vectorises: compiled once for each instruction set,
// and the best that the processor has is called. The loader chooses it before the thread sanitizer
// is ready, so not under that.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define TFDEAR_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TFDEAR_VECTOR_CLONES
#endif
