// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "custom_ops/engine/queue/lane.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tfdear {

// A ticket as it flows through a graph, in a scalar variant tensor. When the last op that could use
// it is gone, a ticket that got no data is withdrawn from its lane; one that got only some of its
// data cannot be completed by this rank any more, which ends the job for all.
class TicketHandle {
 public:
  TicketHandle() = default;
  TicketHandle(std::shared_ptr<Ticket> ticket, Lane* lane);

  Ticket* ticket() const { return owner_ == nullptr ? nullptr : owner_->ticket.get(); }
  std::shared_ptr<Ticket> shared() const { return owner_ == nullptr ? nullptr : owner_->ticket; }

  // What a variant must offer. A ticket never leaves its process.
  std::string TypeName() const { return "tfdear::Ticket"; }
  void Encode(tensorflow::VariantTensorData* data) const {}
  bool Decode(const tensorflow::VariantTensorData& data) { return false; }
  std::string DebugString() const { return "tfdear ticket"; }

 private:
  struct Owner {
    std::shared_ptr<Ticket> ticket;
    Lane* lane;
    ~Owner();
  };
  std::shared_ptr<Owner> owner_;
};

void SetTicket(tensorflow::OpKernelContext* context, const TicketHandle& handle);

// The ticket in a tensor, as the given kind, or null.
template <typename T>
std::shared_ptr<T> TicketIn(const tensorflow::Tensor& tensor) {
  const auto* handle = tensor.scalar<tensorflow::Variant>()().get<TicketHandle>();
  return handle == nullptr ? nullptr : std::dynamic_pointer_cast<T>(handle->shared());
}

// The ticket in an input, as the given kind. Null, with the context's status set, if it is not one.
template <typename T>
std::shared_ptr<T> GetTicket(tensorflow::OpKernelContext* context, int input = 0) {
  std::shared_ptr<T> ticket = TicketIn<T>(context->input(input));
  if (ticket == nullptr) {
    context->SetStatus(absl::InvalidArgumentError("an input holds no ticket of the right kind"));
  }
  return ticket;
}

}  // namespace tfdear
