// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/engine/base/parallel_for.h"

namespace tfdear {

// MSTopK as published (Algorithm 1 of "Towards Scalable Distributed Training of Deep Learning on
// Public Cloud Clusters"): `samplings` passes bisect a threshold between mean and maximum of |x|,
// in float32; what is above is selected, and the rest is a run of neighbours, at a place drawn with
// `seed`, of those between the two best thresholds.
//
// For comparison: TopK is exact and reads the vector once. This one's threshold is linear in the
// value, so that one outlier, an infinity or a NaN makes it select almost at random.
//
// Where the published text leaves something open, so that there are always exactly k <= d distinct
// indices: if no threshold had between 1 and k elements above it, the first part is empty; NaNs,
// which no comparison finds, fill what is then missing, in order. Output in ascending order of the
// indices, the same for any number of threads.
void BisectionTopK(DataType type, const void* x, size_t d, size_t k, int samplings, uint64_t seed,
                   int threads, const ParallelFor& parallel_for, void* values, uint32_t* indices);

}  // namespace tfdear
