// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Text from the store in which ranks meet as addresses of Gloo: refused, or what the rank that
// wrote it meant.

#include <string>
#include <vector>

#include "custom_ops/engine/transport/gloo/gloo_address.h"
#include "tests/cc/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfdear;
  const std::string text(reinterpret_cast<const char*>(data), size);
  AddressBook book;
  if (!AddressBook::Parse(text, &book).ok()) return 0;
  TFDEAR_FUZZ_CHECK(book.rank >= 0 && book.rank < book.size);
  TFDEAR_FUZZ_CHECK(book.addresses_for_peer.size() == static_cast<size_t>(book.size));
  AddressBook again;
  TFDEAR_FUZZ_CHECK(AddressBook::Parse(book.Serialize(), &again).ok());
  TFDEAR_FUZZ_CHECK(again.rank == book.rank && again.size == book.size);
  TFDEAR_FUZZ_CHECK(again.addresses_for_peer == book.addresses_for_peer);
  for (const auto& addresses : book.addresses_for_peer) {
    for (const std::string& address : addresses) {
      std::vector<char> bytes, bytes_again;
      if (!AddressFromText(address, &bytes).ok()) continue;
      std::string printed;
      TFDEAR_FUZZ_CHECK(AddressToText(bytes, &printed).ok());
      TFDEAR_FUZZ_CHECK(AddressFromText(printed, &bytes_again).ok());
      TFDEAR_FUZZ_CHECK(bytes == bytes_again);
    }
  }
  return 0;
}
