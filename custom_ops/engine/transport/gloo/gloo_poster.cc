// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/transport/gloo/gloo_poster.h"

#include <gloo/common/error.h>
#include <gloo/transport/unbound_buffer.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "custom_ops/engine/base/communication_threads.h"

namespace tfdear {

GlooPoster::GlooPoster(std::shared_ptr<gloo::transport::tcp::Device> device, ErrorHandler on_error)
    : device_(std::move(device)), on_error_(std::move(on_error)) {
  event_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event_fd_ < 0) throw gloo::IoException(std::string("eventfd: ") + std::strerror(errno));
  device_->registerDescriptor(event_fd_, EPOLLIN, this);
}

GlooPoster::~GlooPoster() {
  device_->unregisterDescriptor(event_fd_, this);  // returns when no event is being handled
  close(event_fd_);
}

void GlooPoster::Post(std::vector<Operation>* operations) {
  bool wake;
  {
    MutexLock lock(mutex_);
    wake = queue_.empty();
    queue_.insert(queue_.end(), operations->begin(), operations->end());
  }
  operations->clear();
  if (wake) Wake();
}

void GlooPoster::Wake() {
  const uint64_t one = 1;
  // Fails only if the counter is about to overflow, and then the event thread is awake.
  const ssize_t written = write(event_fd_, &one, sizeof(one));
  (void)written;
}

void GlooPoster::Discard(std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>>* buffers) {
  MutexLock lock(mutex_);
  queue_.clear();
  to_discard_ = buffers;
  Wake();
  while (to_discard_ != nullptr) lock.Wait(&discarded_);
}

void GlooPoster::handleEvents(int) {
  RegisterCommunicationThread();
  uint64_t count;
  const ssize_t taken = read(event_fd_, &count, sizeof(count));
  (void)taken;  // nothing there: an earlier wake-up was enough
  {
    MutexLock lock(mutex_);
    if (to_discard_ != nullptr) {
      to_discard_->clear();
      to_discard_ = nullptr;
      discarded_.notify_all();
    }
    std::swap(current_, queue_);
  }
  int peer = -1;
  try {
    for (const Operation& operation : current_) {
      peer = operation.peer;
      if (operation.is_send) {
        operation.buffer->send(peer, operation.slot, 0, operation.bytes);
      } else {
        operation.buffer->recv(peer, operation.slot, 0, operation.bytes);
      }
    }
  } catch (const std::exception& error) {
    on_error_(peer, error.what());
  }
  current_.clear();
}

}  // namespace tfdear
