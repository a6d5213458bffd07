// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/engine/base/thread_annotations.h"

namespace gloo::transport {
class UnboundBuffer;
}  // namespace gloo::transport

namespace tfdear {

// Starts gloo's sends and receives on gloo's own event thread.
//
// [Note: one thread per socket]
// gloo lets any thread write to a connection under the connection's lock, and its event thread,
// when it finds that lock taken, polls again without a pause. With as many ranks as cores, pollers
// keep the lock holders off the processor for a whole time slice: small collectives then take
// 4 ms instead of 0.1 ms. If only the event thread touches sockets, the lock is never contended.
class GlooPoster : public gloo::transport::tcp::Handler {
 public:
  struct Operation {
    gloo::transport::UnboundBuffer* buffer = nullptr;
    int peer = -1;
    uint64_t slot = 0;
    size_t bytes = 0;
    bool is_send = false;
  };
  // Called on the event thread if an operation throws; the rest of its batch is dropped.
  using ErrorHandler = std::function<void(int peer, const std::string& what)>;

  // Throws what gloo throws if the system is out of descriptors.
  GlooPoster(std::shared_ptr<gloo::transport::tcp::Device> device, ErrorHandler on_error);
  ~GlooPoster() override;

  // Takes the operations out of `operations`, which is empty afterwards. They start in order.
  void Post(std::vector<Operation>* operations);

  // Drops the operations that have not started and destroys `buffers`, whatever is under way on
  // them; the vector is empty afterwards. On the event thread, which alone can tell that nobody
  // uses them; returns when it is done.
  void Discard(std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>>* buffers);

  void handleEvents(int events) override;  // gloo's interface

 private:
  void Wake();

  const std::shared_ptr<gloo::transport::tcp::Device> device_;
  const ErrorHandler on_error_;
  int event_fd_ = -1;

  Mutex mutex_;
  std::condition_variable discarded_;
  std::vector<Operation> queue_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>>* to_discard_
      TFDEAR_GUARDED_BY(mutex_) = nullptr;

  std::vector<Operation> current_;  // the event thread's
};

}  // namespace tfdear
