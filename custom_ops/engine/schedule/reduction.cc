// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/reduction.h"

#include <cstdio>
#include <utility>

#include "custom_ops/engine/base/communication_threads.h"
#include "custom_ops/engine/base/injected_delay.h"

namespace tfdear {

Reduction::Reduction(std::shared_ptr<const ReductionLayout> layout, int rank, int world_size,
                     std::shared_ptr<FusionBufferPool> pool, EventRecord* events, Lane* lane,
                     int max_delay_ms, LevelGroups levels, CompressionOfStep compression,
                     std::shared_ptr<FusionBufferPool> group_pool,
                     std::shared_ptr<TableRows> tables, RightOfWay* right_of_way)
    : layout_(std::move(layout)),
      rank_(rank),
      world_size_(world_size),
      pool_(std::move(pool)),
      events_(events),
      lane_(lane),
      max_delay_ms_(max_delay_ms),
      levels_(std::move(levels)),
      compression_(std::move(compression)),
      group_pool_(std::move(group_pool)),
      tables_(std::move(tables)),
      right_of_way_(right_of_way),
      buckets_(layout_->buckets.size()),
      arrived_(layout_->tensors.size()) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].missing = static_cast<int>(layout_->buckets[b].tensors.size());
    buckets_[b].shapes.resize(layout_->buckets[b].tensors.size());
    buckets_[b].count = layout_->buckets[b].count;
    buckets_[b].outstanding = layout_->last_steps[b];
    buckets_[b].layers_missing = layout_->NormedIn(static_cast<int>(b));
    buckets_[b].layers.resize(layout_->buckets[b].tensors.size());
    layers_missing_ += buckets_[b].layers_missing;
  }
}

bool Reduction::Issue(ProcessGroup* group, Reactions* reactions) {
  while (next_step_ < layout_->steps.size()) {
    const ReductionLayout::Step& step = layout_->steps[next_step_];
    if (layout_->wait_for_all && !complete()) return false;
    if (buckets_[step.bucket].missing.load() > 0) return false;
    if (step.takes_norms && buckets_[step.bucket].layers_missing.load() > 0) return false;
    if (next_step_++ == 0 && right_of_way_ != nullptr) right_of_way_->DenseBegan(number());
    works_.push_back(Submit(group, step));
    reactions->push_back([self = shared_from_this(), bucket = step.bucket, last = step.brings_sum,
                          work = works_.back()] {
      work->OnDone([self, bucket, last](const Status& status) {
        if (++self->steps_ended_ == self->layout_->steps.size() && self->right_of_way_ != nullptr) {
          self->right_of_way_->DenseEnded(self->number());
        }
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
                         : layout_->Describe(step, buckets_[step.bucket].count);
  const bool exchanges =
      step.kind.wire_format == WireFormat::kSelected && compression_.state != nullptr;
  if (exchanges) {
    // Ranks that disagree on it must not mix what they send.
    char density[32];
    std::snprintf(density, sizeof(density), " density %.9g ", compression_.density);
    text += density + compression_.state->exchange(step.bucket)->Describe();
  }
  const auto signature =
      std::make_shared<const Signature>(WithTicket(text, number()), layout_->details[step.bucket]);
  ProcessGroup* const group = step.kind.group == Group::kIntra   ? levels_.intra
                              : step.kind.group == Group::kInter ? levels_.inter
                                                                 : world;
  // The last exchanges under the plan before this one; they may still run, in another group.
  std::vector<std::shared_ptr<Work>> flushed;
  for (const HeldBack& held : compression_.flushed) {
    if (!step.adds_held_back || held.state->last_exchange == nullptr) continue;
    flushed.push_back(held.state->last_exchange);
  }
  auto run = [self = shared_from_this(), this, signature, flushed, &step](
                 CollectiveBackend* backend, uint64_t sequence) {
    for (const auto& exchange : flushed) TFDEAR_RETURN_IF_ERROR(exchange->Wait());
    InjectDelay(max_delay_ms_);
    for (const auto& write : buckets_[step.bucket].buffer->TakeWrites()) {
      TFDEAR_RETURN_IF_ERROR(backend->WaitFor(write));
    }
    const bool gradients = lane_->kind() == LaneKind::kGradients;
    const int64_t computation = gradients ? ComputationMicros() : 0;
    const int64_t begin = EventRecord::NowMicros();
    size_t bytes = 0;
    Status status = RunStep(backend, step, *signature, sequence, &bytes);
    backend->WhenComplete([self, &step, gradients, bytes, begin, computation] {
      const int64_t subject = gradients ? step.bucket : static_cast<int64_t>(self->lane_->kind());
      self->events_->Add({gradients ? EventOf(step.kind) : EventKind::kCollective, self->number(),
                          subject, static_cast<int64_t>(bytes), begin, EventRecord::NowMicros(),
                          gradients ? ComputationMicros() - computation : 0});
    });
    if (status.ok() && step.takes_norms) {
      status = TakeNorms(backend, step.bucket, signature->text(), sequence);
    }
    return status;
  };
  ProcessGroup::Preparation select;
  if (exchanges && compression_.flushed.empty() && compression_.density < 1) {
    select = [self = shared_from_this(), &step, place = group->rank(), places = group->size(),
              last = compression_.state->last_exchange_of(step.bucket)] {
      return self->SelectWhatIsSent(step, place, places, last.get());
    };
  }
  // Groups cannot wait for each other in a circle: they take their steps in the order of the plan,
  // in which a step comes after the one it waits for.
  auto work = group->Run(signature, std::move(run),
                         step.waits_for < 0 ? nullptr : works_[step.waits_for], std::move(select));
  if (exchanges) compression_.state->Submitted(step.bucket, work);
  return work;
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
  const int table = layout_->table_of_tensor[tensor];
  if (table >= 0) {
    return receiver(InvalidArgument("tensor ", tensor, " of '", layout_->name,
                                    "' is a gradient of a sharded table, whose rows are only where "
                                    "they are held: they have no sum that can be read"),
                    Reduced());
  }
  Status status;
  Reduced reduced;
  {
    MutexLock lock(mutex_);
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
    MutexLock lock(mutex_);
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
  auto call = [status, receivers = std::move(receivers), slices = std::move(slices)] {
    for (size_t i = 0; i < receivers.size(); ++i) receivers[i].second(status, slices[i]);
  };
  if (status.ok() && hand_over_ != nullptr) {
    hand_over_(std::move(call));
  } else {
    call();  // After a failure there may be nobody left who takes it.
  }
}

void Reduction::Fail(const Status& cause) {
  {
    MutexLock lock(mutex_);
    failure_ = cause;
  }
  for (size_t b = 0; b < buckets_.size(); ++b) Finish(static_cast<int>(b), cause);
}

}  // namespace tfdear
