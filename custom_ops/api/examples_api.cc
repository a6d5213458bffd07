// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/api/examples_api.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/c_text.h"
#include "custom_ops/engine/engine.h"
#include "custom_ops/engine/examples/example_reader.h"
#include "custom_ops/engine/examples/example_store.h"
#include "custom_ops/engine/examples/registry.h"
#include "custom_ops/engine/transport/streams/tls_stream.h"

namespace {

using tfdear::ExampleReader;
using tfdear::ExampleSocket;
using tfdear::ExampleStore;
using tfdear::Registry;
using tfdear::Status;

// Makes the connections of a store, which may be none, of their sockets.
Status Connect(const std::shared_ptr<ExampleStore>& found, bool asks, const int* sockets,
               const char* const* names, int count, const std::string& key,
               std::vector<ExampleSocket>* connections) {
  Status status;
  for (int i = 0; i < count; ++i) {  // All of them, so that none stays open.
    std::unique_ptr<tfdear::ByteStream> stream;
    const Status opened = tfdear::OpenStream(sockets[i], {asks, key, names[i]}, &stream);
    if (opened.ok()) {
      connections->emplace_back(std::move(stream));
    } else {
      status = opened;
    }
  }
  return found == nullptr ? tfdear::Internal("no such store") : status;
}

}  // namespace

int tfdear_examples_create(int64_t examples, int64_t own_begin, int64_t own_end,
                           int64_t memory_bytes, double timeout_seconds, double max_rate,
                           int verify, int64_t* store, char* error, int error_size) {
  ExampleStore::Options options;
  options.examples = examples;
  options.own_begin = own_begin;
  options.own_end = own_end;
  options.memory_bytes = static_cast<size_t>(memory_bytes);
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  options.max_rate = max_rate;
  options.verify = verify != 0;
  options.events = tfdear::Engine::Get()->events();
  std::shared_ptr<ExampleStore> created;
  const tfdear::Status status = ExampleStore::Create(options, &created);
  if (status.ok()) *store = Registry<ExampleStore>::Get()->Add(std::move(created));
  return tfdear::Report(status, error, error_size);
}

int tfdear_examples_address(int64_t store, char* address, int capacity) {
  const auto found = Registry<ExampleStore>::Get()->Find(store);
  const std::string text = found == nullptr ? "" : found->address();
  if (static_cast<int>(text.size()) >= capacity) return -1;
  tfdear::CopyText(text, address, capacity);
  return static_cast<int>(text.size());
}

int tfdear_examples_map(int64_t store, int rank, const char* address, char* error, int error_size) {
  const auto found = Registry<ExampleStore>::Get()->Find(store);
  return tfdear::Report(
      found == nullptr ? tfdear::Internal("no such store") : found->Map(rank, address), error,
      error_size);
}

int tfdear_examples_serve(int64_t store, const int* sockets, const char* const* names, int count,
                          const char* key, int key_bytes, char* error, int error_size) {
  const auto found = Registry<ExampleStore>::Get()->Find(store);
  std::vector<ExampleSocket> owned;
  Status status = Connect(found, false, sockets, names, count, std::string(key, key_bytes), &owned);
  if (status.ok()) status = found->Serve(std::move(owned));
  return tfdear::Report(status, error, error_size);
}

int tfdear_examples_add_node(int64_t store, int rank, const int64_t* ranges, int count,
                             const int* sockets, const char* const* names, int connections,
                             const char* key, int key_bytes, char* error, int error_size) {
  const auto found = Registry<ExampleStore>::Get()->Find(store);
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (int i = 0; i < count; ++i) pairs.emplace_back(ranges[2 * i], ranges[2 * i + 1]);
  std::vector<ExampleSocket> owned;
  Status status =
      Connect(found, true, sockets, names, connections, std::string(key, key_bytes), &owned);
  if (status.ok()) status = found->AddNode(rank, pairs, std::move(owned));
  return tfdear::Report(status, error, error_size);
}

void tfdear_examples_unpublish(int64_t store) {
  if (const auto found = Registry<ExampleStore>::Get()->Find(store)) found->Unpublish();
}

void tfdear_examples_read_in_order(int64_t store) {
  tfdear::ReadingOrder in_order;
  in_order.shuffle = false;
  if (const auto found = Registry<ExampleStore>::Get()->Find(store)) {
    found->ReadFrom(in_order, 0, 0);
  }
}

int tfdear_examples_await_filled(int64_t store, double seconds, int* filled, char* error,
                                 int error_size) {
  const auto found = Registry<ExampleStore>::Get()->Find(store);
  bool is_filled = false;
  const std::chrono::milliseconds time(static_cast<int64_t>(seconds * 1000));
  const tfdear::Status status =
      found == nullptr ? tfdear::Internal("no such store") : found->AwaitFilled(time, &is_filled);
  *filled = is_filled ? 1 : 0;
  return tfdear::Report(status, error, error_size);
}

void tfdear_examples_stop_growing(int64_t store) {
  if (const auto found = Registry<ExampleStore>::Get()->Find(store)) found->StopGrowing();
}

void tfdear_examples_close(int64_t store, const char* reason) {
  if (const auto found = Registry<ExampleStore>::Get()->Find(store)) {
    found->Close(tfdear::Status(tfdear::StatusCode::kAborted, reason));
  }
}

void tfdear_examples_note_read(int64_t store, int64_t records, int64_t begin_us) {
  if (const auto found = Registry<ExampleStore>::Get()->Find(store)) {
    found->Note(tfdear::EventKind::kDataRead, records, begin_us);
  }
}

void tfdear_examples_remove(int64_t store) { Registry<ExampleStore>::Get()->Remove(store); }

void tfdear_examples_progress(int64_t store, int64_t* numbers) {
  ExampleStore::Progress progress;
  if (const auto found = Registry<ExampleStore>::Get()->Find(store)) progress = found->progress();
  const int64_t all[] = {
      progress.held,   progress.held_bytes,   progress.prepared,      progress.prepared_bytes,
      progress.hits,   progress.misses,       progress.waited_micros, progress.full,
      progress.owned,  progress.held_on_node, progress.fetched,       progress.fetched_bytes,
      progress.served, progress.served_bytes, progress.refused,       progress.skipped};
  std::copy(std::begin(all), std::end(all), numbers);
}

int64_t tfdear_reader_create(int64_t store, int shuffle, int64_t seed, const int64_t* parts,
                             int64_t batch_size, int drop_remainder, int may_skip, int rank,
                             int world_size, int64_t epoch, int64_t step) {
  ExampleReader::Options options;
  options.order.shuffle = shuffle != 0;
  options.order.seed = static_cast<uint64_t>(seed);
  if (parts != nullptr) {
    std::vector<tfdear::NodeParts::Rank> ranks;
    for (int i = 0; i < world_size; ++i) {
      ranks.push_back({static_cast<int>(parts[3 * i]), parts[3 * i + 1], parts[3 * i + 2]});
    }
    options.order.nodes = std::make_shared<const tfdear::NodeParts>(ranks, batch_size);
  }
  options.may_skip = may_skip != 0;
  options.batch_size = batch_size;
  options.drop_remainder = drop_remainder != 0;
  options.rank = rank;
  options.world_size = world_size;
  return Registry<ExampleReader>::Get()->Add(std::make_shared<ExampleReader>(
      Registry<ExampleStore>::Get()->Find(store), options, ExampleReader::Position{epoch, step}));
}

int64_t tfdear_reader_steps(int64_t reader) {
  return Registry<ExampleReader>::Get()->Find(reader)->steps();
}

void tfdear_reader_lead(int64_t reader) {
  if (const auto found = Registry<ExampleReader>::Get()->Find(reader)) found->Lead();
}

void tfdear_reader_set_next(int64_t reader, int64_t epoch, int64_t step) {
  if (const auto found = Registry<ExampleReader>::Get()->Find(reader)) {
    found->SetNext({epoch, step});
  }
}

void tfdear_reader_remove(int64_t reader) { Registry<ExampleReader>::Get()->Remove(reader); }
