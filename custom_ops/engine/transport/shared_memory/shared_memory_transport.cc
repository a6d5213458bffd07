// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/shared_memory/shared_memory_transport.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

#include "custom_ops/engine/memory/streaming_copy.h"
#include "custom_ops/engine/transport/membership.h"

namespace tfdear {

using Clock = std::chrono::steady_clock;

// What lies in a segment; all of it starts as zeros. Only the segment's rank writes it.
struct SharedMemoryTransport::Header {
  char reserved[SharedMemorySegment::kReservedBytes];
  // A cache line each: they are written at different times, and all peers read them.
  alignas(64) std::atomic<uint32_t> data_bell;  // rung when a message was published
  alignas(64) std::atomic<uint32_t> read_bell;  // rung when a message was read
  alignas(64) std::atomic<uint32_t> parked;     // what this rank sleeps for: ParkedCode(), or 0
  std::atomic<uint32_t> closed;                 // 1: nothing will be published or read any more
};

struct alignas(64) SharedMemoryTransport::Queue {
  std::atomic<uint64_t> published;  // messages so far
};

// How many messages of one publisher this rank has read.
struct alignas(64) SharedMemoryTransport::Progress {
  std::atomic<uint64_t> read[2];  // of those to this rank alone, and of those to all
};

struct SharedMemoryTransport::Slot {
  uint64_t key;
  uint64_t bytes;
  char name[240];  // of the collective, cut off if it is longer; for messages
};

namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "atomics are shared among processes");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "atomics are shared among processes");
static_assert(sizeof(std::atomic<uint32_t>) == 4, "a futex is a 32-bit word");

constexpr const char* kBlobName = "shared_memory";
constexpr size_t kPageBytes = 4096;

// Rings are small on purpose: what is published is read soon.
constexpr size_t kRingBytes = size_t{4} << 20;
constexpr size_t kLargestSlotBytes = 256 * 1024;
constexpr size_t kFewestSlots = 16;

// Messages from this size on do not go through the caches (streaming_copy.h).
constexpr size_t kStreamedBytes = 1024;

// Less than a sleep and its end cost. A rank may have one core, which computation wants.
constexpr std::chrono::microseconds kSpin{20};

// How often a sleeper looks whether its peer's process is still there.
constexpr std::chrono::milliseconds kNap{50};

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

uint32_t ParkedCode(int peer, bool for_data) {
  return 2 * static_cast<uint32_t>(peer) + (for_data ? 1 : 2);
}

uint32_t WakeBit(int rank) { return uint32_t{1} << (rank % 32); }

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The kernel knows a futex by the physical memory behind it, so ranks may map it at different
// addresses, and read only.
void SleepOn(const std::atomic<uint32_t>& word, uint32_t expected, Clock::time_point until,
             uint32_t bits) {
  // steady_clock is CLOCK_MONOTONIC, which is the clock of absolute times here.
  const auto since_epoch = until.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_epoch);
  timespec time;
  time.tv_sec = seconds.count();
  time.tv_nsec =
      std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch - seconds).count();
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &time, nullptr, bits);
}

void WakeOn(const std::atomic<uint32_t>& word, uint32_t bits) {
  syscall(SYS_futex, &word, FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, bits);
}

}  // namespace

SharedMemoryTransport::Layout::Layout(int size) {
  const size_t ranks = size;
  // Every peer may have four messages from this rank under way at once; a rank alone has no peers.
  slots = std::max(kFewestSlots, 4 * (ranks - 1));
  slot_bytes = std::min(kLargestSlotBytes, RoundUp(kRingBytes / slots, kPageBytes));
  if (size == 1) slot_bytes = kPageBytes;
  queues = RoundUp(sizeof(Header), alignof(Queue));
  progresses = queues + (ranks + 1) * sizeof(Queue);
  entries = progresses + ranks * sizeof(Progress);
  slot_headers = RoundUp(entries + (ranks + 1) * slots * sizeof(uint32_t), alignof(Slot));
  data = RoundUp(slot_headers + slots * sizeof(Slot), kPageBytes);
  total = data + slots * slot_bytes;
}

Status SharedMemoryTransport::Create(int rank, int size, std::chrono::milliseconds timeout,
                                     std::unique_ptr<SharedMemoryTransport>* result) {
  TFDEAR_RETURN_IF_ERROR(CheckMembership(rank, size, timeout));
  std::unique_ptr<SharedMemoryTransport> transport(new SharedMemoryTransport(rank, size, timeout));
  TFDEAR_RETURN_IF_ERROR(SharedMemorySegment::Create(transport->layout_.total,
                                                     SharedMemorySegment::Pages::kAllocated,
                                                     &transport->segments_[rank]));
  *result = std::move(transport);
  return Status();
}

SharedMemoryTransport::SharedMemoryTransport(int rank, int size, std::chrono::milliseconds timeout)
    : rank_(rank),
      size_(size),
      timeout_(timeout),
      layout_(size),
      segments_(size),
      uses_(layout_.slots),
      read_(size) {}

SharedMemoryTransport::~SharedMemoryTransport() { Close(); }

SharedMemoryTransport::Header* SharedMemoryTransport::HeaderOf(int rank) const {
  return reinterpret_cast<Header*>(segments_[rank]->data());
}

SharedMemoryTransport::Queue* SharedMemoryTransport::QueueOf(int rank, int reader) const {
  auto* const queues = reinterpret_cast<Queue*>(segments_[rank]->data() + layout_.queues);
  return queues + (reader == kAll ? size_ : reader);
}

SharedMemoryTransport::Progress* SharedMemoryTransport::ProgressOf(int rank, int publisher) const {
  return reinterpret_cast<Progress*>(segments_[rank]->data() + layout_.progresses) + publisher;
}

uint32_t* SharedMemoryTransport::EntryOf(int rank, int reader, uint64_t message) const {
  auto* const entries = reinterpret_cast<uint32_t*>(segments_[rank]->data() + layout_.entries);
  return entries + (reader == kAll ? size_ : reader) * layout_.slots + message % layout_.slots;
}

SharedMemoryTransport::Slot* SharedMemoryTransport::SlotOf(int rank, size_t slot) const {
  return reinterpret_cast<Slot*>(segments_[rank]->data() + layout_.slot_headers) + slot;
}

char* SharedMemoryTransport::DataOf(int rank, size_t slot) const {
  return segments_[rank]->data() + layout_.data + slot * layout_.slot_bytes;
}

std::string SharedMemoryTransport::Listen() const {
  return TextOf(kBlobName, " ", rank_, " ", size_, " ", segments_[rank_]->address());
}

Status SharedMemoryTransport::Map(const std::vector<std::string>& blob_of_rank) {
  TFDEAR_RETURN_IF_ERROR(CheckBlobs(blob_of_rank, size_));
  for (int peer = 0; peer < size_; ++peer) {
    std::istringstream fields(blob_of_rank[peer]);
    std::string name, address;
    int rank = -1, size = -1;
    if (!(fields >> name >> rank >> size) || name != kBlobName || rank != peer || size != size_) {
      return InvalidArgument("expected the shared memory of rank ", peer, " of ", size_,
                             ", received '", blob_of_rank[peer],
                             "'; is this a leftover of an earlier start?");
    }
    if (segments_[peer] != nullptr) continue;  // this rank's, or mapped before
    std::getline(fields >> std::ws, address);
    const Status mapped = SharedMemorySegment::Map(
        address, layout_.total, SharedMemorySegment::Access::kRead, &segments_[peer]);
    if (!mapped.ok()) {
      return failure_.Fail(Status(mapped.code(), "no shared memory with " + failure_.NameOf(peer) +
                                                     ": " + mapped.message()),
                           peer);
    }
  }
  return failure_.status();
}

Status SharedMemoryTransport::Begin(std::string name, uint64_t key) {
  name_ = std::move(name);
  key_ = key;
  return failure_.status();
}

uint64_t SharedMemoryTransport::ReadBy(int reader, bool to_all) const {
  return ProgressOf(reader, rank_)->read[to_all].load(std::memory_order_acquire);
}

Status SharedMemoryTransport::Publish(int reader, const void* data, size_t bytes) {
  const size_t index = next_slot_;
  Use& use = uses_[index];
  if (use.end > 0) {
    const bool to_all = use.reader == kAll;
    const int first = to_all ? 0 : use.reader;
    const int last = to_all ? size_ - 1 : use.reader;
    for (int peer = first; peer <= last; ++peer) {
      if (peer == rank_) continue;
      TFDEAR_RETURN_IF_ERROR(
          Await(peer, /*for_data=*/false, [&] { return ReadBy(peer, to_all) >= use.end; }));
    }
  } else if (failure_.failed()) {
    return failure_.status();
  }
  char* const target = DataOf(rank_, index);
  if (bytes >= kStreamedBytes) {
    StreamingCopy(target, static_cast<const char*>(data), bytes);
  } else if (bytes > 0) {
    std::memcpy(target, data, bytes);
  }
  Slot* const slot = SlotOf(rank_, index);
  slot->key = key_;
  slot->bytes = bytes;
  const size_t length = std::min(name_.size(), sizeof(slot->name) - 1);
  std::memcpy(slot->name, name_.data(), length);
  slot->name[length] = '\0';
  Queue* const queue = QueueOf(rank_, reader);
  const uint64_t message = queue->published.load(std::memory_order_relaxed);
  *EntryOf(rank_, reader, message) = static_cast<uint32_t>(index);
  queue->published.store(message + 1, std::memory_order_release);
  use.reader = reader;
  use.end = message + 1;
  next_slot_ = (index + 1) % layout_.slots;
  bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  Wake(reader, /*for_data=*/true);
  return Status();
}

const SharedMemoryTransport::Slot* SharedMemoryTransport::MessageOf(int peer, bool to_all) const {
  const int reader = to_all ? kAll : rank_;
  const uint64_t next = read_[peer][to_all];
  if (QueueOf(peer, reader)->published.load(std::memory_order_acquire) == next) return nullptr;
  // It is the peer's memory: whatever stands there, nothing outside of the segment is read.
  return SlotOf(peer, *EntryOf(peer, reader, next) % layout_.slots);
}

Status SharedMemoryTransport::Receive(int peer, bool to_all, size_t bytes, const char** data) {
  const Slot* slot = nullptr;
  TFDEAR_RETURN_IF_ERROR(Await(peer, /*for_data=*/true, [&] {
    slot = MessageOf(peer, to_all);
    return slot != nullptr && slot->key == key_ && slot->bytes == bytes;
  }));
  *data = DataOf(peer, slot - SlotOf(peer, 0));
  return Status();
}

void SharedMemoryTransport::Release(int peer, bool to_all) {
  ProgressOf(rank_, peer)->read[to_all].store(++read_[peer][to_all], std::memory_order_release);
  Wake(peer, /*for_data=*/false);
}

Status SharedMemoryTransport::AwaitReaders() {
  const uint64_t published = QueueOf(rank_, kAll)->published.load(std::memory_order_relaxed);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    TFDEAR_RETURN_IF_ERROR(Await(peer, /*for_data=*/false,
                                 [&] { return ReadBy(peer, /*to_all=*/true) >= published; }));
  }
  return Status();
}

void SharedMemoryTransport::Wake(int reader, bool for_data) {
  Header* const header = HeaderOf(rank_);
  std::atomic<uint32_t>& bell = for_data ? header->data_bell : header->read_bell;
  bell.fetch_add(1);
  uint32_t bits = 0;
  for (int peer = reader == kAll ? 0 : reader; peer <= (reader == kAll ? size_ - 1 : reader);
       ++peer) {
    const bool sleeps = peer != rank_ && segments_[peer] != nullptr &&
                        HeaderOf(peer)->parked.load() == ParkedCode(rank_, for_data);
    if (sleeps) bits |= WakeBit(peer);
  }
  if (bits != 0) WakeOn(bell, bits);
}

template <typename Ready>
Status SharedMemoryTransport::Await(int peer, bool for_data, const Ready& ready) {
  if (failure_.failed()) return failure_.status();
  if (ready()) return Status();
  waiting_for_.store(peer, std::memory_order_relaxed);
  const Clock::time_point start = Clock::now();
  Status status;
  bool done = false;
  while (!done && Clock::now() - start < kSpin) {
    for (int i = 0; i < 16 && !done; ++i) {
      Pause();
      done = ready();
    }
  }
  std::atomic<uint32_t>& parked = HeaderOf(rank_)->parked;
  const Header& header = *HeaderOf(peer);
  const std::atomic<uint32_t>& bell = for_data ? header.data_bell : header.read_bell;
  bool look_for_process = false;
  while (!done) {
    parked.store(ParkedCode(peer, for_data));
    const uint32_t seen = bell.load();
    if (failure_.failed()) {
      status = failure_.status();
      break;
    }
    // Asked before ready(): what the peer did before its end still counts.
    const bool ended =
        header.closed.load() != 0 || (look_for_process && segments_[peer]->OwnerEnded());
    if (ready()) break;
    const Clock::time_point now = Clock::now();
    if (ended) {
      status = failure_.PeerClosed(name_, peer, "shared memory");
    } else if (now - start >= timeout_) {
      status = Silent(peer, for_data);
    }
    if (!status.ok()) break;
    const Clock::time_point wake = now + kNap;
    SleepOn(bell, seen, std::min(wake, start + timeout_), WakeBit(rank_));
    look_for_process = Clock::now() >= wake;
  }
  if (!done) parked.store(0);
  waiting_for_.store(-1, std::memory_order_relaxed);
  return status;
}

Status SharedMemoryTransport::Silent(int peer, bool for_data) {
  std::string instead;
  for (bool to_all : {false, true}) {
    const Slot* const other = for_data ? MessageOf(peer, to_all) : nullptr;
    if (other != nullptr && other->key != key_) {
      instead = TextOf(" but ", other->bytes, " bytes of ",
                       std::string(other->name, strnlen(other->name, sizeof(other->name))));
      break;
    }
  }
  return failure_.PeerSilent(name_, peer, /*sending=*/!for_data, timeout_, instead);
}

void SharedMemoryTransport::Abort(const Status& cause) {
  failure_.Abort(cause);
  Close();
  // This rank's own thread may be about to sleep on a bell that nobody rings any more.
  while (const uint32_t code = HeaderOf(rank_)->parked.load()) {
    const bool for_data = code % 2 == 1;
    const Header& header = *HeaderOf((code - (for_data ? 1 : 2)) / 2);
    WakeOn(for_data ? header.data_bell : header.read_bell, WakeBit(rank_));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void SharedMemoryTransport::Close() {
  if (segments_[rank_] == nullptr) return;
  HeaderOf(rank_)->closed.store(1);
  Wake(kAll, /*for_data=*/true);
  Wake(kAll, /*for_data=*/false);
}

}  // namespace tfdear
