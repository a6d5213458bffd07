// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/parallel_for.h"
#include "custom_ops/engine/compression/magnitude_filter.h"

namespace tfdear {

namespace top_k_internal {

// What only tests choose: results do not depend on it.
struct Tuning {
  InstructionSet instructions = SupportedInstructionSets().back();
  size_t min_slab = 65536;         // elements for which another thread is worth its start
  size_t sample_all_below = 2048;  // shorter vectors are their own sample; at least 512
};

// The k-th largest of `count` keys, 1 <= k <= count. Reorders the keys.
uint32_t KthLargest(uint32_t* keys, size_t count, size_t k);

}  // namespace top_k_internal

// The k elements of a vector that are largest by magnitude, exactly, in about one pass over memory.
//
// What is selected: exactly k distinct elements. NaNs come first, then infinities, then the order
// of |x|, which is compared by its bits, so that no outlier or scale can spoil it. Of equal
// magnitudes (all NaNs count as equal) the one with the lowest index comes first. Output is in
// ascending order of the indices. It depends on the vector alone: not on threads, instructions or
// earlier calls.
//
// How: a filter compares every element with a limit that is a little below the k-th magnitude and
// keeps the few above; the k-th magnitude is then found exactly among these. The limit is a guess,
// from the call before or from a sample. If fewer than k pass, or far too many, the next better
// guess is tried, and at last the exact k-th magnitude, by histograms of all bits.
//
// One object for each vector that is selected from again and again (a gradient in every step): it
// keeps scratch memory and the guess. Not for several threads at once.
class TopK {
 public:
  // With `threads` slabs of the vector, which `parallel_for` works on at the same time; without it
  // the caller's thread does all.
  explicit TopK(int threads = 1, ParallelFor parallel_for = {}, top_k_internal::Tuning tuning = {});

  // Copies the k largest of x[0 .. d), k <= d < 2^32, to `values` and their places to `indices`.
  // `type` is float16, bfloat16 or float32.
  void Select(DataType type, const void* x, size_t d, size_t k, void* values, uint32_t* indices);

  // Error feedback in the same pass, float32: with a = residual + x, the k largest a go to `values`
  // and `indices`; `residual` becomes a, with 0 where it was selected. Selected NaNs and infinities
  // do not stay in the residual.
  void SelectWithFeedback(const float* x, float* residual, size_t d, size_t k, float* values,
                          uint32_t* indices);

  // The next call is as the first. It gives the same result.
  void Forget() { next_ = Guess(); }

 private:
  // A vector, and what its magnitudes look like.
  struct Vector {
    uint32_t Magnitude(size_t i) const;

    DataType type;
    const void* data;
    size_t size;
    float* residual;      // the same memory, if this is error feedback
    const float* to_add;  // not null until the first filter has added it to the residual
  };

  // A limit of the filter that is thought to be just below the k-th magnitude.
  struct Guess {
    uint32_t limit = 0;
    bool tied = false;  // the limit itself is thought to be the k-th magnitude, of many elements
    bool valid = false;
  };

  class Output;

  void Run(Vector* vector, size_t k, void* values, uint32_t* indices);
  Guess GuessFromSample(const Vector& vector, size_t k);
  Guess ExactGuess(const Vector& vector, size_t k);
  // Selects with a guess. False, with nothing written, if it was wrong.
  bool Try(const Guess& guess, Vector* vector, size_t k, void* values, uint32_t* indices);
  // The pass: fills candidates_ with what is above the limit, and returns how many there are.
  size_t Filter(uint32_t limit, Vector* vector, size_t k);
  // Writes the k largest candidates, of `passed` >= k; returns the k-th magnitude.
  uint32_t SelectAmongCandidates(DataType type, size_t passed, size_t k, Output* output);
  // Writes all candidates, and among them the first `wanted` elements of a magnitude. False, with
  // nothing written, if there are fewer.
  bool AddTies(const Vector& vector, uint32_t magnitude, size_t wanted, Output* output);
  // The guess for the next call, from what the last has seen: `passed` elements were above `limit`.
  void Learn(uint32_t limit, size_t passed, uint32_t kth, size_t k);

  int SlabsOf(size_t d) const;
  void ForSlabs(size_t d, const std::function<void(int, size_t, size_t)>& body);
  // body(slab) for every slab, at the same time if there are many candidates.
  void ForCandidates(size_t candidates, const std::function<void(int)>& body);

  int threads_;
  ParallelFor parallel_for_;
  top_k_internal::Tuning tuning_;

  std::vector<Candidates> candidates_;  // of each slab
  std::vector<Candidates> ties_;        // of each slab
  std::vector<uint32_t> keys_;          // scratch

  // The last call, and the guess for the next if that is of the same kind.
  DataType last_type_ = DataType::kFloat32;
  size_t last_d_ = 0;
  size_t last_k_ = 0;
  Guess next_;
  double slack_;  // elements that should pass the next filter, over k
};

}  // namespace tfdear
