// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/cc/testing.h"

namespace tfdear {

// Stands between two sockets, sees what passes, and may change it.
class Tap {
 public:
  // `change(data, bytes, before)` gets what comes from `first`; `before`: bytes that have passed
  // already.
  using Change = std::function<void(char* data, size_t bytes, size_t before)>;

  explicit Tap(Change change = nullptr) : change_(std::move(change)) {
    std::tie(first, inner_[0]) = ConnectedSockets();
    std::tie(inner_[1], second) = ConnectedSockets();
    thread_ = std::thread([this] { Run(); });
  }
  ~Tap() {
    stopping_ = true;
    thread_.join();
    for (int socket : inner_) close(socket);
  }

  std::string seen() const { return seen_; }  // Once it has ended, or nobody sends.

  int first = -1;
  int second = -1;

 private:
  void Run() {
    std::array<bool, 2> open = {true, true};
    std::vector<char> data(1 << 16);
    while (!stopping_ && (open[0] || open[1])) {
      std::array<pollfd, 2> waiting = {
          {{open[0] ? inner_[0] : -1, POLLIN, 0}, {open[1] ? inner_[1] : -1, POLLIN, 0}}};
      poll(waiting.data(), waiting.size(), 20);
      for (int side : {0, 1}) {
        if (waiting[side].revents == 0) continue;
        const ssize_t read = recv(inner_[side], data.data(), data.size(), 0);
        if (read <= 0) {
          open[side] = false;
          shutdown(inner_[1 - side], SHUT_WR);
          continue;
        }
        if (side == 0) {
          if (change_) change_(data.data(), read, passed_);
          passed_ += read;
        }
        seen_.append(data.data(), std::min<size_t>(read, 4096));
        for (ssize_t sent = 0; sent < read;) {
          const ssize_t more = send(inner_[1 - side], &data[sent], read - sent, MSG_NOSIGNAL);
          if (more <= 0) break;
          sent += more;
        }
      }
    }
  }

  const Change change_;
  std::array<int, 2> inner_;
  std::string seen_;
  size_t passed_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tfdear
