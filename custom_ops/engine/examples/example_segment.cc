// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_segment.h"

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

// Memory is taken by parts of so many bytes, whole large pages: few calls, and little that lies
// idle.
constexpr size_t kLeastGrowth = SharedMemorySegment::kLargePageBytes;
constexpr size_t kMostGrowth = size_t{64} << 20;
// And by so many at least where the end is near.
constexpr size_t kLeastAtEnd = size_t{256} << 10;
constexpr size_t kPage = 4096;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

size_t ExampleSegment::FrontOf(int64_t examples) {
  static_assert(sizeof(Head) <= kSlotAlignment, "places begin behind the head");
  return RoundUp(SharedMemorySegment::kReservedBytes + kSlotAlignment + examples * sizeof(Place),
                 kPage);
}

Status ExampleSegment::Create(int64_t begin, int64_t end, size_t memory_bytes,
                              std::unique_ptr<ExampleSegment>* result) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "other processes read places");
  std::unique_ptr<ExampleSegment> segment(new ExampleSegment(begin, end));
  const size_t front = FrontOf(end - begin);
  TFDEAR_RETURN_IF_ERROR(SharedMemorySegment::Create(front + RoundUp(memory_bytes, kPage),
                                                     SharedMemorySegment::Pages::kSparse,
                                                     &segment->memory_));
  if (!segment->memory_->Populate(0, front)) {
    return Status(StatusCode::kResourceExhausted,
                  TextOf("there are no ", front, " bytes to note where examples are in memory"));
  }
  segment->used_ = segment->populated_ = front;
  segment->limit_ = front + memory_bytes;
  if (memory_bytes == 0) segment->SetFull();
  *result = std::move(segment);
  return Status();
}

Status ExampleSegment::Map(int64_t examples, const std::string& address,
                           std::unique_ptr<ExampleSegment>* result) {
  int64_t begin = 0, end = 0;
  size_t bytes = 0;
  std::istringstream fields(address);
  std::string memory;
  if (!(fields >> begin >> end >> bytes) || !std::getline(fields, memory) || begin < 0 ||
      end < begin || end > examples || bytes < FrontOf(end - begin)) {
    return InvalidArgument("expected the address of a rank's examples, received '", address, "'");
  }
  std::unique_ptr<ExampleSegment> segment(new ExampleSegment(begin, end));
  TFDEAR_RETURN_IF_ERROR(SharedMemorySegment::Map(memory, bytes, SharedMemorySegment::Access::kRead,
                                                  &segment->memory_));
  *result = std::move(segment);
  return Status();
}

std::string ExampleSegment::address() const {
  return TextOf(begin_, " ", end_, " ", memory_->bytes(), " ", memory_->address());
}

ExampleSegment::Place* ExampleSegment::PlaceOf(int64_t example) const {
  char* const places = memory_->data() + SharedMemorySegment::kReservedBytes + kSlotAlignment;
  return reinterpret_cast<Place*>(places) + (example - begin_);
}

bool ExampleSegment::Find(int64_t example, const char** data, size_t* bytes) const {
  const Place& place = *PlaceOf(example);
  const uint64_t offset = place.offset.load(std::memory_order_acquire);
  if (offset <= Place::kFailed) return false;
  *data = memory_->data() + offset;
  *bytes = place.bytes;
  return true;
}

bool ExampleSegment::Failed(int64_t example) const {
  return PlaceOf(example)->offset.load(std::memory_order_acquire) == Place::kFailed;
}

void ExampleSegment::AwaitChange(uint32_t seen, std::chrono::milliseconds time) const {
  const timespec most = {time.count() / 1000, time.count() % 1000 * 1000000};
  syscall(SYS_futex, &head()->changes, FUTEX_WAIT, seen, &most, nullptr, 0);
}

char* ExampleSegment::Allocate(size_t bytes) {
  if (full()) return nullptr;
  const size_t begin = RoundUp(used_, AlignmentOfExample(bytes));
  const size_t end = begin + bytes;
  bool fits = bytes <= limit_ && begin <= limit_ - bytes;
  if (fits && end > populated_) {
    const size_t wanted = std::min(GrownFor(end), memory_->bytes());
    fits = memory_->Populate(populated_, wanted - populated_);
    if (fits) populated_ = wanted;
  }
  if (!fits) {
    // What comes first stays; a small example that would still fit changes nothing.
    SetFull();
    return nullptr;
  }
  used_ = end;
  ++allocated_;
  return memory_->data() + begin;
}

size_t ExampleSegment::GrownFor(size_t end) const {
  const size_t growth = std::clamp(used_ / 64, size_t{1}, kMostGrowth);
  const size_t grown = RoundUp(std::max(end, populated_ + growth), kLeastGrowth);
  // What all take if the others are as large as those so far.
  const size_t front = FrontOf(end_ - begin_);
  const double mean = static_cast<double>(end - front) / static_cast<double>(allocated_ + 1);
  const double all = static_cast<double>(front) + mean * static_cast<double>(end_ - begin_);
  if (static_cast<double>(grown) <= all) return grown;
  const size_t least = std::max(end, populated_ + kLeastAtEnd);
  return RoundUp(std::max(least, static_cast<size_t>(all)), kPage);
}

void ExampleSegment::Publish(int64_t example, const char* data, size_t bytes) {
  Place& place = *PlaceOf(example);
  place.bytes = bytes;
  place.offset.store(data - memory_->data(), std::memory_order_release);
  head()->held.fetch_add(1, std::memory_order_relaxed);
}

void ExampleSegment::Fail(int64_t example) {
  PlaceOf(example)->offset.store(Place::kFailed, std::memory_order_release);
}

void ExampleSegment::Start() { head()->started.store(1, std::memory_order_release); }

void ExampleSegment::SetFull() { head()->full.store(1, std::memory_order_release); }

void ExampleSegment::Announce() {
  head()->changes.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &head()->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tfdear
