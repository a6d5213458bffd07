// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/compression/sparse_code.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tfdear {
namespace {

constexpr int kPlainExponents = 255;
constexpr int kMostIndexBits = 31;
constexpr int kMostExponentBits = 7;

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t ExponentOf(uint32_t bits) { return bits >> 23 & 0xff; }

// Writes numbers of a few bits, the first in the lowest bits.
class BitWriter {
 public:
  explicit BitWriter(char* out) : out_(out) {}

  // `bits` at most 32; `value` has no others set.
  void Put(uint32_t value, int bits) {
    pending_ |= static_cast<uint64_t>(value) << used_;
    used_ += bits;
    if (used_ >= 32) {
      std::memcpy(out_, &pending_, 4);
      out_ += 4;
      pending_ >>= 32;
      used_ -= 32;
    }
  }

  // `zeros` zero bits and a one.
  void PutUnary(uint32_t zeros) {
    for (; zeros >= 31; zeros -= 31) Put(0, 31);
    Put(uint32_t{1} << zeros, static_cast<int>(zeros) + 1);
  }

  // Fills the last byte with zeros; returns the end.
  char* Finish() {
    const int bytes = (used_ + 7) / 8;
    std::memcpy(out_, &pending_, bytes);
    return out_ + bytes;
  }

 private:
  char* out_;
  uint64_t pending_ = 0;
  int used_ = 0;
};

// Of one list of numbers in Rice code: the bits of its unary part, without the low bits.
template <typename NumberAt>
uint64_t UnaryBits(size_t count, int parameter, const NumberAt& number_at) {
  uint64_t bits = count;
  for (size_t i = 0; i < count; ++i) bits += number_at(i) >> parameter;
  return bits;
}

void AppendVarint(uint64_t value, std::vector<char>* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

// Appends a list of numbers: the size of the unary part, the unary part, the low bits.
template <typename NumberAt>
void AppendRice(size_t count, int parameter, uint64_t unary_bits, const NumberAt& number_at,
                std::vector<char>* out) {
  const size_t unary_bytes = (unary_bits + 7) / 8;
  AppendVarint(unary_bytes, out);
  const size_t low_bytes = (static_cast<uint64_t>(count) * parameter + 7) / 8;
  const size_t begin = out->size();
  out->resize(begin + unary_bytes + low_bytes);
  BitWriter unary(out->data() + begin);
  for (size_t i = 0; i < count; ++i) unary.PutUnary(number_at(i) >> parameter);
  unary.Finish();
  if (parameter == 0) return;
  BitWriter low(out->data() + begin + unary_bytes);
  const uint32_t mask = (uint32_t{1} << parameter) - 1;
  for (size_t i = 0; i < count; ++i) low.Put(number_at(i) & mask, parameter);
  low.Finish();
}

// What is left of the bytes of a code.
class Input {
 public:
  Input(const char* data, size_t size) : next_(data), end_(data + size) {}

  const char* Take(uint64_t bytes) {
    if (bytes > static_cast<uint64_t>(end_ - next_)) return nullptr;
    const char* taken = next_;
    next_ += bytes;
    return taken;
  }

  bool Byte(int* value) {
    const char* byte = Take(1);
    if (byte != nullptr) *value = static_cast<unsigned char>(*byte);
    return byte != nullptr;
  }

  bool Varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      int byte;
      if (!Byte(&byte)) return false;
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool AtEnd() const { return next_ == end_; }

 private:
  const char* next_;
  const char* end_;
};

// Reads up to eight bytes from `data`, as far as it has them.
uint64_t LoadWord(const char* data, size_t available) {
  uint64_t word = 0;
  std::memcpy(&word, data, std::min<size_t>(available, 8));
  return word;
}

// Calls visit(i, zeros) for `count` numbers in unary; false if there are fewer.
template <typename Visit>
bool ReadUnary(const char* data, size_t bytes, size_t count, const Visit& visit) {
  size_t done = 0;
  uint64_t next = 0;  // Bit after the last one seen.
  for (size_t offset = 0; offset < bytes && done < count; offset += 8) {
    uint64_t word = LoadWord(data + offset, bytes - offset);
    for (; word != 0 && done < count; word &= word - 1) {
      const uint64_t bit = offset * 8 + __builtin_ctzll(word);
      visit(done++, bit - next);
      next = bit + 1;
    }
  }
  return done == count;
}

class LowBits {
 public:
  LowBits(const char* data, size_t bytes, int width)
      : data_(data), bytes_(bytes), width_(width), mask_((uint64_t{1} << width) - 1) {}

  // Number `i`, of which there must be i + 1.
  uint32_t At(size_t i) const {
    if (width_ == 0) return 0;
    const uint64_t bit = static_cast<uint64_t>(i) * width_;
    const size_t byte = bit / 8;
    const uint64_t word =
        byte + 8 <= bytes_ ? LoadWord(data_ + byte, 8) : LoadWord(data_ + byte, bytes_ - byte);
    return static_cast<uint32_t>(word >> (bit % 8) & mask_);
  }

 private:
  const char* data_;
  size_t bytes_;
  int width_;
  uint64_t mask_;
};

// The list that AppendRice() wrote.
template <typename Visit>
bool ReadRice(Input* input, size_t count, int parameter, const Visit& visit) {
  uint64_t unary_bytes;
  if (!input->Varint(&unary_bytes)) return false;
  const char* unary = input->Take(unary_bytes);
  const size_t low_bytes = (static_cast<uint64_t>(count) * parameter + 7) / 8;
  const char* low_data = unary == nullptr ? nullptr : input->Take(low_bytes);
  if (low_data == nullptr) return false;
  const LowBits low(low_data, low_bytes, parameter);
  return ReadUnary(unary, unary_bytes, count,
                   [&](size_t i, uint64_t high) { visit(i, (high << parameter) | low.At(i)); });
}

// How the exponents of some values are written.
struct ExponentCode {
  std::vector<uint8_t> table;       // Exponents, the most frequent first.
  std::array<uint8_t, 256> rank{};  // Of each exponent, its place in the table.
  int parameter = kPlainExponents;
  uint64_t unary_bits = 0;
};

ExponentCode PlanExponents(const float* values, size_t k) {
  // Four histograms: neighbours often have the same exponent, and would wait for each other.
  std::array<std::array<uint32_t, 256>, 4> partial{};
  for (size_t i = 0; i < k; ++i) ++partial[i % 4][ExponentOf(BitsOf(values[i]))];
  std::array<uint64_t, 256> frequency;
  ExponentCode code;
  for (int e = 0; e < 256; ++e) {
    frequency[e] = uint64_t{partial[0][e]} + partial[1][e] + partial[2][e] + partial[3][e];
    if (frequency[e] > 0) code.table.push_back(static_cast<uint8_t>(e));
  }
  std::stable_sort(code.table.begin(), code.table.end(),
                   [&](uint8_t a, uint8_t b) { return frequency[a] > frequency[b]; });
  for (size_t r = 0; r < code.table.size(); ++r) code.rank[code.table[r]] = static_cast<uint8_t>(r);
  // With its size field; the table is not there when exponents are plain.
  uint64_t best = 8 * static_cast<uint64_t>(k);
  for (int parameter = 0; parameter <= kMostExponentBits; ++parameter) {
    uint64_t unary = k;
    for (size_t r = 0; r < code.table.size(); ++r)
      unary += frequency[code.table[r]] * (r >> parameter);
    const uint64_t header = 8 * (code.table.size() + 8);
    const uint64_t bits = header + unary + static_cast<uint64_t>(k) * parameter;
    if (bits < best) {
      best = bits;
      code.parameter = parameter;
      code.unary_bits = unary;
    }
  }
  return code;
}

// The Rice parameter with the shortest code for the gaps.
template <typename GapAt>
int PlanIndices(size_t k, size_t d, const GapAt& gap_at, uint64_t* unary_bits) {
  // Evenly spread indices have geometric gaps, whose best parameter is log2(ln 2 x mean); from one
  // above that, down to where the code grows again.
  int parameter = 0;
  while (parameter < kMostIndexBits && (uint64_t{k} << parameter) < d) ++parameter;
  *unary_bits = UnaryBits(k, parameter, gap_at);
  while (parameter > 0) {
    const uint64_t shorter = UnaryBits(k, parameter - 1, gap_at);
    if (shorter > *unary_bits + k) break;
    --parameter;
    *unary_bits = shorter;
  }
  return parameter;
}

Status Corrupt(size_t size, size_t d, const char* what) {
  return Internal("coded sparse gradients are corrupt: ", what, " (", size,
                  " bytes, for a vector of ", d,
                  " elements); the ranks may run different versions of tfdear");
}

}  // namespace

float RoundToBFloat16(float value) {
  const uint32_t bits = BitsOf(value);
  if (ExponentOf(bits) == 0xff) {
    // Infinity stays. A NaN whose payload is cut off must not become one.
    const bool nan = (bits & 0x7fffff) != 0;
    return FloatOf((bits & 0xffff0000u) | (nan ? 0x400000u : 0));
  }
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  return FloatOf(ExponentOf(rounded) == 0xff ? (bits & 0x80000000u) | 0x7f7f0000u : rounded);
}

void EncodeSparse(const uint32_t* indices, const float* values, size_t k, size_t d,
                  ValueFormat format, std::vector<char>* out) {
  std::vector<float> rounded;
  if (format == ValueFormat::kBFloat16) {
    rounded.resize(k);
    for (size_t i = 0; i < k; ++i) rounded[i] = RoundToBFloat16(values[i]);
    values = rounded.data();
  }
  const auto gap_at = [indices](size_t i) {
    return i == 0 ? indices[0] : indices[i] - indices[i - 1] - 1;
  };
  const auto exponent_at = [values](size_t i) { return ExponentOf(BitsOf(values[i])); };
  uint64_t index_bits = 0;
  const int parameter = PlanIndices(k, d, gap_at, &index_bits);
  const ExponentCode exponents = PlanExponents(values, k);
  out->push_back(static_cast<char>(format));
  out->push_back(static_cast<char>(parameter));
  out->push_back(static_cast<char>(exponents.parameter));
  AppendVarint(k, out);
  if (k == 0) return;
  AppendRice(k, parameter, index_bits, gap_at, out);
  if (exponents.parameter == kPlainExponents) {
    for (size_t i = 0; i < k; ++i) out->push_back(static_cast<char>(exponent_at(i)));
  } else {
    out->push_back(static_cast<char>(exponents.table.size() - 1));
    out->insert(out->end(), exponents.table.begin(), exponents.table.end());
    if (exponents.table.size() > 1) {
      AppendRice(
          k, exponents.parameter, exponents.unary_bits,
          [&](size_t i) -> uint32_t { return exponents.rank[exponent_at(i)]; }, out);
    }
  }
  const size_t begin = out->size();
  if (format == ValueFormat::kBFloat16) {
    out->resize(begin + k);
    for (size_t i = 0; i < k; ++i) {
      const uint32_t bits = BitsOf(values[i]);
      (*out)[begin + i] = static_cast<char>((bits >> 24 & 0x80) | (bits >> 16 & 0x7f));
    }
    return;
  }
  out->resize(begin + 3 * k);
  char* next = out->data() + begin;
  for (size_t i = 0; i < k; ++i, next += 3) {
    const uint32_t bits = BitsOf(values[i]);
    const uint32_t rest = (bits >> 8 & 0x800000) | (bits & 0x7fffff);
    next[0] = static_cast<char>(rest);
    next[1] = static_cast<char>(rest >> 8);
    next[2] = static_cast<char>(rest >> 16);
  }
}

Status DecodeSparse(const char* data, size_t size, size_t d, std::vector<uint32_t>* indices,
                    std::vector<float>* values) {
  const auto corrupt = [&](const char* what) { return Corrupt(size, d, what); };
  Input input(data, size);
  int format, parameter, exponent_parameter;
  uint64_t k;
  if (!input.Byte(&format) || !input.Byte(&parameter) || !input.Byte(&exponent_parameter) ||
      !input.Varint(&k)) {
    return corrupt("the header is cut off");
  }
  if (format > static_cast<int>(ValueFormat::kBFloat16) || parameter > kMostIndexBits ||
      (exponent_parameter > kMostExponentBits && exponent_parameter != kPlainExponents)) {
    return corrupt("the header has unknown values");
  }
  // Every element takes a byte of mantissa at least: this bounds what is allocated, too.
  if (k > d || k > size) return corrupt("it has more elements than there can be");
  indices->resize(k);
  values->resize(k);
  if (k == 0) return input.AtEnd() ? Status() : corrupt("bytes are left over");
  uint64_t next_index = 0;
  uint64_t largest_gap = 0;
  uint32_t* const index = indices->data();
  const bool gaps = ReadRice(&input, k, parameter, [&](size_t i, uint64_t gap) {
    largest_gap = std::max(largest_gap, gap);
    next_index += gap;
    index[i] = static_cast<uint32_t>(next_index++);
  });
  // With every gap below d, at most 2^32, no sum of k of them wraps around in 64 bits.
  if (!gaps || largest_gap >= d || next_index > d) return corrupt("the indices do not fit");
  std::vector<uint8_t> exponents(k);
  if (exponent_parameter == kPlainExponents) {
    const char* plain = input.Take(k);
    if (plain == nullptr) return corrupt("exponents are cut off");
    std::memcpy(exponents.data(), plain, k);
  } else {
    int last_rank;
    const char* table = input.Byte(&last_rank) ? input.Take(last_rank + 1) : nullptr;
    if (table == nullptr) return corrupt("the table of exponents is cut off");
    if (last_rank == 0) {
      std::fill(exponents.begin(), exponents.end(), static_cast<uint8_t>(table[0]));
    } else {
      uint64_t largest = 0;
      const bool ranks = ReadRice(&input, k, exponent_parameter, [&](size_t i, uint64_t rank) {
        largest = std::max(largest, rank);
        exponents[i] = static_cast<uint8_t>(table[std::min<uint64_t>(rank, last_rank)]);
      });
      if (!ranks || largest > static_cast<uint64_t>(last_rank)) {
        return corrupt("the exponents do not fit");
      }
    }
  }
  const bool short_values = format == static_cast<int>(ValueFormat::kBFloat16);
  const auto* rest = reinterpret_cast<const unsigned char*>(input.Take(short_values ? k : 3 * k));
  if (rest == nullptr || !input.AtEnd()) return corrupt("the mantissas do not fit");
  float* const value = values->data();
  for (size_t i = 0; i < k; ++i) {
    const uint32_t exponent = static_cast<uint32_t>(exponents[i]) << 23;
    if (short_values) {
      const uint32_t byte = rest[i];
      value[i] = FloatOf((byte & 0x80) << 24 | exponent | (byte & 0x7f) << 16);
    } else {
      const unsigned char* bytes = rest + 3 * i;
      const uint32_t low = bytes[0] | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2] & 0x7fu} << 16;
      value[i] = FloatOf((bytes[2] & 0x80u) << 24 | exponent | low);
    }
  }
  return Status();
}

size_t SparseCodeBound(size_t k, size_t d, ValueFormat format) {
  // The first parameter that PlanIndices() looks at has at most one bit of gap left for each index
  // on average; what it chooses is never longer.
  int parameter = 0;
  while (parameter < kMostIndexBits && (uint64_t{k} << parameter) < d) ++parameter;
  const size_t header = 3 + 10 + 10;
  const uint64_t index_bits = static_cast<uint64_t>(k) * (2 + parameter) + 16;
  const size_t value_bytes = format == ValueFormat::kBFloat16 ? 2 : 4;
  return header + index_bits / 8 + 1 + value_bytes * k;
}

}  // namespace tfdear
