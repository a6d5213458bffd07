// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/base/step_kind.h"

namespace tfdear {
namespace {

constexpr char kUnknown[] = "unknown";

struct NamedKind {
  StepKind kind;
  const char* name;
};

// In the order of their numbers.
constexpr NamedKind kKinds[kNumStepKinds] = {
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

}  // namespace

const char* Name(Operation operation) {
  switch (operation) {
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kReduce:
      return "reduce";
    case Operation::kBroadcast:
      return "broadcast";
  }
  return kUnknown;
}

const char* Name(Group group) {
  switch (group) {
    case Group::kWorld:
      return "world";
    case Group::kIntra:
      return "intra";
    case Group::kInter:
      return "inter";
  }
  return kUnknown;
}

const char* Name(WireFormat wire_format) {
  switch (wire_format) {
    case WireFormat::kDense:
      return "dense";
    case WireFormat::kRows:
      return "rows";
    case WireFormat::kSelected:
      return "selected";
  }
  return kUnknown;
}

StepKind StepKindOf(int number) { return kKinds[number].kind; }

int NumberOf(const StepKind& kind) {
  for (int number = 0; number < kNumStepKinds; ++number) {
    if (kKinds[number].kind == kind) return number;
  }
  return -1;
}

const char* Name(const StepKind& kind) {
  const int number = NumberOf(kind);
  return number < 0 ? kUnknown : kKinds[number].name;
}

}  // namespace tfdear
