// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/kernels/ticket.h"

#include <utility>

#include "custom_ops/engine/engine.h"
#include "tensorflow/core/framework/variant.h"

namespace tfdear {

TicketHandle::TicketHandle(std::shared_ptr<Ticket> ticket, Lane* lane)
    : owner_(new Owner{std::move(ticket), lane}) {}

TicketHandle::Owner::~Owner() {
  if (lane != nullptr) Engine::Get()->GiveUp(ticket.get(), lane);
}

void SetTicket(tensorflow::OpKernelContext* context, const TicketHandle& handle) {
  tensorflow::Tensor output(tensorflow::DT_VARIANT, tensorflow::TensorShape({}));
  output.scalar<tensorflow::Variant>()() = handle;
  context->set_output(0, output);
}

}  // namespace tfdear
