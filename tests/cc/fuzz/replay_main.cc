// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Runs a fuzz target on every file of a folder: what fuzzing found once stays tested, without the
// fuzzer. Each input is copied to memory that ends where it ends, so that sanitizers see every step
// too far.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/cc/fuzz/fuzzing.h"

int main(int argc, char** argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::printf("%s\n", entry.path().c_str());
      std::fflush(stdout);
      std::ifstream stream(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
      const std::vector<char> copy(bytes.begin(), bytes.end());
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(copy.data()), copy.size());
      ++files;
    }
  }
  if (files > 0) return 0;
  std::fprintf(stderr, "There is nothing to replay. Usage: %s CORPUS...\n", argv[0]);
  return 1;
}
