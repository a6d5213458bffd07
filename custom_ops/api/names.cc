// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/api/names.h"

#include <algorithm>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/base/step_kind.h"
#include "custom_ops/engine/compression/sparse_exchange.h"
#include "custom_ops/engine/queue/lane.h"
#include "custom_ops/engine/record/event_record.h"

namespace tfdear {
namespace {

constexpr char kUnknown[] = "unknown";

const char* Name(LaneKind lane) {
  switch (lane) {
    case LaneKind::kGradients:
      return "gradients";
    case LaneKind::kControl:
      return "control";
    case LaneKind::kIntraNode:
      return "intra_node";
    case LaneKind::kInterNode:
      return "inter_node";
    case LaneKind::kGradientsIntra:
      return "gradients_intra";
    case LaneKind::kGradientsInter:
      return "gradients_inter";
  }
  return kUnknown;
}

const char* Name(Transport transport) {
  switch (transport) {
    case Transport::kGloo:
      return "gloo";
    case Transport::kSharedMemory:
      return "shared_memory";
  }
  return kUnknown;
}

const char* Name(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::kAllGather:
      return "all_gather";
    case ExchangeKind::kReduce:
      return "reduce";
  }
  return kUnknown;
}

const char* Name(ValueFormat format) {
  switch (format) {
    case ValueFormat::kFloat32:
      return "float32";
    case ValueFormat::kBFloat16:
      return "bfloat16";
  }
  return kUnknown;
}

// The line of an enumeration, whose Name() knows no further than its last enumerator.
template <typename Enum>
std::string LineOf(std::string word) {
  for (int number = 0;; ++number) {
    std::string name = Name(static_cast<Enum>(number));
    if (name == kUnknown) return word + "\n";
    std::replace(name.begin(), name.end(), ' ', '_');
    word += " " + name;
  }
}

// What a kind of step is made of goes with its name.
std::string LineOfStepKinds() {
  std::string line = "step_kind";
  for (int number = 0; number < kNumStepKinds; ++number) {
    const StepKind kind = StepKindOf(number);
    line += std::string(" ") + Name(kind) + "=" + Name(kind.operation) + "/" + Name(kind.group) +
            "/" + Name(kind.wire_format);
  }
  return line + "\n";
}

}  // namespace

std::string Names() {
  return LineOf<LaneKind>("lane") + LineOf<Transport>("transport") + LineOf<DataType>("data_type") +
         LineOf<Operation>("operation") + LineOf<Group>("group") +
         LineOf<WireFormat>("wire_format") + LineOfStepKinds() + LineOf<ExchangeKind>("exchange") +
         LineOf<ValueFormat>("value_format") + LineOf<StatusCode>("status_code") +
         LineOf<EventKind>("event_kind");
}

}  // namespace tfdear
