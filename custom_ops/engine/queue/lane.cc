// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/queue/lane.h"

#include <algorithm>

namespace tfdear {

std::string WithTicket(const std::string& text, int64_t number) {
  return text + ", ticket " + std::to_string(number);
}

void Lane::Open(std::shared_ptr<Ticket> ticket) {
  Status failure;
  Ticket::Reactions reactions;
  {
    MutexLock lock(mutex_);
    ticket->number_ = next_number_++;
    ticket->lane_of_ticket_ = weak_from_this().lock();
    failure = failure_;
    if (failure.ok()) line_.push_back(ticket);
    // One that waits for nothing, such as the sums of a model without dense weights, would stay.
    if (failure.ok()) AdvanceLocked(&reactions);
  }
  for (auto& react : reactions) react();
  if (!failure.ok()) ticket->Fail(failure);
}

void Lane::AdvanceLocked(Ticket::Reactions* reactions) {
  while (!line_.empty() && line_.front()->Issue(group_.get(), reactions)) line_.pop_front();
}

void Lane::Advance() {
  Ticket::Reactions reactions;
  {
    MutexLock lock(mutex_);
    AdvanceLocked(&reactions);
  }
  for (auto& react : reactions) react();
}

bool Lane::Withdraw(Ticket* ticket) {
  Ticket::Reactions reactions;
  std::shared_ptr<Ticket> withdrawn;  // Destroyed without the mutex.
  {
    MutexLock lock(mutex_);
    auto found = std::find_if(line_.begin(), line_.end(),
                              [&](const auto& waiting) { return waiting.get() == ticket; });
    if (found == line_.end()) return true;  // Issued all of it: nothing to withdraw.
    if (!ticket->Untouched()) return false;
    withdrawn = *found;
    line_.erase(found);
    AdvanceLocked(&reactions);
  }
  for (auto& react : reactions) react();
  withdrawn->Fail(Status(StatusCode::kCancelled, "the step was given up before it sent anything"));
  return true;
}

int64_t Lane::opened() const {
  MutexLock lock(mutex_);
  return next_number_;
}

void Lane::Fail(const Status& cause) {
  std::deque<std::shared_ptr<Ticket>> failed;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = cause;
    failed.swap(line_);
  }
  group_->Abort(cause);
  for (auto& ticket : failed) ticket->Fail(cause);
}

void Lane::Close(const Status& cause) {
  Fail(cause);
  group_->Close();
}

}  // namespace tfdear
