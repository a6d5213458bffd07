// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <utility>
#include <vector>

namespace tfdear {

// Sockets that are connected to the peers of a group, and closed with this object unless they were
// taken out of it.
class Sockets {
 public:
  explicit Sockets(int size) : of_peer_(size) {}
  ~Sockets() {
    for (const std::vector<int>& sockets : of_peer_) {
      for (int socket : sockets) close(socket);
    }
  }
  Sockets(Sockets&& other) noexcept : of_peer_(std::exchange(other.of_peer_, {})) {}
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  int size() const { return static_cast<int>(of_peer_.size()); }
  // Both sides add those that connect them in the same order.
  void Add(int peer, int socket) { of_peer_[peer].push_back(socket); }
  const std::vector<int>& Of(int peer) const { return of_peer_[peer]; }
  std::vector<int> Take(int peer) { return std::exchange(of_peer_[peer], {}); }

 private:
  std::vector<std::vector<int>> of_peer_;
};

}  // namespace tfdear
