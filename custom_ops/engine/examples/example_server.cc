// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "custom_ops/engine/base/communication_threads.h"
#include "custom_ops/engine/base/errors.h"
#include "custom_ops/engine/base/helper_thread.h"
#include "custom_ops/engine/examples/crc32c.h"

namespace tfdear {
namespace {

// How often it looks whether an example that is being prepared is there.
constexpr int kLookMillis = 2;

}  // namespace

Status ExampleServer::Start(const Options& options, Source source,
                            std::vector<ExampleSocket> sockets,
                            std::unique_ptr<ExampleServer>* result) {
  std::unique_ptr<ExampleServer> server(new ExampleServer(options, std::move(source)));
  server->stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (server->stop_ < 0) return Unavailable("there are no more file descriptors");
  for (ExampleSocket& socket : sockets) {
    auto serve = [started = server.get(), own = std::move(socket)]() mutable {
      RegisterCommunicationThread();
      const StatusCode end = started->Serve(&own).code();
      if (end == StatusCode::kInvalidArgument || end == StatusCode::kInternal) {
        ++started->counts_.refused;
      }
      own = ExampleSocket();  // Closed now.
    };
    std::thread thread;
    TFDEAR_RETURN_IF_ERROR(StartHelperThread(std::move(serve), &thread));
    server->threads_.push_back(std::move(thread));
  }
  *result = std::move(server);
  return Status();
}

ExampleServer::~ExampleServer() {
  if (stop_ < 0) return;
  eventfd_write(stop_, 1);
  for (std::thread& thread : threads_) thread.join();
  close(stop_);
}

Status ExampleServer::Serve(ExampleSocket* socket) {
  // What was asked for and has not been answered; since when there has been something, and the
  // bytes that have been sent since.
  std::vector<uint64_t> asked;
  int64_t since_us = 0;
  int64_t bytes = 0;
  while (true) {
    // A client may have nothing to ask for as long as it likes, and ask for more while it waits.
    pollfd sockets[] = {{socket->fd(), POLLIN, 0}, {stop_, POLLIN, 0}};
    const bool has_more = socket->has_more();
    if (poll(sockets, 2, has_more ? 0 : asked.empty() ? -1 : kLookMillis) < 0) continue;
    if (sockets[1].revents != 0) return Status();
    if (has_more || sockets[0].revents != 0) {
      if (asked.empty()) since_us = EventRecord::NowMicros();
      TFDEAR_RETURN_IF_ERROR(ReceiveRequest(socket, &asked));
    }
    TFDEAR_RETURN_IF_ERROR(Answer(socket, &asked, &bytes));
    if (asked.empty() && options_.events != nullptr) {
      options_.events->Add(
          {EventKind::kDataServe, 0, 0, bytes, since_us, EventRecord::NowMicros()});
    }
    if (asked.empty()) bytes = 0;
  }
}

Status ExampleServer::ReceiveRequest(ExampleSocket* socket, std::vector<uint64_t>* asked) {
  ExampleRequest request;
  TFDEAR_RETURN_IF_ERROR(socket->Receive(&request, sizeof(request), options_.timeout, stop_));
  const size_t before = asked->size();
  if (request.count == 0 || request.count > ExampleRequest::kMost - before) {
    return InvalidArgument("a request for ", request.count, " examples, after ", before,
                           " that have no answer yet");
  }
  asked->resize(before + request.count);
  TFDEAR_RETURN_IF_ERROR(socket->Receive(asked->data() + before, request.count * sizeof(uint64_t),
                                         options_.timeout, stop_));
  for (size_t i = before; i < asked->size(); ++i) {
    if ((*asked)[i] >= static_cast<uint64_t>(options_.examples)) {
      return InvalidArgument("a request for example ", (*asked)[i], " of ", options_.examples);
    }
  }
  return Status();
}

Status ExampleServer::Answer(ExampleSocket* socket, std::vector<uint64_t>* asked, int64_t* bytes) {
  size_t coming = 0;
  for (uint64_t example : *asked) {
    const Look look = source_(static_cast<int64_t>(example));
    if (look.state == Look::kComing) {
      (*asked)[coming++] = example;
      continue;
    }
    ExampleAnswer answer;
    answer.example = example;
    answer.state = look.state == Look::kHere ? ExampleState::kHere : ExampleState::kNotHeld;
    if (look.state == Look::kHere) {
      answer.bytes = look.bytes;
      answer.crc = Crc32c(look.data, look.bytes);
    }
    TFDEAR_RETURN_IF_ERROR(socket->Send(&answer, sizeof(answer), options_.timeout, stop_));
    TFDEAR_RETURN_IF_ERROR(socket->Send(look.data, answer.bytes, options_.timeout, stop_));
    ++counts_.served;
    counts_.served_bytes += answer.bytes;
    *bytes += answer.bytes;
  }
  asked->resize(coming);
  return Status();
}

}  // namespace tfdear
