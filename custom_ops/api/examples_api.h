// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Caches of examples as plain C, called from Python through ctypes; examples themselves go through
// the kernels. Conventions as in c_api.h.
#pragma once

#include <stdint.h>

#include "custom_ops/engine/base/export.h"

extern "C" {

// ExampleStore::Create; `*store`: its number for the ops and for the functions below.
TFDEAR_EXPORT int tfdear_examples_create(int64_t examples, int64_t own_begin, int64_t own_end,
                                         int64_t memory_bytes, double timeout_seconds,
                                         double max_rate, int verify, int64_t* store, char* error,
                                         int error_size);
// ExampleStore::address; returns its length, or -1 if `capacity` is too small.
TFDEAR_EXPORT int tfdear_examples_address(int64_t store, char* address, int capacity);
// ExampleStore::Map, ExampleStore::Unpublish.
TFDEAR_EXPORT int tfdear_examples_map(int64_t store, int rank, const char* address, char* error,
                                      int error_size);
TFDEAR_EXPORT void tfdear_examples_unpublish(int64_t store);
// ExampleStore::Serve; the sockets belong to the store from now on. `key` encrypts them; none: they
// stay in the clear. `names`: of each, the same on both sides and no other connection's of the job.
TFDEAR_EXPORT int tfdear_examples_serve(int64_t store, const int* sockets, const char* const* names,
                                        int count, const char* key, int key_bytes, char* error,
                                        int error_size);
// ExampleStore::AddNode; `ranges`: `count` pairs; the rest as above.
TFDEAR_EXPORT int tfdear_examples_add_node(int64_t store, int rank, const int64_t* ranges,
                                           int count, const int* sockets, const char* const* names,
                                           int connections, const char* key, int key_bytes,
                                           char* error, int error_size);
// ExampleStore::ReadFrom, in the order of the source.
TFDEAR_EXPORT void tfdear_examples_read_in_order(int64_t store);
// ExampleStore::AwaitFilled.
TFDEAR_EXPORT int tfdear_examples_await_filled(int64_t store, double seconds, int* filled,
                                               char* error, int error_size);
// ExampleStore::StopGrowing.
TFDEAR_EXPORT void tfdear_examples_stop_growing(int64_t store);
// ExampleStore::Close, with a reason for those who wait.
TFDEAR_EXPORT void tfdear_examples_close(int64_t store, const char* reason);
// ExampleStore::Note: so many raw records have been read since then, by the steady clock.
TFDEAR_EXPORT void tfdear_examples_note_read(int64_t store, int64_t records, int64_t begin_us);
// Its number means nothing any more; it goes with the last dataset that reads it.
TFDEAR_EXPORT void tfdear_examples_remove(int64_t store);
// The numbers of ExampleStore::Progress, in their order.
TFDEAR_EXPORT void tfdear_examples_progress(int64_t store, int64_t* numbers);

// ExampleReader; returns its number. `parts`: three numbers for each rank, as in NodeParts::Rank,
// if ranks read the examples of their own node; else null. `epoch` and `step`: where it starts.
TFDEAR_EXPORT int64_t tfdear_reader_create(int64_t store, int shuffle, int64_t seed,
                                           const int64_t* parts, int64_t batch_size,
                                           int drop_remainder, int may_skip, int rank,
                                           int world_size, int64_t epoch, int64_t step);
// ExampleReader::Lead.
TFDEAR_EXPORT void tfdear_reader_lead(int64_t reader);
TFDEAR_EXPORT int64_t tfdear_reader_steps(int64_t reader);
// ExampleReader::SetNext.
TFDEAR_EXPORT void tfdear_reader_set_next(int64_t reader, int64_t epoch, int64_t step);
TFDEAR_EXPORT void tfdear_reader_remove(int64_t reader);

}  // extern "C"
