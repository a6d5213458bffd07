// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

// Which names of variables count as the same on two ranks.

#include "custom_ops/engine/schedule/tensor_identity.h"

#include "tests/cc/testing.h"

namespace tfdear {
namespace {

std::vector<uint64_t> IdentitiesOf(const std::vector<std::string>& names,
                                   const std::string& kind = "float32[8,8]") {
  std::vector<TensorSpec> tensors(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    tensors[i].name = tensors[i].comparable = names[i];
    tensors[i].kind = names[i].empty() ? "" : kind;
  }
  Identify(&tensors);
  std::vector<uint64_t> identities;
  for (const TensorSpec& tensor : tensors) identities.push_back(tensor.identity);
  return identities;
}

TEST(TensorIdentity, TellsVariablesApart) {
  const auto one = IdentitiesOf({"left/kernel", "right/kernel"});
  EXPECT_EQ(one, IdentitiesOf({"left/kernel", "right/kernel"}));
  const auto other = IdentitiesOf({"right/kernel", "left/kernel"});
  EXPECT_EQ(other, (std::vector<uint64_t>{one[1], one[0]}));
  EXPECT_NE(one[0], one[1]);
  EXPECT_NE(one, IdentitiesOf({"left/kernel", "middle/kernel"}));
  EXPECT_NE(one, IdentitiesOf({"left/kernel", "right/kernel"}, "float32[4,16]"));
  EXPECT_NE(one, IdentitiesOf({"left/kernel", "right/kernel"}, "bfloat16[8,8]"));
}

TEST(TensorIdentity, NumbersCountByTheirOrder) {
  const auto one = IdentitiesOf({"head_1/kernel", "head_2/kernel", "head_10/kernel"});
  EXPECT_NE(one, IdentitiesOf({"head_2/kernel", "head_1/kernel", "head_10/kernel"}));
  EXPECT_NE(one, IdentitiesOf({"head_1/kernel", "head_10/kernel", "head_2/kernel"}));
  // A rank that made a layer for itself counts on from there.
  EXPECT_EQ(one, IdentitiesOf({"head_8/kernel", "head_9/kernel", "head_11/kernel"}));
  EXPECT_EQ(IdentitiesOf({"dense/kernel", "dense_1/kernel"}),
            IdentitiesOf({"dense_9/kernel", "dense_10/kernel"}));
  EXPECT_EQ(IdentitiesOf({"worker_0/a", "worker_0/b"}), IdentitiesOf({"worker_1/a", "worker_1/b"}));
}

TEST(TensorIdentity, TensorsWithoutANameHaveNone) {
  EXPECT_EQ(IdentitiesOf({"", ""}), (std::vector<uint64_t>{0, 0}));
  EXPECT_EQ(IdentitiesOf({"a", ""})[0], IdentitiesOf({"a", ""})[0]);
}

}  // namespace
}  // namespace tfdear
