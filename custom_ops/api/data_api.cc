// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/api/data_api.h"

#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "custom_ops/engine/base/c_text.h"
#include "custom_ops/engine/engine.h"

namespace {

using tfdear::CollectiveBackend;
using tfdear::DataType;
using tfdear::Engine;
using tfdear::InvalidArgument;
using tfdear::Operation;
using tfdear::Reduced;
using tfdear::Reduction;
using tfdear::Report;
using tfdear::Signature;
using tfdear::Status;
using tfdear::TextOf;

// The reductions that are open, by number.
struct OpenReductions {
  std::mutex mutex;
  std::map<int64_t, std::shared_ptr<Reduction>> of_number;
  int64_t next = 1;

  std::shared_ptr<Reduction> Find(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = of_number.find(number);
    return found == of_number.end() ? nullptr : found->second;
  }
};

OpenReductions& Reductions() {
  static auto* reductions = new OpenReductions;
  return *reductions;
}

const Status kNotOpen = InvalidArgument("this reduction is not open");

Status RunDense(CollectiveBackend* backend, Operation operation, void* data, size_t count,
                DataType type, int root, const Signature& signature, uint64_t sequence) {
  switch (operation) {
    case Operation::kReduceScatter:
      return backend->ReduceScatter(data, count, type, signature, sequence);
    case Operation::kAllGather:
      return backend->AllGather(data, count, type, signature, sequence);
    case Operation::kAllReduce:
      return backend->AllReduce(data, count, type, signature, sequence);
    case Operation::kReduce:
      return backend->Reduce(data, count, type, root, signature, sequence);
    case Operation::kBroadcast:
      return backend->Broadcast(data, count * SizeOf(type), root, signature, sequence);
  }
  return InvalidArgument("there is no such collective");
}

Status WaitForSum(int64_t reduction, int tensor, void* out, int64_t bytes, double timeout_seconds,
                  int64_t* since_us) {
  const auto found = Reductions().Find(reduction);
  if (found == nullptr) return kNotOpen;
  const tfdear::ReductionLayout& layout = found->layout();
  if (tensor < 0 || static_cast<size_t>(tensor) >= layout.tensors.size()) {
    return InvalidArgument("'", layout.name, "' has no tensor ", tensor);
  }
  auto promise = std::make_shared<std::promise<std::pair<Status, Reduced>>>();
  auto future = promise->get_future();
  found->WhenReduced(tensor, [promise](const Status& status, const Reduced& sum) {
    promise->set_value({status, sum});
  });
  const auto timeout = std::chrono::duration<double>(timeout_seconds);
  if (future.wait_for(timeout) != std::future_status::ready) {
    return Status(
        tfdear::StatusCode::kDeadlineExceeded,
        TextOf("the sum of tensor ", tensor, " did not come within ", timeout_seconds, " s"));
  }
  const auto [status, sum] = future.get();
  if (status.ok() && out != nullptr) {
    int64_t held = static_cast<int64_t>(SizeOf(layout.tensors[tensor].type));
    for (int64_t dimension : sum.shape) held *= dimension;
    if (bytes != held) {
      return InvalidArgument("the sum of tensor ", tensor, " of '", layout.name, "' has ", held,
                             " bytes, its caller expected ", bytes);
    }
    if (bytes > 0) std::memcpy(out, sum.data, static_cast<size_t>(bytes));
  }
  *since_us = sum.since_us;
  return status;
}

}  // namespace

int tfdear_collective_run(int lane, int operation, void* data, int64_t count, int data_type,
                          int root, int warm_up, int repeats, double* seconds, char* error,
                          int error_size) {
  const auto opened = Engine::Get()->lane(static_cast<tfdear::LaneKind>(lane));
  if (opened == nullptr) {
    return Report(InvalidArgument("this rank alone has no process groups"), error, error_size);
  }
  const auto kind = static_cast<Operation>(operation);
  auto signature = std::make_shared<Signature>(
      TextOf(Name(kind), " run ", warm_up + repeats, " times on ", count, " elements"));
  const auto work =
      opened->group()->Run(signature, [=](CollectiveBackend* backend, uint64_t sequence) {
        auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < warm_up + repeats; ++i) {
          if (i == warm_up) begin = std::chrono::steady_clock::now();
          TFDEAR_RETURN_IF_ERROR(RunDense(backend, kind, data, static_cast<size_t>(count),
                                          static_cast<DataType>(data_type), root, *signature,
                                          sequence));
        }
        *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        return Status();
      });
  return Report(work->Wait(), error, error_size);
}

int tfdear_reduction_open(int64_t layout, int64_t* reduction, char* error, int error_size) {
  std::shared_ptr<Reduction> opened;
  tfdear::Lane* lane = nullptr;
  const Status status = Engine::Get()->Open(layout, &opened, &lane);
  if (status.ok()) {
    std::lock_guard<std::mutex> lock(Reductions().mutex);
    *reduction = Reductions().next++;
    Reductions().of_number[*reduction] = std::move(opened);
  }
  return Report(status, error, error_size);
}

int tfdear_reduction_contribute(int64_t reduction, int tensor, const void* data, int64_t count,
                                char* error, int error_size) {
  auto found = Reductions().Find(reduction);
  return Report(found == nullptr ? kNotOpen : found->Contribute(tensor, data, {count}), error,
                error_size);
}

int tfdear_reduction_wait(int64_t reduction, int tensor, void* out, int64_t bytes,
                          double timeout_seconds, int64_t* since_us, char* error, int error_size) {
  return Report(WaitForSum(reduction, tensor, out, bytes, timeout_seconds, since_us), error,
                error_size);
}

void tfdear_reduction_close(int64_t reduction) {
  std::shared_ptr<Reduction> closed;
  {
    std::lock_guard<std::mutex> lock(Reductions().mutex);
    auto found = Reductions().of_number.find(reduction);
    if (found == Reductions().of_number.end()) return;
    closed = std::move(found->second);
    Reductions().of_number.erase(found);
  }
  Engine::Get()->GiveUp(closed.get());
}
