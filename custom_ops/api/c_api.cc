// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/api/c_api.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/api/names.h"
#include "custom_ops/engine/base/c_text.h"
#include "custom_ops/engine/engine.h"

namespace {

using tfdear::CopyText;
using tfdear::Engine;
using tfdear::kNumLanes;
using tfdear::LaneKind;
using tfdear::ProcessGroup;
using tfdear::Report;
using tfdear::Status;

// Keeps its lane meanwhile, which another thread may close.
std::shared_ptr<ProcessGroup> GroupOf(int lane) {
  const auto opened = Engine::Get()->lane(static_cast<LaneKind>(lane));
  return opened == nullptr ? nullptr : std::shared_ptr<ProcessGroup>(opened, opened->group());
}

std::vector<char>* SavedCompression() {
  static auto* const saved = new std::vector<char>;
  return saved;
}

}  // namespace

const char* tfdear_names() {
  static const auto* names = new std::string(tfdear::Names());
  return names->c_str();
}

int64_t tfdear_layout_create(const char* name, int lane) {
  return Engine::Get()->CreateLayout(name, static_cast<LaneKind>(lane));
}

int tfdear_layout_add(int64_t layout, int data_type, int64_t count, int sparse, char* error,
                      int error_size) {
  tfdear::TensorSpec tensor;
  tensor.type = static_cast<tfdear::DataType>(data_type);
  tensor.count = count;
  tensor.sparse = sparse != 0;
  return Report(Engine::Get()->AddTensor(layout, tensor), error, error_size);
}

int tfdear_layout_set_lane(int64_t layout, int lane, char* error, int error_size) {
  return Report(Engine::Get()->SetLane(layout, static_cast<LaneKind>(lane)), error, error_size);
}

int tfdear_layout_set_variable(int64_t layout, int tensor, int64_t variable, const char* name,
                               const char* comparable, const char* kind, char* error,
                               int error_size) {
  return Report(Engine::Get()->SetVariable(layout, tensor, variable, name, comparable, kind), error,
                error_size);
}

int tfdear_layout_set_partition(int64_t layout, int tensor, const int64_t* column_begins, int count,
                                char* error, int error_size) {
  return Report(Engine::Get()->SetPartition(layout, tensor,
                                            tfdear::TablePartition{std::vector<int64_t>(
                                                column_begins, column_begins + count)}),
                error, error_size);
}

int tfdear_layout_set_table(int64_t layout, int tensor, int64_t variable, int64_t rows,
                            int64_t most_gathered, char* error, int error_size) {
  return Report(Engine::Get()->SetTable(layout, tensor, variable, {rows, most_gathered}), error,
                error_size);
}

void tfdear_table_counts(int64_t variable, int64_t* counts) {
  const auto seen = Engine::Get()->table_counts()->Of(variable);
  for (const std::atomic<int64_t>* count :
       {&seen->lookups, &seen->ids, &seen->unique_ids, &seen->steps, &seen->rows,
        &seen->rows_of_ranks, &seen->summed_steps, &seen->foreseen_steps, &seen->prior_rows,
        &seen->delayed_rows, &seen->early_vectors, &seen->late_vectors, &seen->id_bytes,
        &seen->early_vector_bytes, &seen->late_vector_bytes, &seen->prior_bytes,
        &seen->delayed_bytes, &seen->whole_bytes}) {
    *counts++ = count->load();
  }
}

int64_t tfdear_lookup_create() { return Engine::Get()->CreateLookup(); }

int tfdear_lookup_add(int64_t lookup, const int64_t* column_begins, int count, int64_t columns,
                      int64_t variable, const char* name, char* error, int error_size) {
  return Report(
      Engine::Get()->AddLookupTable(
          lookup,
          {{std::vector<int64_t>(column_begins, column_begins + count)}, columns, name, variable}),
      error, error_size);
}

int tfdear_lookup_look_ahead(int64_t lookup, char* error, int error_size) {
  return Report(Engine::Get()->LookAhead(lookup), error, error_size);
}

int tfdear_lookup_early(int64_t lookup, int table, char* error, int error_size) {
  return Report(Engine::Get()->LookUpEarly(lookup, table), error, error_size);
}

int tfdear_lookup_may_pool(int64_t lookup, int table, int64_t element_bytes, char* error,
                           int error_size) {
  return Report(Engine::Get()->MayPool(lookup, table, static_cast<size_t>(element_bytes)), error,
                error_size);
}

int64_t tfdear_layout_shared(int64_t layout) { return Engine::Get()->SharedWith(layout); }

int tfdear_layout_request_norms(int64_t layout, int tensor, char* error, int error_size) {
  return Report(Engine::Get()->RequestNorms(layout, tensor), error, error_size);
}

int tfdear_layout_set_optimizer(int64_t layout, double momentum, char* error, int error_size) {
  return Report(Engine::Get()->SetOptimizer(layout, static_cast<float>(momentum)), error,
                error_size);
}

int tfdear_layout_buckets(int64_t layout, int64_t* bytes, int capacity) {
  const std::vector<size_t> buckets = Engine::Get()->BucketBytes(layout);
  std::copy_n(buckets.begin(), std::min(buckets.size(), static_cast<size_t>(capacity)), bytes);
  return static_cast<int>(buckets.size());
}

int tfdear_layout_set_plan(int64_t layout, const int64_t* plan, int64_t count, char* error,
                           int error_size) {
  return Report(Engine::Get()->SetPlan(layout, std::vector<int64_t>(plan, plan + count)), error,
                error_size);
}

int tfdear_layout_propose(int64_t layout, const int64_t* plan, int64_t count,
                          int64_t next_agreement, char* error, int error_size) {
  const std::vector<int64_t> words(plan, plan + count);
  return Report(Engine::Get()->Propose(layout, words, next_agreement), error, error_size);
}

int64_t tfdear_layout_plan(int64_t layout, int64_t* plan, int64_t capacity, int64_t* executions) {
  *executions = 0;
  const std::vector<int64_t> words = Engine::Get()->PlanOf(layout, executions);
  const int64_t count = static_cast<int64_t>(words.size());
  if (count <= capacity) std::copy(words.begin(), words.end(), plan);
  return count;
}

int64_t tfdear_variable_create() { return Engine::Get()->CreateVariable(); }

int tfdear_compress(int exchange, int values, int error_feedback, double momentum,
                    int momentum_of_optimizer, int samplings, int64_t warm_up_steps,
                    double first_density, int only_optimizers_warm_up, int hierarchical,
                    char* error, int error_size) {
  tfdear::Compression compression;
  compression.exchange.kind = static_cast<tfdear::ExchangeKind>(exchange);
  compression.exchange.values = static_cast<tfdear::ValueFormat>(values);
  compression.exchange.error_feedback = error_feedback != 0;
  compression.exchange.momentum = static_cast<float>(momentum);
  compression.momentum_of_optimizer = momentum_of_optimizer != 0;
  compression.exchange.samplings = samplings;
  compression.warm_up_steps = warm_up_steps;
  compression.first_density = first_density;
  compression.only_optimizers_warm_up = only_optimizers_warm_up != 0;
  compression.hierarchical = hierarchical != 0;
  return Report(Engine::Get()->Compress(compression), error, error_size);
}

int tfdear_set_density(double density, char* error, int error_size) {
  return Report(Engine::Get()->SetDensity(density), error, error_size);
}

int tfdear_compression_save(const int64_t* variables, int count, const char** state, int64_t* size,
                            char* error, int error_size) {
  std::vector<char>* const saved = SavedCompression();
  const Status status = Engine::Get()->SaveCompression({variables, variables + count}, saved);
  *state = saved->data();
  *size = static_cast<int64_t>(saved->size());
  return Report(status, error, error_size);
}

void tfdear_compression_forget() { std::vector<char>().swap(*SavedCompression()); }

int tfdear_compression_load(const char* state, int64_t size, const int64_t* variables, int count,
                            char* error, int error_size) {
  return Report(
      Engine::Get()->LoadCompression({state, state + size}, {variables, variables + count}), error,
      error_size);
}

int tfdear_synchronize(double timeout_seconds, char* error, int error_size) {
  const std::chrono::milliseconds timeout(static_cast<int64_t>(timeout_seconds * 1000));
  return Report(Engine::Get()->WaitForUpdates(timeout), error, error_size);
}

int tfdear_in_flight(int lane, uint64_t* sequence, double* seconds, int* waiting_for,
                     char* signature, int capacity) {
  const auto group = GroupOf(lane);
  if (group == nullptr) return 0;
  const auto current = group->Current();
  if (!current.has_value()) return 0;
  *sequence = current->sequence;
  *seconds = current->seconds;
  *waiting_for = current->waiting_for;
  CopyText(current->signature + "\n" + current->details, signature, capacity);
  return 1;
}

int64_t tfdear_waits(char* ops, int capacity) {
  std::vector<std::string> names;
  const int64_t changes = Engine::Get()->waits()->Read(&names);
  uint64_t events = std::numeric_limits<uint64_t>::max();
  Engine::Get()->events()->Read(&events, 0);
  std::string text;
  for (const std::string& name : names) text += name + "\n";
  CopyText(text, ops, capacity);
  return changes + static_cast<int64_t>(events);
}

int tfdear_transport_failure(int* peer, char* message, int capacity) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    const auto group = GroupOf(lane);
    if (group == nullptr) continue;
    const auto failure = group->Failure();
    if (!failure.has_value()) continue;
    *peer = group->failed_peer();
    CopyText(failure->message(), message, capacity);
    return 1 + static_cast<int>(failure->code());
  }
  return 0;
}

int tfdear_aborted(char* message, int capacity) {
  return Report(Engine::Get()->failure(), message, capacity);
}

int64_t tfdear_events_read(uint64_t* position, int64_t* out, int64_t capacity) {
  const auto events =
      Engine::Get()->events()->Read(position, static_cast<size_t>(std::max<int64_t>(capacity, 0)));
  for (const tfdear::Event& event : events) {
    for (int64_t number : {static_cast<int64_t>(event.kind), event.ticket, event.subject,
                           event.detail, event.begin_us, event.end_us, event.computation_us}) {
      *out++ = number;
    }
  }
  return static_cast<int64_t>(events.size());
}

int64_t tfdear_now_micros() { return tfdear::EventRecord::NowMicros(); }

int64_t tfdear_opened(int lane) {
  const auto opened = Engine::Get()->lane(static_cast<LaneKind>(lane));
  return opened == nullptr ? 0 : opened->opened();
}

int tfdear_counters(int lane, uint64_t* collectives, uint64_t* bytes_sent) {
  const auto group = GroupOf(lane);
  if (group == nullptr) return 0;
  const auto counters = group->counters();
  *collectives = counters.collectives;
  *bytes_sent = counters.bytes_sent;
  return 1;
}
