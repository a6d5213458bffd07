// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

// Before a function that Python calls by its name: all else is hidden in the library.
#define TFDEAR_EXPORT __attribute__((visibility("default")))
