// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/compression/sparse_exchange.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "custom_ops/engine/compression/bisection_top_k.h"

namespace tfdear {

std::string SparseExchangeOptions::Describe() const {
  std::string text = kind == ExchangeKind::kReduce ? "reduce" : "all_gather";
  text += values == ValueFormat::kBFloat16 ? " bfloat16" : " float32";
  if (!error_feedback) text += " without error feedback";
  if (momentum != 0) text += TextOf(" momentum ", momentum);
  if (optimizer_has_momentum) text += " of the optimizer";
  if (samplings > 0) text += TextOf(" samplings ", samplings);
  return text;
}

size_t ElementsToSelect(double density, size_t count, int shards, size_t shard_size) {
  const double wanted = std::floor(density * static_cast<double>(count) / shards + 0.5);
  return std::min(shard_size, static_cast<size_t>(std::max(wanted, 1.0)));
}

Status SparseExchange::Prepare(float* data, size_t count, size_t k, int member, int members) {
  if (count > std::numeric_limits<uint32_t>::max()) {
    return InvalidArgument(
        "a bucket of ", count,
        " elements per rank is too large to be compressed: indices have 32 bits. "
        "Choose smaller buckets with `fusion`");
  }
  if (options_.error_feedback) {
    residual.resize(count);
    if (options_.momentum != 0) {
      velocity.resize(count);
      for (size_t i = 0; i < count; ++i) velocity[i] = options_.momentum * velocity[i] + data[i];
    }
  }
  const bool reduces = options_.kind == ExchangeKind::kReduce;
  const std::vector<Range> regions =
      reduces ? ShardsOf(count, members) : std::vector<Range>{{0, count}};
  // One more for the sums.
  while (selectors_.size() <= regions.size()) selectors_.push_back(std::make_unique<TopK>());
  payload_.clear();
  payload_bytes_.clear();
  for (size_t region = 0; region < regions.size(); ++region) {
    const size_t before = payload_.size();
    Select(selectors_[region].get(), data, regions[region],
           reduces ? ShareOf(count, k, static_cast<int>(region), members) : k);
    Encode(regions[region], &payload_);
    payload_bytes_.push_back(payload_.size() - before);
  }
  std::memset(data, 0, count * sizeof(float));
  prepared_ = true;
  return Status();
}

Status SparseExchange::Run(CollectiveBackend* backend, float* data, size_t count, size_t k,
                           const Signature& signature, uint64_t sequence, size_t* bytes) {
  if (count == 0) return Status();
  if (!prepared_) {
    TFDEAR_RETURN_IF_ERROR(Prepare(data, count, k, backend->rank(), backend->size()));
  }
  prepared_ = false;
  if (options_.kind == ExchangeKind::kReduce) {
    TFDEAR_RETURN_IF_ERROR(Reduce(backend, data, count, k, signature, sequence, bytes));
  } else {
    *bytes += payload_.size();
    const std::vector<Range> all(backend->size(), Range{0, count});
    TFDEAR_RETURN_IF_ERROR(GatherAndAdd(backend, data, all, signature, sequence));
  }
  if (options_.optimizer_has_momentum) FreeOfMomentum(data, count);
  return Status();
}

void SparseExchange::Use(const SparseExchangeOptions& options) {
  options_ = options;
  if (!options.error_feedback) residual.clear();
  if (options.momentum == 0) velocity.clear();
  if (!options.optimizer_has_momentum) last_sum.clear();
}

void SparseExchange::FreeOfMomentum(float* data, size_t count) {
  last_sum.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const float sum = data[i];
    data[i] -= options_.momentum * last_sum[i];
    // One step with NaN or infinity is one, not all that follow.
    last_sum[i] = std::isfinite(sum) ? sum : 0.0f;
  }
}

float SparseExchange::HeldBack(size_t i, int members) const {
  const float u = options_.momentum;
  float held = i < velocity.size() ? u * velocity[i] : 0.0f;
  if (!options_.optimizer_has_momentum) return held + (i < residual.size() ? residual[i] : 0.0f);
  // What is added goes through the momentum, and in the end moves the weights 1 / (1 - u) times as
  // far; the residual holds that already. The last sum is the optimizer's, so each takes its part.
  if (i < residual.size()) held += (1 - u) * residual[i];
  if (i < last_sum.size()) held -= u * last_sum[i] / static_cast<float>(members);
  return held;
}

void SparseExchange::Flush(float* data, size_t count, int members) {
  for (size_t i = 0; i < std::min(count, residual.size()); ++i) data[i] += HeldBack(i, members);
  residual.clear();
  velocity.clear();
  last_sum.clear();
}

size_t SparseExchange::ShareOf(size_t count, size_t k, int member, int members) {
  const size_t share = std::max<size_t>(1, ShardOf(k, member, members).size());
  return std::min(ShardOf(count, member, members).size(), share);
}

Status SparseExchange::Reduce(CollectiveBackend* backend, float* data, size_t count, size_t k,
                              const Signature& signature, uint64_t sequence, size_t* bytes) {
  const int members = backend->size();
  const std::vector<Range> regions = ShardsOf(count, members);
  const size_t selected = ShareOf(count, k, backend->rank(), members);
  // To the owners.
  const std::vector<size_t> send_bytes = payload_bytes_;
  std::vector<int64_t> send_sizes(send_bytes.begin(), send_bytes.end()), receive_sizes(members);
  std::vector<size_t> receive_bytes;
  *bytes += payload_.size() - send_bytes[backend->rank()];
  const std::vector<size_t> word(members, sizeof(int64_t));
  TFDEAR_RETURN_IF_ERROR(backend->AllToAllV(send_sizes.data(), word, receive_sizes.data(), word,
                                            Signature(signature.text() + " sizes to owners"),
                                            sequence));
  const Range own = regions[backend->rank()];
  const std::vector<Range> owns(members, own);
  TFDEAR_RETURN_IF_ERROR(Expect(receive_sizes, selected, owns, &receive_bytes));
  TFDEAR_RETURN_IF_ERROR(backend->AllToAllV(payload_.data(), send_bytes, received_.data(),
                                            receive_bytes,
                                            Signature(signature.text() + " to owners"), sequence));
  TFDEAR_RETURN_IF_ERROR(DecodeAndAdd(receive_bytes, owns, data));
  // From the owners. The sums need no feedback of their own: what is left goes to the residual.
  float* const sum = data + own.begin;
  Largest(selectors_[members].get(), sum, own.size(), selected);
  if (options_.error_feedback) {
    for (uint32_t index : indices_) sum[index] = 0;
    for (size_t i = 0; i < own.size(); ++i) residual[own.begin + i] += sum[i];
  }
  payload_.clear();
  Encode(own, &payload_);
  *bytes += payload_.size();
  std::memset(sum, 0, own.size() * sizeof(float));
  return GatherAndAdd(backend, data, regions, signature, sequence);
}

// The k largest of x[0 .. count).
void SparseExchange::Largest(TopK* selector, const float* x, size_t count, size_t k) {
  values_.resize(k);
  indices_.resize(k);
  if (options_.samplings > 0) {
    BisectionTopK(DataType::kFloat32, x, count, k, options_.samplings, /*seed=*/0, /*threads=*/1,
                  /*parallel_for=*/{}, values_.data(), indices_.data());
  } else {
    selector->Select(DataType::kFloat32, x, count, k, values_.data(), indices_.data());
  }
}

void SparseExchange::Select(TopK* selector, const float* data, const Range& range, size_t k) {
  if (!options_.error_feedback) return Largest(selector, data + range.begin, range.size(), k);
  const float* const added = (velocity.empty() ? data : velocity.data()) + range.begin;
  float* const held = residual.data() + range.begin;
  if (options_.samplings > 0) {
    for (size_t i = 0; i < range.size(); ++i) held[i] += added[i];
    Largest(selector, held, range.size(), k);
    for (uint32_t index : indices_) held[index] = 0;
  } else {
    values_.resize(k);
    indices_.resize(k);
    selector->SelectWithFeedback(added, held, range.size(), k, values_.data(), indices_.data());
  }
  if (velocity.empty()) return;
  for (uint32_t index : indices_) velocity[range.begin + index] = 0;
}

void SparseExchange::Encode(const Range& range, std::vector<char>* out) {
  if (options_.values == ValueFormat::kBFloat16) {
    for (size_t i = 0; i < values_.size(); ++i) {
      const float rounded = RoundToBFloat16(values_[i]);
      if (options_.error_feedback && std::isfinite(values_[i])) {
        residual[range.begin + indices_[i]] += values_[i] - rounded;
      }
      values_[i] = rounded;
    }
  }
  EncodeSparse(indices_.data(), values_.data(), values_.size(), range.size(), options_.values, out);
}

Status SparseExchange::Expect(const std::vector<int64_t>& announced, size_t k,
                              const std::vector<Range>& ranges, std::vector<size_t>* bytes) {
  for (size_t member = 0; member < ranges.size(); ++member) {
    const size_t count = ranges[member].size();
    const size_t most = SparseCodeBound(std::min(k, count), count, options_.values);
    if (announced[member] < 0 || static_cast<uint64_t>(announced[member]) > most) {
      return Internal("member ", member, " of the process group announced ", announced[member],
                      " bytes of sparse gradients, where ", std::min(k, count), " of ", count,
                      " elements take at most ", most,
                      "; the ranks may run different versions of tfdear");
    }
  }
  bytes->assign(announced.begin(), announced.end());
  received_.resize(std::accumulate(bytes->begin(), bytes->end(), size_t{0}));
  return Status();
}

Status SparseExchange::GatherAndAdd(CollectiveBackend* backend, float* data,
                                    const std::vector<Range>& ranges, const Signature& signature,
                                    uint64_t sequence) {
  std::vector<int64_t> sizes(backend->size());
  sizes[backend->rank()] = static_cast<int64_t>(payload_.size());
  TFDEAR_RETURN_IF_ERROR(backend->AllGather(sizes.data(), sizes.size(), DataType::kInt64,
                                            Signature(signature.text() + " sizes"), sequence));
  std::vector<size_t> bytes;
  TFDEAR_RETURN_IF_ERROR(Expect(sizes, std::numeric_limits<size_t>::max(), ranges, &bytes));
  TFDEAR_RETURN_IF_ERROR(
      backend->AllGatherV(payload_.data(), received_.data(), bytes, signature, sequence));
  return DecodeAndAdd(bytes, ranges, data);
}

Status SparseExchange::DecodeAndAdd(const std::vector<size_t>& bytes,
                                    const std::vector<Range>& ranges, float* data) {
  const char* code = received_.data();
  for (size_t member = 0; member < ranges.size(); ++member) {
    const Status status = DecodeSparse(code, bytes[member], ranges[member].size(),
                                       &decoded_indices_, &decoded_values_);
    if (!status.ok()) {
      return Status(status.code(),
                    TextOf("from member ", member, " of the process group: ", status.message()));
    }
    float* const begin = data + ranges[member].begin;
    for (size_t i = 0; i < decoded_indices_.size(); ++i) {
      begin[decoded_indices_[i]] += decoded_values_[i];
    }
    code += bytes[member];
  }
  return Status();
}

}  // namespace tfdear
