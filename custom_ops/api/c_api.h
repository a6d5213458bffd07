// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// The engine's control plane as plain C, called from Python through ctypes. Data never pass here:
// gradients and sums go through the kernels.
//
// Calls that can fail return 0 on success and otherwise 1 + StatusCode, with the message in
// `error` (always terminated). Ranks in group calls are indices into `ranks`.
#pragma once

#include <stdint.h>

#include "custom_ops/engine/base/export.h"

extern "C" {

// Names(), names.h: what the numbers of this interface mean. The caller compares it with its own.
TFDEAR_EXPORT const char* tfdear_names();

// Start-up: create every lane's process group, listen, exchange the addresses (the caller does),
// connect, start. A group may be created again, another way, until it is connected.
TFDEAR_EXPORT int tfdear_group_create_in_shared_memory(int lane, const char* name, const int* ranks,
                                                       int size, int rank_in_group,
                                                       double timeout_seconds, char* error,
                                                       int error_size);
// Connects this rank to members of a lane's group, given by their places in it, once they do the
// same. Writes the sockets of each with the numbers from `first` to before `last`, which belong to
// the caller, one after another, and returns 0; else returns 1 + StatusCode, and writes a message,
// and the place of the member that is to blame, if there is one.
typedef int (*tfdear_connector)(int lane, const int* members, int count, int first, int last,
                                int* sockets, int* failed_member, char* error, int error_size);
// The same over TCP, by `connections` to each member, which `connect` makes when they are needed:
// from tfdear_group_connect(), or else from the group's first collective. `direct_ranks` as in
// TcpBackend; a negative number for its default. `key`: of the job, if they are to be encrypted.
TFDEAR_EXPORT int tfdear_group_create_over_tcp(int lane, const char* name, const int* ranks,
                                               int size, int rank_in_group, double timeout_seconds,
                                               int direct_ranks, tfdear_connector connect,
                                               int connections, const char* key, int key_bytes,
                                               char* error, int error_size);
// The same over a MessageTransport that another library has made, such as gloo_api.h; it belongs to
// the group from now on.
TFDEAR_EXPORT int tfdear_group_create_over_transport(int lane, const char* name, const int* ranks,
                                                     int size, int direct_ranks, void* transport,
                                                     char* error, int error_size);
// Copies the group's address blob; returns its length, or -1 if `capacity` is too small.
TFDEAR_EXPORT int tfdear_group_listen(int lane, char* blob, int capacity);
// CollectiveBackend::Probe.
TFDEAR_EXPORT int tfdear_group_probe(int lane, const char* const* blobs, const int* lengths,
                                     int count, char* error, int error_size);
// Waits for the peers; tfdear_abort() from another thread ends it.
TFDEAR_EXPORT int tfdear_group_connect(int lane, const char* const* blobs, const int* lengths,
                                       int count, char* error, int error_size);
// The arguments are the engine's options, engine.h.
TFDEAR_EXPORT int tfdear_start(int max_delay_ms, int64_t first_agreement, int tables_first,
                               char* error, int error_size);

// MessageTransport::SetConnections() of the group of a lane, in its turn among the collectives.
TFDEAR_EXPORT int tfdear_group_set_connections(int lane, int number, char* error, int error_size);

// Engine::Stop. Where the engine was not started, it frees the groups that were created.
TFDEAR_EXPORT int tfdear_stop(double timeout_seconds, char* error, int error_size);

TFDEAR_EXPORT int64_t tfdear_layout_create(const char* name, int lane);
TFDEAR_EXPORT int tfdear_layout_add(int64_t layout, int data_type, int64_t count, int sparse,
                                    char* error, int error_size);
TFDEAR_EXPORT int tfdear_layout_set_lane(int64_t layout, int lane, char* error, int error_size);
// Engine::SetVariable.
TFDEAR_EXPORT int tfdear_layout_set_variable(int64_t layout, int tensor, int64_t variable,
                                             const char* name, const char* comparable,
                                             const char* kind, char* error, int error_size);
// Engine::SetPartition; `column_begins` as in TablePartition.
TFDEAR_EXPORT int tfdear_layout_set_partition(int64_t layout, int tensor,
                                              const int64_t* column_begins, int count, char* error,
                                              int error_size);
// Engine::SetTable; `rows` and `most_gathered` as in WholeTable.
TFDEAR_EXPORT int tfdear_layout_set_table(int64_t layout, int tensor, int64_t variable,
                                          int64_t rows, int64_t most_gathered, char* error,
                                          int error_size);
// The numbers of RowCounts, in their order.
TFDEAR_EXPORT void tfdear_table_counts(int64_t variable, int64_t* counts);
// Engine::CreateLookup, Engine::AddLookupTable; `variable`: the table's.
TFDEAR_EXPORT int64_t tfdear_lookup_create();
TFDEAR_EXPORT int tfdear_lookup_add(int64_t lookup, const int64_t* column_begins, int count,
                                    int64_t columns, int64_t variable, const char* name,
                                    char* error, int error_size);
// Engine::LookAhead, Engine::LookUpEarly, Engine::MayPool.
TFDEAR_EXPORT int tfdear_lookup_look_ahead(int64_t lookup, char* error, int error_size);
TFDEAR_EXPORT int tfdear_lookup_early(int64_t lookup, int table, char* error, int error_size);
TFDEAR_EXPORT int tfdear_lookup_may_pool(int64_t lookup, int table, int64_t element_bytes,
                                         char* error, int error_size);
// Engine::SharedWith.
TFDEAR_EXPORT int64_t tfdear_layout_shared(int64_t layout);
// Engine::RequestNorms.
TFDEAR_EXPORT int tfdear_layout_request_norms(int64_t layout, int tensor, char* error,
                                              int error_size);
TFDEAR_EXPORT int tfdear_layout_set_optimizer(int64_t layout, double momentum, char* error,
                                              int error_size);
// Copies the bucket sizes in bytes; returns how many there are.
TFDEAR_EXPORT int tfdear_layout_buckets(int64_t layout, int64_t* bytes, int capacity);
// Engine::SetPlan.
TFDEAR_EXPORT int tfdear_layout_set_plan(int64_t layout, const int64_t* plan, int64_t count,
                                         char* error, int error_size);
// Engine::Propose; on rank 0. `count` 0 keeps the plan.
TFDEAR_EXPORT int tfdear_layout_propose(int64_t layout, const int64_t* plan, int64_t count,
                                        int64_t next_agreement, char* error, int error_size);
// Copies the encoded plan if it fits into `capacity` numbers; returns how many it has, 0 before the
// first use. `*executions`: how often the layout was opened.
TFDEAR_EXPORT int64_t tfdear_layout_plan(int64_t layout, int64_t* plan, int64_t capacity,
                                         int64_t* executions);
TFDEAR_EXPORT int64_t tfdear_variable_create();

// Engine::Compress; the arguments are the fields of Compression and of what it is made of.
TFDEAR_EXPORT int tfdear_compress(int exchange, int values, int error_feedback, double momentum,
                                  int momentum_of_optimizer, int samplings, int64_t warm_up_steps,
                                  double first_density, int only_optimizers_warm_up,
                                  int hierarchical, char* error, int error_size);
TFDEAR_EXPORT int tfdear_set_density(double density, char* error, int error_size);
// Engine::SaveCompression of `count` variables; `*state` stays valid until the next call of one of
// both, of which the second frees its memory.
TFDEAR_EXPORT int tfdear_compression_save(const int64_t* variables, int count, const char** state,
                                          int64_t* size, char* error, int error_size);
TFDEAR_EXPORT void tfdear_compression_forget();
TFDEAR_EXPORT int tfdear_compression_load(const char* state, int64_t size, const int64_t* variables,
                                          int count, char* error, int error_size);

// Waits until no update is in flight.
TFDEAR_EXPORT int tfdear_synchronize(double timeout_seconds, char* error, int error_size);

// The collective that a lane runs now. Returns 0 if there is none, 1 if the fields were filled.
// `signature`: its text, and below it the lines of its details.
TFDEAR_EXPORT int tfdear_in_flight(int lane, uint64_t* sequence, double* seconds, int* waiting_for,
                                   char* signature, int capacity);
// The ops that wait, for other ranks or for something of this one, a line for each. Returns a
// number that changes whenever a wait begins or ends, and with every event.
TFDEAR_EXPORT int64_t tfdear_waits(char* ops, int capacity);
// A transport error that waits for its cause. Returns 0 if there is none, else 1 + StatusCode.
TFDEAR_EXPORT int tfdear_transport_failure(int* peer, char* message, int capacity);
// Ends all collectives, and groups that are being connected.
TFDEAR_EXPORT void tfdear_abort(int status_code, const char* message);
// The cause of the abort. Returns 0 if there was none, else 1 + StatusCode.
TFDEAR_EXPORT int tfdear_aborted(char* message, int capacity);

// Copies up to `capacity` events into `out`, seven numbers each: kind, ticket, subject, detail,
// begin, end and computation in microseconds; returns how many. `*position` is the number of the
// next event that this reader wants (0 at first) and is moved behind the last one copied.
TFDEAR_EXPORT int64_t tfdear_events_read(uint64_t* position, int64_t* out, int64_t capacity);
TFDEAR_EXPORT int64_t tfdear_now_micros();
// How many tickets of a lane were opened.
TFDEAR_EXPORT int64_t tfdear_opened(int lane);
TFDEAR_EXPORT int tfdear_counters(int lane, uint64_t* collectives, uint64_t* bytes_sent);

}  // extern "C"
