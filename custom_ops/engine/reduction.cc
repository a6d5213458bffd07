// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/reduction.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "custom_ops/engine/communication_threads.h"
#include "custom_ops/engine/reduce.h"
#include "custom_ops/engine/row_exchange.h"
#include "custom_ops/engine/shard.h"

namespace tfdear {
namespace {

EventKind KindOf(Phase phase) {
  switch (phase) {
    case Phase::kReduceScatter:
      return EventKind::kReduceScatter;
    case Phase::kAllGather:
      return EventKind::kAllGather;
    case Phase::kAllReduce:
      return EventKind::kAllReduce;
    case Phase::kSparseGather:
      return EventKind::kSparseGather;
    case Phase::kReduce:
      return EventKind::kReduce;
    case Phase::kBroadcast:
      return EventKind::kBroadcast;
    case Phase::kIntraReduceScatter:
      return EventKind::kIntraReduceScatter;
    case Phase::kInterReduceScatter:
      return EventKind::kInterReduceScatter;
    case Phase::kInterAllGather:
      return EventKind::kInterAllGather;
    case Phase::kIntraAllGather:
      return EventKind::kIntraAllGather;
    case Phase::kSparseExchange:
      return EventKind::kSparseExchange;
    case Phase::kSparseAllGather:
      return EventKind::kSparseAllGather;
  }
  return EventKind::kCollective;
}

void CopyWeighted(DataType type, void* target, const void* source, double weight, size_t count) {
  if (count == 0) return;
  if (weight == 1) {
    std::memcpy(target, source, count * SizeOf(type));
  } else {
    CopyScaled(type, target, source, weight, count);
  }
}

bool IsSparseExchange(Phase phase) {
  return phase == Phase::kSparseExchange || phase == Phase::kSparseAllGather;
}

// Whose group runs it, in a lane for gradients of all ranks.
LaneKind LaneOf(Phase phase) {
  if (IsIntra(phase)) return LaneKind::kGradientsIntra;
  return IsInter(phase) ? LaneKind::kGradientsInter : LaneKind::kGradients;
}

// How many tensors of a bucket want norms.
int NormedIn(const ReductionLayout& layout, int bucket) {
  const auto& members = layout.buckets[bucket].tensors;
  return static_cast<int>(std::count_if(members.begin(), members.end(), [&](int tensor) {
    return layout.tensors[tensor].norms && !layout.tensors[tensor].sparse;
  }));
}

// Words for a collective: what an error shows and what must agree between ranks. `shapes` lists the
// elements of every tensor, because two ranks may fill buckets of one size with different tensors.
std::string Describe(const ReductionLayout& layout, const Plan::Step& step, size_t count) {
  const Bucket& bucket = layout.buckets[step.bucket];
  std::string text = std::string(Name(step.phase)) + " " + Name(bucket.type) + "[" +
                     (bucket.sparse ? "rows" : std::to_string(count)) + "] of '" + layout.name +
                     "' bucket " + std::to_string(step.bucket) + "/" +
                     std::to_string(layout.buckets.size());
  if (step.chunks > 1) {
    text += " chunk " + std::to_string(step.chunk) + "/" + std::to_string(step.chunks);
  }
  if (!bucket.sparse) text += " (elements";
  const size_t shown = std::min<size_t>(bucket.tensors.size(), 8);
  std::string rest;
  for (size_t i = 0; i < bucket.tensors.size(); ++i) {
    const int64_t elements = layout.tensors[bucket.tensors[i]].count;
    if (bucket.sparse) break;
    (i < shown ? text : rest) += " " + std::to_string(elements < 0 ? count : elements);
  }
  if (!rest.empty()) text += " and " + std::to_string(bucket.tensors.size() - shown) + " more";
  if (!bucket.sparse) text += ")";
  for (int tensor : bucket.tensors) {
    const TensorSpec& spec = layout.tensors[tensor];
    if (!spec.name.empty()) rest += " " + std::to_string(spec.identity);
  }
  if (!rest.empty()) {
    char fingerprint[32];
    std::snprintf(fingerprint, sizeof(fingerprint), " fingerprint %016llx",
                  static_cast<unsigned long long>(Signature(rest).hash()));
    text += fingerprint;
  }
  const int normed = NormedIn(layout, step.bucket);
  return text + (normed > 0 ? " with norms of " + std::to_string(normed) : "");
}

// The tensors of a bucket, a line each: what ranks compare, and what it is called here.
std::string DetailsOf(const ReductionLayout& layout, const Bucket& bucket) {
  std::string lines;
  for (int tensor : bucket.tensors) {
    const TensorSpec& spec = layout.tensors[tensor];
    if (spec.name.empty()) continue;
    char identity[24];
    std::snprintf(identity, sizeof(identity), "%016llx ",
                  static_cast<unsigned long long>(spec.identity));
    lines += identity + spec.name + " " + spec.kind + "\n";
  }
  return lines;
}

// Links the steps of each bucket: see [Note: chains of phases] in plan.cc.
void LinkSteps(ReductionLayout* layout) {
  const size_t count = layout->buckets.size();
  layout->last_steps.assign(count, 0);
  layout->chunks_alike.assign(count, true);
  // Of each bucket: the steps of each phase of its chain.
  std::vector<std::vector<std::vector<int>>> chains(count);
  auto phase_of = [layout](const std::vector<int>& steps) { return layout->steps[steps[0]].phase; };
  for (size_t i = 0; i < layout->steps.size(); ++i) {
    auto& chain = chains[layout->steps[i].bucket];
    auto found = std::find_if(chain.begin(), chain.end(), [&](const auto& steps) {
      return phase_of(steps) == layout->steps[i].phase;
    });
    if (found == chain.end()) found = chain.insert(found, std::vector<int>());
    found->push_back(static_cast<int>(i));
  }
  for (size_t b = 0; b < count; ++b) {
    const auto& chain = chains[b];
    for (const auto& steps : chain) {
      if (steps.size() != chain[0].size()) layout->chunks_alike[b] = false;
    }
    for (size_t place = 0; place < chain.size(); ++place) {
      for (int i : chain[place]) {
        ReductionLayout::Step& step = layout->steps[i];
        step.last = place + 1 == chain.size();
        if (place == 0 || LaneOf(step.phase) == LaneOf(phase_of(chain[place - 1]))) continue;
        // Groups take their steps in order, so with the last one all of them are over.
        step.after = chain[place - 1].back();
        for (int before : chain[place - 1]) {
          if (layout->chunks_alike[b] && layout->steps[before].chunk == step.chunk) {
            step.after = before;
          }
        }
      }
    }
    if (!chain.empty()) layout->last_steps[b] = static_cast<int>(chain.back().size());
  }
}

size_t ElementsOf(const std::vector<int64_t>& shape) {
  size_t elements = 1;
  for (int64_t dimension : shape) elements *= static_cast<size_t>(dimension);
  return elements;
}

}  // namespace

void InjectDelay(int max_ms) {
  if (max_ms <= 0) return;
  thread_local std::minstd_rand random(std::random_device{}());
  const int micros = std::uniform_int_distribution<int>(0, max_ms * 1000)(random);
  std::this_thread::sleep_for(std::chrono::microseconds(micros));
}

std::shared_ptr<const ReductionLayout> ReductionLayout::Make(std::string name,
                                                             std::vector<TensorSpec> tensors,
                                                             Plan plan) {
  auto layout = std::make_shared<ReductionLayout>();
  layout->name = std::move(name);
  layout->tensors = std::move(tensors);
  layout->wait_for_all = plan.wait_for_all;
  layout->place_of_tensor.resize(layout->tensors.size());
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    layout->buckets.push_back(MakeBucket(layout->tensors, plan.buckets[b]));
    for (size_t slot = 0; slot < plan.buckets[b].size(); ++slot) {
      layout->place_of_tensor[plan.buckets[b][slot]] = {static_cast<int>(b),
                                                        static_cast<int>(slot)};
    }
  }
  for (const Bucket& bucket : layout->buckets) {
    layout->details.push_back(std::make_shared<const std::string>(DetailsOf(*layout, bucket)));
  }
  std::vector<bool> begun(layout->buckets.size());
  for (const Plan::Step& step : plan.steps) {
    const Bucket& bucket = layout->buckets[step.bucket];
    const bool sized_at_run_time = !bucket.sparse && layout->tensors[bucket.tensors[0]].count < 0;
    std::shared_ptr<const Signature> signature;
    if (!sized_at_run_time) {
      signature = std::make_shared<Signature>(Describe(*layout, step, bucket.count));
    }
    layout->steps.push_back({step, std::move(signature)});
    layout->steps.back().first = !begun[step.bucket];
    begun[step.bucket] = true;
  }
  LinkSteps(layout.get());
  std::vector<bool> last_seen(layout->buckets.size());
  for (auto step = layout->steps.rbegin(); step != layout->steps.rend(); ++step) {
    step->with_norms = !last_seen[step->bucket] && NormedIn(*layout, step->bucket) > 0;
    last_seen[step->bucket] = true;
  }
  return layout;
}

Reduction::Reduction(std::shared_ptr<const ReductionLayout> layout, int rank, int world_size,
                     std::shared_ptr<FusionBufferPool> pool, EventRecord* events, Lane* lane,
                     int max_delay_ms, LevelGroups levels, CompressionOfStep compression,
                     std::shared_ptr<FusionBufferPool> shared_pool)
    : layout_(std::move(layout)),
      rank_(rank),
      world_size_(world_size),
      pool_(std::move(pool)),
      events_(events),
      lane_(lane),
      max_delay_ms_(max_delay_ms),
      levels_(levels),
      compression_(std::move(compression)),
      shared_pool_(std::move(shared_pool)),
      buckets_(layout_->buckets.size()),
      arrived_(layout_->tensors.size()) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].missing = static_cast<int>(layout_->buckets[b].tensors.size());
    buckets_[b].shapes.resize(layout_->buckets[b].tensors.size());
    buckets_[b].count = layout_->buckets[b].count;
    buckets_[b].outstanding = layout_->last_steps[b];
    buckets_[b].layers_missing = NormedIn(*layout_, static_cast<int>(b));
    buckets_[b].layers.resize(layout_->buckets[b].tensors.size());
    layers_missing_ += buckets_[b].layers_missing;
  }
}

Status Reduction::TakeBuffer(int bucket, size_t count, FusionBuffer** buffer) {
  std::lock_guard<std::mutex> lock(mutex_);
  BucketState& state = buckets_[bucket];
  if (state.buffer == nullptr) {
    const size_t bytes = count * SizeOf(layout_->buckets[bucket].type);
    // With memory of its own it travels too, by copies.
    if (shared_pool_ == nullptr || !shared_pool_->Take(bytes, &state.buffer).ok()) {
      TFDEAR_RETURN_IF_ERROR(pool_->Take(bytes, &state.buffer));
    }
    state.count = count;
  }
  *buffer = state.buffer.get();
  return Status();
}

Status Reduction::Contribute(int tensor, const void* data, const std::vector<int64_t>& shape,
                             double weight) {
  const TensorSpec& spec = layout_->tensors[tensor];
  const auto [bucket, slot] = layout_->place_of_tensor[tensor];
  const size_t elements = ElementsOf(shape);
  if (spec.sparse || (spec.count >= 0 && static_cast<size_t>(spec.count) != elements)) {
    return Status(
        StatusCode::kInvalidArgument,
        "tensor " + std::to_string(tensor) + " of '" + layout_->name + "' was announced " +
            (spec.sparse ? "as sparse" : "with " + std::to_string(spec.count) + " elements") +
            " when its function was traced, but came with " + std::to_string(elements));
  }
  TFDEAR_RETURN_IF_ERROR(Accept(tensor, weight));
  const int64_t begin = EventRecord::NowMicros();
  FusionBuffer* buffer = nullptr;
  TFDEAR_RETURN_IF_ERROR(
      TakeBuffer(bucket, spec.count < 0 ? elements : layout_->buckets[bucket].count, &buffer));
  const size_t element = SizeOf(spec.type);
  char* target = buffer->data() + layout_->buckets[bucket].offsets[slot] * element;
  const size_t bytes = elements * element;
  if (weight == 0) {
    std::memset(target, 0, bytes);
  } else {
    CopyWeighted(spec.type, target, data, weight, elements);
  }
  // The gap before the next slot is summed too. What a former user of the buffer left there would
  // grow with every step, up to infinities, subnormals (slow) or overflows.
  if (spec.count >= 0) std::memset(target + bytes, 0, AlignUp(bytes) - bytes);
  buckets_[bucket].shapes[slot] = shape;
  RecordContribution(tensor, begin);
  Arrived(tensor);
  return Status();
}

Status Reduction::ContributeRows(int tensor, const void* values, const int64_t* indices,
                                 std::vector<int64_t> shape, double weight) {
  const TensorSpec& spec = layout_->tensors[tensor];
  if (!spec.sparse || shape.empty()) {
    return Status(StatusCode::kInvalidArgument, "tensor " + std::to_string(tensor) + " of '" +
                                                    layout_->name + "' was announced as dense");
  }
  TFDEAR_RETURN_IF_ERROR(Accept(tensor, weight));
  if (weight == 0) shape[0] = 0;
  const int bucket = layout_->place_of_tensor[tensor].bucket;
  const int64_t begin = EventRecord::NowMicros();
  const size_t bytes = ElementsOf(shape) * SizeOf(spec.type);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    BucketState& state = buckets_[bucket];
    TFDEAR_RETURN_IF_ERROR(pool_->Take(bytes, &state.buffer));
    TFDEAR_RETURN_IF_ERROR(pool_->Take(shape[0] * sizeof(int64_t), &state.indices));
    state.shapes[0] = shape;
    CopyWeighted(spec.type, state.buffer->data(), values, weight, ElementsOf(shape));
    if (shape[0] > 0) std::memcpy(state.indices->data(), indices, shape[0] * sizeof(int64_t));
  }
  RecordContribution(tensor, begin);
  Arrived(tensor);
  return Status();
}

void Reduction::RecordContribution(int tensor, int64_t begin_us) {
  if (lane_->kind() != LaneKind::kGradients) return;
  events_->Add({EventKind::kContribute, number(), tensor, layout_->place_of_tensor[tensor].bucket,
                begin_us, EventRecord::NowMicros()});
}

// Before anything is written: a second contribution must not touch bytes that may be on the line.
Status Reduction::Accept(int tensor, double weight) {
  const DataType type = layout_->tensors[tensor].type;
  if ((type == DataType::kInt32 || type == DataType::kInt64) && weight != 0 && weight != 1) {
    return Status(StatusCode::kInvalidArgument,
                  "tensor " + std::to_string(tensor) + " of '" + layout_->name +
                      "' holds integers, which weigh 0 or 1, not " + std::to_string(weight));
  }
  if (arrived_[tensor].exchange(true)) {
    return Status(StatusCode::kInternal, "tensor " + std::to_string(tensor) + " of '" +
                                             layout_->name + "' was contributed twice in one step");
  }
  return Status();
}

void Reduction::Arrived(int tensor) {
  contributed_.fetch_add(1);
  if (buckets_[layout_->place_of_tensor[tensor].bucket].missing.fetch_sub(1) == 1) lane_->Advance();
}

Status Reduction::AddLayer(int tensor, LayerOperands operands) {
  const TensorSpec& spec = layout_->tensors[tensor];
  const auto [bucket, slot] = layout_->place_of_tensor[tensor];
  BucketState& state = buckets_[bucket];
  {
    std::lock_guard<std::mutex> lock(mutex_);
    NormedSlot& layer = state.layers[slot];
    if (!spec.norms || spec.sparse || spec.type != DataType::kFloat32 || layer.operands.owner) {
      return Status(StatusCode::kInternal, "tensor " + std::to_string(tensor) + " of '" +
                                               layout_->name +
                                               "' has no norms, or was given its layer twice");
    }
    layer.offset = layout_->buckets[bucket].offsets[slot];
    layer.operands = std::move(operands);
  }
  layers_missing_.fetch_sub(1);
  if (state.layers_missing.fetch_sub(1) == 1) lane_->Advance();
  return Status();
}

bool Reduction::Issue(ProcessGroup* group, Reactions* reactions) {
  while (next_step_ < layout_->steps.size()) {
    const ReductionLayout::Step& step = layout_->steps[next_step_];
    if (layout_->wait_for_all && !complete()) return false;
    if (buckets_[step.bucket].missing.load() > 0) return false;
    if (step.with_norms && buckets_[step.bucket].layers_missing.load() > 0) return false;
    ++next_step_;
    works_.push_back(Submit(group, step));
    reactions->push_back(
        [self = shared_from_this(), bucket = step.bucket, last = step.last, work = works_.back()] {
          work->OnDone([self, bucket, last](const Status& status) {
            if (!status.ok() || (last && self->buckets_[bucket].outstanding.fetch_sub(1) == 1)) {
              self->Finish(bucket, status);
            }
          });
        });
  }
  return true;
}

std::shared_ptr<Work> Reduction::Submit(ProcessGroup* world, const ReductionLayout::Step& step) {
  std::string text = step.signature != nullptr
                         ? step.signature->text()
                         : Describe(*layout_, step, buckets_[step.bucket].count);
  const bool exchanges = IsSparseExchange(step.phase) && compression_.state != nullptr;
  if (exchanges) {
    // Ranks that disagree on it must not mix what they send.
    char density[32];
    std::snprintf(density, sizeof(density), " density %.9g ", compression_.density);
    text += density + compression_.state->exchange(step.bucket)->Describe();
  }
  const auto signature =
      std::make_shared<const Signature>(WithTicket(text, number()), layout_->details[step.bucket]);
  const LaneKind kind = LaneOf(step.phase);
  ProcessGroup* const group = kind == LaneKind::kGradientsIntra   ? levels_.intra
                              : kind == LaneKind::kGradientsInter ? levels_.inter
                                                                  : world;
  // Under the plan before this one; it may still run, in another group.
  auto flushed =
      step.first && compression_.flushed != nullptr ? compression_.flushed->last_exchange : nullptr;
  auto run = [self = shared_from_this(), this, signature, flushed, &step](
                 CollectiveBackend* backend, uint64_t sequence) {
    if (flushed != nullptr) TFDEAR_RETURN_IF_ERROR(flushed->Wait());
    InjectDelay(max_delay_ms_);
    const bool gradients = lane_->kind() == LaneKind::kGradients;
    const int64_t computation = gradients ? ComputationMicros() : 0;
    const int64_t begin = EventRecord::NowMicros();
    size_t bytes = 0;
    Status status = RunStep(backend, step, *signature, sequence, &bytes);
    events_->Add({gradients ? KindOf(step.phase) : EventKind::kCollective, number(), step.bucket,
                  static_cast<int64_t>(bytes), begin, EventRecord::NowMicros(),
                  gradients ? ComputationMicros() - computation : 0});
    if (status.ok() && step.with_norms) {
      status = TakeNorms(backend, step.bucket, signature->text(), sequence);
    }
    return status;
  };
  // Groups cannot wait for each other in a circle: they take their steps in the order of the plan,
  // in which a step comes after the one it waits for.
  auto work = group->Run(signature, std::move(run), step.after < 0 ? nullptr : works_[step.after]);
  if (exchanges) compression_.state->last_exchange = work;
  return work;
}

Status Reduction::RunStep(CollectiveBackend* backend, const ReductionLayout::Step& step,
                          const Signature& signature, uint64_t sequence, size_t* bytes) {
  BucketState* const state = &buckets_[step.bucket];
  const DataType type = layout_->buckets[step.bucket].type;
  if (step.phase == Phase::kSparseGather) {
    const Status status = GatherRows(backend, signature, sequence, state, type);
    *bytes = state->buffer->size();
    return status;
  }
  char* const data = state->buffer->data();
  if (step.first && compression_.flushed != nullptr && type == DataType::kFloat32) {
    compression_.flushed->AddHeldBack(layout_->buckets[step.bucket],
                                      world_size_ / compression_.flushed->places(),
                                      reinterpret_cast<float*>(data));
  }
  if (IsSparseExchange(step.phase)) {
    return ExchangeSparse(backend, step, signature, sequence, bytes);
  }
  if (step.phase == Phase::kReduce || step.phase == Phase::kBroadcast) {
    // Roots take turns, so that no rank sums everything.
    const int root = step.bucket % world_size_;
    const Range chunk = ShardOf(state->count, step.chunk, step.chunks);
    *bytes = chunk.size() * SizeOf(type);
    char* const begin = data + chunk.begin * SizeOf(type);
    return step.phase == Phase::kReduce
               ? backend->Reduce(begin, chunk.size(), type, root, signature, sequence)
               : backend->Broadcast(begin, *bytes, root, signature, sequence);
  }
  const auto shards = ShardsOfStep(step);
  for (const Range& shard : shards) *bytes += shard.size() * SizeOf(type);
  if (LaneOf(step.phase) == LaneKind::kGradients && backend->fusion_memory() != nullptr) {
    return SumShared(backend, step, shards, signature, sequence);
  }
  switch (step.phase) {
    case Phase::kReduceScatter:
    case Phase::kIntraReduceScatter:
    case Phase::kInterReduceScatter:
      return backend->ReduceScatter(data, shards, type, signature, sequence);
    case Phase::kAllGather:
    case Phase::kInterAllGather:
    case Phase::kIntraAllGather:
      return backend->AllGather(data, shards, type, signature, sequence);
    default:
      return backend->AllReduce(data, shards, type, signature, sequence);
  }
}

// See [Note: sums without copies].
Status Reduction::SumShared(CollectiveBackend* backend, const ReductionLayout::Step& step,
                            const std::vector<Range>& shards, const Signature& signature,
                            uint64_t sequence) {
  BucketState* const state = &buckets_[step.bucket];
  const DataType type = layout_->buckets[step.bucket].type;
  char* const data = state->buffer->data();
  if (step.phase != Phase::kAllGather) {
    // Hosts take turns, so that all ranks need as much memory.
    TFDEAR_RETURN_IF_ERROR(backend->ReduceScatterShared(data, step.bucket % world_size_, shards,
                                                        type, signature, sequence, &state->sum));
    if (step.phase == Phase::kReduceScatter) return Status();
  }
  if (state->sum == nullptr) return backend->AllGather(data, shards, type, signature, sequence);
  TFDEAR_RETURN_IF_ERROR(backend->Barrier(signature, sequence));
  if (++state->gathered < layout_->last_steps[step.bucket] || state->sum == data) return Status();
  auto sum = FusionBuffer::Borrowed(backend->fusion_memory(), state->sum, state->buffer->size());
  std::lock_guard<std::mutex> lock(mutex_);
  state->buffer.swap(sum);
  return Status();
}

Status Reduction::ExchangeSparse(CollectiveBackend* backend, const ReductionLayout::Step& step,
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
  if (IsIntra(step.phase)) return ShardsOf(count, levels_.intra->size(), step.chunk, step.chunks);
  if (!IsInter(step.phase)) return ShardsOf(count, world_size_, step.chunk, step.chunks);
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

Status Reduction::GatherRows(CollectiveBackend* backend, const Signature& signature,
                             uint64_t sequence, BucketState* bucket, DataType type) {
  std::vector<int64_t>& shape = bucket->shapes[0];
  size_t row_bytes = SizeOf(type);
  for (size_t d = 1; d < shape.size(); ++d) row_bytes *= static_cast<size_t>(shape[d]);
  ArrivingRows arriving;
  TFDEAR_RETURN_IF_ERROR(
      AnnounceRowsOfLength(backend, signature, sequence, shape[0], row_bytes, &arriving));
  std::vector<size_t> index_bytes;
  for (int64_t rows : arriving.of_member) index_bytes.push_back(rows * sizeof(int64_t));
  std::shared_ptr<FusionBuffer> all_indices, all_values;
  TFDEAR_RETURN_IF_ERROR(pool_->Take(arriving.total * sizeof(int64_t), &all_indices));
  TFDEAR_RETURN_IF_ERROR(pool_->Take(arriving.total * row_bytes, &all_values));
  const std::string& text = signature.text();
  TFDEAR_RETURN_IF_ERROR(backend->AllGatherV(bucket->indices->data(), all_indices->data(),
                                             index_bytes, Signature(text + " indices"), sequence));
  TFDEAR_RETURN_IF_ERROR(backend->AllGatherV(bucket->buffer->data(), all_values->data(),
                                             arriving.bytes_of_member, Signature(text + " values"),
                                             sequence));
  std::lock_guard<std::mutex> lock(mutex_);
  bucket->indices = std::move(all_indices);
  bucket->buffer = std::move(all_values);
  shape[0] = static_cast<int64_t>(arriving.total);
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

Reduced Reduction::SliceOf(int tensor, const BucketState& state) const {
  const auto [bucket, slot] = layout_->place_of_tensor[tensor];
  const Bucket& plan = layout_->buckets[bucket];
  Reduced reduced;
  reduced.owner = state.buffer;
  reduced.data = state.buffer->data() + plan.offsets[slot] * SizeOf(plan.type);
  reduced.shape = state.shapes[slot];
  reduced.norms = state.layers[slot].norms;
  reduced.since_us = state.done_us;
  if (plan.sparse) {
    reduced.indices_owner = state.indices;
    reduced.indices = reinterpret_cast<int64_t*>(state.indices->data());
  }
  return reduced;
}

void Reduction::WhenReduced(int tensor, Receiver receiver) {
  Status status;
  Reduced reduced;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    BucketState& bucket = buckets_[layout_->place_of_tensor[tensor].bucket];
    if (!bucket.done) {
      if (failure_.ok()) {
        bucket.receivers.emplace_back(tensor, std::move(receiver));
        return;
      }
      status = failure_;
    } else {
      status = bucket.status;
    }
    if (status.ok()) reduced = SliceOf(tensor, bucket);
  }
  receiver(status, reduced);
}

void Reduction::Finish(int bucket_index, const Status& status) {
  std::vector<std::pair<int, Receiver>> receivers;
  std::vector<Reduced> slices;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    BucketState& bucket = buckets_[bucket_index];
    if (bucket.done) return;
    bucket.done = true;
    bucket.done_us = EventRecord::NowMicros();
    bucket.status = status;
    receivers.swap(bucket.receivers);
    for (auto& [tensor, receiver] : receivers) {
      slices.push_back(status.ok() ? SliceOf(tensor, bucket) : Reduced());
    }
  }
  for (size_t i = 0; i < receivers.size(); ++i) receivers[i].second(status, slices[i]);
}

void Reduction::Fail(const Status& cause) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = cause;
  }
  for (size_t b = 0; b < buckets_.size(); ++b) Finish(static_cast<int>(b), cause);
}

}  // namespace tfdear
