// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/api/data_api.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "custom_ops/api/c_text.h"
#include "custom_ops/engine/engine.h"

namespace {

using tfdear::CollectiveBackend;
using tfdear::DataType;
using tfdear::Engine;
using tfdear::Operation;
using tfdear::Reduced;
using tfdear::Reduction;
using tfdear::Report;
using tfdear::Signature;
using tfdear::Status;
using tfdear::StatusCode;

// A value that another thread sets and one thread waits for.
template <typename T>
class Future {
 public:
  void Set(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    value_ = std::move(value);
    set_ = true;
    changed_.notify_all();
  }
  bool Wait(double seconds, T* value) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return set_; })) {
      return false;
    }
    *value = std::move(value_);
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
  T value_;
};

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

const Status kNotOpen(StatusCode::kInvalidArgument, "this reduction is not open");

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

}  // namespace

int tfdear_collective_run(int lane, int operation, void* data, int64_t count, int data_type,
                          int root, int warm_up, int repeats, double* seconds, char* error,
                          int error_size) {
  auto* opened = Engine::Get()->lane(static_cast<tfdear::LaneKind>(lane));
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
  auto found = Reductions().Find(reduction);
  if (found == nullptr) return Report(kNotOpen, error, error_size);
  if (tensor < 0 || static_cast<size_t>(tensor) >= found->layout().tensors.size()) {
    return Report(InvalidArgument("'", found->layout().name, "' has no tensor ", tensor), error,
                  error_size);
  }
  auto future = std::make_shared<Future<std::pair<Status, Reduced>>>();
  found->WhenReduced(tensor, [future](const Status& status, const Reduced& sum) {
    future->Set({status, sum});
  });
  std::pair<Status, Reduced> result;
  if (!future->Wait(timeout_seconds, &result)) {
    return Report(Status(StatusCode::kDeadlineExceeded,
                         TextOf("the sum of tensor ", tensor, " did not come within ",
                                timeout_seconds, " s")),
                  error, error_size);
  }
  if (result.first.ok() && out != nullptr) {
    int64_t held = static_cast<int64_t>(SizeOf(found->layout().tensors[tensor].type));
    for (int64_t dimension : result.second.shape) held *= dimension;
    if (bytes != held) {
      return Report(InvalidArgument("the sum of tensor ", tensor, " of '", found->layout().name,
                                    "' has ", held, " bytes, its caller expected ", bytes),
                    error, error_size);
    }
  }
  if (result.first.ok() && out != nullptr && bytes > 0) {
    std::memcpy(out, result.second.data, static_cast<size_t>(bytes));
  }
  *since_us = result.second.since_us;
  return Report(result.first, error, error_size);
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
