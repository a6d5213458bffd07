// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/held_back.h"

#include <algorithm>

namespace tfdear {

void HeldBack::Add(Held rows) {
  MutexLock lock(mutex_);
  if (arrived_ <= rows->lookup) held_.push_back(std::move(rows));
}

void HeldBack::WaitFor(const Held& rows) {
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  MutexLock lock(mutex_);
  auto is_held = [&] { return std::find(held_.begin(), held_.end(), rows) != held_.end(); };
  while (is_held() && std::chrono::steady_clock::now() < deadline) {
    lock.WaitUntil(&changed_, deadline);
  }
  held_.erase(std::remove(held_.begin(), held_.end(), rows), held_.end());
}

template <typename Predicate>
void HeldBack::ReleaseIf(Predicate may_go) {
  held_.erase(std::remove_if(held_.begin(), held_.end(), may_go), held_.end());
  changed_.notify_all();
}

void HeldBack::LookupArrived(int64_t lookup) {
  MutexLock lock(mutex_);
  arrived_ = std::max(arrived_, lookup);
  ReleaseIf([&](const Held& rows) { return rows->lookup < lookup; });
}

void HeldBack::RowsWanted(int64_t variable, const GatheredIds& ids) {
  MutexLock lock(mutex_);
  if (held_.empty()) return;
  const IdPlaces wanted(ids.ids);
  ReleaseIf([&](const Held& rows) {
    for (const auto& [of_table, held] : rows->tables) {
      if (of_table != variable) continue;
      for (int32_t id : held.ids) {
        if (wanted.Contains(id)) return true;
      }
    }
    return false;
  });
}

void HeldBack::VariableWanted(int64_t variable) {
  MutexLock lock(mutex_);
  ReleaseIf([&](const Held& rows) {
    return std::find(rows->writes.begin(), rows->writes.end(), variable) != rows->writes.end();
  });
}

void HeldBack::Release() {
  MutexLock lock(mutex_);
  ReleaseIf([](const Held&) { return true; });
}

}  // namespace tfdear
