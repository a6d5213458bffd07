// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

namespace tfdear {

// While it lives, threads created by this thread start with all signals blocked but those that a
// thread sends itself by a fault, and SIGPROF. The process's signals (Ctrl-C, SIGTERM) then reach
// the user's main thread, and a write to a closed socket returns EPIPE instead of ending the
// process: gloo's event thread writes without MSG_NOSIGNAL.
class ScopedHelperThreadSignals {
 public:
  ScopedHelperThreadSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF}) {
      sigdelset(&blocked, number);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &saved_);
  }
  ~ScopedHelperThreadSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  ScopedHelperThreadSignals(const ScopedHelperThreadSignals&) = delete;
  ScopedHelperThreadSignals& operator=(const ScopedHelperThreadSignals&) = delete;

 private:
  sigset_t saved_;
};

}  // namespace tfdear
