// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/kernels/ticket.h"

#include <utility>

#include "custom_ops/engine/engine.h"
#include "tensorflow/core/framework/variant.h"

namespace tfdear {

TicketHandle::TicketHandle(std::shared_ptr<Ticket> ticket, Lane* lane)
    : owner_(new Owner{std::move(ticket), lane}) {}

TicketHandle::Owner::~Owner() {
  if (lane == nullptr || lane->Withdraw(ticket.get())) return;
  auto* reduction = dynamic_cast<Reduction*>(ticket.get());
  if (reduction == nullptr || reduction->complete()) return;
  Engine::Get()->Abort(Status(
      StatusCode::kAborted,
      "a step ended on this rank after some of the tensors of '" + reduction->layout().name +
          "' were on their way to the other ranks and before the rest were computed. The first "
          "error above says why; the job cannot go on, because the ranks no longer agree on what "
          "was sent"));
}

void SetTicket(tensorflow::OpKernelContext* context, const TicketHandle& handle) {
  tensorflow::Tensor output(tensorflow::DT_VARIANT, tensorflow::TensorShape({}));
  output.scalar<tensorflow::Variant>()() = handle;
  context->set_output(0, output);
}

}  // namespace tfdear
