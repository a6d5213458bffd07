// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#ifndef TFDEAR_TESTS_CC_FUZZ_FUZZING_H_
#define TFDEAR_TESTS_CC_FUZZ_FUZZING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// What a fuzz target is called, by libFuzzer and by replay_main.cc.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Ends the process, which is how a target says that something is wrong.
#define TFDEAR_FUZZ_CHECK(condition)                                               \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

namespace tfdear {

// Cuts an input into numbers; zeros come after its end.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size)
      : next_(reinterpret_cast<const char*>(data)), end_(next_ + size) {}

  template <typename Number>
  Number Take() {
    Number number = 0;
    const size_t bytes = std::min(sizeof(number), size());
    std::memcpy(&number, next_, bytes);
    next_ += bytes;
    return number;
  }

  // What is left.
  const char* data() const { return next_; }
  size_t size() const { return static_cast<size_t>(end_ - next_); }

 private:
  const char* next_;
  const char* end_;
};

}  // namespace tfdear

#endif  // TFDEAR_TESTS_CC_FUZZ_FUZZING_H_
