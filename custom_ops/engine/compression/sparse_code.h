// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "custom_ops/engine/base/errors.h"

namespace tfdear {

// What the values of selected elements become on the line.
enum class ValueFormat : int {
  kFloat32 = 0,   // Every bit is kept.
  kBFloat16 = 1,  // Rounded by RoundToBFloat16().
};

// The coded form of the k selected elements of a vector of d: (ascending index, value) pairs.
//
// Indices: gaps between neighbours, Rice-coded with the parameter that makes them shortest; at
// density k/d that comes within 0.1 bits of the entropy log2(d/k) + 1.44 when they are spread
// evenly. Values: sign and mantissa as they are; exponents, of which the largest elements of a
// vector have only a few, as Rice-coded ranks in a table, the most frequent first, or as plain
// bytes where that is shorter. So no input takes more than SparseCodeBound() bytes. NaN (with its
// payload), infinities, zeros of both signs and denormals come back as they were.
//
// Layout, little endian, every part at a whole byte:
//   1 byte   format of the values
//   1 byte   Rice parameter of the indices
//   1 byte   Rice parameter of the exponents, or kPlainExponents
//   varint   k
//   varint   bytes of the unary part of the indices
//   then     the unary part: of each gap (less one) shifted right by the parameter, as many zero
//            bits, and a one; the low bits of each gap, packed
//   1 byte   size of the table of exponents less one, the table; unary and low bits of the ranks
//            as above (unary size as varint first); nothing after a table of one
//   k x      1 (bfloat16) or 3 (float32) bytes of mantissa and sign

// Appends the code to `out`. `indices` ascend strictly and are below `d`.
void EncodeSparse(const uint32_t* indices, const float* values, size_t k, size_t d,
                  ValueFormat format, std::vector<char>* out);

// The opposite, for a vector of `d` elements. Whatever the bytes are, nothing outside of them is
// read, and what comes out on success are strictly ascending indices below `d`.
Status DecodeSparse(const char* data, size_t size, size_t d, std::vector<uint32_t>* indices,
                    std::vector<float>* values);

// The most bytes that k of d elements can take.
size_t SparseCodeBound(size_t k, size_t d, ValueFormat format);

// To the nearest bfloat16, ties to even. Finite values stay finite: those beyond the largest
// bfloat16 become it. NaN stays NaN.
float RoundToBFloat16(float value);

}  // namespace tfdear
