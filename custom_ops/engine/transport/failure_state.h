// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/thread_annotations.h"

namespace tfdear {

// Why a transport stopped working, and which peer is to blame. Failures are final: the first error
// stays, and so does the first cause given to Abort(), which is reported instead of the error.
// Thread safe; it never calls out with its lock held.
class FailureState {
 public:
  // Records `error`, for which `peer` is to blame, unless the transport has failed already. Returns
  // what the caller is to report: status().
  Status Fail(const Status& error, int peer);

  // The two errors that every transport knows. `call`: the running collective (DescribeCall()), or
  // nothing. `transport`: what it says about it.
  Status PeerClosed(const std::string& call, int peer, const std::string& transport);
  // `sending`: this rank waited for the peer to take data, not to send some. `instead`: what the
  // peer sent in place of what was expected, as a clause, or nothing.
  Status PeerSilent(const std::string& call, int peer, bool sending,
                    std::chrono::milliseconds timeout, const std::string& instead = "");

  void Abort(const Status& cause);

  // Abort()'s cause, else the first error, else ok.
  Status status() const;
  // Whether status() is an error. Sequentially consistent: [Note: waits on shared memory].
  bool failed() const { return failed_.load(); }
  bool aborted() const;
  int failed_peer() const;  // -1: nobody

  // What to call the peers in messages: once, before the first collective.
  void NameRanks(std::vector<int> global_ranks) { global_ranks_ = std::move(global_ranks); }
  std::string NameOf(int peer) const;  // "rank 3"

 private:
  Status StatusLocked() const TFDEAR_REQUIRES(mutex_) { return cause_.ok() ? error_ : cause_; }

  std::vector<int> global_ranks_;
  std::atomic<bool> failed_{false};

  mutable Mutex mutex_;
  Status error_ TFDEAR_GUARDED_BY(mutex_);
  Status cause_ TFDEAR_GUARDED_BY(mutex_);
  int failed_peer_ TFDEAR_GUARDED_BY(mutex_) = -1;
};

}  // namespace tfdear
