// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
//
// Keeps TensorFlow's server off the network when a job runs on one machine.

#pragma once

#include "custom_ops/engine/base/export.h"

// [Note: loopback only]
// TensorFlow's gRPC server always listens on every interface of the machine ("0.0.0.0:port"), has
// no authentication and runs the graphs it is sent; there is no setting for the address. A job
// whose ranks are all on one machine needs none of that, so the calls of bind(2) that TensorFlow's
// library makes are led through a function that replaces a wildcard address by the loopback
// address. Only the one entry of that library's import table is changed; other libraries of the
// process, and sockets for other addresses, are not concerned.
//
// enable != 0: from now on; 0: bind is TensorFlow's own again. Returns the number of import table
// entries that lead through this function, 0 when TensorFlow's library was not found (or was built
// in a way that has no such entry), -1 when an entry could not be made writable. Safe from any
// thread; calls are serialised.
extern "C" TFDEAR_EXPORT int tfdear_bind_to_loopback(int enable);
