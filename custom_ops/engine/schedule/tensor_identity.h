// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "custom_ops/engine/schedule/bucket.h"

namespace tfdear {

// [Note: identity of tensors]
// Sums are formed by place: tensor 3 of one rank is added to tensor 3 of the others. Ranks that
// create layers in different order would add what does not belong together, so what is known of a
// variable is part of the signature of the collective that carries its gradient. It must be known
// alike on all ranks, and names need not be: Keras counts the layers of a process, and a rank may
// make one for itself; a script may put the rank into a name. So what is compared is the name
// without its numbers, and the place of the name, with them, among the names of the layout: that
// tells head_1 from head_2, and stays when all are counted from another number.

// Fills in `identity` of every tensor of a layout that has a name.
void Identify(std::vector<TensorSpec>* tensors);

}  // namespace tfdear
