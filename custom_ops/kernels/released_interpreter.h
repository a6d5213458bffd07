// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

namespace tfdear {

// Lets Python's other threads run while it lives, if this thread holds the interpreter.
//
// TensorFlow calls kernels without it but for one thing: when Python frees a function, its kernels
// are destroyed by the thread that frees it. What they wait for may need Python, to connect or to
// notice that a rank is gone.
class ReleasedInterpreter {
 public:
  ReleasedInterpreter() {
    // Where there is no Python, nobody holds it.
    static const auto is_there = Find<int()>("Py_IsInitialized");
    static const auto holds = Find<int()>("PyGILState_Check");
    static const auto release = Find<void*()>("PyEval_SaveThread");
    if (is_there != nullptr && holds != nullptr && release != nullptr && is_there() && holds()) {
      state_ = release();
    }
  }
  ~ReleasedInterpreter() {
    static const auto take = Find<void(void*)>("PyEval_RestoreThread");
    if (state_ != nullptr) take(state_);
  }
  ReleasedInterpreter(const ReleasedInterpreter&) = delete;
  ReleasedInterpreter& operator=(const ReleasedInterpreter&) = delete;

 private:
  template <typename Function>
  static Function* Find(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }

  void* state_ = nullptr;
};

}  // namespace tfdear
