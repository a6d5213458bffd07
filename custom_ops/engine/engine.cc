// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/engine.h"

#include <algorithm>
#include <condition_variable>
#include <utility>

#include "custom_ops/engine/plan_agreement.h"
#include "custom_ops/engine/tensor_identity.h"

namespace tfdear {

// Executions until ranks talk again about plans when rank 0 had nothing to say yet.
constexpr int64_t kAskAgain = 2;

void SingleCollective::Start(std::shared_ptr<const Signature> signature, Body body,
                             std::function<void(const Status&)> done) {
  Status failure;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failure = failure_;
    if (failure.ok()) {
      signature_ = std::move(signature);
      body_ = std::move(body);
      done_ = std::move(done);
      started_ = true;
    }
  }
  if (!failure.ok()) {
    done(failure);
    return;
  }
  lane_->Advance();
}

bool SingleCollective::Issue(ProcessGroup* group, Reactions* reactions) {
  if (!started_.load()) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  auto signature = std::make_shared<Signature>(WithTicket(signature_->text(), number()));
  auto run = [signature, body = std::move(body_), events = events_, number = number()](
                 CollectiveBackend* backend, uint64_t sequence) {
    const int64_t begin = EventRecord::NowMicros();
    Status status = body(backend, *signature, sequence);
    events->Add({EventKind::kCollective, number, 0, 0, begin, EventRecord::NowMicros()});
    return status;
  };
  // The state that the caller handed in must live until the collective is done: `done` owns it.
  auto work = group->Run(signature, std::move(run));
  reactions->push_back([work, done = std::move(done_)] { work->OnDone(done); });
  done_ = nullptr;
  return true;
}

void SingleCollective::Fail(const Status& cause) {
  std::function<void(const Status&)> done;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = cause;
    done = std::move(done_);
    done_ = nullptr;
  }
  if (done) done(cause);
}

Engine* Engine::Get() {
  // Never destroyed: TensorFlow's threads may still call in while the process ends.
  static Engine* engine = new Engine;
  return engine;
}

Status Engine::Start(const Options& options,
                     std::array<std::unique_ptr<ProcessGroup>, kNumLanes> groups) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (started_) {
    return Status(StatusCode::kInvalidArgument,
                  "the engine of this process was started before: a process can hold one "
                  "distributed DearStrategy; create it once and use it for every model");
  }
  if (!failure_.ok()) return failure_;
  started_ = true;
  options_ = options;
  for (int i = 0; i < kNumLanes; ++i) {
    if (groups[i] == nullptr) continue;
    lanes_[i] = std::make_unique<Lane>(static_cast<LaneKind>(i), std::move(groups[i]));
  }
  auto& gradients = lanes_[static_cast<int>(LaneKind::kGradients)];
  auto memory = gradients == nullptr ? nullptr : gradients->group()->fusion_memory();
  if (memory != nullptr) {
    shared_pool_ = std::make_shared<FusionBufferPool>(FusionBufferPool::kMaxIdleBytes, memory);
  }
  return Status();
}

bool Engine::started() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return started_;
}

int64_t Engine::CreateLayout(const std::string& name, LaneKind lane) {
  std::lock_guard<std::mutex> lock(mutex_);
  layouts_.push_back(std::make_unique<LayoutEntry>());
  layouts_.back()->name = name;
  layouts_.back()->lane = lane;
  return static_cast<int64_t>(layouts_.size()) - 1;
}

Status Engine::Find(int64_t layout, bool open_to_change, LayoutEntry** entry) {
  if (layout < 0 || layout >= static_cast<int64_t>(layouts_.size())) {
    return Status(StatusCode::kInvalidArgument,
                  "there is no reduction layout " + std::to_string(layout) +
                      " in this process: a function that was traced under a DearStrategy runs only "
                      "in the process that traced it");
  }
  *entry = layouts_[layout].get();
  if (open_to_change && (*entry)->current != nullptr) {
    return Status(StatusCode::kInternal,
                  "reduction layout '" + (*entry)->name + "' was changed after its first use");
  }
  return Status();
}

Status Engine::CheckTensor(const LayoutEntry& entry, int tensor) {
  if (tensor >= 0 && tensor < static_cast<int>(entry.tensors.size())) return Status();
  return Status(StatusCode::kInvalidArgument, "reduction layout '" + entry.name + "' has " +
                                                  std::to_string(entry.tensors.size()) +
                                                  " tensors, no tensor " + std::to_string(tensor));
}

Status Engine::AddTensor(int64_t layout, const TensorSpec& tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  Status status = Find(layout, /*open_to_change=*/true, &entry);
  if (status.ok()) {
    entry->tensors.push_back(tensor);
    entry->variables.push_back(-1);
  }
  return status;
}

Status Engine::SetVariable(int64_t layout, int tensor, int64_t variable, const std::string& name,
                           const std::string& comparable, const std::string& kind) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/true, &entry));
  TFDEAR_RETURN_IF_ERROR(CheckTensor(*entry, tensor));
  entry->variables[tensor] = variable;
  entry->tensors[tensor].name = name;
  entry->tensors[tensor].comparable = comparable;
  entry->tensors[tensor].kind = kind;
  return Status();
}

// [Note: traces of one step]
// A function is traced again for a batch of another size, and every trace has a layout. Ranks need
// not trace alike: in the last batch some have fewer examples than before, others as many. But they
// count executions to know when to agree on plans (see below), and hold gradients back from one
// step to the next, which belong to variables and not to a trace. So layouts of the gradients of
// the same variables are one: the first of them.
void Engine::FindShared(int64_t layout) {
  LayoutEntry& entry = *layouts_[layout];
  if (entry.shared >= 0) return;
  entry.shared = layout;
  const bool known =
      std::find(entry.variables.begin(), entry.variables.end(), -1) == entry.variables.end();
  auto alike = [](const TensorSpec& a, const TensorSpec& b) {
    return a == b && a.norms == b.norms;  // Who wants norms waits for layers to be added.
  };
  for (int64_t other = 0; known && other < layout; ++other) {
    const LayoutEntry& earlier = *layouts_[other];
    if (earlier.variables == entry.variables && earlier.lane == entry.lane &&
        earlier.name == entry.name && earlier.momentum == entry.momentum &&
        std::equal(earlier.tensors.begin(), earlier.tensors.end(), entry.tensors.begin(),
                   entry.tensors.end(), alike)) {
      entry.shared = other;
      return;
    }
  }
}

int64_t Engine::SharedWith(int64_t layout) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  const bool found = Find(layout, /*open_to_change=*/false, &entry).ok();
  return found && entry->shared >= 0 ? entry->shared : layout;
}

Status Engine::SetLane(int64_t layout, LaneKind lane) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  Status status = Find(layout, /*open_to_change=*/false, &entry);
  if (!status.ok() || entry->lane == lane) return status;
  status = Find(layout, /*open_to_change=*/true, &entry);
  if (status.ok()) entry->lane = lane;
  return status;
}

LevelGroups Engine::GroupsOfLevels() {
  auto group = [this](LaneKind kind) {
    Lane* const found = lane(kind);
    return found == nullptr ? nullptr : found->group();
  };
  return {group(LaneKind::kGradientsIntra), group(LaneKind::kGradientsInter)};
}

Levels Engine::Existing() {
  const LevelGroups groups = GroupsOfLevels();
  return {groups.intra != nullptr, groups.inter != nullptr};
}

Status Engine::RequestNorms(int64_t layout, int tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/true, &entry));
  TFDEAR_RETURN_IF_ERROR(CheckTensor(*entry, tensor));
  entry->tensors[tensor].norms = true;
  return Status();
}

std::vector<size_t> Engine::BucketBytes(int64_t layout) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  std::vector<size_t> bytes;
  if (!Find(layout, /*open_to_change=*/false, &entry).ok() || entry->current == nullptr)
    return bytes;
  for (const Bucket& bucket : entry->current->buckets) {
    bytes.push_back(bucket.count * SizeOf(bucket.type));
  }
  return bytes;
}

// [Note: agreement on plans]
// Every rank must cut the same gradients into the same buckets, and send them in the same order.
// Rank 0 measures and decides; the others hear of it at executions that all ranks know beforehand:
// there, opening a reduction includes a broadcast from rank 0 of its plan (or that it keeps the old
// one) and of the number of executions until the next such broadcast. It goes through the control
// lane, so it never queues behind gradients, and only the opening waits for it, not the forward
// pass. Between agreements no rank says a word about plans.
void Engine::Agree(int64_t layout, Opened opened) {
  std::shared_ptr<SingleCollective> collective;
  Lane* lane = nullptr;
  const Status status = OpenCollective(LaneKind::kControl, &collective, &lane);
  if (!status.ok()) return opened(status, nullptr, nullptr);
  auto message = std::make_shared<PlanAgreement>();
  auto body = [this, layout, message](CollectiveBackend* backend, const Signature& signature,
                                      uint64_t sequence) {
    if (backend->rank() == 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      LayoutEntry& entry = *layouts_[layout];
      message->plan.swap(entry.proposal);
      message->interval = entry.proposed_interval > 0 ? entry.proposed_interval : kAskAgain;
      entry.proposed_interval = 0;
    }
    return BroadcastAgreement(backend, signature, sequence, message.get());
  };
  std::string name;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    name = layouts_[layout]->name;
  }
  // `collective` is kept until the end: nobody else holds it once it was issued.
  collective->Start(std::make_shared<Signature>("broadcast of the plan of '" + name + "'"),
                    std::move(body),
                    [this, layout, message, collective, opened](const Status& status) {
                      Status agreed = status;
                      if (agreed.ok()) agreed = Adopt(layout, message->plan, message->interval);
                      if (!agreed.ok()) return opened(agreed, nullptr, nullptr);
                      OpenNow(layout, opened);
                    });
}

Status Engine::Adopt(int64_t layout, const std::vector<int64_t>& words, int64_t interval) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry& entry = *layouts_[layout];
  entry.agreement = entry.executions - 1 + interval;
  if (words.empty()) return Status();
  Plan plan;
  TFDEAR_RETURN_IF_ERROR(Plan::Decode(words, &plan));
  TFDEAR_RETURN_IF_ERROR(plan.Check(entry.tensors, Existing()));
  entry.plan = plan;
  entry.current = ReductionLayout::Make(entry.name, entry.tensors, std::move(plan));
  return Status();
}

Status Engine::SetPlan(int64_t layout, const std::vector<int64_t>& words) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/true, &entry));
  Plan plan;
  TFDEAR_RETURN_IF_ERROR(Plan::Decode(words, &plan));
  TFDEAR_RETURN_IF_ERROR(plan.Check(entry->tensors, Existing()));
  entry->plan = std::move(plan);
  return Status();
}

Status Engine::Propose(int64_t layout, const std::vector<int64_t>& plan, int64_t next_agreement) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/false, &entry));
  if (next_agreement < 1) {
    return Status(StatusCode::kInvalidArgument,
                  "expected at least one execution until the next agreement, received " +
                      std::to_string(next_agreement));
  }
  if (!plan.empty()) {
    // Here, where the mistake was made, and not on all ranks.
    Plan decoded;
    TFDEAR_RETURN_IF_ERROR(Plan::Decode(plan, &decoded));
    TFDEAR_RETURN_IF_ERROR(decoded.Check(entry->tensors, Existing()));
  }
  entry->proposal = plan;
  entry->proposed_interval = next_agreement;
  return Status();
}

std::vector<int64_t> Engine::PlanOf(int64_t layout, int64_t* executions) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  if (!Find(layout, /*open_to_change=*/false, &entry).ok()) return {};
  *executions = entry->executions;
  return entry->current == nullptr ? std::vector<int64_t>() : entry->plan.Encode();
}

Status Engine::Compress(const Compression& compression) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : layouts_) {
    if (entry->lane == LaneKind::kGradients && entry->current != nullptr) {
      return Status(StatusCode::kInternal,
                    "compression was set after the first use of layout '" + entry->name + "'");
    }
  }
  compressed_ = true;
  compression_ = compression;
  return Status();
}

Status Engine::SetOptimizer(int64_t layout, float momentum) {
  std::lock_guard<std::mutex> lock(mutex_);
  LayoutEntry* entry = nullptr;
  TFDEAR_RETURN_IF_ERROR(Find(layout, /*open_to_change=*/true, &entry));
  entry->optimizer = true;
  entry->momentum = momentum;
  return Status();
}

SparseExchangeOptions Engine::ExchangeOf(const LayoutEntry& entry) const {
  SparseExchangeOptions options = compression_.exchange;
  if (compression_.momentum_of_optimizer) {
    options.momentum = entry.momentum;
    options.optimizer_has_momentum = entry.momentum != 0;
  }
  return options;
}

Status Engine::SetDensity(double density) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!(density > 0 && density <= 1)) {
    return Status(StatusCode::kInvalidArgument,
                  "expected a density above 0 and at most 1, received " + std::to_string(density));
  }
  if (!compressed_ && density < 1) {
    return Status(StatusCode::kInvalidArgument,
                  "the strategy was created without compression; pass `compression=` to "
                  "DearStrategy, and switch it on and off afterwards");
  }
  density_ = density;
  return Status();
}

// Which part of every bucket this rank exchanges, of how many.
std::pair<int, int> Engine::PlaceOfExchange() {
  const LevelGroups groups = GroupsOfLevels();
  if (!compression_.buckets.hierarchical || groups.intra == nullptr) return {0, 1};
  return {groups.intra->rank(), groups.intra->size()};
}

void Engine::TakeUpLoaded(LayoutEntry* entry) {
  entry->loads = loads_;
  entry->compression = nullptr;
  entry->flushed = nullptr;
  auto found = std::find_if(loaded_.begin(), loaded_.end(),
                            [&](const auto& state) { return state->tensors() == entry->tensors; });
  if (found == loaded_.end()) return;
  std::shared_ptr<CompressionState> state = std::move(*found);
  loaded_.erase(found);
  state->Use(ExchangeOf(*entry));
  if (entry->current == nullptr && state->plan().Check(entry->tensors, Existing()).ok()) {
    entry->plan = state->plan();
  }
  if (state->plan().buckets == entry->plan.buckets) {
    entry->compression = std::move(state);
  } else {
    entry->flushed = std::move(state);
  }
}

CompressionOfStep Engine::CompressionOf(LayoutEntry* entry) {
  if (entry->loads < loads_) TakeUpLoaded(entry);
  const auto [place, places] = PlaceOfExchange();
  // What is held back belongs to a bucket; in which order buckets travel does not matter to it.
  if (entry->compression != nullptr && entry->compression->plan().buckets != entry->plan.buckets) {
    entry->flushed = std::move(entry->compression);
    entry->compression = nullptr;
  }
  if (entry->compression == nullptr) {
    entry->compression = std::make_shared<CompressionState>(entry->tensors, entry->plan,
                                                            ExchangeOf(*entry), place, places);
    if (entry->flushed != nullptr) entry->compression->steps = entry->flushed->steps;
  }
  CompressionOfStep step;
  step.state = entry->compression;
  step.flushed = std::move(entry->flushed);
  entry->flushed = nullptr;
  step.density = density_;
  if (density_ < 1) {
    const bool warms_up = entry->optimizer || !compression_.only_optimizers_warm_up;
    step.density = DensityAt(density_, compression_.first_density,
                             warms_up ? compression_.warm_up_steps : 0, entry->compression->steps);
    ++entry->compression->steps;
  }
  return step;
}

Status Engine::SaveCompression(std::vector<char>* state) {
  std::vector<std::shared_ptr<const CompressionState>> states;
  state->clear();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& entry : layouts_) {
      if (entry->loads < loads_) continue;  // A loaded state is about to take its place.
      const std::shared_ptr<const CompressionState> current =
          entry->flushed != nullptr ? entry->flushed : entry->compression;
      if (current != nullptr) states.push_back(current);
    }
    for (const auto& loaded : loaded_) loaded->Save(state);
  }
  for (const auto& of_layout : states) {
    if (of_layout->last_exchange != nullptr) {
      TFDEAR_RETURN_IF_ERROR(of_layout->last_exchange->Wait());
    }
    of_layout->Save(state);
  }
  return Status();
}

Status Engine::LoadCompression(const std::vector<char>& state) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [place, places] = PlaceOfExchange();
  std::vector<std::unique_ptr<CompressionState>> loaded;
  const char* next = state.data();
  const char* const end = next + state.size();
  while (next != end) {
    loaded.emplace_back();
    TFDEAR_RETURN_IF_ERROR(CompressionState::Load(&next, end, place, places, &loaded.back()));
  }
  loaded_ = std::move(loaded);
  ++loads_;
  return Status();
}

void Engine::Open(int64_t layout, Opened opened) {
  Status status;
  bool agree = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status = failure_;
    LayoutEntry* entry = nullptr;
    if (status.ok()) status = Find(layout, /*open_to_change=*/false, &entry);
    if (status.ok()) {
      FindShared(layout);
      layout = entry->shared;
      entry = layouts_[layout].get();
    }
    if (status.ok() && lanes_[static_cast<int>(entry->lane)] == nullptr) {
      status = Status(StatusCode::kInternal, "the engine was not started before its first use");
    }
    if (status.ok()) {
      const bool gradients = entry->lane == LaneKind::kGradients;
      if (entry->current == nullptr) {
        // Outside the gradients' lane somebody waits for the sums: nothing to put off.
        const Schedule schedule = gradients ? options_.schedule : Schedule::kWfbp;
        const Algorithm algorithm = gradients ? options_.algorithm : Algorithm::kShards;
        Identify(&entry->tensors);
        if (gradients && entry->loads < loads_) TakeUpLoaded(entry);
        if (entry->plan.buckets.empty()) {
          entry->plan =
              Plan::Make(entry->tensors, options_.bucket_bytes, schedule, algorithm, Existing(),
                         compressed_ && gradients ? compression_.buckets : SparseBuckets());
        }
        entry->current = ReductionLayout::Make(entry->name, entry->tensors, entry->plan);
        entry->agreement = options_.first_agreement;
      }
      agree = gradients && entry->agreement > 0 && entry->executions == entry->agreement;
      ++entry->executions;
    }
  }
  if (!status.ok()) return opened(status, nullptr, nullptr);
  if (agree) return Agree(layout, std::move(opened));
  OpenNow(layout, opened);
}

void Engine::OpenNow(int64_t layout, const Opened& opened) {
  std::shared_ptr<const ReductionLayout> current;
  CompressionOfStep compression;
  Lane* lane = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    LayoutEntry& entry = *layouts_[layout];
    current = entry.current;
    if (compressed_ && entry.lane == LaneKind::kGradients) compression = CompressionOf(&entry);
    lane = lanes_[static_cast<int>(entry.lane)].get();
  }
  ProcessGroup* group = lane->group();
  auto reduction =
      std::make_shared<Reduction>(current, group->rank(), group->size(), pool_, &events_, lane,
                                  options_.max_delay_ms, GroupsOfLevels(), std::move(compression),
                                  lane->kind() == LaneKind::kGradients ? shared_pool_ : nullptr);
  lane->Open(reduction);
  if (lane->kind() == LaneKind::kGradients) {
    const int64_t now = EventRecord::NowMicros();
    events_.Add({EventKind::kStep, reduction->number(), layout,
                 static_cast<int64_t>(current->buckets.size()), now, now});
  }
  opened(Status(), std::move(reduction), lane);
}

Status Engine::Open(int64_t layout, std::shared_ptr<Reduction>* reduction, Lane** lane) {
  struct Result {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    Status status;
    std::shared_ptr<Reduction> reduction;
    Lane* lane = nullptr;
  };
  auto result = std::make_shared<Result>();
  Open(layout, [result](const Status& status, std::shared_ptr<Reduction> opened, Lane* its_lane) {
    std::lock_guard<std::mutex> lock(result->mutex);
    result->done = true;
    result->status = status;
    result->reduction = std::move(opened);
    result->lane = its_lane;
    result->changed.notify_all();
  });
  // Ends with the collective's own deadline at the latest.
  std::unique_lock<std::mutex> lock(result->mutex);
  result->changed.wait(lock, [&] { return result->done; });
  *reduction = std::move(result->reduction);
  *lane = result->lane;
  return result->status;
}

Status Engine::OpenCollective(LaneKind kind, std::shared_ptr<SingleCollective>* collective,
                              Lane** opened) {
  Status failed = failure();
  if (!failed.ok()) return failed;
  *opened = lane(kind);
  if (*opened == nullptr) {
    return Status(StatusCode::kInternal, "the engine was not started before its first use");
  }
  *collective = std::make_shared<SingleCollective>();
  (*collective)->lane_ = *opened;
  (*collective)->events_ = &events_;
  (*opened)->Open(*collective);
  return Status();
}

void Engine::GiveUp(Ticket* ticket, Lane* lane) {
  if (lane->Withdraw(ticket)) return;
  auto* reduction = dynamic_cast<Reduction*>(ticket);
  if (reduction == nullptr || reduction->complete()) return;
  Abort(Status(
      StatusCode::kAborted,
      "a step ended on this rank after some of the tensors of '" + reduction->layout().name +
          "' were on their way to the other ranks and before the rest were computed. The first "
          "error above says why; the job cannot go on, because the ranks no longer agree on what "
          "was sent"));
}

void Engine::Abort(const Status& cause) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = cause;
  }
  for (auto& lane : lanes_) {
    if (lane != nullptr) lane->Fail(cause);
  }
  pending_.Fail(cause);
}

Status Engine::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

}  // namespace tfdear
