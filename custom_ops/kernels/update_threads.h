// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tensorflow/core/platform/threadpool.h"

namespace tfdear {

// Threads of their own for updates: not those that move bytes, which must keep the line busy, and
// not TensorFlow's, which may all be in the next forward pass. The first call must come from a
// thread of ordinary priority, which they inherit: those that move bytes go before them.
tensorflow::thread::ThreadPool* UpdateThreads();

}  // namespace tfdear
