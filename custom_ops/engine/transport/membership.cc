// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/membership.h"

namespace tfdear {

Status CheckMembership(int rank, int size, std::chrono::milliseconds timeout) {
  if (size < 1 || rank < 0 || rank >= size) {
    return InvalidArgument("expected 0 <= rank < size, received rank ", rank, " of size ", size);
  }
  if (timeout.count() <= 0) {
    return InvalidArgument("expected a timeout above 0 ms, received ", timeout.count(), " ms");
  }
  return Status();
}

Status CheckBlobs(const std::vector<std::string>& blob_of_rank, int size) {
  if (blob_of_rank.size() == static_cast<size_t>(size)) return Status();
  return InvalidArgument("expected the addresses of ", size, " ranks, received ",
                         blob_of_rank.size());
}

Signature SignatureOfBlobs(const std::vector<std::string>& blob_of_rank) {
  std::string all = "connect";
  for (const std::string& blob : blob_of_rank) all += "\n" + blob;
  return Signature("connect " + std::to_string(Signature(all).hash()));
}

}  // namespace tfdear
