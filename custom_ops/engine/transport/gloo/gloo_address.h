// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "custom_ops/engine/base/errors.h"

namespace tfdear {

// Resolves an IP address or host name of this machine to the numeric form gloo is to listen on.
// Refuses wildcard addresses: peers could not connect to them, and everybody else could.
Status ResolveBindAddress(const std::string& bind_address, std::string* numeric);

// gloo's opaque address of one listening socket as text, "127.0.0.1:40123" or "[::1]:40123", and
// back. Any key-value store carries text; and gloo's form holds uninitialised bytes.
Status AddressToText(const std::vector<char>& gloo_address, std::string* text);
Status AddressFromText(const std::string& text, std::vector<char>* gloo_address);

// What one rank publishes: who it is, and where it listens for each of its peers, one address for
// every connection.
struct AddressBook {
  int rank = 0;
  int size = 0;
  std::vector<std::vector<std::string>> addresses_for_peer;  // [size]; none for the rank itself

  std::string Serialize() const;
  static Status Parse(const std::string& blob, AddressBook* book);
};

}  // namespace tfdear
