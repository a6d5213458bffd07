// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// The functions of c_api.h with which groups are made and handed to the engine, and end.

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "custom_ops/api/c_api.h"
#include "custom_ops/engine/base/c_text.h"
#include "custom_ops/engine/base/helper_thread.h"
#include "custom_ops/engine/collectives/shared_memory_backend.h"
#include "custom_ops/engine/collectives/tcp_backend.h"
#include "custom_ops/engine/engine.h"
#include "custom_ops/engine/examples/example_store.h"
#include "custom_ops/engine/examples/registry.h"
#include "custom_ops/engine/transport/tcp/tcp_transport.h"

namespace {

using tfdear::Engine;
using tfdear::ExampleStore;
using tfdear::kNumLanes;
using tfdear::LaneKind;
using tfdear::MessageTransport;
using tfdear::NoMoreThreads;
using tfdear::ProcessGroup;
using tfdear::Range;
using tfdear::Registry;
using tfdear::Report;
using tfdear::SharedMemoryBackend;
using tfdear::Sockets;
using tfdear::Status;
using tfdear::StatusCode;
using tfdear::TcpBackend;
using tfdear::TcpTransport;

constexpr int kMessageBytes = 4096;

// Groups between their creation and the start of the engine, which takes them over. One thread
// starts them; the mutex lets another one abort them meanwhile, also while Connect() waits for
// peers, which is the only call made without it.
struct StartingGroup {
  std::string name;
  std::vector<int> ranks;
  std::unique_ptr<tfdear::CollectiveBackend> backend;
};

std::array<StartingGroup, kNumLanes>& StartingGroups() {
  static auto* groups = new std::array<StartingGroup, kNumLanes>;
  return *groups;
}

std::mutex& StartingMutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// With StartingMutex() held.
StartingGroup& Begin(int lane, const char* name, const int* ranks, int size) {
  StartingGroup& group = StartingGroups()[lane];
  group = StartingGroup();
  group.name = name;
  group.ranks.assign(ranks, ranks + size);
  return group;
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

TcpTransport::Connector ConnectorOf(int lane, tfdear_connector connect) {
  return [=](const std::vector<int>& peers, Range numbers, Sockets* sockets, int* failed_peer) {
    std::vector<int> made(peers.size() * numbers.size(), -1);
    std::array<char, kMessageBytes> message = {};
    const int code = connect(lane, peers.data(), static_cast<int>(peers.size()),
                             static_cast<int>(numbers.begin), static_cast<int>(numbers.end),
                             made.data(), failed_peer, message.data(), kMessageBytes);
    if (code != 0) return Status(static_cast<StatusCode>(code - 1), message.data());
    for (size_t i = 0; i < made.size(); ++i) sockets->Add(peers[i / numbers.size()], made[i]);
    return Status();
  };
}

std::vector<std::string> Blobs(const char* const* blobs, const int* lengths, int count) {
  std::vector<std::string> result;
  for (int i = 0; i < count; ++i) result.emplace_back(blobs[i], lengths[i]);
  return result;
}

}  // namespace

int tfdear_group_create_in_shared_memory(int lane, const char* name, const int* ranks, int size,
                                         int rank_in_group, double timeout_seconds, char* error,
                                         int error_size) {
  std::lock_guard<std::mutex> lock(StartingMutex());
  StartingGroup& group = Begin(lane, name, ranks, size);
  const Status aborted = Engine::Get()->failure();
  if (!aborted.ok()) return Report(aborted, error, error_size);
  const bool gradients = static_cast<LaneKind>(lane) == LaneKind::kGradients;
  std::unique_ptr<SharedMemoryBackend> backend;
  const Status status =
      SharedMemoryBackend::Create(rank_in_group, size, Milliseconds(timeout_seconds), &backend,
                                  gradients ? SharedMemoryBackend::kArenaBytes : 0);
  if (!status.ok()) return Report(status, error, error_size);
  backend->NameRanks(group.ranks);
  group.backend = std::move(backend);
  return 0;
}

int tfdear_group_create_over_tcp(int lane, const char* name, const int* ranks, int size,
                                 int rank_in_group, double timeout_seconds, int direct_ranks,
                                 tfdear_connector connect, int connections, const char* key,
                                 int key_bytes, char* error, int error_size) {
  std::unique_ptr<TcpTransport> transport;
  const Status status = TcpTransport::Create(
      rank_in_group, size, Milliseconds(timeout_seconds), ConnectorOf(lane, connect), connections,
      &transport, {std::string(key, key_bytes), name, std::vector<int>(ranks, ranks + size)});
  if (!status.ok()) return Report(status, error, error_size);
  MessageTransport* const made = transport.release();
  return tfdear_group_create_over_transport(lane, name, ranks, size, direct_ranks, made, error,
                                            error_size);
}

int tfdear_group_create_over_transport(int lane, const char* name, const int* ranks, int size,
                                       int direct_ranks, void* transport, char* error,
                                       int error_size) {
  std::unique_ptr<MessageTransport> owned(static_cast<MessageTransport*>(transport));
  std::lock_guard<std::mutex> lock(StartingMutex());
  StartingGroup& group = Begin(lane, name, ranks, size);
  const Status aborted = Engine::Get()->failure();
  if (!aborted.ok()) return Report(aborted, error, error_size);
  auto backend = std::make_unique<TcpBackend>(std::move(owned));
  if (direct_ranks >= 0) backend->set_direct_ranks(direct_ranks);
  backend->NameRanks(group.ranks);
  group.backend = std::move(backend);
  return 0;
}

int tfdear_group_listen(int lane, char* blob, int capacity) {
  const std::string bytes = StartingGroups()[lane].backend->Listen();
  if (static_cast<int>(bytes.size()) > capacity) return -1;
  std::memcpy(blob, bytes.data(), bytes.size());
  return static_cast<int>(bytes.size());
}

int tfdear_group_probe(int lane, const char* const* blobs, const int* lengths, int count,
                       char* error, int error_size) {
  std::lock_guard<std::mutex> lock(StartingMutex());
  return Report(StartingGroups()[lane].backend->Probe(Blobs(blobs, lengths, count)), error,
                error_size);
}

int tfdear_group_connect(int lane, const char* const* blobs, const int* lengths, int count,
                         char* error, int error_size) {
  tfdear::CollectiveBackend* backend;
  {
    std::lock_guard<std::mutex> lock(StartingMutex());
    backend = StartingGroups()[lane].backend.get();
  }
  return Report(backend->Connect(Blobs(blobs, lengths, count)), error, error_size);
}

int tfdear_start(int max_delay_ms, int64_t first_agreement, int tables_first, char* error,
                 int error_size) {
  std::lock_guard<std::mutex> lock(StartingMutex());
  std::array<std::unique_ptr<ProcessGroup>, kNumLanes> groups;
  for (int i = 0; i < kNumLanes; ++i) {
    StartingGroup& starting = StartingGroups()[i];
    if (starting.backend == nullptr) continue;
    try {
      groups[i] = std::make_unique<ProcessGroup>(starting.name, starting.ranks,
                                                 std::move(starting.backend));
    } catch (const std::system_error& thrown) {
      return Report(NoMoreThreads(thrown), error, error_size);
    }
  }
  Engine::Options options;
  options.max_delay_ms = max_delay_ms;
  options.first_agreement = first_agreement;
  options.tables_first = tables_first != 0;
  return Report(Engine::Get()->Start(options, std::move(groups)), error, error_size);
}

int tfdear_group_set_connections(int lane, int number, char* error, int error_size) {
  const auto opened = Engine::Get()->lane(static_cast<LaneKind>(lane));
  if (opened == nullptr) {
    return Report(tfdear::InvalidArgument("this rank has no process group there"), error,
                  error_size);
  }
  const auto signature = std::make_shared<tfdear::Signature>("number of connections");
  const auto work =
      opened->group()->Run(signature, [number](tfdear::CollectiveBackend* backend, uint64_t) {
        return backend->SetConnections(static_cast<size_t>(number));
      });
  return Report(work->Wait(), error, error_size);
}

int tfdear_stop(double timeout_seconds, char* error, int error_size) {
  {
    // What a start that failed has left.
    std::lock_guard<std::mutex> lock(StartingMutex());
    for (StartingGroup& group : StartingGroups()) group = StartingGroup();
  }
  return Report(Engine::Get()->Stop(Milliseconds(timeout_seconds)), error, error_size);
}

void tfdear_abort(int status_code, const char* message) {
  const Status cause(static_cast<tfdear::StatusCode>(status_code), message);
  // First: what is created from now on sees it.
  Engine::Get()->Abort(cause);
  // Who waits for an example that a lost rank prepares, or has.
  for (const auto& store : Registry<ExampleStore>::Get()->All()) store->Close(cause);
  std::lock_guard<std::mutex> lock(StartingMutex());
  for (StartingGroup& group : StartingGroups()) {
    if (group.backend != nullptr) group.backend->Abort(cause);
  }
}
