// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tfdear {

// Tells computation from communication by the processor time of threads: what the process used,
// less what the threads that only move bytes used, is computation. All functions are thread safe.

// Counts the calling thread as one that only moves bytes, gives it a name that says so and, where
// the system grants that, short slices of time ([Note: short slices]), which threads that it starts
// would inherit. Again and again is fine.
void RegisterCommunicationThread();

// Processor time of this process outside those threads, in microseconds.
int64_t ComputationMicros();

}  // namespace tfdear
