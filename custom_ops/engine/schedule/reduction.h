// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/memory/fusion_buffer.h"
#include "custom_ops/engine/queue/lane.h"
#include "custom_ops/engine/record/event_record.h"
#include "custom_ops/engine/schedule/compression_state.h"
#include "custom_ops/engine/schedule/reduced.h"
#include "custom_ops/engine/schedule/reduction_layout.h"
#include "custom_ops/engine/schedule/right_of_way.h"
#include "custom_ops/engine/schedule/table_rows.h"

namespace tfdear {

// The process groups of the levels that sums can be formed in; null where there is no such level.
struct LevelGroups {
  ProcessGroup* intra = nullptr;
  ProcessGroup* inter = nullptr;
  // The lanes that they belong to, which a sum keeps; null where something else keeps them.
  std::shared_ptr<Lane> lane_of_intra = nullptr;
  std::shared_ptr<Lane> lane_of_inter = nullptr;
};

// What was held back under another plan, or of another layout.
struct HeldBack {
  std::shared_ptr<const CompressionState> state;
  std::vector<int> tensors;  // As in CompressionState::AddHeldBack.
};

// How the sparse exchanges of one execution go.
struct CompressionOfStep {
  std::shared_ptr<CompressionState> state;  // Null: the layout is not compressed.
  std::vector<HeldBack> flushed;            // Added to what is contributed now.
  double density = 1;                       // At least 1: everything is sent, dense.
};

// One execution of a layout: gradients come in in any order, sums go out.
//
// Life of a bucket: filling (contributions are copied into its fusion buffer by the threads that
// bring them) -> issued in its turn -> reduced -> gathered; then the waiting receivers are called
// with slices of the buffer. Thread safe.
class Reduction : public Ticket, public std::enable_shared_from_this<Reduction> {
 public:
  using Receiver = tfdear::Receiver;

  Reduction(std::shared_ptr<const ReductionLayout> layout, int rank, int world_size,
            std::shared_ptr<FusionBufferPool> pool, EventRecord* events, Lane* lane,
            int max_delay_ms, LevelGroups levels = {}, CompressionOfStep compression = {},
            std::shared_ptr<FusionBufferPool> group_pool = nullptr,
            std::shared_ptr<TableRows> tables = nullptr, RightOfWay* right_of_way = nullptr);

  // Adds this rank's share of a dense tensor, `weight` times what is at `data`. A weight of 0
  // contributes zeros, whatever `data` holds; integers weigh 0 or 1. `parallel_for` divides the
  // copies of large tensors; null: they are made on this thread.
  Status Contribute(int tensor, const void* data, const std::vector<int64_t>& shape,
                    double weight = 1, const ParallelFor& parallel_for = nullptr);
  // Adds rows: `values` holds shape[0] rows, `indices` as many. shape[0] may be 0, and a weight of
  // 0 contributes no rows.
  // `lookup`: as in TableRows::Rows; then a weight of 0 contributes zeros.
  Status ContributeRows(int tensor, const void* values, const int64_t* indices,
                        std::vector<int64_t> shape, double weight = 1,
                        std::shared_ptr<TableLookup> lookup = nullptr, int table_of_lookup = 0);
  // What the norms of a tensor are taken of, which wants them by its TensorSpec. Its bucket is not
  // spread before. Elements and type must be those of the tensor.
  Status AddLayer(int tensor, LayerOperands operands);
  // Who calls the receivers of a bucket, with one call for all of them; without it the thread that
  // brought the sums does, which has more to bring. Set before there is a receiver.
  void set_hand_over(std::function<void(std::function<void()>)> hand_over) {
    hand_over_ = std::move(hand_over);
  }
  // Calls the receiver once the sum is there (at once if it is).
  void WhenReduced(int tensor, Receiver receiver);

  bool Issue(ProcessGroup* group, Reactions* reactions) override;
  bool Untouched() const override { return contributed_.load() == 0; }
  void Fail(const Status& cause) override;
  bool complete() const {
    return contributed_.load() == layout_->tensors.size() && layers_missing_.load() == 0;
  }
  const ReductionLayout& layout() const { return *layout_; }
  Lane* lane() const { return lane_; }
  // What brings the rows of partitioned tables to the ranks that hold them; null: there are none.
  const std::shared_ptr<TableRows>& tables() const { return tables_; }

 private:
  struct BucketState {
    std::shared_ptr<FusionBuffer> buffer;
    std::shared_ptr<FusionBuffer> indices;     // Sparse.
    std::vector<std::vector<int64_t>> shapes;  // Of each slot.
    std::atomic<int> missing{0};               // Contributions.
    std::atomic<int> outstanding{0};           // Steps that bring the sum.
    std::atomic<int> layers_missing{0};        // Tensors that want norms, without operands yet.
    std::vector<NormedSlot> layers;            // Of each slot; used where norms are wanted.
    size_t count = 0;
    // [Note: sums without copies]; of the group's thread.
    char* sum = nullptr;  // Where all ranks' sum is formed; null: in the own buffer.
    int gathered = 0;     // Steps after which all owners are known to be done.
    bool done = false;
    int64_t done_us = 0;
    Status status;
    std::vector<std::pair<int, Receiver>> receivers;
  };

  Status TakeBuffer(int bucket, size_t count, FusionBuffer** buffer);
  void RecordContribution(int tensor, int64_t begin_us);
  Status Accept(int tensor, double weight);
  void Arrived(int tensor);
  std::shared_ptr<Work> Submit(ProcessGroup* world, const ReductionLayout::Step& step);
  // What of ExchangeSelected() needs no other rank, on member `place` of `places`, after the last
  // exchange of the bucket (null: there was none).
  Status SelectWhatIsSent(const ReductionLayout::Step& step, int place, int places, Work* last);
  Status ExchangeSelected(CollectiveBackend* backend, const ReductionLayout::Step& step,
                          const Signature& signature, uint64_t sequence, size_t* bytes);
  Status RunDense(CollectiveBackend* backend, const ReductionLayout::Step& step,
                  const Signature& signature, uint64_t sequence, size_t* bytes);
  std::vector<Range> ShardsOfStep(const ReductionLayout::Step& step) const;
  Status RunStep(CollectiveBackend* backend, const ReductionLayout::Step& step,
                 const Signature& signature, uint64_t sequence, size_t* bytes);
  Status SumShared(CollectiveBackend* backend, const ReductionLayout::Step& step,
                   const std::vector<Range>& shards, const Signature& signature, uint64_t sequence);
  Status ExchangeRows(CollectiveBackend* backend, const Signature& signature, uint64_t sequence,
                      BucketState* bucket, const TensorSpec& spec);
  Status TakeNorms(CollectiveBackend* backend, int bucket, const std::string& text,
                   uint64_t sequence);
  void Finish(int bucket, const Status& status);
  Reduced SliceOf(int tensor, const BucketState& bucket) const;

  const std::shared_ptr<const ReductionLayout> layout_;
  const int rank_;
  const int world_size_;
  const std::shared_ptr<FusionBufferPool> pool_;
  EventRecord* const events_;
  Lane* const lane_;
  const int max_delay_ms_;
  const LevelGroups levels_;
  const CompressionOfStep compression_;
  // Of the memory that the group wants; or null.
  const std::shared_ptr<FusionBufferPool> group_pool_;
  const std::shared_ptr<TableRows> tables_;
  std::function<void(std::function<void()>)> hand_over_;
  RightOfWay* const right_of_way_;  // Hears when steps are under way; or null.
  std::atomic<size_t> steps_ended_{0};

  Mutex mutex_;  // Guards the buffers and the receivers of the buckets, too.
  Status failure_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<BucketState> buckets_;
  std::vector<std::atomic<bool>> arrived_;
  std::atomic<size_t> contributed_{0};
  std::atomic<int> layers_missing_{0};
  // Guarded by the lane's mutex.
  size_t next_step_ = 0;
  std::vector<std::shared_ptr<Work>> works_;  // Of the steps that were issued.
};

}  // namespace tfdear
