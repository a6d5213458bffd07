// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// The C function of _tfdear_gloo.so: a library of its own, as it alone needs Gloo's.
#pragma once

#include "custom_ops/engine/base/export.h"

extern "C" {

// Makes this rank's transport over Gloo's connections, `connections` to each peer, for
// tfdear_group_create_over_transport(), to which it then belongs. `bind_address`: IP address or
// host name to listen on, nothing else is bound. `timeout_seconds`: of every wait. Returns 0, or
// 1 + StatusCode with the message in `error`.
TFDEAR_EXPORT int tfdear_gloo_create(int rank, int size, const char* bind_address,
                                     double timeout_seconds, int connections, void** transport,
                                     char* error, int error_size);

}  // extern "C"
