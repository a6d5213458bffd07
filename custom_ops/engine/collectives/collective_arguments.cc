// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/collectives/collective_arguments.h"

#include <algorithm>

namespace tfdear {

Status CheckElements(const void* data, size_t count, DataType type) {
  if (SizeOf(type) == 0) {
    return InvalidArgument("unknown data type ", static_cast<int>(type));
  }
  if (count > 0 && data == nullptr) {
    return InvalidArgument("data is null, expected ", count, " elements");
  }
  return Status();
}

Status CheckRoot(int root, int size) {
  if (root >= 0 && root < size) return Status();
  return InvalidArgument("expected a root from 0 to ", size - 1, ", received ", root);
}

Status CheckLength(const char* name, size_t length, int size) {
  if (length == static_cast<size_t>(size)) return Status();
  return InvalidArgument("expected ", name, " for ", size, " ranks, received ", length);
}

Status CheckExchange(const std::vector<size_t>& send_bytes, const std::vector<size_t>& recv_bytes,
                     int rank, int size) {
  TFDEAR_RETURN_IF_ERROR(CheckLength("send_bytes", send_bytes.size(), size));
  TFDEAR_RETURN_IF_ERROR(CheckLength("recv_bytes", recv_bytes.size(), size));
  if (send_bytes[rank] == recv_bytes[rank]) return Status();
  return InvalidArgument("a rank sends itself ", send_bytes[rank], " bytes, but expects ",
                         recv_bytes[rank], " from itself");
}

Status CheckPieces(const std::vector<OutgoingPieces>& sends,
                   const std::vector<IncomingPieces>& receives, int rank, int size) {
  TFDEAR_RETURN_IF_ERROR(CheckLength("sends", sends.size(), size));
  TFDEAR_RETURN_IF_ERROR(CheckLength("receives", receives.size(), size));
  const auto same = [](const Piece<const char>& sent, const Piece<char>& received) {
    return sent.bytes == received.bytes;
  };
  if (std::equal(sends[rank].begin(), sends[rank].end(), receives[rank].begin(),
                 receives[rank].end(), same)) {
    return Status();
  }
  return InvalidArgument("rank ", rank, " of the process group sends itself ", sends[rank].size(),
                         " pieces, and expects ", receives[rank].size(),
                         " from itself, or of other sizes");
}

Status ToByteRanges(const void* data, const std::vector<Range>& shards, DataType type, int size,
                    std::vector<Range>* byte_ranges) {
  TFDEAR_RETURN_IF_ERROR(CheckLength("shards", shards.size(), size));
  TFDEAR_RETURN_IF_ERROR(CheckElements(data, TotalOf(shards), type));
  *byte_ranges = shards;
  for (Range& range : *byte_ranges) {
    range.begin *= SizeOf(type);
    range.end *= SizeOf(type);
  }
  return Status();
}

std::vector<Range> ConsecutiveRanges(const std::vector<size_t>& sizes) {
  std::vector<Range> ranges;
  size_t begin = 0;
  for (size_t size : sizes) {
    ranges.push_back(Range{begin, begin + size});
    begin += size;
  }
  return ranges;
}

size_t TotalOf(const std::vector<Range>& ranges) {
  size_t total = 0;
  for (const Range& range : ranges) total += range.size();
  return total;
}

}  // namespace tfdear
