// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/compression_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace tfdear {
namespace {

constexpr int64_t kFormat = 2;

void Put(int64_t value, std::vector<char>* out) {
  const char* bytes = reinterpret_cast<const char*>(&value);
  out->insert(out->end(), bytes, bytes + sizeof(value));
}

// `zeros`: ranges of which zeros are put.
void PutFloats(const std::vector<float>& values, const std::vector<Range>& zeros,
               std::vector<char>* out) {
  Put(static_cast<int64_t>(values.size()), out);
  const char* bytes = reinterpret_cast<const char*>(values.data());
  const size_t begin = out->size();
  out->insert(out->end(), bytes, bytes + values.size() * sizeof(float));
  if (values.empty()) return;
  for (const Range& range : zeros) {
    std::memset(out->data() + begin + range.begin * sizeof(float), 0, range.size() * sizeof(float));
  }
}

bool Take(const char** next, const char* end, int64_t* value) {
  if (end - *next < static_cast<ptrdiff_t>(sizeof(*value))) return false;
  std::memcpy(value, *next, sizeof(*value));
  *next += sizeof(*value);
  return true;
}

// A number of items of `item_bytes` each, all of which are there.
bool TakeCount(const char** next, const char* end, size_t item_bytes, int64_t* count) {
  return Take(next, end, count) && *count >= 0 &&
         static_cast<uint64_t>(*count) <= static_cast<uint64_t>(end - *next) / item_bytes;
}

bool TakeFloats(const char** next, const char* end, std::vector<float>* values) {
  int64_t count;
  if (!TakeCount(next, end, sizeof(float), &count)) return false;
  values->resize(count);
  if (count > 0) std::memcpy(values->data(), *next, count * sizeof(float));
  *next += count * sizeof(float);
  return true;
}

// No model comes near; a damaged number would, and sums of such sizes must not wrap around.
constexpr int64_t kMostBytes = int64_t{1} << 46;
constexpr int64_t kMostSteps = int64_t{1} << 40;

// Reads the tensors of a layout; false if there can be no such tensors.
bool TakeTensors(const char** next, const char* end, std::vector<TensorSpec>* tensors) {
  int64_t number = 0, type = 0, sparse = 0;
  int64_t left = kMostBytes;
  if (!TakeCount(next, end, 3 * sizeof(int64_t), &number)) return false;
  tensors->resize(number);
  for (TensorSpec& tensor : *tensors) {
    Take(next, end, &type);
    Take(next, end, &tensor.count);
    Take(next, end, &sparse);
    if (type < 0 || type > std::numeric_limits<int>::max() || (sparse != 0 && sparse != 1)) {
      return false;
    }
    tensor.type = static_cast<DataType>(type);
    tensor.sparse = sparse == 1;
    const auto bytes = static_cast<int64_t>(SizeOf(tensor.type));
    if (bytes == 0 || tensor.count < -1 || tensor.count > left / bytes) return false;
    left -= std::max<int64_t>(tensor.count, 0) * bytes;
  }
  return true;
}

// Whether the buckets are some of these tensors, each once. More than that (`Plan::Check`) depends
// on the job, which may have another shape than the one that saved.
bool AreBuckets(const std::vector<std::vector<int>>& buckets, size_t tensors) {
  std::vector<bool> placed(tensors);
  for (const auto& bucket : buckets) {
    if (bucket.empty()) return false;
    for (int tensor : bucket) {
      if (tensor < 0 || static_cast<size_t>(tensor) >= tensors || placed[tensor]) return false;
      placed[tensor] = true;
    }
  }
  return true;
}

// Only what can be exchanged sparsely is held back.
bool CanHoldBack(const std::vector<TensorSpec>& tensors, const std::vector<int>& bucket) {
  return std::all_of(bucket.begin(), bucket.end(), [&](int tensor) {
    const TensorSpec& spec = tensors[tensor];
    return spec.type == DataType::kFloat32 && !spec.sparse && spec.count >= 0;
  });
}

template <typename... Parts>
Status Bad(const Parts&... what) {
  return InvalidArgument("the saved state of compressed communication does not fit: ", what...);
}

}  // namespace

double DensityAt(double density, double first_density, int64_t warm_up_steps, int64_t step) {
  if (step >= warm_up_steps || density >= first_density) return density;
  const double progress = static_cast<double>(step) / static_cast<double>(warm_up_steps);
  return first_density * std::pow(density / first_density, progress);
}

CompressionState::CompressionState(std::vector<TensorSpec> tensors, Plan plan,
                                   const SparseExchangeOptions& options, int place, int places)
    : tensors_(std::move(tensors)), plan_(std::move(plan)), place_(place), places_(places) {
  for (const auto& members : plan_.buckets) {
    buckets_.push_back(MakeBucket(tensors_, members));
    exchanges_.emplace_back(options);
    last_of_bucket_.emplace_back();
  }
}

Range CompressionState::PartOf(int bucket, size_t slot) const {
  const Range held = shard(bucket);
  const size_t offset = buckets_[bucket].offsets[slot];
  const int64_t count = std::max<int64_t>(tensors_[buckets_[bucket].tensors[slot]].count, 0);
  const size_t begin = std::clamp(offset, held.begin, held.end);
  const size_t end = std::clamp(offset + static_cast<size_t>(count), held.begin, held.end);
  return {begin - held.begin, end - held.begin};
}

void CompressionState::AddHeldBack(const Bucket& bucket, int members, float* data,
                                   const std::vector<int>& tensors) const {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const SparseExchange& exchange = exchanges_[b];
    if (exchange.residual.empty()) continue;
    const Range held = shard(static_cast<int>(b));
    for (size_t slot = 0; slot < buckets_[b].tensors.size(); ++slot) {
      const int tensor = buckets_[b].tensors[slot];
      const int there = tensors.empty() ? tensor : tensors[tensor];
      const auto found = std::find(bucket.tensors.begin(), bucket.tensors.end(), there);
      if (found == bucket.tensors.end()) continue;
      const size_t offset = buckets_[b].offsets[slot];
      const Range part = PartOf(static_cast<int>(b), slot);
      float* const target = data + bucket.offsets[found - bucket.tensors.begin()];
      for (size_t i = part.begin; i < part.end; ++i) {
        target[held.begin + i - offset] += exchange.HeldBack(i, members);
      }
    }
  }
}

std::vector<Range> CompressionState::LeftOut(int bucket, const std::vector<int>& tensors) const {
  std::vector<Range> ranges;
  if (tensors.empty()) return ranges;
  for (size_t slot = 0; slot < buckets_[bucket].tensors.size(); ++slot) {
    if (tensors[buckets_[bucket].tensors[slot]] < 0) ranges.push_back(PartOf(bucket, slot));
  }
  return ranges;
}

void CompressionState::Save(std::vector<char>* out, const std::vector<int>& tensors) const {
  Put(kFormat, out);
  Put(place_, out);
  Put(places_, out);
  Put(steps, out);
  Put(static_cast<int64_t>(tensors_.size()), out);
  for (const TensorSpec& tensor : tensors_) {
    Put(static_cast<int64_t>(tensor.type), out);
    Put(tensor.count, out);
    Put(tensor.sparse ? 1 : 0, out);
  }
  const std::vector<int64_t> words = plan_.Encode();
  Put(static_cast<int64_t>(words.size()), out);
  for (int64_t word : words) Put(word, out);
  for (size_t b = 0; b < exchanges_.size(); ++b) {
    const std::vector<Range> zeros = LeftOut(static_cast<int>(b), tensors);
    for (const auto* held :
         {&exchanges_[b].residual, &exchanges_[b].velocity, &exchanges_[b].last_sum}) {
      PutFloats(*held, zeros, out);
    }
  }
}

void CompressionState::Use(const SparseExchangeOptions& options) {
  for (SparseExchange& exchange : exchanges_) exchange.Use(options);
}

Status CompressionState::Load(const char** next, const char* end, int place, int places,
                              std::unique_ptr<CompressionState>* state) {
  const Status damaged = Bad("it is cut off or damaged");
  int64_t format, saved_place, saved_places, saved_steps, count;
  if (!Take(next, end, &format)) return damaged;
  if (format != kFormat) return Bad("its format is ", format);
  if (!Take(next, end, &saved_place) || !Take(next, end, &saved_places) ||
      !Take(next, end, &saved_steps)) {
    return damaged;
  }
  if (saved_place != place || saved_places != places) {
    return Bad("it was saved by rank ", saved_place, " of ", saved_places,
               " of a node, this is rank ", place, " of ", places);
  }
  std::vector<TensorSpec> tensors;
  if (saved_steps < 0 || saved_steps > kMostSteps || !TakeTensors(next, end, &tensors))
    return damaged;
  if (!TakeCount(next, end, sizeof(int64_t), &count)) return damaged;
  std::vector<int64_t> words(count);
  for (int64_t& word : words) Take(next, end, &word);
  Plan plan;
  TFDEAR_RETURN_IF_ERROR(Plan::Decode(words, &plan));
  if (!AreBuckets(plan.buckets, tensors.size())) return damaged;
  *state = std::make_unique<CompressionState>(std::move(tensors), std::move(plan),
                                              SparseExchangeOptions(), place, places);
  (*state)->steps = saved_steps;
  for (size_t b = 0; b < (*state)->buckets_.size(); ++b) {
    SparseExchange* const exchange = (*state)->exchange(static_cast<int>(b));
    if (!TakeFloats(next, end, &exchange->residual) ||
        !TakeFloats(next, end, &exchange->velocity) ||
        !TakeFloats(next, end, &exchange->last_sum)) {
      return damaged;
    }
    const size_t expected = (*state)->shard(static_cast<int>(b)).size();
    for (auto* held : {&exchange->residual, &exchange->velocity, &exchange->last_sum}) {
      if (held->empty()) continue;
      if (held->size() != expected ||
          !CanHoldBack((*state)->tensors_, (*state)->plan_.buckets[b])) {
        return damaged;
      }
    }
  }
  return Status();
}

}  // namespace tfdear
