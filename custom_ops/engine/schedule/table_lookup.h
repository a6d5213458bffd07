// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/collectives/vector_exchange.h"
#include "custom_ops/engine/memory/fusion_buffer.h"
#include "custom_ops/engine/queue/lane.h"
#include "custom_ops/engine/record/event_record.h"
#include "custom_ops/engine/schedule/reduced.h"

namespace tfdear {

// What is looked up together: tables whose ids do not depend on each other's vectors.
struct LookupLayout {
  struct Table {
    TablePartition partition;
    int64_t columns = 0;  // Of whole vectors.
    std::string name;     // What the ranks may compare.
  };
  std::vector<Table> tables;
};

// One execution of it. First the ids of all ranks are gathered, of all tables at once; then every
// rank gives what it holds of their vectors, and gets whole ones of its own ids, again of all
// tables at once. Thread safe.
class TableLookup : public Ticket, public std::enable_shared_from_this<TableLookup> {
 public:
  // The ids of all ranks, and how many are of each.
  using IdsReceiver = std::function<void(const Status&, const std::vector<int32_t>& ids,
                                         const std::vector<int64_t>& counts)>;

  TableLookup(std::shared_ptr<const LookupLayout> layout, std::shared_ptr<FusionBufferPool> pool,
              EventRecord* events, Lane* lane, int max_delay_ms);

  // This rank's ids in a table, each of them once.
  void ContributeIds(int table, std::vector<int32_t> ids);
  void WhenIdsThere(int table, IdsReceiver receiver);
  // Once they are there; they stay as long as the lookup.
  IdsOfRanks IdsThere(int table);
  // What this rank holds of the vectors of HeldIds(); `owner` keeps it.
  void ContributeVectors(int table, const void* held, size_t element_bytes,
                         std::shared_ptr<const void> owner);
  // Calls the receiver with this rank's whole vectors.
  void WhenVectorsThere(int table, Receiver receiver);

  bool Issue(ProcessGroup* group, Reactions* reactions) override;
  // Also between its two collectives: where ids are refused, as all ranks see the same ids, all
  // give up. If only this one does, the others find it in another collective.
  bool Untouched() const override {
    return !touched_.load() || (ids_there_.load() && missing_vectors_.load() ==
                                                         static_cast<int>(layout_->tables.size()));
  }
  void Fail(const Status& cause) override;
  bool complete() const { return missing_vectors_.load() == 0; }

 private:
  // A collective for all tables: what it waits for, and who waits for it.
  template <typename Waiting>
  struct Phase {
    bool issued = false;  // Guarded by the lane's mutex.
    bool done = false;
    Status status;
    std::vector<std::pair<int, Waiting>> receivers;
  };

  Status Gather(CollectiveBackend* backend, const Signature& signature, uint64_t sequence);
  Status Exchange(CollectiveBackend* backend, const Signature& signature, uint64_t sequence);
  void FinishIds(const Status& status);
  void FinishVectors(const Status& status);
  std::string Describe(const char* phase) const;
  Reduced Slice(int table) const TFDEAR_REQUIRES(mutex_);

  const std::shared_ptr<const LookupLayout> layout_;
  const std::shared_ptr<FusionBufferPool> pool_;
  EventRecord* const events_;
  Lane* const lane_;
  const int max_delay_ms_;
  std::atomic<bool> touched_{false};
  std::atomic<bool> ids_there_{false};
  std::atomic<int> missing_ids_;
  std::atomic<int> missing_vectors_;

  Mutex mutex_;
  Phase<IdsReceiver> ids_phase_ TFDEAR_GUARDED_BY(mutex_);
  Phase<Receiver> vectors_phase_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<std::vector<int32_t>> own_ids_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<std::vector<int32_t>> all_ids_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<std::vector<int64_t>> counts_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<LookedUp> tables_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const void>> owners_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<FusionBuffer>> vectors_ TFDEAR_GUARDED_BY(mutex_);
  int rank_ TFDEAR_GUARDED_BY(mutex_) = 0;
};

}  // namespace tfdear
