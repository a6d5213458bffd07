// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/schedule/tensor_identity.h"

#include <map>
#include <string>
#include <utility>

#include "custom_ops/engine/base/signature.h"

namespace tfdear {
namespace {

bool IsDigit(char character) { return character >= '0' && character <= '9'; }

std::string WithoutNumbers(const std::string& name) {
  std::string text;
  for (char character : name) {
    if (!IsDigit(character) && character != '_') text += character;
  }
  return text;
}

// The name in pieces that compare in the order people count in: dense_9 before dense_10.
using Key = std::vector<std::pair<size_t, std::string>>;

Key KeyOf(const std::string& name) {
  Key key;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    while (end < name.size() && IsDigit(name[end]) == IsDigit(name[i])) ++end;
    const std::string piece = name.substr(i, end - i);
    // Of two numbers the shorter one is smaller; text compares as text.
    key.emplace_back(IsDigit(name[i]) ? piece.size() : 0, piece);
    i = end;
  }
  return key;
}

}  // namespace

void Identify(std::vector<TensorSpec>* tensors) {
  std::map<Key, int> place_of_name;
  for (const TensorSpec& tensor : *tensors) {
    if (!tensor.name.empty()) place_of_name[KeyOf(tensor.comparable)] = 0;
  }
  int next = 0;
  for (auto& entry : place_of_name) entry.second = next++;
  for (TensorSpec& tensor : *tensors) {
    if (tensor.name.empty()) continue;
    tensor.identity =
        Signature(WithoutNumbers(tensor.comparable) + " " +
                  std::to_string(place_of_name[KeyOf(tensor.comparable)]) + " " + tensor.kind)
            .hash();
  }
}

}  // namespace tfdear
