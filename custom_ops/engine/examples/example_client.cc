// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "custom_ops/engine/base/communication_threads.h"
#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/helper_thread.h"
#include "custom_ops/engine/examples/crc32c.h"

namespace tfdear {
namespace {

// So many examples are under way at most: enough to fill a line, few enough that those which are
// wanted next do not wait behind many.
constexpr size_t kMostAsked = 128;
constexpr size_t kAtOnce = size_t{16} << 20;
// What goes on without a break is noted so often, so that it does not fill the record of events.
constexpr int64_t kNotedMicros = 100000;

}  // namespace

Status ExampleClient::Start(const Options& options, Receiver receiver, ExampleSocket socket,
                            std::unique_ptr<ExampleClient>* result) {
  std::unique_ptr<ExampleClient> client(new ExampleClient(options, std::move(receiver)));
  client->socket_ = std::move(socket);
  client->stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  client->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (client->stop_ < 0 || client->wake_ < 0) {
    return Unavailable("there are no more file descriptors");
  }
  *result = std::move(client);
  return Status();
}

ExampleClient::~ExampleClient() {
  if (stop_ >= 0) eventfd_write(stop_, 1);
  // Nobody asks any more.
  if (thread_.joinable()) thread_.join();
  for (int fd : {stop_, wake_}) {
    if (fd >= 0) close(fd);
  }
}

Status ExampleClient::Ask(int64_t example) {
  MutexLock lock(mutex_);
  if (!thread_.joinable()) {
    TFDEAR_RETURN_IF_ERROR(StartHelperThread([this] { Run(); }, &thread_));
  }
  wanted_.push_back(static_cast<uint64_t>(example));
  eventfd_write(wake_, 1);
  return Status();
}

void ExampleClient::Run() {
  RegisterCommunicationThread();
  while (true) {
    pollfd ended[] = {{stop_, POLLIN, 0}, {wake_, POLLIN, 0}};
    poll(ended, 2, -1);
    if (ended[0].revents != 0) return;
    const Status status = Exchange();
    if (status.code() == StatusCode::kCancelled) return;
    // A rank that has closed the connection has ended: this one prepares what it held. The others
    // are told why.
    std::vector<uint64_t> lost(asked_.begin(), asked_.end());
    asked_.clear();
    {
      MutexLock lock(mutex_);
      lost.insert(lost.end(), wanted_.begin(), wanted_.end());
      wanted_.clear();
      eventfd_t count;
      eventfd_read(wake_, &count);
    }
    const bool gone = status.code() == StatusCode::kUnavailable;
    for (uint64_t example : lost) {
      const Status told = gone ? Status()
                               : Status(status.code(), TextOf("rank ", options_.rank,
                                                              ", which was asked for example ",
                                                              example, ": ", status.message()));
      receiver_({static_cast<int64_t>(example), told, nullptr});
    }
    socket_ = ExampleSocket();
  }
}

Status ExampleClient::Exchange() {
  while (true) {
    std::vector<uint64_t> examples;
    {
      MutexLock lock(mutex_);
      eventfd_t count;
      eventfd_read(wake_, &count);
      while (!wanted_.empty() && asked_.size() + examples.size() < kMostAsked) {
        examples.push_back(wanted_.front());
        wanted_.pop_front();
      }
      if (!wanted_.empty()) eventfd_write(wake_, 1);
    }
    if (!examples.empty()) {
      if (asked_.empty()) busy_since_us_ = EventRecord::NowMicros();
      asked_.insert(examples.begin(), examples.end());
      TFDEAR_RETURN_IF_ERROR(SendRequest(examples));
    }
    const bool full = asked_.size() >= kMostAsked;
    pollfd events[] = {{stop_, POLLIN, 0},
                       {socket_.fd(), POLLIN, 0},
                       {wake_, static_cast<short>(full ? 0 : POLLIN), 0}};
    const bool has_more = socket_.has_more();
    const int time = asked_.empty() ? -1 : static_cast<int>(options_.timeout.count());
    const int ready = poll(events, 3, has_more ? 0 : time);
    if (events[0].revents != 0) return Status(StatusCode::kCancelled, "the client ends");
    if (ready == 0 && !has_more) {
      return Status(StatusCode::kDeadlineExceeded,
                    TextOf("it has sent nothing for ", options_.timeout.count() / 1000, " s"));
    }
    if (has_more || (ready > 0 && events[1].revents != 0)) {
      try {
        TFDEAR_RETURN_IF_ERROR(ReceiveAnswer());
      } catch (const std::bad_alloc&) {
        return Status(StatusCode::kResourceExhausted, "this rank has no memory left for it");
      }
    }
  }
}

Status ExampleClient::SendRequest(const std::vector<uint64_t>& examples) {
  ExampleRequest request;
  request.count = examples.size();
  TFDEAR_RETURN_IF_ERROR(socket_.Send(&request, sizeof(request), options_.timeout, stop_));
  return socket_.Send(examples.data(), examples.size() * sizeof(uint64_t), options_.timeout, stop_);
}

void ExampleClient::NoteFetched() {
  const int64_t now = EventRecord::NowMicros();
  if (!asked_.empty() && now - busy_since_us_ < kNotedMicros) return;
  if (options_.events != nullptr) {
    options_.events->Add(
        {EventKind::kDataFetch, 0, options_.rank, busy_bytes_, busy_since_us_, now});
  }
  busy_since_us_ = now;
  busy_bytes_ = 0;
}

Status ExampleClient::ReceiveAnswer() {
  ExampleAnswer answer;
  TFDEAR_RETURN_IF_ERROR(socket_.Receive(&answer, sizeof(answer), options_.timeout, stop_));
  const bool here = answer.state == ExampleState::kHere;
  if (asked_.count(answer.example) == 0 || answer.bytes > ExampleAnswer::kMostBytes ||
      (!here && (answer.state != ExampleState::kNotHeld || answer.bytes > 0))) {
    return Internal("an answer that breaks the rules: example ", answer.example, ", ", answer.bytes,
                    " bytes");
  }
  std::shared_ptr<std::vector<char>> bytes;
  if (here) {
    bytes = std::make_shared<std::vector<char>>();
    // Memory for what comes, not for what is said to come.
    while (bytes->size() < answer.bytes) {
      const size_t received = bytes->size();
      const size_t more = std::min<size_t>(answer.bytes - received, std::max(received, kAtOnce));
      bytes->resize(received + more);
      TFDEAR_RETURN_IF_ERROR(
          socket_.Receive(bytes->data() + received, more, options_.timeout, stop_));
    }
    received_bytes_ += answer.bytes;
    if (options_.verify && Crc32c(bytes->data(), bytes->size()) != answer.crc) {
      return Internal("the checksum of example ", answer.example, " does not match");
    }
  }
  asked_.erase(answer.example);
  busy_bytes_ += answer.bytes;
  NoteFetched();
  receiver_({static_cast<int64_t>(answer.example), Status(), std::move(bytes)});
  const auto wait = options_.limit == nullptr ? std::chrono::milliseconds(0)
                                              : options_.limit->Take(sizeof(answer) + answer.bytes);
  // What is already under way fills the sockets' buffers, and no more.
  pollfd ended = {stop_, POLLIN, 0};
  if (wait.count() > 0) poll(&ended, 1, static_cast<int>(wait.count()));
  return Status();
}

}  // namespace tfdear
