// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// The engine's data plane as plain C, for programs without TensorFlow graphs: start-up measurements
// of the links, benchmarks, replays of traces. Conventions as in c_api.h. All calls block; buffers
// belong to the caller.
#pragma once

#include <stdint.h>

#include "custom_ops/engine/base/export.h"

extern "C" {

// Runs one collective `warm_up` + `repeats` times, back to back, on `count` elements at `data`.
// `operation` as in step_kind.h; `root` for reduce and broadcast. `*seconds`: what the last
// `repeats` took. There is no pause before them, in which a link could save up for a burst.
TFDEAR_EXPORT int tfdear_collective_run(int lane, int operation, void* data, int64_t count,
                                        int data_type, int root, int warm_up, int repeats,
                                        double* seconds, char* error, int error_size);

// One execution of a layout: open, contribute every tensor, wait for the sums, close.
TFDEAR_EXPORT int tfdear_reduction_open(int64_t layout, int64_t* reduction, char* error,
                                        int error_size);
TFDEAR_EXPORT int tfdear_reduction_contribute(int64_t reduction, int tensor, const void* data,
                                              int64_t count, char* error, int error_size);
// `out` null: only waits. `since_us`: when the sum was there, as tfdear_now_micros. The sum may be
// waited for once.
TFDEAR_EXPORT int tfdear_reduction_wait(int64_t reduction, int tensor, void* out, int64_t bytes,
                                        double timeout_seconds, int64_t* since_us, char* error,
                                        int error_size);
TFDEAR_EXPORT void tfdear_reduction_close(int64_t reduction);

}  // extern "C"
