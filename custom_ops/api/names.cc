// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/api/names.h"

#include <algorithm>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/enum_name.h"
#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/base/step_kind.h"
#include "custom_ops/engine/compression/sparse_exchange.h"
#include "custom_ops/engine/queue/lane.h"
#include "custom_ops/engine/record/event_record.h"

namespace tfdear {
namespace {

constexpr const char* kLaneNames[] = {"gradients",  "control",         "intra_node",
                                      "inter_node", "gradients_intra", "gradients_inter",
                                      "embeddings", "embedding_rows",  "delayed_rows",
                                      "exchanges",  "lengths"};
static_assert(sizeof(kLaneNames) / sizeof(*kLaneNames) == kNumLanes, "every lane has a name");
constexpr const char* kTransportNames[] = {"gloo", "shared_memory", "tcp"};
constexpr const char* kExchangeNames[] = {"all_gather", "reduce"};
constexpr const char* kValueFormatNames[] = {"float32", "bfloat16"};

const char* Name(LaneKind lane) { return NameIn(kLaneNames, lane); }
const char* Name(Transport transport) { return NameIn(kTransportNames, transport); }
const char* Name(ExchangeKind kind) { return NameIn(kExchangeNames, kind); }
const char* Name(ValueFormat format) { return NameIn(kValueFormatNames, format); }

// The line of an enumeration, whose Name() knows no further than its last enumerator.
template <typename Enum>
std::string LineOf(std::string word) {
  for (int number = 0;; ++number) {
    std::string name = Name(static_cast<Enum>(number));
    if (name == kUnknownName) return word + "\n";
    std::replace(name.begin(), name.end(), ' ', '_');
    word += " " + name;
  }
}

// What a kind of step is made of goes with its name.
std::string LineOfStepKinds() {
  std::string line = "step_kind";
  for (const auto& [kind, name] : kStepKinds) {
    line += std::string(" ") + name + "=" + Name(kind.operation) + "/" + Name(kind.group) + "/" +
            Name(kind.wire_format);
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
