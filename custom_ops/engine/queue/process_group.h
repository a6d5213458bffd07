// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/base/work.h"
#include "custom_ops/engine/collectives/collective_backend.h"

namespace tfdear {

// A set of ranks and an ordered queue of collectives among them, started one after another, in the
// order of submission, by a thread of the group's own. All members have to submit the same
// collectives in the same order; nothing is negotiated. All methods are safe from any thread;
// submitting never blocks. Memory handed in belongs to the group until the Work is done.
//
// [Note: two in flight]
// Where calls of the backend block, a collective is over before the next one starts. A backend that
// only puts them into a queue gets the next one while one is still under way, so that its queue
// does not run dry; not more than that, as the order of what waits here may not be the last word.
//
// [Note: root cause]
// When one rank dies, its neighbours see a closed connection, but the neighbours' neighbours would
// only see those give up. So an error of the transport does not end a Work at once: the group
// records it (Failure(), failed_peer()), keeps its connections open, and waits up to
// `cause_grace` for Abort(cause) from whoever watches all ranks. The work then ends with that
// cause, or with the transport's own words if none came.
class ProcessGroup {
 public:
  using Body = std::function<Status(CollectiveBackend*, uint64_t sequence)>;
  using Preparation = std::function<Status()>;
  using SignaturePtr = std::shared_ptr<const Signature>;

  // `name`, for messages: "world", "intra_node", "inter_node". `ranks`: the global rank of each
  // member; ranks.size() == backend->size().
  ProcessGroup(std::string name, std::vector<int> ranks,
               std::unique_ptr<CollectiveBackend> backend);
  // Close().
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }  // in this group
  int size() const { return size_; }
  const std::vector<int>& ranks() const { return ranks_; }
  // Memory that all members can reach, or null. Before Close().
  std::shared_ptr<FusionMemory> fusion_memory() const { return backend_->fusion_memory(); }

  // A collective, or any compound of them, as one entry of the queue. `body` runs on the group's
  // thread; it hands signature and sequence to every collective it calls, and the Work is done when
  // these are over, which may be after it has returned. If it returns
  // kInvalidArgument only its own Work fails; every other error, and every exception (memory may
  // run out anywhere), ends the group. `after`:
  // work of another group that must be over before; if that fails, this work ends with its error
  // and the group goes on. Waiting for it is not part of the collective: Current() does not show
  // it. Two groups must not wait for each other in a circle.
  //
  // `preparation`: what the body needs done first and needs no other rank for. It runs, once
  // `after` is over, on a second thread of the group, while collectives before this one use the
  // line; one preparation after another, in the order of submission. Its errors count as the
  // body's.
  std::shared_ptr<Work> Run(SignaturePtr signature, Body body,
                            std::shared_ptr<Work> after = nullptr,
                            Preparation preparation = nullptr);

  // Fails the current and all later work with `cause`; the first cause stays.
  void Abort(const Status& cause);

  // Fails what is left in the queue and all later work, joins the threads and frees the backend:
  // its connections and memory. Not from a Work's callback, nor from two threads at once. A second
  // call does nothing.
  void Close();

  struct InFlight {
    std::string signature;
    std::string details;  // Of the signature.
    uint64_t sequence = 0;
    double seconds = 0;    // since it started
    int waiting_for = -1;  // global rank whose message it waits for now, or -1
  };
  // What runs now, if anything: the one that was started first.
  std::optional<InFlight> Current() const;

  // The first transport error, with the lost rank in words; set before the Work fails.
  std::optional<Status> Failure() const;
  // Global rank blamed for it; -1 if none is known.
  int failed_peer() const;

  struct Counters {
    uint64_t collectives = 0;  // queue entries that ended well
    uint64_t bytes_sent = 0;   // payload only
  };
  Counters counters() const;

  // CollectiveBackend::SetGiveWay(), before the first collective.
  void set_give_way(std::function<void()> give_way) { backend_->SetGiveWay(std::move(give_way)); }

  // How long to wait for a root cause after a transport error; default 20 s.
  void set_cause_grace(std::chrono::milliseconds grace);

 private:
  struct Entry {
    SignaturePtr signature;
    Body body;
    std::shared_ptr<Work> work;
    std::shared_ptr<Work> after;
    uint64_t sequence = 0;
    Preparation preparation;
    std::shared_ptr<Work> prepared;  // Null if this thread has to do it, or nobody.
    std::chrono::steady_clock::time_point start;
    std::shared_ptr<Work> completion;  // Of the backend, once the body has returned; or null.
  };

  void Loop();
  void CompletionLoop();
  void PreparationLoop();
  // Start one, if there is none yet. False: the system has no thread left.
  bool HasPreparationThread() TFDEAR_REQUIRES(mutex_);
  bool HasCompletionThread() TFDEAR_REQUIRES(mutex_);
  Status RunEntry(const Entry& entry);
  // Calls something of the entry; exceptions become errors.
  Status Guarded(const Entry& entry, const std::function<Status()>& call);
  Status CauseOf(const Status& error);
  int GlobalRank(int group_rank) const;

  const std::string name_;
  const std::vector<int> ranks_;
  const int rank_;
  const int size_;
  // Null once it is closed, which happens with the mutex held, when the group's threads, which need
  // no mutex to use it, have ended. Shared with whoever aborts meanwhile.
  std::shared_ptr<CollectiveBackend> backend_;

  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Entry>> queue_ TFDEAR_GUARDED_BY(mutex_);
  uint64_t next_sequence_ TFDEAR_GUARDED_BY(mutex_) = 0;
  uint64_t finished_ TFDEAR_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_sent_ TFDEAR_GUARDED_BY(mutex_) = 0;  // By a backend that is gone.
  std::deque<std::shared_ptr<Entry>> started_ TFDEAR_GUARDED_BY(mutex_);  // And not over.
  std::deque<std::shared_ptr<Entry>> unprepared_ TFDEAR_GUARDED_BY(mutex_);
  std::optional<Status> failure_ TFDEAR_GUARDED_BY(mutex_);
  int failed_peer_ TFDEAR_GUARDED_BY(mutex_) = -1;
  Status cause_ TFDEAR_GUARDED_BY(mutex_);  // why no more work is done; ok while the group works
  std::chrono::milliseconds cause_grace_ TFDEAR_GUARDED_BY(mutex_){20000};
  bool stopping_ TFDEAR_GUARDED_BY(mutex_) = false;
  bool all_started_ TFDEAR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
  std::thread preparation_thread_;  // Once there was a preparation.
  std::thread completion_thread_;   // Of a backend with a queue: waits for what was started.
};

}  // namespace tfdear
