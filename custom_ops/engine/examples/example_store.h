// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/examples/example_client.h"
#include "custom_ops/engine/examples/example_course.h"
#include "custom_ops/engine/examples/example_segment.h"
#include "custom_ops/engine/examples/example_server.h"

namespace tfdear {

// The prepared examples of a rank and of those that share its node's memory: each prepares and
// keeps those that it owns, and all read all of them. As many as fit stay in memory; the others are
// prepared by whoever reads them, each time. Other nodes are asked for theirs. Thread safe but for
// Map(), Serve() and AddNode(), which come before anything is read.
//
// [Note: nothing is evicted]
// An epoch uses every example once. What an epoch finds in memory was held since the epoch before,
// so of N examples, where C fit, no policy finds more than C; keeping those that came first finds
// as many.
class ExampleStore {
 public:
  // An example as it was put; without bytes it is left out. Its bytes stay where they are as long
  // as the store and `owner` do.
  struct Record {
    const char* data = nullptr;
    size_t bytes = 0;
    std::shared_ptr<const void> owner;
  };

  // What has happened so far.
  struct Progress {
    int64_t held = 0;            // Examples in memory.
    int64_t held_bytes = 0;      // Of their records.
    int64_t prepared = 0;        // Put, also again.
    int64_t prepared_bytes = 0;  // Of their records.
    int64_t hits = 0;            // Taken from memory.
    int64_t misses = 0;          // Taken, but not from memory, or before they were there.
    int64_t waited_micros = 0;   // In Take().
    bool full = false;           // No more fits.
    int64_t owned = 0;           // Examples of this rank.
    int64_t held_on_node = 0;    // By all ranks whose memory is mapped here.
    int64_t fetched = 0;         // Examples that other nodes sent.
    int64_t fetched_bytes = 0;
    int64_t served = 0;  // Examples that were sent to other nodes.
    int64_t served_bytes = 0;
    int64_t refused = 0;  // Connections that broke the rules.
    int64_t skipped = 0;  // Examples that this rank had to leave out.
  };

  struct Options {
    int64_t examples = 0;
    // Those that this rank owns.
    int64_t own_begin = 0;
    int64_t own_end = 0;
    size_t memory_bytes = 0;  // For their records, at most.
    double max_rate = 0;      // Bytes per second from other ranks, at most; 0: no limit.
    bool verify = true;       // Whether checksums of what other ranks send are compared.
    // How long this rank, or another one, may take from one example to its next.
    std::chrono::milliseconds timeout{600000};
    EventRecord* events = nullptr;  // What happens is noted there; may be none.
  };

  static Status Create(const Options& options, std::shared_ptr<ExampleStore>* result);

  int64_t examples() const { return options_.examples; }

  // Where the examples of this rank are, as text, for Map() on others.
  std::string address() const { return own_->address(); }
  // Makes those of another rank readable here.
  Status Map(int rank, const std::string& address);
  // Gives those of this node to who asks over these connections.
  Status Serve(std::vector<ExampleSocket> sockets);
  // Asks a rank of another node for its examples, which are in these ranges, over these connections
  // in turns.
  Status AddNode(int rank, const std::vector<std::pair<int64_t, int64_t>>& ranges,
                 std::vector<ExampleSocket> sockets);
  // All have mapped what they need.
  void Unpublish() { own_->Unpublish(); }

  // The order in which examples will be read, from this position on: it is prepared in this order.
  // Not heard if there is one already; `anew`: only then, and while it is not all prepared.
  void ReadFrom(const ReadingOrder& order, int64_t epoch, int64_t at, bool anew = false)
      TFDEAR_EXCLUDES(mutex_);

  // For who prepares: the next examples, at most so many, or `most_in_order` where they are read in
  // the order of their numbers; waits for some. Empty after Close().
  std::vector<int64_t> Next(size_t most, size_t most_in_order) TFDEAR_EXCLUDES(mutex_);
  std::vector<int64_t> Next(size_t most) { return Next(most, most); }
  // An example is there, so many bytes, which `write` writes.
  void Put(int64_t example, size_t bytes, const std::function<void(char*)>& write)
      TFDEAR_EXCLUDES(mutex_);
  // An example cannot be prepared. Who waits for it gets this error; it is tried again when
  // somebody wants it again.
  void Fail(int64_t example, const Status& status) TFDEAR_EXCLUDES(mutex_);
  // An example is to be left out: its record has no bytes. Whether that is new.
  bool Skip(int64_t example) TFDEAR_EXCLUDES(mutex_);

  // For readers, who want an example first, and then take it or give it up.
  // Whether it was not in memory: then whoever takes it with TakeNow() gives it up.
  bool Want(int64_t example) TFDEAR_EXCLUDES(mutex_);
  void GiveUp(int64_t example) TFDEAR_EXCLUDES(mutex_);
  // Takes an example if it is in memory.
  bool TakeNow(int64_t example, Record* record) {
    if (!Find(example, record)) return false;
    hits_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  // Waits for an example that this reader wants. `cancelled`: asked after Wake() whether to wait
  // on.
  Status Take(int64_t example, const std::function<bool()>& cancelled, Record* record)
      TFDEAR_EXCLUDES(mutex_);
  // Has the processor fetch an example that is read next, if it is in memory.
  void Prefetch(int64_t example) const {
    Record record;
    if (Find(example, &record)) PrefetchRecord(record.data, record.bytes);
  }
  void Wake() TFDEAR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    there_.notify_all();
  }

  // Waits for so long until all examples that this rank owns are there, do not fit, or failed.
  // `filled`: whether that is so. An error: that of one which failed, or of Close(), or that
  // none has come for the timeout.
  Status AwaitFilled(std::chrono::milliseconds time, bool* filled) TFDEAR_EXCLUDES(mutex_);

  // Nothing is prepared any more, and who waits gets this error. What is in memory can be taken.
  void Close(const Status& status) TFDEAR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_.ok()) closed_ = status;
    to_prepare_.notify_all();
    there_.notify_all();
  }

  // Keeps no more than it has.
  void StopGrowing() TFDEAR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    own_->SetFull();
    there_.notify_all();
    own_->Announce();
  }

  Progress progress() const TFDEAR_EXCLUDES(mutex_);
  // Something has been going on with so many examples, and ends now.
  void Note(EventKind kind, int64_t examples, int64_t begin_us) const;

 private:
  // The examples of another rank.
  struct Peer {
    int rank = 0;
    std::unique_ptr<ExampleSegment> examples;
  };
  // An example that did not fit, or could not be made, until those who wait for it took it.
  struct Made {
    Status status;
    std::shared_ptr<const std::vector<char>> bytes;
  };
  // Examples of another node.
  struct Remote {
    int64_t begin = 0;
    int64_t end = 0;
    // One for each connection, which examples take in turns.
    std::vector<ExampleClient*> clients;
  };

  explicit ExampleStore(const Options& options)
      : options_(options),
        limit_(std::make_shared<RateLimit>(options.max_rate)),
        course_(options.examples) {}

  // The rank of the node that owns an example, if it is another one; null: this one, or none.
  const Peer* PeerOf(int64_t example) const;
  // Whether an example is in memory; where.
  bool Find(int64_t example, Record* record) const;
  // Waits for an example of another rank. Ok: it is there, or this rank has to prepare it.
  Status AwaitPeer(const Peer& peer, int64_t example, const std::function<bool()>& cancelled,
                   bool* comes);
  // The client that asks for an example; null: it is of this node, or of none.
  ExampleClient* ClientOf(int64_t example) const;
  ExampleServer::Look LookFor(int64_t example) const;
  void Receive(const ExampleClient::Answer& answer) TFDEAR_EXCLUDES(mutex_);
  // Whether it is not to be prepared or asked for now.
  bool InHandLocked(int64_t example) const TFDEAR_REQUIRES(mutex_) {
    return preparing_.count(example) > 0 || asked_.count(example) > 0 || made_.count(example) > 0;
  }
  // Has it prepared here.
  void DemandLocked(int64_t example) TFDEAR_REQUIRES(mutex_);
  // The same, or asks another node.
  void FetchLocked(int64_t example) TFDEAR_REQUIRES(mutex_);
  int64_t NextOnCourseLocked() TFDEAR_REQUIRES(mutex_);
  void HandOutLocked(int64_t example, Made made) TFDEAR_REQUIRES(mutex_);

  const Options options_;
  const std::shared_ptr<RateLimit> limit_;
  std::unique_ptr<ExampleSegment> own_;
  // Both in the order of their examples.
  std::vector<Peer> peers_;
  std::vector<Remote> remotes_;
  std::atomic<int64_t> hits_{0};

  mutable Mutex mutex_;
  // When an example was last prepared, received, or given to be prepared.
  std::chrono::steady_clock::time_point active_ TFDEAR_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::now();
  std::condition_variable to_prepare_;
  std::condition_variable there_;
  Status closed_ TFDEAR_GUARDED_BY(mutex_);
  std::unordered_set<int64_t> preparing_ TFDEAR_GUARDED_BY(mutex_);
  int writing_ TFDEAR_GUARDED_BY(mutex_) = 0;  // Examples that have a place and are not there yet.
  std::unordered_set<int64_t> asked_ TFDEAR_GUARDED_BY(mutex_);  // Of other nodes.
  // How many readers want an example that was not in memory.
  std::unordered_map<int64_t, int> wanted_ TFDEAR_GUARDED_BY(mutex_);
  std::deque<int64_t> urgent_ TFDEAR_GUARDED_BY(mutex_);
  std::unordered_map<int64_t, Made> made_ TFDEAR_GUARDED_BY(mutex_);
  ExampleCourse course_ TFDEAR_GUARDED_BY(mutex_);  // What is prepared next.
  // Own examples that failed so far and have not come since, and why.
  std::map<int64_t, Status> failed_ TFDEAR_GUARDED_BY(mutex_);
  std::unordered_set<int64_t> skipped_ TFDEAR_GUARDED_BY(mutex_);
  Progress progress_ TFDEAR_GUARDED_BY(mutex_);

  // Their threads use what is above.
  std::unique_ptr<ExampleServer> server_;
  std::vector<std::unique_ptr<ExampleClient>> clients_;
};

}  // namespace tfdear
