// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/api/gloo/gloo_api.h"

#include <chrono>
#include <cstdint>
#include <memory>

#include "custom_ops/engine/base/c_text.h"
#include "custom_ops/engine/transport/gloo/gloo_transport.h"

int tfdear_gloo_create(int rank, int size, const char* bind_address, double timeout_seconds,
                       int connections, void** transport, char* error, int error_size) {
  const std::chrono::milliseconds timeout(static_cast<int64_t>(timeout_seconds * 1000));
  std::unique_ptr<tfdear::GlooTransport> created;
  const tfdear::Status status =
      tfdear::GlooTransport::Create(rank, size, bind_address, timeout, connections, &created);
  if (!status.ok()) return tfdear::Report(status, error, error_size);
  // As what the caller takes it for.
  tfdear::MessageTransport* const made = created.release();
  *transport = made;
  return 0;
}
