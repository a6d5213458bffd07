// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace tfdear {

// What values of rows have in common.

// Zeros of either sign.
bool AreZero(const float* values, size_t count);
// Neither NaN nor denormal: what adds nothing and multiplies by one leaves their bits.
bool AreOrdinary(const float* values, size_t count);
bool AreNonnegative(const float* values, size_t count);
// Finite and without a sign.
bool AreTame(const float* values, size_t count);
// No more than kTiny (`idleness.h`), of either sign.
bool AreTiny(const float* values, size_t count);

}  // namespace tfdear
