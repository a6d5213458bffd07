// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iterator>

#include "custom_ops/engine/base/enum_name.h"

namespace tfdear {

// What a step of a plan does with its bucket.
enum class Operation : int {
  kReduceScatter = 0,  // Every member gets the sum of its shard.
  kAllGather = 1,      // Every member gets what the others have: shards, or rows.
  kAllReduce = 2,      // Every member gets the sum.
  kReduce = 3,         // One member gets the sum.
  kBroadcast = 4,      // Every member gets what that one has.
};
inline constexpr const char* kOperationNames[] = {"reduce_scatter", "all_gather", "all_reduce",
                                                  "reduce", "broadcast"};

// Among whom.
enum class Group : int {
  kWorld = 0,  // All ranks; for a layout outside the gradients' lane, all members of its lane.
  kIntra = 1,  // The ranks of the node, or of the row of a grid.
  kInter = 2,  // Those in this place on all nodes, with this rank's shard of its node's sum.
};
inline constexpr const char* kGroupNames[] = {"world", "intra", "inter"};

// In which form.
enum class WireFormat : int {
  kDense = 0,     // All elements, in the tensors' own type.
  kRows = 1,      // Rows of a sparse tensor and their indices.
  kSelected = 2,  // What each member selects of its elements; see sparse_exchange.h.
};
inline constexpr const char* kWireFormatNames[] = {"dense", "rows", "selected"};

struct StepKind {
  Operation operation = Operation::kAllReduce;
  Group group = Group::kWorld;
  WireFormat wire_format = WireFormat::kDense;

  constexpr bool operator==(const StepKind& other) const {
    return operation == other.operation && group == other.group && wire_format == other.wire_format;
  }
};

// Kinds of steps, in the order of their numbers, which pass between ranks, into files and to
// Python: never renumber. Not every combination exists.
struct NamedStepKind {
  StepKind kind;
  const char* name;  // What events, errors and users call it.
};
inline constexpr NamedStepKind kStepKinds[] = {
    {{Operation::kReduceScatter}, "reduce_scatter"},
    {{Operation::kAllGather}, "all_gather"},
    {{Operation::kAllReduce}, "all_reduce"},
    {{Operation::kAllGather, Group::kWorld, WireFormat::kRows}, "sparse_gather"},
    {{Operation::kReduce}, "reduce"},
    {{Operation::kBroadcast}, "broadcast"},
    {{Operation::kReduceScatter, Group::kIntra}, "intra_reduce_scatter"},
    {{Operation::kReduceScatter, Group::kInter}, "inter_reduce_scatter"},
    {{Operation::kAllGather, Group::kInter}, "inter_all_gather"},
    {{Operation::kAllGather, Group::kIntra}, "intra_all_gather"},
    {{Operation::kAllReduce, Group::kInter, WireFormat::kSelected}, "sparse_exchange"},
    {{Operation::kAllReduce, Group::kWorld, WireFormat::kSelected}, "sparse_all_gather"},
};
inline constexpr int kNumStepKinds = static_cast<int>(std::size(kStepKinds));

// -1: there is no such kind.
constexpr int NumberOf(const StepKind& kind) {
  for (int number = 0; number < kNumStepKinds; ++number) {
    if (kStepKinds[number].kind == kind) return number;
  }
  return -1;
}

constexpr const char* Name(Operation operation) { return NameIn(kOperationNames, operation); }
constexpr const char* Name(Group group) { return NameIn(kGroupNames, group); }
constexpr const char* Name(WireFormat format) { return NameIn(kWireFormatNames, format); }
constexpr const char* Name(const StepKind& kind) {
  const int number = NumberOf(kind);
  return number < 0 ? kUnknownName : kStepKinds[number].name;
}

}  // namespace tfdear
