// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tfdear {

// Places of different ids in a list. A step looks up thousands of ids several times; the nodes of a
// std::unordered_map take longer than the copies of their rows.
class IdPlaces {
 public:
  // `most`: more ids than that are never added.
  explicit IdPlaces(size_t most) {
    size_t capacity = 16;
    while (capacity < 2 * most) capacity *= 2;
    while ((size_t{1} << (64 - shift_)) < capacity) --shift_;
    slots_.resize(capacity);
  }
  // Those of a list, in which an id may be several times.
  explicit IdPlaces(const std::vector<int32_t>& ids) : IdPlaces(ids.size()) {
    for (int32_t id : ids) Add(id, 0);
  }

  // The place of an id, and whether it is new: then it gets `next`.
  std::pair<int64_t, bool> Add(int64_t id, int64_t next) {
    Slot* const slot = SlotOf(id);
    if (slot->place >= 0) return {slot->place, false};
    *slot = {id, next};
    return {next, true};
  }
  bool Contains(int64_t id) const { return const_cast<IdPlaces*>(this)->SlotOf(id)->place >= 0; }

 private:
  struct Slot {
    int64_t id = 0;
    int64_t place = -1;  // Empty.
  };

  // Where the id is, or would be.
  Slot* SlotOf(int64_t id) {
    // Fibonacci hashing: ids that follow each other go to slots far apart.
    size_t at = static_cast<size_t>((static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u) >> shift_);
    while (slots_[at].place >= 0 && slots_[at].id != id) at = (at + 1) & (slots_.size() - 1);
    return &slots_[at];
  }

  int shift_ = 63;
  std::vector<Slot> slots_;
};

}  // namespace tfdear
