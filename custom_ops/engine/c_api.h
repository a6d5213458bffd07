// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// The engine's control plane as plain C, called from Python through ctypes. Data never pass here:
// gradients and sums go through the kernels.
//
// Calls that can fail return 0 on success and otherwise 1 + StatusCode, with the message in
// `error` (always terminated). Ranks in group calls are indices into `ranks`.
#ifndef TFDEAR_ENGINE_C_API_H_
#define TFDEAR_ENGINE_C_API_H_

#include <stdint.h>

#define TFDEAR_EXPORT __attribute__((visibility("default")))

extern "C" {

// Start-up: create every lane's process group, listen, exchange the addresses (the caller does),
// connect, start.
TFDEAR_EXPORT int tfdear_group_create(int lane, const char* name, const int* ranks, int size,
                                      int rank_in_group, const char* bind_address,
                                      double timeout_seconds, char* error, int error_size);
// Copies the group's address blob; returns its length, or -1 if `capacity` is too small.
TFDEAR_EXPORT int tfdear_group_listen(int lane, char* blob, int capacity);
TFDEAR_EXPORT int tfdear_group_connect(int lane, const char* const* blobs, const int* lengths,
                                       int count, char* error, int error_size);
TFDEAR_EXPORT int tfdear_start(int schedule, int64_t bucket_bytes, int max_delay_ms, char* error,
                               int error_size);

TFDEAR_EXPORT int64_t tfdear_layout_create(const char* name, int lane);
TFDEAR_EXPORT int tfdear_layout_add(int64_t layout, int data_type, int64_t count, int sparse,
                                    char* error, int error_size);
TFDEAR_EXPORT int tfdear_layout_set_lane(int64_t layout, int lane, char* error, int error_size);
// Copies the bucket sizes in bytes; returns how many there are.
TFDEAR_EXPORT int tfdear_layout_buckets(int64_t layout, int64_t* bytes, int capacity);
TFDEAR_EXPORT int64_t tfdear_variable_create();

// Waits until no update is in flight.
TFDEAR_EXPORT int tfdear_synchronize(double timeout_seconds, char* error, int error_size);

// The collective that a lane runs now. Returns 0 if there is none, 1 if the fields were filled.
TFDEAR_EXPORT int tfdear_in_flight(int lane, uint64_t* sequence, double* seconds, int* waiting_for,
                                   char* signature, int capacity);
// A transport error that waits for its cause. Returns 0 if there is none.
TFDEAR_EXPORT int tfdear_transport_failure(int* peer, char* message, int capacity);
TFDEAR_EXPORT void tfdear_abort(int status_code, const char* message);
// The cause of the abort. Returns 0 if there was none, else 1 + StatusCode.
TFDEAR_EXPORT int tfdear_aborted(char* message, int capacity);

// Moves up to `capacity` events into `out`, seven numbers each: kind, ticket, subject, detail,
// begin, end and computation in microseconds. Returns how many.
TFDEAR_EXPORT int64_t tfdear_events_drain(int64_t* out, int64_t capacity);
TFDEAR_EXPORT int64_t tfdear_now_micros();
TFDEAR_EXPORT int tfdear_counters(int lane, uint64_t* collectives, uint64_t* bytes_sent);

}  // extern "C"

#endif  // TFDEAR_ENGINE_C_API_H_
