// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#ifndef TFDEAR_ENGINE_BASE_STEP_KIND_H_
#define TFDEAR_ENGINE_BASE_STEP_KIND_H_

#include <cstdint>

namespace tfdear {

// What a step of a plan does with its bucket.
enum class Operation : int {
  kReduceScatter = 0,  // Every member gets the sum of its shard.
  kAllGather = 1,      // Every member gets what the others have: shards, or rows.
  kAllReduce = 2,      // Every member gets the sum.
  kReduce = 3,         // One member gets the sum.
  kBroadcast = 4,      // Every member gets what that one has.
};

// Among whom.
enum class Group : int {
  kWorld = 0,  // All ranks; for a layout outside the gradients' lane, all members of its lane.
  kIntra = 1,  // The ranks of the node, or of the row of a grid.
  kInter = 2,  // Those in this place on all nodes, with this rank's shard of its node's sum.
};

// In which form.
enum class WireFormat : int {
  kDense = 0,     // All elements, in the tensors' own type.
  kRows = 1,      // Rows of a sparse tensor and their indices.
  kSelected = 2,  // What each member selects of its elements; see sparse_exchange.h.
};

struct StepKind {
  Operation operation = Operation::kAllReduce;
  Group group = Group::kWorld;
  WireFormat wire_format = WireFormat::kDense;

  bool operator==(const StepKind& other) const {
    return operation == other.operation && group == other.group && wire_format == other.wire_format;
  }
};

const char* Name(Operation operation);
const char* Name(Group group);
const char* Name(WireFormat wire_format);

// Kinds of steps have numbers, for what passes between ranks, into files and to Python; never
// renumber. Not every combination exists.
inline constexpr int kNumStepKinds = 12;
StepKind StepKindOf(int number);
int NumberOf(const StepKind& kind);  // -1: there is no such kind.
// What events, errors and users call it.
const char* Name(const StepKind& kind);

}  // namespace tfdear

#endif  // TFDEAR_ENGINE_BASE_STEP_KIND_H_
