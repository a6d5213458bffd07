// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace tfdear {

// Memory for messages that arrive nowhere else, kept between collectives. For one thread.
class ReceivedMemory {
 public:
  // Of at least so many bytes.
  std::vector<char> Take(size_t bytes) {
    std::vector<char> memory;
    if (!kept_.empty()) {
      memory = std::move(kept_.back());
      kept_.pop_back();
    }
    if (memory.size() < bytes) memory.resize(bytes);
    return memory;
  }
  void GiveBack(std::vector<char> memory) { kept_.push_back(std::move(memory)); }

 private:
  std::vector<std::vector<char>> kept_;
};

}  // namespace tfdear
