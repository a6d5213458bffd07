// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/collectives/collective_backend.h"
#include "custom_ops/engine/compression/sparse_code.h"
#include "custom_ops/engine/compression/top_k.h"

namespace tfdear {

// How the members of a group sum vectors of which each sends its largest elements only.
enum class ExchangeKind : int {
  kAllGather = 0,  // Every member gets every other's selection.
  kReduce = 1,     // Members sum regions of the vector and select from the sums.
};

struct SparseExchangeOptions {
  ExchangeKind kind = ExchangeKind::kAllGather;
  ValueFormat values = ValueFormat::kFloat32;
  bool error_feedback = true;  // What is not sent is added to the next step's vector.
  float momentum = 0;          // Of momentum correction; needs error feedback.
  // The optimizer applies this momentum to the sums, which are freed of it beforehand.
  bool optimizer_has_momentum = false;
  int samplings = 0;  // Above 0: selects with the published bisection, for comparison.

  // For signatures: ranks that differ in it must not exchange anything.
  std::string Describe() const;
};

// Elements to select from a rank's shard: density x count / shards rounded to the nearest whole
// number (halves up), at least 1 and at most the size of the shard.
size_t ElementsToSelect(double density, size_t count, int shards, size_t shard_size);

// Sums one vector, step after step, over the members of a process group, from the k elements of
// each that are largest by magnitude. The result is the same bit for bit on all members.
//
// kAllGather: each member selects k elements of (residual + input); all get all selections and add
// them up by index, in the order of the members, from zero. This is Algorithm 2, lines 5 to 20, of
// Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters".
// A member sends and receives (m - 1) k pairs.
//
// kReduce: the vector is cut into m regions of equal size (ShardOf), and region p belongs to member
// p. Each member selects k / m elements of each region and sends them to its owner, which adds them
// up in the order of the members, selects k / m elements of the sum and sends these to all. What
// the owner does not select is added to its residual, so nothing is lost. A member sends (m - 1) k
// / m pairs to owners and k / m pairs to each of m - 1 members, 2 k (m - 1) / m in all, and
// receives as many: less than 2 k whatever m is.
//
// Momentum correction (Lin et al., "Deep Gradient Compression", section 3): with a momentum u, what
// is added to the residual is v = u v + input instead of the input; v is set to zero where an
// element was selected, as the residual is. Where the optimizer has the same momentum, the result
// is s - u s', with s the sum of the selections and s' that of the step before: the optimizer,
// which computes w = u w + result, then holds w = s, and moves the weights by what was selected.
//
// NaN is selected before everything else, so that all members see it in the same step or soon, and
// does not stay in the residual once it was selected.
//
// Not for several threads at once.
class SparseExchange {
 public:
  explicit SparseExchange(const SparseExchangeOptions& options) : options_(options) {}

  // In place: afterwards `data` holds the sum of the selections. `k` of `count` elements, equal on
  // all members; 1 <= k <= count, or both zero. Adds to `*bytes` the payload that this member
  // coded.
  Status Run(CollectiveBackend* backend, float* data, size_t count, size_t k,
             const Signature& signature, uint64_t sequence, size_t* bytes);

  // The part of Run() that needs nobody else, if it should be done before: what is to be sent is
  // selected and coded, and `data` is free of it. The Run() that follows has the same arguments.
  // `member`: the place of this rank among `members`.
  Status Prepare(float* data, size_t count, size_t k, int member, int members);

  // Goes on with other options; forgets what they do not hold back.
  void Use(const SparseExchangeOptions& options);

  // Adds everything that was held back to `data[0 .. count)`, which is sent dense and summed over
  // `members`.
  void Flush(float* data, size_t count, int members);

  // What has to be added to element i of this member's input so that nothing is held back.
  float HeldBack(size_t i, int members) const;

  std::string Describe() const { return options_.Describe(); }

  // What is held back: nothing if empty, else as many elements as the vector has. Only while no
  // exchange runs.
  std::vector<float> residual;
  std::vector<float> velocity;
  std::vector<float> last_sum;  // Where the optimizer has momentum.

 private:
  // Takes away what the optimizer's momentum will add.
  void FreeOfMomentum(float* data, size_t count);

  Status Reduce(CollectiveBackend* backend, float* data, size_t count, size_t k,
                const Signature& signature, uint64_t sequence, size_t* bytes);
  // The largest elements of one region that it gets of each member.
  static size_t ShareOf(size_t count, size_t k, int member, int members);

  void Largest(TopK* selector, const float* x, size_t count, size_t k);
  // Selects from data[range] with what was held back there; indices count from range.begin.
  void Select(TopK* selector, const float* data, const Range& range, size_t k);
  // Appends the selection's code; keeps what rounding takes away.
  void Encode(const Range& range, std::vector<char>* out);
  // Gathers one payload of each member and adds its pairs to data[ranges[member]], in their order.
  Status GatherAndAdd(CollectiveBackend* backend, float* data, const std::vector<Range>& ranges,
                      const Signature& signature, uint64_t sequence);
  // Checks what members announced of their codes of at most k elements each, and makes room.
  Status Expect(const std::vector<int64_t>& announced, size_t k, const std::vector<Range>& ranges,
                std::vector<size_t>* bytes);
  // Adds what was received, bytes[member] of each member, to data[ranges[member]].
  Status DecodeAndAdd(const std::vector<size_t>& bytes, const std::vector<Range>& ranges,
                      float* data);

  SparseExchangeOptions options_;
  std::vector<std::unique_ptr<TopK>> selectors_;  // Of every region; the last for the sums.
  std::vector<float> values_;                     // The selection.
  std::vector<uint32_t> indices_;
  std::vector<float> decoded_values_;
  std::vector<uint32_t> decoded_indices_;
  bool prepared_ = false;
  std::vector<char> payload_;
  std::vector<size_t> payload_bytes_;  // Of each region, where there are several.
  std::vector<char> received_;
};

}  // namespace tfdear
