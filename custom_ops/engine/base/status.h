// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "custom_ops/engine/base/enum_name.h"

namespace tfdear {

// What kind of failure, as far as a caller may want to react to it.
enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's mistake; the process group stays usable
  kDeadlineExceeded,   // a peer is alive as far as TCP knows, but silent
  kUnavailable,        // a peer's connection is gone: the peer was lost
  kAborted,            // somebody called Abort(): an error elsewhere ends this too
  kInternal,           // a bug or an unexpected error of the transport
  kCancelled,          // a step was given up before it sent anything: nothing is wrong with the job
  kResourceExhausted,  // this rank has no memory for it
};

inline const char* Name(StatusCode code) {
  static constexpr const char* kNames[] = {"ok",          "invalid argument",  "deadline exceeded",
                                           "unavailable", "aborted",           "internal",
                                           "cancelled",   "resource exhausted"};
  return NameIn(kNames, code);
}

// Result of an engine call. The engine throws nothing; kernels map this to TensorFlow's status.
class Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace tfdear

#define TFDEAR_RETURN_IF_ERROR(expression)           \
  do {                                               \
    ::tfdear::Status tfdear_status_ = (expression);  \
    if (!tfdear_status_.ok()) return tfdear_status_; \
  } while (false)
