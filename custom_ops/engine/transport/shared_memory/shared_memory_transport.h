// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/signature.h"
#include "custom_ops/engine/memory/shared_memory_segment.h"
#include "custom_ops/engine/transport/failure_state.h"

namespace tfdear {

// Messages among ranks of one node, with deadlines and Abort(). Used from one thread at a time;
// Abort() and the getters are safe from any thread.
//
// [Note: rings in shared memory]
// Every rank has one segment, which it writes and all others read. Most of it is a ring of slots. A
// rank publishes a message by copying it to the next slot and putting the slot's number into a
// queue: the queue of one reader, or the queue that all others read, so that what goes to all is
// copied once. A reader sums or copies straight from the slot and then counts the message as read,
// in its own segment. A slot is used again when those that its last message was for have read it.
//
// Both sides of a queue know what comes next. Every message bears the key of its collective and its
// length; one with another key or length is not taken: ranks that call different collectives wait
// for each other, as over other transports, and the deadline's message says what was there instead.
//
// [Note: waits on shared memory]
// A wait looks again and again for some microseconds, then sleeps in a futex on the bell of the
// peer that it waits for. A peer rings its bell after every change, and asks the kernel to wake
// somebody only where `parked` says so. Sequentially consistent operations make sure that either
// the sleeper sees the change or the peer sees the sleeper. Sleeps are cut into pieces, after each
// of which the sleeper looks whether the peer's process is still there.
class SharedMemoryTransport {
 public:
  static Status Create(int rank, int size, std::chrono::milliseconds timeout,
                       std::unique_ptr<SharedMemoryTransport>* result);
  ~SharedMemoryTransport();
  SharedMemoryTransport(const SharedMemoryTransport&) = delete;
  SharedMemoryTransport& operator=(const SharedMemoryTransport&) = delete;

  std::string Listen() const;
  // Maps the segments of all peers, without waiting for anybody.
  Status Map(const std::vector<std::string>& blob_of_rank);
  // To be called when all peers have mapped this rank's segment.
  void Unpublish() { segments_[rank_]->Unpublish(); }

  // Starts a collective, of which all messages until the next one are; its name for messages, and
  // its key, equal on all ranks.
  Status Begin(std::string name, uint64_t key);

  // Reader of messages for everybody.
  static constexpr int kAll = -1;

  // Copies a message of at most slot_bytes() to `reader`, or to all. Waits for a slot.
  Status Publish(int reader, const void* data, size_t bytes);

  // Waits for the next message of `peer`, to this rank alone or to all, of this length; `*data` is
  // valid until Release() with the same arguments.
  Status Receive(int peer, bool to_all, size_t bytes, const char** data);
  void Release(int peer, bool to_all);
  // Waits until everybody has read all that was published to all.
  Status AwaitReaders();

  void Abort(const Status& cause);

  // Slots, and so messages that can be under way at once, and the longest message.
  size_t slots() const { return layout_.slots; }
  size_t slot_bytes() const { return layout_.slot_bytes; }

  int rank() const { return rank_; }
  int size() const { return size_; }
  int waiting_for() const { return waiting_for_.load(std::memory_order_relaxed); }
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  // Counts what others take straight from this rank's memory.
  void CountSent(size_t bytes) { bytes_sent_.fetch_add(bytes, std::memory_order_relaxed); }
  FailureState* failure() { return &failure_; }

 private:
  struct Header;
  struct Queue;
  struct Progress;
  struct Slot;
  // Where the parts of a segment lie: the same on all ranks.
  struct Layout {
    explicit Layout(int size);
    size_t slots, slot_bytes;
    size_t queues, progresses, entries, slot_headers, data, total;  // offsets, in bytes
  };
  // What a slot was last used for.
  struct Use {
    int reader = 0;
    uint64_t end = 0;  // messages of the reader's queue, this one included; 0: never used
  };

  SharedMemoryTransport(int rank, int size, std::chrono::milliseconds timeout);

  // Parts of rank's segment; reader kAll is the queue for everybody.
  Header* HeaderOf(int rank) const;
  Queue* QueueOf(int rank, int reader) const;
  Progress* ProgressOf(int rank, int publisher) const;
  uint32_t* EntryOf(int rank, int reader, uint64_t message) const;
  Slot* SlotOf(int rank, size_t slot) const;
  char* DataOf(int rank, size_t slot) const;

  uint64_t ReadBy(int reader, bool to_all) const;
  const Slot* MessageOf(int peer, bool to_all) const;

  template <typename Ready>
  Status Await(int peer, bool for_data, const Ready& ready);
  Status Silent(int peer, bool for_data);
  void Wake(int reader, bool for_data);
  void Close();

  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  const Layout layout_;
  std::vector<std::unique_ptr<SharedMemorySegment>> segments_;  // by rank

  // Of the thread that runs collectives.
  std::string name_;
  uint64_t key_ = 0;
  size_t next_slot_ = 0;
  std::vector<Use> uses_;                      // by slot
  std::vector<std::array<uint64_t, 2>> read_;  // as in Progress, by publisher

  FailureState failure_;
  std::atomic<int> waiting_for_{-1};
  std::atomic<uint64_t> bytes_sent_{0};
};

}  // namespace tfdear
