// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/right_of_way.h"

#include <algorithm>

namespace tfdear {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

RightOfWay::Urgent::Urgent(RightOfWay* right_of_way) : right_of_way_(right_of_way) {
  MutexLock lock(right_of_way_->mutex_);
  ++right_of_way_->urgent_;
}

RightOfWay::Urgent::~Urgent() {
  MutexLock lock(right_of_way_->mutex_);
  if (--right_of_way_->urgent_ == 0) right_of_way_->changed_.notify_all();
}

AroundExchange RightOfWay::Around(RightOfWay* right_of_way, CollectiveBackend* backend,
                                  const Signature& signature, uint64_t sequence) {
  if (right_of_way == nullptr) return nullptr;
  return [=, &signature](const std::function<Status()>& exchange) {
    // Nothing gives way while a rank is still on its way here.
    TFDEAR_RETURN_IF_ERROR(backend->Barrier(signature, sequence));
    const Urgent urgent(right_of_way);
    return exchange();
  };
}

void RightOfWay::GiveWay() {
  MutexLock lock(mutex_);
  if (urgent_ == 0) return;
  const auto deadline = Clock::now() + kLongest;
  while (urgent_ > 0 && Clock::now() < deadline) lock.WaitUntil(&changed_, deadline);
}

void RightOfWay::DenseBegan(int64_t ticket) {
  MutexLock lock(mutex_);
  dense_.insert(ticket);
}

void RightOfWay::DenseEnded(int64_t ticket) {
  MutexLock lock(mutex_);
  dense_.erase(ticket);
  forward_.erase(ticket);
  for (Waiting& waiting : held_) waiting.dense.erase(ticket);
  ReleaseIf([](const Waiting& waiting) { return waiting.next_arrived && waiting.dense.empty(); });
}

void RightOfWay::WaitForDense() {
  const auto deadline = Clock::now() + kLongest;
  MutexLock lock(mutex_);
  const int64_t releases = releases_;
  while (!forward_.empty() && releases_ == releases && Clock::now() < deadline) {
    lock.WaitUntil(&changed_, deadline);
  }
}

void RightOfWay::NextArrived(Waiting* waiting) {
  if (waiting->next_arrived) return;
  waiting->next_arrived = true;
  waiting->dense = forward_;
}

bool RightOfWay::AreOf(int64_t variable, const IdPlaces& ids, const Rows& rows) {
  for (const auto& [of_table, held] : rows.tables) {
    if (of_table != variable) continue;
    for (int32_t id : held.ids) {
      if (ids.Contains(id)) return true;
    }
  }
  return false;
}

void RightOfWay::Add(Held rows) {
  MutexLock lock(mutex_);
  // Who wanted them before they were ready still waits for them.
  if (is_wanted_ != nullptr && is_wanted_(rows->writes)) return;
  for (const Wanted& wanted : wanted_) {
    if (AreOf(wanted.variable, IdPlaces(wanted.ids), *rows)) return;
  }
  Waiting waiting{std::move(rows), false, {}};
  if (arrived_ > waiting.rows->lookup) NextArrived(&waiting);
  if (!waiting.next_arrived || !waiting.dense.empty()) held_.push_back(std::move(waiting));
}

void RightOfWay::WaitFor(const Held& rows) {
  const auto deadline = Clock::now() + kLongest;
  MutexLock lock(mutex_);
  const auto of_rows = [&](const Waiting& waiting) { return waiting.rows == rows; };
  while (std::any_of(held_.begin(), held_.end(), of_rows) && Clock::now() < deadline) {
    lock.WaitUntil(&changed_, deadline);
  }
  held_.erase(std::remove_if(held_.begin(), held_.end(), of_rows), held_.end());
}

template <typename Predicate>
void RightOfWay::ReleaseIf(Predicate may_go) {
  held_.erase(std::remove_if(held_.begin(), held_.end(), may_go), held_.end());
  changed_.notify_all();
}

void RightOfWay::LookupArrived(int64_t lookup) {
  MutexLock lock(mutex_);
  if (lookup > arrived_) {
    arrived_ = lookup;
    forward_ = dense_;
  }
  wanted_.erase(std::remove_if(wanted_.begin(), wanted_.end(),
                               [&](const Wanted& wanted) { return wanted.lookup <= lookup; }),
                wanted_.end());
  for (Waiting& waiting : held_) {
    if (waiting.rows->lookup < lookup) NextArrived(&waiting);
  }
  ReleaseIf([](const Waiting& waiting) { return waiting.next_arrived && waiting.dense.empty(); });
}

void RightOfWay::RowsWanted(int64_t lookup, int64_t variable, std::vector<int32_t> ids) {
  MutexLock lock(mutex_);
  if (!held_.empty()) {
    const IdPlaces places(ids);
    ReleaseIf([&](const Waiting& waiting) { return AreOf(variable, places, *waiting.rows); });
  }
  wanted_.push_back({lookup, variable, std::move(ids)});
}

void RightOfWay::VariableWanted(int64_t variable) {
  MutexLock lock(mutex_);
  ReleaseIf([&](const Waiting& waiting) {
    const std::vector<int64_t>& writes = waiting.rows->writes;
    return std::find(writes.begin(), writes.end(), variable) != writes.end();
  });
}

void RightOfWay::Release() {
  MutexLock lock(mutex_);
  ++releases_;
  ReleaseIf([](const Waiting&) { return true; });
}

void RightOfWay::Reset() {
  MutexLock lock(mutex_);
  held_.clear();
  wanted_.clear();
  arrived_ = -1;
  dense_.clear();
  forward_.clear();
  changed_.notify_all();
}

}  // namespace tfdear
