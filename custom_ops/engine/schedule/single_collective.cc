// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/single_collective.h"

#include <utility>

namespace tfdear {

void SingleCollective::Start(std::shared_ptr<const Signature> signature, Body body,
                             std::function<void(const Status&)> done) {
  Status failure;
  {
    MutexLock lock(mutex_);
    failure = failure_;
    if (failure.ok()) {
      signature_ = std::move(signature);
      body_ = std::move(body);
      done_ = std::move(done);
      started_ = true;
    }
  }
  if (!failure.ok()) {
    done(failure);
    return;
  }
  lane_->Advance();
}

bool SingleCollective::Issue(ProcessGroup* group, Reactions* reactions) {
  if (!started_.load()) return false;
  MutexLock lock(mutex_);
  auto signature = std::make_shared<Signature>(WithTicket(signature_->text(), number()));
  auto run = [signature, body = std::move(body_), events = events_, number = number(),
              lane = static_cast<int64_t>(lane_->kind())](CollectiveBackend* backend,
                                                          uint64_t sequence) {
    const int64_t begin = EventRecord::NowMicros();
    Status status = body(backend, *signature, sequence);
    backend->WhenComplete([events, number, lane, begin] {
      events->Add({EventKind::kCollective, number, lane, 0, begin, EventRecord::NowMicros()});
    });
    return status;
  };
  // The state that the caller handed in must live until the collective is done: `done` owns it.
  auto work = group->Run(signature, std::move(run));
  reactions->push_back([work, done = std::move(done_)] { work->OnDone(done); });
  done_ = nullptr;
  return true;
}

void SingleCollective::Fail(const Status& cause) {
  std::function<void(const Status&)> done;
  {
    MutexLock lock(mutex_);
    failure_ = cause;
    done = std::move(done_);
    done_ = nullptr;
  }
  if (done) done(cause);
}

}  // namespace tfdear
