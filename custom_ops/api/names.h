// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tfdear {

// What carries the messages of a process group.
enum class Transport : int { kGloo = 0, kSharedMemory = 1, kTcp = 2 };

// Everything that passes between Python and the engine as a number, by name: a line for each kind
// of thing, its word first, then its names in the order of their numbers. `tfdear/base/names.py`
// has the same, and compares.
std::string Names();

}  // namespace tfdear
