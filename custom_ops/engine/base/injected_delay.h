// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tfdear {

// Sleeps a random time up to `max_ms`; a test's way to shake the order of events.
void InjectDelay(int max_ms);

}  // namespace tfdear
