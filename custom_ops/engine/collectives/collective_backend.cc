// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/collective_backend.h"

#include "custom_ops/engine/collectives/collective_arguments.h"

namespace tfdear {

Status CollectiveBackend::AllToAllV(const void* input, const std::vector<size_t>& send_bytes,
                                    void* output, const std::vector<size_t>& recv_bytes,
                                    const Signature& signature, uint64_t sequence) {
  TFDEAR_RETURN_IF_ERROR(CheckExchange(send_bytes, recv_bytes, rank(), size()));
  std::vector<OutgoingPieces> sends;
  std::vector<IncomingPieces> receives;
  const char* from = static_cast<const char*>(input);
  char* to = static_cast<char*>(output);
  for (int peer = 0; peer < size(); ++peer) {
    sends.push_back({{from, send_bytes[peer]}});
    receives.push_back({{to, recv_bytes[peer]}});
    from += send_bytes[peer];
    to += recv_bytes[peer];
  }
  return AllToAllPieces(sends, receives, signature, sequence);
}

}  // namespace tfdear
