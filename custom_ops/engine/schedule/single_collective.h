// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/queue/lane.h"
#include "custom_ops/engine/record/event_record.h"

namespace tfdear {

// A single collective with a place in a lane: opened in program order, issued once its input is
// there.
class SingleCollective : public Ticket {
 public:
  using Body = std::function<Status(CollectiveBackend*, const Signature&, uint64_t sequence)>;

  SingleCollective(Lane* lane, EventRecord* events) : lane_(lane), events_(events) {}

  int group_size() const { return lane_->group()->size(); }
  // Gives the collective its input; `done` is called when it ended. Both functions may outlive the
  // caller.
  void Start(std::shared_ptr<const Signature> signature, Body body,
             std::function<void(const Status&)> done);

  bool Issue(ProcessGroup* group, Reactions* reactions) override;
  bool Untouched() const override { return !started_.load(); }
  void Fail(const Status& cause) override;

 private:
  Lane* const lane_;
  EventRecord* const events_;
  std::atomic<bool> started_{false};
  Mutex mutex_;
  std::shared_ptr<const Signature> signature_ TFDEAR_GUARDED_BY(mutex_);
  Body body_ TFDEAR_GUARDED_BY(mutex_);
  std::function<void(const Status&)> done_ TFDEAR_GUARDED_BY(mutex_);
  Status failure_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
