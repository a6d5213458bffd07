// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// The engine's data plane as plain C, for programs without TensorFlow graphs: start-up measurements
// of the links, benchmarks, replays of traces. Conventions as in c_api.h. All calls block; buffers
// belong to the caller.
#ifndef TFDEAR_ENGINE_DATA_API_H_
#define TFDEAR_ENGINE_DATA_API_H_

#include <stdint.h>

#define TFDEAR_EXPORT __attribute__((visibility("default")))

extern "C" {

// Runs one collective `warm_up` + `repeats` times, back to back, on `count` elements at `data`.
// `phase` as in plan.h; `root` for reduce and broadcast. `*seconds`: what the last `repeats` took.
// There is no pause before them, in which a link could save up for a burst.
TFDEAR_EXPORT int tfdear_collective_run(int lane, int phase, void* data, int64_t count,
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

// SumOfSquares() over whole layers, in the calling thread. `arrays`: of every layer its gradient,
// its weights and, for LAMB, mean and square; `counts`: their elements; `sums`: two per layer.
// LAMB's step is that of rates 0.1 and 0.001 after the first step.
TFDEAR_EXPORT void tfdear_sums_of_squares(int lamb, const float* const* arrays,
                                          const int64_t* counts, int layers, double* sums);

}  // extern "C"

#endif  // TFDEAR_ENGINE_DATA_API_H_
