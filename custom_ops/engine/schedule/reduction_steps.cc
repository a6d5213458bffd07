// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// What steps do with the fusion buffers of their buckets, on the threads of their groups.
#include <utility>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/collectives/summed_rows.h"
#include "custom_ops/engine/schedule/reduction.h"

namespace tfdear {

Status Reduction::RunStep(CollectiveBackend* backend, const ReductionLayout::Step& step,
                          const Signature& signature, uint64_t sequence, size_t* bytes) {
  BucketState* const state = &buckets_[step.bucket];
  if (backend->device() != Device::kHost && (step.kind.wire_format != WireFormat::kDense ||
                                             step.takes_norms || !compression_.flushed.empty())) {
    return InvalidArgument(
        signature.text(),
        ": rows, selected elements and norms of gradients need host memory, and the collectives of "
        "this group are of another device. Use dense gradients there, without compression, or the "
        "collectives of the host");
  }
  if (step.adds_held_back) {
    for (const HeldBack& held : compression_.flushed) {
      held.state->AddHeldBack(layout_->buckets[step.bucket], world_size_ / held.state->places(),
                              reinterpret_cast<float*>(state->buffer->data()), held.tensors);
    }
  }
  switch (step.kind.wire_format) {
    case WireFormat::kDense:
      break;
    case WireFormat::kRows:
      TFDEAR_RETURN_IF_ERROR(
          ExchangeRows(backend, signature, sequence, state,
                       layout_->tensors[layout_->buckets[step.bucket].tensors[0]]));
      *bytes = state->buffer->size();
      return Status();
    case WireFormat::kSelected:
      return ExchangeSelected(backend, step, signature, sequence, bytes);
  }
  return RunDense(backend, step, signature, sequence, bytes);
}

Status Reduction::RunDense(CollectiveBackend* backend, const ReductionLayout::Step& step,
                           const Signature& signature, uint64_t sequence, size_t* bytes) {
  BucketState* const state = &buckets_[step.bucket];
  const DataType type = layout_->buckets[step.bucket].type;
  char* const data = state->buffer->data();
  const Operation operation = step.kind.operation;
  if (operation == Operation::kReduce || operation == Operation::kBroadcast) {
    // Roots take turns, so that no rank sums everything.
    const int root = step.bucket % world_size_;
    const Range chunk = ShardOf(state->count, step.chunk, step.chunks);
    *bytes = chunk.size() * SizeOf(type);
    char* const begin = data + chunk.begin * SizeOf(type);
    return operation == Operation::kReduce
               ? backend->Reduce(begin, chunk.size(), type, root, signature, sequence)
               : backend->Broadcast(begin, *bytes, root, signature, sequence);
  }
  const auto shards = ShardsOfStep(step);
  for (const Range& shard : shards) *bytes += shard.size() * SizeOf(type);
  if (step.kind.group == Group::kWorld && backend->device() == Device::kHost &&
      backend->fusion_memory() != nullptr) {
    return SumShared(backend, step, shards, signature, sequence);
  }
  if (operation == Operation::kReduceScatter) {
    return backend->ReduceScatter(data, shards, type, signature, sequence);
  }
  return operation == Operation::kAllGather
             ? backend->AllGather(data, shards, type, signature, sequence)
             : backend->AllReduce(data, shards, type, signature, sequence);
}

// See [Note: sums without copies].
Status Reduction::SumShared(CollectiveBackend* backend, const ReductionLayout::Step& step,
                            const std::vector<Range>& shards, const Signature& signature,
                            uint64_t sequence) {
  BucketState* const state = &buckets_[step.bucket];
  const DataType type = layout_->buckets[step.bucket].type;
  char* const data = state->buffer->data();
  if (step.kind.operation != Operation::kAllGather) {
    // Hosts take turns, so that all ranks need as much memory.
    TFDEAR_RETURN_IF_ERROR(backend->ReduceScatterShared(data, step.bucket % world_size_, shards,
                                                        type, signature, sequence, &state->sum));
    if (step.kind.operation == Operation::kReduceScatter) return Status();
  }
  if (state->sum == nullptr) return backend->AllGather(data, shards, type, signature, sequence);
  TFDEAR_RETURN_IF_ERROR(backend->Barrier(signature, sequence));
  if (++state->gathered < layout_->last_steps[step.bucket] || state->sum == data) return Status();
  auto sum = FusionBuffer::Borrowed(backend->fusion_memory(), state->sum, state->buffer->size());
  MutexLock lock(mutex_);
  state->buffer.swap(sum);
  return Status();
}

Status Reduction::SelectWhatIsSent(const ReductionLayout::Step& step, int place, int places,
                                   Work* last) {
  if (last != nullptr) TFDEAR_RETURN_IF_ERROR(last->Wait());
  const BucketState& bucket = buckets_[step.bucket];
  if (bucket.buffer->device() != Device::kHost) return Status();  // RunStep() refuses it.
  const int64_t begin = EventRecord::NowMicros();
  CompressionState* const state = compression_.state.get();
  const Range own = state->shard(step.bucket);
  if (own.size() == 0) return Status();
  const size_t k =
      ElementsToSelect(compression_.density, bucket.count, state->places(), own.size());
  TFDEAR_RETURN_IF_ERROR(state->exchange(step.bucket)
                             ->Prepare(reinterpret_cast<float*>(bucket.buffer->data()) + own.begin,
                                       own.size(), k, place, places));
  events_->Add({EventKind::kSelection, number(), step.bucket, static_cast<int64_t>(k), begin,
                EventRecord::NowMicros()});
  return Status();
}

Status Reduction::ExchangeSelected(CollectiveBackend* backend, const ReductionLayout::Step& step,
                                   const Signature& signature, uint64_t sequence, size_t* bytes) {
  CompressionState* const state = compression_.state.get();
  if (state == nullptr) {
    return Status(StatusCode::kInternal,
                  signature.text() + ": the plan compresses a bucket, but compression is off");
  }
  auto* const data = reinterpret_cast<float*>(buckets_[step.bucket].buffer->data());
  const size_t count = buckets_[step.bucket].count;
  const Range own = state->shard(step.bucket);
  SparseExchange* const exchange = state->exchange(step.bucket);
  if (compression_.density >= 1) {
    exchange->Flush(data + own.begin, own.size(), world_size_ / state->places());
    *bytes = own.size() * sizeof(float);
    return backend->AllReduce(data, ShardsOfStep(step), DataType::kFloat32, signature, sequence);
  }
  const size_t k = ElementsToSelect(compression_.density, count, state->places(), own.size());
  return exchange->Run(backend, data + own.begin, own.size(), k, signature, sequence, bytes);
}

// The elements that each member of the step's group has or gets.
std::vector<Range> Reduction::ShardsOfStep(const ReductionLayout::Step& step) const {
  const size_t count = buckets_[step.bucket].count;
  if (step.kind.group == Group::kIntra) {
    return ShardsOf(count, levels_.intra->size(), step.chunk, step.chunks);
  }
  if (step.kind.group == Group::kWorld) {
    return ShardsOf(count, world_size_, step.chunk, step.chunks);
  }
  // What this rank has of its node's sum.
  Range own{0, count};
  if (levels_.intra != nullptr) own = ShardOf(count, levels_.intra->rank(), levels_.intra->size());
  std::vector<Range> shards;
  if (layout_->chunks_alike[step.bucket]) {
    const Range chunk = ShardOf(own.size(), step.chunk, step.chunks);
    own = Range{own.begin + chunk.begin, own.begin + chunk.end};
    shards = ShardsOf(own.size(), levels_.inter->size());
  } else {
    shards = ShardsOf(own.size(), levels_.inter->size(), step.chunk, step.chunks);
  }
  for (Range& shard : shards) shard = Range{own.begin + shard.begin, own.begin + shard.end};
  return shards;
}

Status Reduction::ExchangeRows(CollectiveBackend* backend, const Signature& signature,
                               uint64_t sequence, BucketState* bucket, const TensorSpec& spec) {
  std::vector<int64_t>& shape = bucket->shapes[0];
  size_t row_bytes = SizeOf(spec.type);
  for (size_t d = 1; d < shape.size(); ++d) row_bytes *= static_cast<size_t>(shape[d]);
  size_t total = 0;
  std::shared_ptr<FusionBuffer> all_indices, all_values;
  auto allocate = [&](size_t rows, void** indices, void** values) {
    total = rows;
    TFDEAR_RETURN_IF_ERROR(pool_->Take(rows * sizeof(int64_t), &all_indices));
    TFDEAR_RETURN_IF_ERROR(pool_->Take(rows * row_bytes, &all_values));
    *indices = all_indices->data();
    *values = all_values->data();
    return Status();
  };
  RowsOfRanks seen;
  TFDEAR_RETURN_IF_ERROR(ExchangeIndexedRows(
      backend, signature, sequence, reinterpret_cast<const int64_t*>(bucket->indices->data()),
      {bucket->buffer->data(), shape[0], row_bytes}, spec.type, spec.whole, allocate, &seen));
  if (spec.row_counts != nullptr) {
    spec.row_counts->rows_of_ranks += seen.count;
    spec.row_counts->summed_steps += seen.summed;
    spec.row_counts->whole_bytes += static_cast<int64_t>(seen.sent_bytes);
  }
  MutexLock lock(mutex_);
  bucket->indices = std::move(all_indices);
  bucket->buffer = std::move(all_values);
  shape[0] = static_cast<int64_t>(total);
  return Status();
}

// The last step of a bucket: all of its sum is here, this rank's shard for a while already.
Status Reduction::TakeNorms(CollectiveBackend* backend, int bucket, const std::string& text,
                            uint64_t sequence) {
  BucketState& state = buckets_[bucket];
  const int64_t begin = EventRecord::NowMicros();
  size_t bytes = 0;
  int64_t cpu_micros = 0;
  const Status status = ExchangeLayerNorms(backend, text, sequence,
                                           reinterpret_cast<const float*>(state.buffer->data()),
                                           state.count, &state.layers, &bytes, &cpu_micros);
  // Before the updates run: TensorFlow would copy variables that somebody still holds.
  for (NormedSlot& layer : state.layers) layer.operands = LayerOperands();
  events_->Add({EventKind::kNorms, number(), bucket, static_cast<int64_t>(bytes), begin,
                EventRecord::NowMicros(), cpu_micros});
  return status;
}

}  // namespace tfdear
