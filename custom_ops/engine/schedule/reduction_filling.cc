// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// What a rank gives to a reduction: gradients, rows, and what norms are taken of.
#include <algorithm>
#include <utility>

#include "custom_ops/engine/base/shard.h"
#include "custom_ops/engine/schedule/reduction.h"

namespace tfdear {
namespace {

// Of copies on several threads: less is not worth waking them.
constexpr size_t kLeastBytesOfPart = size_t{2} << 20;

size_t ElementsOf(const std::vector<int64_t>& shape) {
  size_t elements = 1;
  for (int64_t dimension : shape) elements *= static_cast<size_t>(dimension);
  return elements;
}

}  // namespace

Status Reduction::TakeBuffer(int bucket, size_t count, FusionBuffer** buffer) {
  MutexLock lock(mutex_);
  BucketState& state = buckets_[bucket];
  if (state.buffer == nullptr) {
    const size_t bytes = count * SizeOf(layout_->buckets[bucket].type);
    FusionBufferPool* const wanted = (group_pool_ != nullptr ? group_pool_ : pool_).get();
    Status taken = wanted->Take(bytes, &state.buffer);
    // What only this rank maps travels too, by copies.
    if (!taken.ok() && wanted->memory()->device() == Device::kHost) {
      taken = pool_->Take(bytes, &state.buffer);
    }
    TFDEAR_RETURN_IF_ERROR(taken);
    state.count = count;
  }
  *buffer = state.buffer.get();
  return Status();
}

Status Reduction::Contribute(int tensor, const void* data, const std::vector<int64_t>& shape,
                             double weight, const ParallelFor& parallel_for) {
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
  const size_t bytes = elements * element;
  // The gap before the next slot is summed too. What a former user of the buffer left there would
  // grow with every step, up to infinities, subnormals (slow) or overflows.
  const size_t gap = spec.count >= 0 ? AlignUp(bytes) - bytes : 0;
  const size_t offset = layout_->buckets[bucket].offsets[slot] * element;
  const int parts =
      parallel_for == nullptr ? 1 : std::max(1, static_cast<int>(bytes / kLeastBytesOfPart));
  auto write = [&](int part) {
    const Range range = ShardOf(elements, part, parts);
    const size_t begins = range.begin * element;
    buffer->Write(offset + begins, spec.type, static_cast<const char*>(data) + begins, weight,
                  range.size(), range.size() * element + (part + 1 == parts ? gap : 0));
  };
  if (parts > 1) {
    parallel_for(parts, write);
  } else {
    write(0);
  }
  buckets_[bucket].shapes[slot] = shape;
  RecordContribution(tensor, begin);
  Arrived(tensor);
  return Status();
}

Status Reduction::ContributeRows(int tensor, const void* values, const int64_t* indices,
                                 std::vector<int64_t> shape, double weight,
                                 std::shared_ptr<TableLookup> lookup, int table_of_lookup) {
  const TensorSpec& spec = layout_->tensors[tensor];
  if (!spec.sparse || shape.empty()) {
    return Status(StatusCode::kInvalidArgument, "tensor " + std::to_string(tensor) + " of '" +
                                                    layout_->name + "' was announced as dense");
  }
  TFDEAR_RETURN_IF_ERROR(Accept(tensor, weight));
  const int bucket = layout_->place_of_tensor[tensor].bucket;
  const int table = layout_->table_of_tensor[tensor];
  if (weight == 0 && (table < 0 || lookup == nullptr)) shape[0] = 0;
  if (spec.row_counts != nullptr) {
    ++spec.row_counts->steps;
    spec.row_counts->rows += shape[0];
  }
  const int64_t begin = EventRecord::NowMicros();
  const size_t elements = ElementsOf(shape);
  const size_t bytes = elements * SizeOf(spec.type);
  const size_t index_bytes = shape[0] * sizeof(int64_t);
  std::shared_ptr<FusionBuffer> rows, numbers;
  TFDEAR_RETURN_IF_ERROR(pool_->Take(bytes, &rows));
  TFDEAR_RETURN_IF_ERROR(pool_->Take(index_bytes, &numbers));
  rows->Write(0, spec.type, values, weight, elements, bytes);
  numbers->Write(0, DataType::kInt64, indices, 1, shape[0], index_bytes);
  if (table >= 0) {
    RecordContribution(tensor, begin);
    contributed_.fetch_add(1);
    // Rows have no step here, but steps may wait for all gradients, of which these can be the last.
    if (layout_->wait_for_all) lane_->Advance();
    tables_->Contribute(table, {std::move(rows), std::move(numbers), std::move(shape),
                                std::move(lookup), table_of_lookup});
    return Status();
  }
  {
    MutexLock lock(mutex_);
    BucketState& state = buckets_[bucket];
    state.buffer = std::move(rows);
    state.indices = std::move(numbers);
    state.shapes[0] = shape;
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
    MutexLock lock(mutex_);
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

}  // namespace tfdear
