// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Exact top-k by magnitude on a GPU; no TensorFlow header. One cooperative launch for one
// selection, and nothing that the host waits for.
//
// Contract, that of engine/compression/top_k.h: exactly k distinct indices, ascending, with the
// values at them; the largest |x|; of equal ones those at the lowest indices; NaN counts as larger
// than infinity. The same input gives the same output, bit for bit, whatever the grid and the
// history.
//
// [Note: one pass]
// The order of |x| is that of its bits without the sign: the *key*. A lower bound of the k-th
// largest key is known before the array is read, a little under the last call's or, the first time,
// from a sample. So one pass is enough: it adds the residual, stores the sum, and keeps what
// reaches the bound, between k and `capacity` candidates. How little is controlled: what is held
// back lies close under the threshold, and the more often something is, the more of it. The exact
// threshold is then searched among those. Counting shows whether the bound was good. If it was not,
// histograms of the whole array find one that is; if even the narrowest leaves more than `capacity`
// candidates (a constant array), they have found the threshold itself, and the array takes the
// place of the candidates.
//
// Order costs no sort: candidates are kept by *tile*, a stretch of the array that one warp reads.
// Where a tile's candidates lie is left to an atomic addition, but in which order they come out is
// not.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "custom_ops/engine/base/data_type.h"

namespace tfdear {
namespace top_k_cuda {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocksPerProcessor = 2;
constexpr unsigned kAllLanes = 0xffffffffu;
// Bins of a histogram: 32 KiB of shared memory, and two levels are enough for most thresholds.
constexpr int kBinBits = 13;
constexpr int kBins = 1 << kBinBits;
constexpr int kBinsPerThread = kBins / kThreads;
// 16-byte loads in flight for every thread.
constexpr int kLoads = 4;
// Words of 64 bits in which a thread marks the candidates of its part of a tile.
constexpr int kMarkWords = 2;

// What the search needs to know of a type. No arithmetic: an array is read as words of bits.
struct Float32 {
  using Word = uint32_t;
  static constexpr int kKeyBits = 31;
  static constexpr uint32_t kMagnitude = 0x7fffffff;
  static constexpr uint32_t kNan = 0x7f800001;  // every NaN has this key
  // Width of a bin, in bits, among candidates: all bins together span four octaves.
  static constexpr int kCandidateShift = 12;
  // How far under the last threshold the next bound is at most: 4 to 8 % of its value.
  static constexpr uint32_t kSlack = 0xa0000;
};
struct Float16 {
  using Word = uint16_t;
  static constexpr int kKeyBits = 15;
  static constexpr uint32_t kMagnitude = 0x7fff;
  static constexpr uint32_t kNan = 0x7c01;
  static constexpr int kCandidateShift = 0;
  static constexpr uint32_t kSlack = 0xa0000 >> 13;
};
struct BFloat16 {
  using Word = uint16_t;
  static constexpr int kKeyBits = 15;
  static constexpr uint32_t kMagnitude = 0x7fff;
  static constexpr uint32_t kNan = 0x7f81;
  static constexpr int kCandidateShift = 0;
  static constexpr uint32_t kSlack = 0xa0000 >> 16;
};

// How one size of problem is laid out on one device; a function of that alone.
struct Layout {
  uint32_t size = 0;  // d
  uint32_t k = 0;
  uint32_t capacity = 0;  // of the buffer of candidates, at least k
  uint32_t groups = 0;    // of kLoads loads per thread in a tile
  uint32_t tile = 0;      // elements
  uint32_t tiles = 0;
  uint32_t blocks = 0;  // all of them resident at once
};

// What outlives a launch. All zero before the first; every launch leaves `histograms` and
// `candidates` zero again.
struct State {
  uint32_t histograms[3][kBins];
  uint32_t candidates[2];  // counted by the first and by the second filter of a launch
  uint32_t warm;           // whether there was a launch
  uint32_t bound;          // of the next one: a key a little under the threshold of the last
};

struct alignas(8) Candidate {
  uint32_t index;
  uint32_t word;
};

struct alignas(8) Span {  // the candidates of a tile
  uint32_t offset;
  uint32_t count;
};

// Number of elements above the threshold in the upper half, equal to it in the lower.
using Counts = unsigned long long;

struct Arguments {
  const void* x;
  float* residual;  // or nullptr
  void* values;
  uint32_t* indices;
  bool aligned;  // x and residual: 16-byte loads
  Layout layout;
  State* state;
  Candidate* candidates;  // [capacity]
  Span* spans;            // [tiles]
  Counts* tile_counts;    // [tiles]; later those of all tiles before it
  Counts* block_counts;   // [blocks]
};

// Memory of a block.
struct Shared {
  uint32_t histogram[kBins];
  Counts scan[kWarps + 1];
  uint32_t bin;
  uint32_t above;
  uint32_t inside;
};

// Where in a histogram the n-th largest element is.
struct Bin {
  uint32_t bin;
  uint32_t above;   // elements in higher bins
  uint32_t inside;  // elements in this bin
};

__device__ inline uint32_t Lane() { return threadIdx.x % 32; }
__device__ inline uint32_t WarpOfBlock() { return threadIdx.x / 32; }
__device__ inline uint32_t LanesBelow(uint32_t lanes) {
  return __popc(lanes & ((1u << Lane()) - 1));
}

template <typename Type>
__device__ inline uint32_t Key(uint32_t word) {
  const uint32_t magnitude = word & Type::kMagnitude;
  return magnitude < Type::kNan ? magnitude : Type::kNan;
}

__device__ inline uint32_t Added(float residual, uint32_t word) {
  return __float_as_uint(__fadd_rn(residual, __uint_as_float(word)));
}

// Sum over the threads before this one; `total` is that over the block. Ends with a barrier.
template <typename Number>
__device__ Number ExclusiveSum(Number number, Number* total, Shared* shared) {
  Number sum = number;
  for (int distance = 1; distance < 32; distance *= 2) {
    const Number other = __shfl_up_sync(kAllLanes, sum, distance);
    if (Lane() >= static_cast<uint32_t>(distance)) sum += other;
  }
  if (Lane() == 31) shared->scan[WarpOfBlock()] = sum;
  __syncthreads();
  Number before = 0;
  Number all = 0;
  for (uint32_t warp = 0; warp < kWarps; ++warp) {
    const Number of_warp = static_cast<Number>(shared->scan[warp]);
    if (warp < WarpOfBlock()) before += of_warp;
    all += of_warp;
  }
  __syncthreads();
  *total = all;
  return before + sum - number;
}

// All blocks call these in the same order, with the same arguments: what they decide on was written
// before a barrier of the grid.
template <typename Type, bool kFeedback>
class Selection {
 public:
  using Word = typename Type::Word;
  static constexpr int kVector = 16 / sizeof(Word);          // elements in a load
  static constexpr uint32_t kGroup = 32 * kLoads * kVector;  // elements a warp loads at once
  static constexpr int kMarks = kLoads * kVector;            // marks of a thread in a group
  static constexpr uint32_t kGroupsPerWord = 64 / kMarks;

  __device__ Selection(const Arguments& arguments, Shared* shared)
      : a_(arguments), size_(arguments.layout.size), shared_(shared) {}

  __device__ void Run() {
    const uint32_t k = a_.layout.k;
    if (k == 0) {  // with feedback: the sum is stored all the same
      Filter<kFeedback>(~0u, 0);
      LeaveForNextLaunch(false);
      return;
    }
    uint32_t candidates = Filter<kFeedback>(FirstBound(), 0);
    uint32_t rank = k;  // the threshold is the rank-th largest key at or above `low_`
    bool buffered = k <= candidates && candidates <= a_.layout.capacity;
    if (!buffered) {
      low_ = 0;
      bits_ = Type::kKeyBits;
      uint32_t above = 0;
      while (bits_ > 0 && !buffered) {
        const Bin found = Narrow(false, &rank);
        above += found.above;
        buffered = above + found.inside <= a_.layout.capacity;
      }
      if (buffered) {
        Filter<false>(low_, 1);
        rank = k;
      }
    }
    if (buffered) {
      ThresholdOfCandidates(&rank);
      while (bits_ > 0) Narrow(true, &rank);
    }
    // Now low_ is the threshold; `rank` elements that equal it are taken.
    CountTiles(buffered);
    cooperative_groups::this_grid().sync();
    WriteTiles(buffered, rank);
    LeaveForNextLaunch(buffered);
  }

 private:
  __device__ uint32_t Thread() const { return blockIdx.x * kThreads + threadIdx.x; }
  __device__ uint32_t NumThreads() const { return gridDim.x * kThreads; }

  // The array, with the residual added once the first filter has run.
  __device__ uint32_t Stored(uint32_t i) const {
    if (kFeedback) return __float_as_uint(a_.residual[i]);
    return static_cast<const Word*>(a_.x)[i];
  }

  // The same before the first filter.
  __device__ uint32_t Sum(uint32_t i) const {
    if (kFeedback) {
      return Added(a_.residual[i], static_cast<const uint32_t*>(a_.x)[i]);
    }
    return static_cast<const Word*>(a_.x)[i];
  }

  // ---- Histograms. Three of them take turns: one is filled, the next is cleared, and the third
  // may still be read by a block that is late.

  __device__ void BeginHistogram() {
    for (uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) shared_->histogram[bin] = 0;
    uint32_t* next = a_.state->histograms[(turn_ + 1) % 3];
    for (uint32_t bin = Thread(); bin < kBins; bin += NumThreads()) next[bin] = 0;
    __syncthreads();
  }

  // After it the sums over all blocks can be read, and all else that was written before it.
  __device__ const uint32_t* EndHistogram() {
    uint32_t* histogram = a_.state->histograms[turn_ % 3];
    __syncthreads();
    for (uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) {
      const uint32_t count = shared_->histogram[bin];
      if (count > 0) atomicAdd(&histogram[bin], count);
    }
    ++turn_;
    cooperative_groups::this_grid().sync();
    return histogram;
  }

  // Called by whole warps. Arrays of one value would have all threads add to one bin, one after the
  // other; so a warp that agrees adds once.
  __device__ void Count(bool counted, uint32_t bin) {
    int same = 0;
    __match_all_sync(kAllLanes, counted ? bin : ~0u, &same);
    if (!counted) return;
    if (!same) {
      atomicAdd(&shared_->histogram[bin], 1u);
    } else if (Lane() == 0) {
      atomicAdd(&shared_->histogram[bin], 32u);
    }
  }

  // The bin of the n-th largest element, 1 <= n <= number of elements.
  __device__ Bin Find(const uint32_t* histogram, uint32_t n) {
    // From the highest bin down: thread 0 has the last ones.
    const uint32_t first = kBins - (threadIdx.x + 1) * kBinsPerThread;
    uint32_t counts[kBinsPerThread];
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) {
      counts[i] = __ldcg(&histogram[first + i]);
      sum += counts[i];
    }
    uint32_t total;
    uint32_t above = ExclusiveSum(sum, &total, shared_);
    if (above < n && n <= above + sum) {
      bool found = false;
#pragma unroll
      for (int i = kBinsPerThread - 1; i >= 0; --i) {
        if (!found && above + counts[i] >= n) {
          found = true;
          shared_->bin = first + i;
          shared_->above = above;
          shared_->inside = counts[i];
        }
        above += counts[i];
      }
    }
    __syncthreads();
    const Bin result = {shared_->bin, shared_->above, shared_->inside};
    __syncthreads();
    return result;
  }

  // Of the keys in [low_, low_ + 2^bits_) the rank-th largest is looked for: narrows the interval
  // to one bin, and counts `rank` from there.
  __device__ Bin Narrow(bool buffered, uint32_t* rank) {
    const int shift = bits_ > kBinBits ? bits_ - kBinBits : 0;
    const uint32_t count = buffered ? __ldcg(&a_.state->candidates[filter_]) : size_;
    const uint32_t bins = bits_ < kBinBits ? 1u << bits_ : kBins;
    BeginHistogram();
    // Whole warps: `Count` needs all lanes.
    for (uint64_t start = Thread() - Lane(); start < count; start += NumThreads()) {
      const uint64_t i = start + Lane();
      uint32_t bin = kBins;
      if (i < count) {
        const uint32_t key = Key<Type>(buffered ? a_.candidates[i].word : Stored(i));
        if (key >= low_) bin = (key - low_) >> shift;
      }
      Count(bin < bins, bin);
    }
    const Bin found = Find(EndHistogram(), *rank);
    low_ += found.bin << shift;
    bits_ = shift;
    *rank -= found.above;
    return found;
  }

  // ---- The bound, and the pass over the array.

  __device__ uint32_t FirstBound() {
    if (a_.state->warm) return a_.state->bound;
    // One element for every thread, at a place of its own stretch that looks random, so that no
    // period of the array meets that of the sample.
    constexpr int kShift = Type::kKeyBits - kBinBits;
    const uint32_t samples = NumThreads() < size_ ? NumThreads() : size_;
    BeginHistogram();
    if (Thread() < samples) {
      const uint64_t begin = uint64_t{Thread()} * size_ / samples;
      const uint64_t end = (uint64_t{Thread()} + 1) * size_ / samples;
      const uint32_t random = (Thread() * 2654435761u) >> 8;
      const uint32_t i = static_cast<uint32_t>(begin + random % (end - begin));
      atomicAdd(&shared_->histogram[Key<Type>(Sum(i)) >> kShift], 1u);
    }
    const uint32_t* histogram = EndHistogram();
    // Three standard deviations more than the expected number of the k largest in the sample.
    const float expected = static_cast<float>(samples) * a_.layout.k / size_;
    const float rank = expected + 3 * sqrtf(expected) + 3;
    if (rank >= samples) return 0;
    return Find(histogram, static_cast<uint32_t>(rank)).bin << kShift;
  }

  // Of the elements of a group that are this thread's, kVector in a row, kLoads times: which of
  // them reach `bound`.
  template <bool kAdd>
  __device__ uint32_t Reach(uint64_t start, uint32_t bound) {
    uint32_t reach = 0;
    if (!a_.aligned || start + kGroup > size_) {
#pragma unroll 1
      for (int m = 0; m < kMarks; ++m) {
        const uint64_t i = start + (m / kVector * 32 + Lane()) * kVector + m % kVector;
        if (i >= size_) break;
        const uint32_t word = kAdd ? Sum(i) : Stored(i);
        if (kAdd) a_.residual[i] = __uint_as_float(word);
        if ((word & Type::kMagnitude) >= bound) reach |= 1u << m;
      }
      return reach;
    }
    const uint64_t at = start / kVector + Lane();
    uint4 loaded[kLoads];
    float4 residual[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      // After the first filter the array is the residual.
      loaded[u] = kFeedback && !kAdd ? reinterpret_cast<const uint4*>(a_.residual)[at + u * 32]
                                     : static_cast<const uint4*>(a_.x)[at + u * 32];
      if (kAdd) residual[u] = reinterpret_cast<const float4*>(a_.residual)[at + u * 32];
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      if (kAdd) {
        loaded[u].x = Added(residual[u].x, loaded[u].x);
        loaded[u].y = Added(residual[u].y, loaded[u].y);
        loaded[u].z = Added(residual[u].z, loaded[u].z);
        loaded[u].w = Added(residual[u].w, loaded[u].w);
        reinterpret_cast<uint4*>(a_.residual)[at + u * 32] = loaded[u];
      }
      const uint32_t parts[4] = {loaded[u].x, loaded[u].y, loaded[u].z, loaded[u].w};
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const uint32_t word = sizeof(Word) == 4 ? parts[j] : parts[j / 2] >> (16 * (j % 2));
        // The bits of a NaN are at least its key, which is at least any bound.
        if ((word & Type::kMagnitude) >= bound) reach |= 1u << (u * kVector + j);
      }
    }
    return reach;
  }

  // Keeps what reaches `bound`, by tile, and begins a histogram of it. Returns how many there are;
  // beyond `capacity` they are only counted. With `kAdd`, the residual is added and the sum stored.
  template <bool kAdd>
  __device__ uint32_t Filter(uint32_t bound, int filter) {
    bound_ = bound;
    filter_ = filter;
    uint32_t* counter = &a_.state->candidates[filter];
    BeginHistogram();
    const uint32_t warps = gridDim.x * kWarps;
    for (uint32_t tile = blockIdx.x * kWarps + WarpOfBlock(); tile < a_.layout.tiles;
         tile += warps) {
      const uint64_t begin = uint64_t{tile} * a_.layout.tile;
      unsigned long long marks[kMarkWords] = {};
      uint32_t count = 0;
#pragma unroll
      for (uint32_t w = 0; w < kMarkWords; ++w) {
#pragma unroll 1
        for (uint32_t g = 0; g < kGroupsPerWord; ++g) {
          const uint32_t group = w * kGroupsPerWord + g;
          const uint64_t start = begin + uint64_t{group} * kGroup;
          if (group >= a_.layout.groups || start >= size_) break;
          const uint32_t reach = Reach<kAdd>(start, bound);
          count += __popc(reach);
          marks[w] |= static_cast<unsigned long long>(reach) << (g * kMarks);
        }
      }
      const uint32_t total = __reduce_add_sync(kAllLanes, count);
      uint32_t offset = 0;
      if (total > 0) {
        if (Lane() == 0) offset = atomicAdd(counter, total);
        offset = __shfl_sync(kAllLanes, offset, 0);
      }
      if (Lane() == 0) a_.spans[tile] = {offset, total};
      if (total > 0 && offset + total <= a_.layout.capacity) Keep(begin, marks, offset);
    }
    EndHistogram();
    return __ldcg(counter);
  }

  // Writes the marked elements of a tile, in order. They are few: reading them again, from a cache,
  // is cheaper than holding all elements until their number is known.
  __device__ void Keep(uint64_t begin, const unsigned long long (&marks)[kMarkWords],
                       uint32_t offset) {
    constexpr uint32_t kOfLoad = (1u << kVector) - 1;
#pragma unroll
    for (uint32_t w = 0; w < kMarkWords; ++w) {
      if (!__any_sync(kAllLanes, marks[w] != 0)) continue;
#pragma unroll 1
      for (uint32_t load = 0; load < kGroupsPerWord * kLoads; ++load) {
        uint32_t left = static_cast<uint32_t>(marks[w] >> (load * kVector)) & kOfLoad;
        if (!__any_sync(kAllLanes, left != 0)) continue;
        // Prefix sums over lanes, from the bits of the counts, which are at most 8.
        const uint32_t count = __popc(left);
        uint32_t before = 0;
        uint32_t all = 0;
#pragma unroll
        for (int bit = 0; bit < 4; ++bit) {
          const uint32_t lanes = __ballot_sync(kAllLanes, count >> bit & 1);
          before += LanesBelow(lanes) << bit;
          all += __popc(lanes) << bit;
        }
        const uint64_t first =
            begin + ((uint64_t{w} * kGroupsPerWord * kLoads + load) * 32 + Lane()) * kVector;
        for (uint32_t at = offset + before; left != 0; left &= left - 1, ++at) {
          const uint32_t index = static_cast<uint32_t>(first) + __ffs(left) - 1;
          const uint32_t word = Stored(index);
          a_.candidates[at] = {index, word};
          const uint32_t bin = (Key<Type>(word) - bound_) >> Type::kCandidateShift;
          atomicAdd(&shared_->histogram[bin < kBins ? bin : kBins - 1], 1u);
        }
        offset += all;
      }
    }
  }

  // Reads the histogram that the filter began: the interval of the threshold.
  __device__ void ThresholdOfCandidates(uint32_t* rank) {
    const Bin found = Find(a_.state->histograms[(turn_ + 2) % 3], *rank);
    low_ = bound_ + (found.bin << Type::kCandidateShift);
    bits_ = Type::kCandidateShift;
    if (found.bin == kBins - 1) bits_ = Type::kKeyBits;  // all that is beyond
    *rank -= found.above;
  }

  // ---- Output. A block has tiles in a row.

  __device__ uint32_t FirstTile(uint32_t block) const {
    return static_cast<uint32_t>(uint64_t{a_.layout.tiles} * block / gridDim.x);
  }

  // What of a tile is looked at: its candidates, or all of it.
  __device__ Span Part(uint32_t tile, bool buffered) const {
    if (buffered) return a_.spans[tile];
    const uint32_t begin = tile * a_.layout.tile;
    const uint32_t left = size_ - begin;
    return {begin, left < a_.layout.tile ? left : a_.layout.tile};
  }

  __device__ Candidate Element(uint32_t at, bool buffered) const {
    if (buffered) return a_.candidates[at];
    return {at, Stored(at)};
  }

  __device__ void CountTiles(bool buffered) {
    Counts of_warp = 0;
    const uint32_t end = FirstTile(blockIdx.x + 1);
    for (uint32_t tile = FirstTile(blockIdx.x) + WarpOfBlock(); tile < end; tile += kWarps) {
      const Span part = Part(tile, buffered);
      uint32_t greater = 0;
      uint32_t equal = 0;
      for (uint32_t i = Lane(); i < part.count; i += 32) {
        const uint32_t key = Key<Type>(Element(part.offset + i, buffered).word);
        greater += key > low_;
        equal += key == low_;
      }
      greater = __reduce_add_sync(kAllLanes, greater);
      equal = __reduce_add_sync(kAllLanes, equal);
      const Counts counts = Counts{greater} << 32 | equal;
      if (Lane() == 0) a_.tile_counts[tile] = counts;
      of_warp += counts;
    }
    Counts of_block;
    ExclusiveSum(Lane() == 0 ? of_warp : Counts{0}, &of_block, shared_);
    if (threadIdx.x == 0) a_.block_counts[blockIdx.x] = of_block;
  }

  // Of the elements that equal the threshold the first `equals` are taken.
  __device__ void WriteTiles(bool buffered, uint32_t equals) {
    Counts sum = 0;
    for (uint32_t block = threadIdx.x; block < blockIdx.x; block += kThreads) {
      sum += __ldcg(&a_.block_counts[block]);
    }
    Counts before;
    ExclusiveSum(sum, &before, shared_);
    const uint32_t begin = FirstTile(blockIdx.x);
    const uint32_t end = FirstTile(blockIdx.x + 1);
    for (uint32_t first = begin; first < end; first += kThreads) {
      const uint32_t tile = first + threadIdx.x;
      const Counts counts = tile < end ? a_.tile_counts[tile] : 0;
      Counts all;
      const Counts exclusive = ExclusiveSum(counts, &all, shared_);
      if (tile < end) a_.tile_counts[tile] = before + exclusive;
      before += all;
    }
    __syncthreads();
    for (uint32_t tile = begin + WarpOfBlock(); tile < end; tile += kWarps) {
      WriteTile(Part(tile, buffered), a_.tile_counts[tile], buffered, equals);
    }
  }

  __device__ void WriteTile(Span part, Counts before, bool buffered, uint32_t equals) {
    uint32_t equal_before = static_cast<uint32_t>(before);
    uint32_t at =
        static_cast<uint32_t>(before >> 32) + (equal_before < equals ? equal_before : equals);
    for (uint32_t start = 0; start < part.count; start += 32) {
      const bool exists = start + Lane() < part.count;
      Candidate element = {};
      uint32_t key = 0;
      if (exists) {
        element = Element(part.offset + start + Lane(), buffered);
        key = Key<Type>(element.word);
      }
      const bool equal = exists && key == low_;
      const uint32_t equal_lanes = __ballot_sync(kAllLanes, equal);
      const bool taken =
          exists && (key > low_ || (equal && equal_before + LanesBelow(equal_lanes) < equals));
      const uint32_t taken_lanes = __ballot_sync(kAllLanes, taken);
      if (taken) {
        const uint32_t place = at + LanesBelow(taken_lanes);
        a_.indices[place] = element.index;
        static_cast<Word*>(a_.values)[place] = static_cast<Word>(element.word);
        if (kFeedback) a_.residual[element.index] = 0;
      }
      at += __popc(taken_lanes);
      equal_before += __popc(equal_lanes);
    }
  }

  // How far under this threshold the next bound is. Between it and the last bound were some
  // candidates; as many as are selected, and some more, leave room for thresholds that move.
  __device__ uint32_t NextSlack(bool buffered) const {
    if (!buffered) return Type::kSlack;
    constexpr uint32_t kMore = 1024;
    const uint64_t slack = low_ - bound_;
    const uint32_t below = __ldcg(&a_.state->candidates[filter_]) - a_.layout.k;
    const uint64_t wanted = below > 0 ? slack * (a_.layout.k + kMore) / below : Type::kSlack;
    // One array may be unlike the next: by steps.
    const uint64_t least = slack / 4 + 1;
    const uint64_t most = 4 * slack + Type::kSlack / 16 + 1;
    const uint64_t next = wanted < least ? least : wanted < most ? wanted : most;
    return static_cast<uint32_t>(next < Type::kSlack ? next : Type::kSlack);
  }

  // No block reads any of this after the last barrier of the grid.
  __device__ void LeaveForNextLaunch(bool buffered) {
    for (uint32_t i = Thread(); i < 3 * kBins; i += NumThreads()) {
      a_.state->histograms[i / kBins][i % kBins] = 0;
    }
    if (Thread() == 0) {
      const uint32_t slack = NextSlack(buffered);
      a_.state->candidates[0] = 0;
      a_.state->candidates[1] = 0;
      a_.state->bound = low_ > slack ? low_ - slack : 0;
      a_.state->warm = 1;
    }
  }

  const Arguments& a_;
  const uint32_t size_;
  Shared* const shared_;
  uint32_t turn_ = 0;   // histograms begun
  uint32_t bound_ = 0;  // of the last filter
  int filter_ = 0;      // the last one's number
  uint32_t low_ = 0;    // the threshold is in [low_, low_ + 2^bits_)
  int bits_ = 0;
};

template <typename Type, bool kFeedback>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    SelectKernel(const __grid_constant__ Arguments arguments) {
  __shared__ Shared shared;
  Selection<Type, kFeedback>(arguments, &shared).Run();
}

inline size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// The kernel for a type, which has a residual only if it is float32; nullptr if there is none.
inline const void* Kernel(DataType type, bool feedback) {
  switch (type) {
    case DataType::kFloat32:
      return feedback ? reinterpret_cast<const void*>(&SelectKernel<Float32, true>)
                      : reinterpret_cast<const void*>(&SelectKernel<Float32, false>);
    case DataType::kFloat16:
      return feedback ? nullptr : reinterpret_cast<const void*>(&SelectKernel<Float16, false>);
    case DataType::kBFloat16:
      return feedback ? nullptr : reinterpret_cast<const void*>(&SelectKernel<BFloat16, false>);
    default:
      return nullptr;
  }
}

}  // namespace top_k_cuda

// Selects from one vector again and again. Holds sizes, no memory: the caller brings a workspace,
// and keeps it from call to call, since it holds the last threshold.
class CudaTopK {
 public:
  // For the current device. `feedback`: float32 only. Needs compute capability 8.0.
  cudaError_t Init(DataType type, bool feedback, size_t size, size_t k) {
    using top_k_cuda::kThreads;
    kernel_ = top_k_cuda::Kernel(type, feedback);
    if (kernel_ == nullptr || k > size || size >= UINT32_MAX) return cudaErrorInvalidValue;
    feedback_ = feedback;
    layout_.size = static_cast<uint32_t>(size);
    layout_.k = static_cast<uint32_t>(k);
    int device = 0, processors = 0, resident = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel_, kThreads, 0);
    if (error != cudaSuccess) return error;
    if (resident < 1 || processors < 1) return cudaErrorLaunchOutOfResources;
    const size_t most = static_cast<size_t>(processors) *
                        std::min<size_t>(resident, top_k_cuda::kBlocksPerProcessor);
    // A group is 64 bytes for each of 32 threads. Tiles are large, for few atomic additions, but
    // eight for every warp, so that none works much longer than others. A small grid has cheap
    // barriers.
    const size_t group = 32 * top_k_cuda::kLoads * 16 / SizeOf(type);
    const size_t groups = std::max<size_t>((size + group - 1) / group, 1);
    const size_t most_groups = top_k_cuda::kMarkWords * 64 * 32 / group;
    layout_.groups = static_cast<uint32_t>(
        std::min(std::max<size_t>(groups / (most * top_k_cuda::kWarps * 8), 1), most_groups));
    layout_.tile = static_cast<uint32_t>(layout_.groups * group);
    layout_.tiles = static_cast<uint32_t>((groups + layout_.groups - 1) / layout_.groups);
    layout_.blocks = static_cast<uint32_t>(
        std::min<size_t>(most, (layout_.tiles + top_k_cuda::kWarps - 1) / top_k_cuda::kWarps));
    layout_.capacity = static_cast<uint32_t>(std::min(size, 4 * k + 65536));
    return cudaSuccess;
  }

  size_t WorkspaceBytes() const { return Workspace(nullptr, nullptr); }

  // Queues what a workspace needs before its first selection; also forgets the last threshold.
  static cudaError_t Reset(void* workspace, cudaStream_t stream) {
    return cudaMemsetAsync(workspace, 0, sizeof(top_k_cuda::State), stream);
  }

  // Queues one selection. `x` and, with feedback, `residual` have `size` elements, `values` and
  // `indices` k, all in device memory; the workspace starts at a multiple of 256 bytes and serves
  // one selection at a time. With feedback the selection is from residual + x, and the residual
  // becomes that sum, with 0 where it was selected.
  cudaError_t Select(const void* x, float* residual, void* values, uint32_t* indices,
                     void* workspace, cudaStream_t stream) const {
    if (feedback_ != (residual != nullptr)) return cudaErrorInvalidValue;
    if (layout_.size == 0 || (layout_.k == 0 && !feedback_)) return cudaSuccess;
    top_k_cuda::Arguments arguments = {};
    arguments.x = x;
    arguments.residual = residual;
    arguments.values = values;
    arguments.indices = indices;
    arguments.aligned =
        (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(residual)) % 16 == 0;
    arguments.layout = layout_;
    Workspace(static_cast<char*>(workspace), &arguments);
    void* parameters[] = {&arguments};
    return cudaLaunchCooperativeKernel(kernel_, dim3(layout_.blocks), dim3(top_k_cuda::kThreads),
                                       parameters, 0, stream);
  }

  const top_k_cuda::Layout& layout() const { return layout_; }

 private:
  // The parts of a workspace; returns its size.
  size_t Workspace(char* memory, top_k_cuda::Arguments* arguments) const {
    using top_k_cuda::Aligned;
    const size_t candidates = Aligned(sizeof(top_k_cuda::State));
    const size_t spans =
        candidates + Aligned(sizeof(top_k_cuda::Candidate) * size_t{layout_.capacity});
    const size_t tile_counts = spans + Aligned(sizeof(top_k_cuda::Span) * layout_.tiles);
    const size_t block_counts = tile_counts + Aligned(sizeof(top_k_cuda::Counts) * layout_.tiles);
    if (arguments != nullptr) {
      arguments->state = reinterpret_cast<top_k_cuda::State*>(memory);
      arguments->candidates = reinterpret_cast<top_k_cuda::Candidate*>(memory + candidates);
      arguments->spans = reinterpret_cast<top_k_cuda::Span*>(memory + spans);
      arguments->tile_counts = reinterpret_cast<top_k_cuda::Counts*>(memory + tile_counts);
      arguments->block_counts = reinterpret_cast<top_k_cuda::Counts*>(memory + block_counts);
    }
    return block_counts + Aligned(sizeof(top_k_cuda::Counts) * layout_.blocks);
  }

  const void* kernel_ = nullptr;
  bool feedback_ = false;
  top_k_cuda::Layout layout_;
};

}  // namespace tfdear
