// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/signature.h"

namespace tfdear {

// What every transport is told of its rank: whether that can be.
Status CheckMembership(int rank, int size, std::chrono::milliseconds timeout);

// What ranks have published, one blob each: see CollectiveBackend::Listen(). Members that were
// given different ones get different signatures.
Status CheckBlobs(const std::vector<std::string>& blob_of_rank, int size);
Signature SignatureOfBlobs(const std::vector<std::string>& blob_of_rank);

}  // namespace tfdear
