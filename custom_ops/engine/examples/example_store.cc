// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_store.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <sstream>
#include <utility>

#include "custom_ops/engine/base/errors.h"

namespace tfdear {
namespace {

using Clock = std::chrono::steady_clock;

// Memory is taken by parts of so many bytes: few calls, and little that lies idle.
constexpr size_t kLeastGrowth = size_t{1} << 20;
constexpr size_t kMostGrowth = size_t{64} << 20;
constexpr size_t kPage = 4096;
// Whoever waits for another rank looks so often whether that has ended.
constexpr std::chrono::milliseconds kLook{200};
// For so long a rank may be late to prepare its examples.
constexpr std::chrono::seconds kLate{10};

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

int64_t MicrosSince(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
}

}  // namespace

Status ExampleStore::Create(const Options& options, std::shared_ptr<ExampleStore>* result) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "other processes read places");
  std::shared_ptr<ExampleStore> store(new ExampleStore(options));
  const size_t places = (options.own_end - options.own_begin) * sizeof(Place);
  const size_t front =
      RoundUp(SharedMemorySegment::kReservedBytes + kSlotAlignment + places, kPage);
  TFDEAR_RETURN_IF_ERROR(SharedMemorySegment::Create(front + RoundUp(options.memory_bytes, kPage),
                                                     SharedMemorySegment::Pages::kSparse,
                                                     &store->segment_));
  if (!store->segment_->Populate(0, front)) {
    return Status(StatusCode::kResourceExhausted,
                  TextOf("there are no ", front, " bytes to note where examples are in memory"));
  }
  MutexLock lock(store->mutex_);
  store->used_ = store->populated_ = front;
  store->limit_ = front + options.memory_bytes;
  if (options.memory_bytes == 0) {
    store->progress_.full = true;
    HeadOf(*store->segment_)->full.store(1, std::memory_order_release);
  }
  *result = std::move(store);
  return Status();
}

ExampleStore::Head* ExampleStore::HeadOf(const SharedMemorySegment& segment) {
  return reinterpret_cast<Head*>(segment.data() + SharedMemorySegment::kReservedBytes);
}

ExampleStore::Place* ExampleStore::PlacesOf(const SharedMemorySegment& segment) {
  static_assert(sizeof(Head) <= kSlotAlignment, "places begin behind the head");
  return reinterpret_cast<Place*>(segment.data() + SharedMemorySegment::kReservedBytes +
                                  kSlotAlignment);
}

void ExampleStore::Announce(Head* head) {
  head->changes.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &head->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::string ExampleStore::address() const {
  return TextOf(options_.own_begin, " ", options_.own_end, " ", segment_->bytes(), " ",
                segment_->address());
}

Status ExampleStore::Map(int rank, const std::string& address) {
  Peer peer;
  peer.rank = rank;
  size_t bytes = 0;
  std::istringstream fields(address);
  std::string segment;
  if (!(fields >> peer.begin >> peer.end >> bytes) || !std::getline(fields, segment) ||
      peer.begin < 0 || peer.end < peer.begin || peer.end > options_.examples ||
      bytes < SharedMemorySegment::kReservedBytes + kSlotAlignment +
                  (peer.end - peer.begin) * sizeof(Place)) {
    return InvalidArgument("expected the address of rank ", rank, "'s examples, received '",
                           address, "'");
  }
  TFDEAR_RETURN_IF_ERROR(
      SharedMemorySegment::Map(segment, bytes, SharedMemorySegment::Access::kRead, &peer.segment));
  const auto place =
      std::upper_bound(peers_.begin(), peers_.end(), peer.begin,
                       [](int64_t begin, const Peer& other) { return begin < other.begin; });
  peers_.insert(place, std::move(peer));
  return Status();
}

const ExampleStore::Peer* ExampleStore::PeerOf(int64_t example) const {
  const auto next =
      std::upper_bound(peers_.begin(), peers_.end(), example,
                       [](int64_t number, const Peer& peer) { return number < peer.begin; });
  if (next == peers_.begin()) return nullptr;
  const Peer& peer = *std::prev(next);
  return example < peer.end ? &peer : nullptr;
}

bool ExampleStore::Find(int64_t example, Record* record) const {
  const SharedMemorySegment* segment = segment_.get();
  int64_t begin = options_.own_begin;
  if (!Owns(example)) {
    const Peer* const peer = PeerOf(example);
    if (peer == nullptr) return false;
    segment = peer->segment.get();
    begin = peer->begin;
  }
  const Place& place = PlacesOf(*segment)[example - begin];
  const uint64_t offset = place.offset.load(std::memory_order_acquire);
  if (offset <= Place::kFailed) return false;
  *record = {segment->data() + offset, place.bytes, nullptr};
  return true;
}

void ExampleStore::ReadFrom(bool shuffle, uint64_t seed, int64_t epoch, int64_t position) {
  MutexLock lock(mutex_);
  if (has_course_ || options_.examples == 0) return;
  has_course_ = true;
  course_ = {shuffle, seed, epoch, std::min(position, options_.examples)};
  HeadOf(*segment_)->started.store(1, std::memory_order_release);
  to_prepare_.notify_all();
}

bool ExampleStore::InHandLocked(int64_t example) const {
  return preparing_.count(example) > 0 || made_.count(example) > 0;
}

int64_t ExampleStore::NextOnCourseLocked() {
  if (!has_course_ || progress_.full) return -1;
  for (; passed_ < options_.examples; ++passed_) {
    if (course_.position == options_.examples) {
      ++course_.epoch;
      course_.position = 0;
      order_ = nullptr;
    }
    if (order_ == nullptr) {
      order_ = std::make_unique<ExampleOrder>(course_.seed, course_.epoch, options_.examples);
    }
    const int64_t position = course_.position++;
    const int64_t example = course_.shuffle ? static_cast<int64_t>(order_->At(position)) : position;
    if (!Owns(example) || InHandLocked(example)) continue;
    // What failed is tried again only for those who want it.
    if (PlaceOf(example).offset.load(std::memory_order_relaxed) != Place::kNotYet) continue;
    passed_ = 0;
    return example;
  }
  return -1;
}

std::vector<int64_t> ExampleStore::Next(size_t most, size_t most_in_order) {
  std::vector<int64_t> examples;
  MutexLock lock(mutex_);
  while (closed_.ok()) {
    const bool in_order = urgent_.empty() && !course_.shuffle;
    while (examples.size() < (in_order ? most_in_order : most)) {
      int64_t example = -1;
      if (!urgent_.empty()) {
        example = urgent_.front();
        urgent_.pop_front();
        // It may have come, or not be wanted any more.
        Record record;
        if (wanted_.count(example) == 0 || InHandLocked(example) || Find(example, &record)) {
          continue;
        }
      } else {
        example = NextOnCourseLocked();
      }
      if (example < 0) break;
      preparing_.insert(example);
      examples.push_back(example);
    }
    if (!examples.empty()) break;
    lock.Wait(&to_prepare_);
  }
  return examples;
}

uint64_t ExampleStore::AllocateLocked(size_t bytes) {
  const size_t begin = RoundUp(used_, AlignmentOfExample(bytes));
  if (bytes > limit_ || begin > limit_ - bytes) return 0;
  const size_t end = begin + bytes;
  if (end > populated_) {
    const size_t growth = std::clamp(used_ / 32, kLeastGrowth, kMostGrowth);
    const size_t wanted =
        std::min(RoundUp(std::max(end, populated_ + growth), kPage), segment_->bytes());
    if (!segment_->Populate(populated_, wanted - populated_)) return 0;
    populated_ = wanted;
  }
  used_ = end;
  return begin;
}

void ExampleStore::HandOutLocked(int64_t example, Made made) {
  preparing_.erase(example);
  if (wanted_.count(example) == 0) return;
  made_[example] = std::move(made);
  there_.notify_all();
}

void ExampleStore::Put(int64_t example, size_t bytes, const std::function<void(char*)>& write) {
  Head* const head = HeadOf(*segment_);
  uint64_t offset = 0;
  {
    MutexLock lock(mutex_);
    ++progress_.prepared;
    progress_.prepared_bytes += bytes;
    // What comes first stays; a small example that would still fit changes nothing.
    if (Owns(example) && !PlaceOf(example).has_record() && !progress_.full) {
      offset = AllocateLocked(bytes);
      if (offset == 0) {
        progress_.full = true;
        head->full.store(1, std::memory_order_release);
        there_.notify_all();
      }
    }
  }
  if (offset == 0) {
    auto copy = std::make_shared<std::vector<char>>(bytes);
    write(copy->data());
    {
      MutexLock lock(mutex_);
      HandOutLocked(example, {Status(), std::move(copy)});
    }
    return Announce(head);
  }
  write(segment_->data() + offset);
  {
    MutexLock lock(mutex_);
    PlaceOf(example).bytes = bytes;
    PlaceOf(example).offset.store(offset, std::memory_order_release);
    preparing_.erase(example);
    wanted_.erase(example);  // Whoever wants it finds it.
    failed_.erase(example);
    ++progress_.held;
    head->held.store(progress_.held, std::memory_order_relaxed);
    progress_.held_bytes += bytes;
    there_.notify_all();
  }
  Announce(head);
}

void ExampleStore::Fail(int64_t example, const Status& status) {
  MutexLock lock(mutex_);
  if (Owns(example)) {
    PlaceOf(example).offset.store(Place::kFailed, std::memory_order_release);
    failed_.insert(example);
    if (first_failure_.ok()) first_failure_ = status;
    there_.notify_all();
  }
  HandOutLocked(example, {status, nullptr});
  Announce(HeadOf(*segment_));
}

void ExampleStore::DemandLocked(int64_t example) {
  if (InHandLocked(example)) return;
  urgent_.push_back(example);
  to_prepare_.notify_all();
}

void ExampleStore::Want(int64_t example) {
  Record record;
  if (Find(example, &record)) return;
  MutexLock lock(mutex_);
  if (Find(example, &record)) return;
  ++wanted_[example];
  const Peer* const peer = PeerOf(example);
  if (peer == nullptr || HeadOf(*peer->segment)->full.load(std::memory_order_acquire) != 0) {
    DemandLocked(example);
  }
}

void ExampleStore::GiveUp(int64_t example) {
  MutexLock lock(mutex_);
  const auto found = wanted_.find(example);
  if (found == wanted_.end() || --found->second > 0) return;
  wanted_.erase(found);
  made_.erase(example);
}

bool ExampleStore::ComesFrom(const Peer& peer, int64_t example) const {
  const Place& place = PlacesOf(*peer.segment)[example - peer.begin];
  return place.offset.load(std::memory_order_acquire) != Place::kFailed &&
         HeadOf(*peer.segment)->full.load(std::memory_order_acquire) == 0 &&
         !peer.segment->OwnerEnded();
}

Status ExampleStore::AwaitPeer(const Peer& peer, int64_t example,
                               const std::function<bool()>& cancelled, bool* comes) {
  Head* const head = HeadOf(*peer.segment);
  auto since = Clock::now();
  uint32_t last = head->changes.load(std::memory_order_acquire);
  Record record;
  while (true) {
    const uint32_t changes = head->changes.load(std::memory_order_acquire);
    *comes = Find(example, &record);
    if (*comes || !ComesFrom(peer, example)) return Status();
    if (changes != last) since = Clock::now();
    last = changes;
    const auto idle = Clock::now() - since;
    const bool late = head->started.load(std::memory_order_acquire) == 0 && idle > kLate;
    if (late) return Status();
    if (idle > options_.timeout) {
      return Status(StatusCode::kDeadlineExceeded,
                    TextOf("rank ", peer.rank, ", which prepares example ", example,
                           ", has prepared nothing for ",
                           std::chrono::duration_cast<std::chrono::seconds>(idle).count(), " s"));
    }
    {
      MutexLock lock(mutex_);
      if (!closed_.ok()) return closed_;
    }
    if (cancelled()) return Status(StatusCode::kCancelled, "the iterator was given up");
    const timespec look = {0, std::chrono::nanoseconds(kLook).count()};
    syscall(SYS_futex, &head->changes, FUTEX_WAIT, changes, &look, nullptr, 0);
  }
}

Status ExampleStore::Take(int64_t example, const std::function<bool()>& cancelled, Record* record) {
  if (Find(example, record)) {
    hits_.fetch_add(1, std::memory_order_relaxed);
    return Status();
  }
  const auto begin = Clock::now();
  Status status;
  bool comes = false;
  if (const Peer* const peer = PeerOf(example)) {
    status = AwaitPeer(*peer, example, cancelled, &comes);
  }
  {
    MutexLock lock(mutex_);
    ++progress_.misses;
    // What no other rank brings is prepared here.
    if (status.ok() && !comes) DemandLocked(example);
    while (status.ok() && !Find(example, record)) {
      const auto found = made_.find(example);
      if (found != made_.end()) {
        status = found->second.status;
        if (status.ok()) {
          *record = {found->second.bytes->data(), found->second.bytes->size(), found->second.bytes};
        }
        break;
      }
      if (!closed_.ok()) {
        status = closed_;
      } else if (cancelled()) {
        status = Status(StatusCode::kCancelled, "the iterator was given up");
      } else {
        lock.Wait(&there_);
      }
    }
    progress_.waited_micros += MicrosSince(begin);
  }
  GiveUp(example);
  return status;
}

void ExampleStore::Wake() {
  MutexLock lock(mutex_);
  there_.notify_all();
}

Status ExampleStore::AwaitFilled(std::chrono::milliseconds time, bool* filled) {
  const auto deadline = Clock::now() + time;
  MutexLock lock(mutex_);
  while (true) {
    const int64_t done = progress_.held + static_cast<int64_t>(failed_.size());
    *filled = progress_.full || done == options_.own_end - options_.own_begin;
    if (*filled && !failed_.empty()) return first_failure_;
    if (*filled || Clock::now() >= deadline) return Status();
    if (!closed_.ok()) return closed_;
    lock.WaitUntil(&there_, deadline);
  }
}

void ExampleStore::Close(const Status& status) {
  MutexLock lock(mutex_);
  if (closed_.ok()) closed_ = status;
  to_prepare_.notify_all();
  there_.notify_all();
}

ExampleStore::Progress ExampleStore::progress() const {
  MutexLock lock(mutex_);
  Progress progress = progress_;
  progress.hits = hits_.load(std::memory_order_relaxed);
  progress.owned = options_.own_end - options_.own_begin;
  progress.held_on_node = progress.held;
  for (const Peer& peer : peers_) {
    progress.held_on_node += HeadOf(*peer.segment)->held.load(std::memory_order_relaxed);
  }
  return progress;
}

}  // namespace tfdear
