// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/failure_state.h"

namespace tfdear {

Status FailureState::Fail(const Status& error, int peer) {
  MutexLock lock(mutex_);
  if (StatusLocked().ok()) {
    error_ = error;
    failed_peer_ = peer;
    failed_.store(true);
  }
  return StatusLocked();
}

Status FailureState::PeerClosed(const std::string& call, int peer, const std::string& transport) {
  return Fail(
      Unavailable(call.empty() ? "" : call + ": ", NameOf(peer),
                  " closed its connection; it ended, or failed first. See its own messages. (",
                  transport, ")"),
      peer);
}

Status FailureState::PeerSilent(const std::string& call, int peer, bool sending,
                                std::chrono::milliseconds timeout, const std::string& instead) {
  return Fail(
      Status(StatusCode::kDeadlineExceeded,
             TextOf(call, ": ", NameOf(peer), sending ? " took no data for " : " sent nothing for ",
                    timeout.count(), " ms", instead,
                    ". It is stuck, or waits in a different collective; see its own "
                    "messages, or raise the timeout if a step may take that long.")),
      peer);
}

void FailureState::Abort(const Status& cause) {
  MutexLock lock(mutex_);
  if (cause_.ok()) {
    cause_ = cause.ok() ? Status(StatusCode::kAborted, "aborted without a cause") : cause;
  }
  failed_.store(true);
}

Status FailureState::status() const {
  MutexLock lock(mutex_);
  return StatusLocked();
}

bool FailureState::aborted() const {
  MutexLock lock(mutex_);
  return !cause_.ok();
}

int FailureState::failed_peer() const {
  MutexLock lock(mutex_);
  return failed_peer_;
}

std::string FailureState::NameOf(int peer) const {
  const size_t index = static_cast<size_t>(peer);
  return "rank " + std::to_string(index < global_ranks_.size() ? global_ranks_[index] : peer);
}

}  // namespace tfdear
