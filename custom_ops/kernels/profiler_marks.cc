// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Shows the engine's events in TensorFlow's profiler, beside the ops: what
// `tf.profiler.experimental.start` records has each bucket's collectives, the updates and the reads
// that waited, as "tfdear <kind>" with the numbers of the step (ticket) and of the bucket.

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "custom_ops/engine/engine.h"
#include "tsl/profiler/lib/traceme_encode.h"
#include "xla/tsl/profiler/backends/cpu/traceme_recorder.h"

namespace tfdear {
namespace {

using tsl::profiler::TraceMeEncode;
using tsl::profiler::TraceMeRecorder;

// What `subject` and `detail` of an event of this kind are called in the profile; null: left out.
struct Labels {
  const char* subject;
  const char* detail;
};

Labels LabelsOf(EventKind kind) {
  switch (kind) {
    case EventKind::kContribute:
      return {"tensor", "bucket"};
    case EventKind::kUpdate:
    case EventKind::kRowUpdate:
      return {"variable", "variables"};
    case EventKind::kAwait:
    case EventKind::kRead:
      return {"variable", nullptr};
    case EventKind::kStep:
      return {"layout", "buckets"};
    case EventKind::kCollective:
      return {"lane", nullptr};
    case EventKind::kSelection:
      return {"bucket", "elements"};
    case EventKind::kEmbeddingSplit:
      return {"next", "ids"};
    case EventKind::kWait:
      return {nullptr, nullptr};
    default:
      return {"bucket", "bytes"};
  }
}

// The profiler counts nanoseconds since 1970, the event record microseconds of the steady clock.
int64_t ProfilerNanos(int64_t steady_us) {
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  return now - (EventRecord::NowMicros() - steady_us) * 1000;
}

// Costs one load of an atomic while no profile is taken. The mark stands on the line of the thread
// that adds the event: for collectives, that which moves the bytes.
void Mark(const Event& event) {
  // There is one read per variable and step, and each is over at once.
  const int level = event.kind == EventKind::kRead ? 3 : 1;
  if (!TraceMeRecorder::Active(level)) return;
  std::string name = std::string("tfdear ") + Name(event.kind);
  const Labels labels = LabelsOf(event.kind);
  if (labels.detail != nullptr) {
    name = TraceMeEncode(
        name,
        {{"ticket", event.ticket}, {labels.subject, event.subject}, {labels.detail, event.detail}});
  } else if (labels.subject != nullptr) {
    name = TraceMeEncode(name, {{"ticket", event.ticket}, {labels.subject, event.subject}});
  } else {
    name = TraceMeEncode(name, {{"ticket", event.ticket}});
  }
  const int64_t end = ProfilerNanos(event.end_us);
  const int64_t begin = end - (event.end_us - event.begin_us) * 1000;
  TraceMeRecorder::Record({std::move(name), begin, end});
}

const bool installed = [] {
  Engine::Get()->events()->set_observer(&Mark);
  return true;
}();

}  // namespace
}  // namespace tfdear
