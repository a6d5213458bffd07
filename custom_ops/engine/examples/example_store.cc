// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#include "custom_ops/engine/examples/example_store.h"

#include <algorithm>
#include <utility>

#include "custom_ops/engine/base/errors.h"

namespace tfdear {
namespace {

using Clock = std::chrono::steady_clock;

// Whoever waits for another rank looks so often whether that has ended.
constexpr std::chrono::milliseconds kLook{200};
// For so long a rank may be late to prepare its examples.
constexpr std::chrono::seconds kLate{10};

int64_t MicrosSince(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
}

int64_t SecondsSince(Clock::time_point begin) { return MicrosSince(begin) / 1000000; }

Status StandsStill(const std::string& what, Clock::time_point since) {
  return Status(StatusCode::kDeadlineExceeded,
                TextOf(what, " has not come, nor any other one, for ", SecondsSince(since),
                       " s: the source or `prepare` hangs on this rank"));
}

}  // namespace

Status ExampleStore::Create(const Options& options, std::shared_ptr<ExampleStore>* result) {
  std::shared_ptr<ExampleStore> store(new ExampleStore(options));
  TFDEAR_RETURN_IF_ERROR(ExampleSegment::Create(options.own_begin, options.own_end,
                                                options.memory_bytes, &store->own_));
  *result = std::move(store);
  return Status();
}

Status ExampleStore::Map(int rank, const std::string& address) {
  Peer peer;
  peer.rank = rank;
  TFDEAR_RETURN_IF_ERROR(ExampleSegment::Map(options_.examples, address, &peer.examples));
  const auto place = std::upper_bound(
      peers_.begin(), peers_.end(), peer.examples->begin(),
      [](int64_t begin, const Peer& other) { return begin < other.examples->begin(); });
  peers_.insert(place, std::move(peer));
  return Status();
}

Status ExampleStore::Serve(std::vector<ExampleSocket> sockets) {
  ExampleServer::Options options;
  options.examples = options_.examples;
  options.events = options_.events;
  options.timeout = options_.timeout;
  return ExampleServer::Start(
      options, [this](int64_t example) { return LookFor(example); }, std::move(sockets), &server_);
}

Status ExampleStore::AddNode(int rank, const std::vector<std::pair<int64_t, int64_t>>& ranges,
                             std::vector<ExampleSocket> sockets) {
  if (sockets.empty()) return InvalidArgument("rank ", rank, " cannot be asked without a socket");
  ExampleClient::Options options;
  options.rank = rank;
  options.timeout = options_.timeout;
  options.limit = limit_;
  options.verify = options_.verify;
  options.events = options_.events;
  std::vector<ExampleClient*> clients;
  for (ExampleSocket& socket : sockets) {
    std::unique_ptr<ExampleClient> client;
    TFDEAR_RETURN_IF_ERROR(ExampleClient::Start(
        options, [this](const ExampleClient::Answer& answer) { Receive(answer); },
        std::move(socket), &client));
    clients.push_back(client.get());
    clients_.push_back(std::move(client));
  }
  for (const auto& [begin, end] : ranges) remotes_.push_back({begin, end, clients});
  std::sort(remotes_.begin(), remotes_.end(),
            [](const Remote& one, const Remote& other) { return one.begin < other.begin; });
  return Status();
}

ExampleClient* ExampleStore::ClientOf(int64_t example) const {
  const auto next =
      std::upper_bound(remotes_.begin(), remotes_.end(), example,
                       [](int64_t number, const Remote& remote) { return number < remote.begin; });
  if (next == remotes_.begin()) return nullptr;
  const Remote& remote = *std::prev(next);
  return example < remote.end ? remote.clients[example % remote.clients.size()] : nullptr;
}

ExampleServer::Look ExampleStore::LookFor(int64_t example) const {
  const ExampleSegment* segment = own_.get();
  if (!own_->Has(example)) {
    const Peer* const peer = PeerOf(example);
    if (peer == nullptr) return {};
    segment = peer->examples.get();
  }
  ExampleServer::Look look;
  // In this order: it may come meanwhile.
  const bool last_chance = segment->Failed(example) || segment->full() ||
                           (segment != own_.get() && segment->owner_ended());
  if (segment->Find(example, &look.data, &look.bytes)) {
    look.state = ExampleServer::Look::kHere;
  } else if (!last_chance) {
    look.state = ExampleServer::Look::kComing;
  }
  return look;
}

const ExampleStore::Peer* ExampleStore::PeerOf(int64_t example) const {
  const auto next = std::upper_bound(
      peers_.begin(), peers_.end(), example,
      [](int64_t number, const Peer& peer) { return number < peer.examples->begin(); });
  if (next == peers_.begin()) return nullptr;
  const Peer& peer = *std::prev(next);
  return peer.examples->Has(example) ? &peer : nullptr;
}

bool ExampleStore::Find(int64_t example, Record* record) const {
  if (own_->Has(example)) return own_->Find(example, &record->data, &record->bytes);
  const Peer* const peer = PeerOf(example);
  return peer != nullptr && peer->examples->Find(example, &record->data, &record->bytes);
}

void ExampleStore::ReadFrom(const ReadingOrder& order, int64_t epoch, int64_t at, bool anew) {
  MutexLock lock(mutex_);
  if (options_.examples == 0 || (anew ? course_.over() : course_.begun())) return;
  course_.Begin(order, epoch, at);
  active_ = Clock::now();
  own_->Start();
  to_prepare_.notify_all();
}

int64_t ExampleStore::NextOnCourseLocked() {
  while (!own_->full() && !course_.over()) {
    const int64_t example = course_.Step();
    if (!own_->Has(example) || InHandLocked(example)) continue;
    // What failed is tried again only for those who want it.
    Record record;
    if (own_->Failed(example) || Find(example, &record)) continue;
    course_.Found();
    return example;
  }
  return -1;
}

std::vector<int64_t> ExampleStore::Next(size_t most, size_t most_in_order) {
  std::vector<int64_t> examples;
  MutexLock lock(mutex_);
  while (closed_.ok()) {
    const bool in_order = urgent_.empty() && course_.in_order();
    while (examples.size() < (in_order ? most_in_order : most)) {
      int64_t example = -1;
      if (!urgent_.empty()) {
        example = urgent_.front();
        urgent_.pop_front();
        // It may have come, or not be wanted any more.
        if (wanted_.count(example) == 0 || InHandLocked(example)) continue;
        Record record;
        if (Find(example, &record)) {
          there_.notify_all();  // Another rank of the node brought it, who told nobody here.
          continue;
        }
      } else {
        example = NextOnCourseLocked();
      }
      if (example < 0) break;
      preparing_.insert(example);
      examples.push_back(example);
    }
    if (!examples.empty()) {
      active_ = Clock::now();
      break;
    }
    lock.Wait(&to_prepare_);
  }
  return examples;
}

void ExampleStore::HandOutLocked(int64_t example, Made made) {
  preparing_.erase(example);
  if (wanted_.count(example) == 0) return;
  made_[example] = std::move(made);
  there_.notify_all();
}

void ExampleStore::Put(int64_t example, size_t bytes, const std::function<void(char*)>& write) {
  char* place = nullptr;
  {
    MutexLock lock(mutex_);
    active_ = Clock::now();
    ++progress_.prepared;
    progress_.prepared_bytes += bytes;
    failed_.erase(example);
    Record record;
    if (own_->Has(example) && !Find(example, &record)) {
      place = own_->Allocate(bytes);
      if (place == nullptr) there_.notify_all();
      writing_ += place == nullptr ? 0 : 1;
    }
  }
  if (place == nullptr) {
    auto copy = std::make_shared<std::vector<char>>(bytes);
    write(copy->data());
    MutexLock lock(mutex_);
    HandOutLocked(example, {Status(), std::move(copy)});
  } else {
    write(place);
    MutexLock lock(mutex_);
    own_->Publish(example, place, bytes);
    --writing_;
    preparing_.erase(example);
    wanted_.erase(example);  // Whoever wants it finds it.
    progress_.held_bytes += bytes;
    there_.notify_all();
  }
  own_->Announce();
}

void ExampleStore::Fail(int64_t example, const Status& status) {
  {
    MutexLock lock(mutex_);
    active_ = Clock::now();
    if (own_->Has(example)) {
      own_->Fail(example);
      failed_[example] = status;
      there_.notify_all();
    }
    HandOutLocked(example, {status, nullptr});
  }
  own_->Announce();
}

bool ExampleStore::Skip(int64_t example) {
  Put(example, 0, [](char*) {});
  MutexLock lock(mutex_);
  return skipped_.insert(example).second;
}

void ExampleStore::DemandLocked(int64_t example) {
  if (InHandLocked(example)) return;
  urgent_.push_back(example);
  to_prepare_.notify_all();
}

void ExampleStore::FetchLocked(int64_t example) {
  ExampleClient* const client = ClientOf(example);
  if (client == nullptr) return DemandLocked(example);
  if (InHandLocked(example)) return;
  const Status status = client->Ask(example);
  if (!status.ok()) return HandOutLocked(example, {status, nullptr});
  asked_.insert(example);
}

void ExampleStore::Receive(const ExampleClient::Answer& answer) {
  MutexLock lock(mutex_);
  active_ = Clock::now();
  asked_.erase(answer.example);
  if (answer.bytes != nullptr) {
    ++progress_.fetched;
    progress_.fetched_bytes += answer.bytes->size();
  }
  if (answer.bytes != nullptr || !answer.status.ok()) {
    HandOutLocked(answer.example, {answer.status, answer.bytes});
  } else if (wanted_.count(answer.example) > 0) {
    DemandLocked(answer.example);
    there_.notify_all();  // Now it is this rank's to prepare: whoever waits has a deadline again.
  }
}

bool ExampleStore::Want(int64_t example) {
  Record record;
  if (Find(example, &record)) return false;
  MutexLock lock(mutex_);
  if (Find(example, &record)) return false;
  ++wanted_[example];
  const Peer* const peer = PeerOf(example);
  if (peer == nullptr || peer->examples->full()) FetchLocked(example);
  return true;
}

void ExampleStore::GiveUp(int64_t example) {
  MutexLock lock(mutex_);
  const auto found = wanted_.find(example);
  if (found == wanted_.end() || --found->second > 0) return;
  wanted_.erase(found);
  made_.erase(example);
}

Status ExampleStore::AwaitPeer(const Peer& peer, int64_t example,
                               const std::function<bool()>& cancelled, bool* comes) {
  const ExampleSegment& examples = *peer.examples;
  auto since = Clock::now();
  uint32_t last = examples.changes();
  Record record;
  while (true) {
    const uint32_t changes = examples.changes();
    *comes = Find(example, &record);
    if (*comes || examples.Failed(example) || examples.full() || examples.owner_ended()) break;
    if (changes != last) since = Clock::now();
    last = changes;
    const auto idle = Clock::now() - since;
    if (!examples.started() && idle > kLate) break;
    if (idle > options_.timeout) {
      return Status(StatusCode::kDeadlineExceeded,
                    TextOf("rank ", peer.rank, ", which prepares example ", example,
                           ", has prepared nothing for ", SecondsSince(since),
                           " s. See its log; the strategy's `timeout` says how long it may take"));
    }
    {
      MutexLock lock(mutex_);
      if (!closed_.ok()) return closed_;
    }
    if (cancelled()) return Status(StatusCode::kCancelled, "the iterator was given up");
    examples.AwaitChange(changes, kLook);
  }
  return Status();
}

Status ExampleStore::Take(int64_t example, const std::function<bool()>& cancelled, Record* record) {
  if (TakeNow(example, record)) return Status();
  const auto begin = Clock::now();
  Status status;
  bool comes = false;
  const Peer* const peer = PeerOf(example);
  if (peer != nullptr) status = AwaitPeer(*peer, example, cancelled, &comes);
  auto since = Clock::now();  // The peer may have had its own time before.
  {
    MutexLock lock(mutex_);
    ++progress_.misses;
    // What another rank of the node does not bring is prepared here; all else Want() saw to.
    if (status.ok() && !comes && peer != nullptr) DemandLocked(example);
    while (status.ok() && !Find(example, record)) {
      const auto found = made_.find(example);
      if (found != made_.end()) {
        status = found->second.status;
        if (status.ok()) {
          record->data = found->second.bytes->data();
          record->bytes = found->second.bytes->size();
          record->owner = found->second.bytes;
        }
        break;
      }
      if (!closed_.ok()) {
        status = closed_;
      } else if (cancelled()) {
        status = Status(StatusCode::kCancelled, "the iterator was given up");
      } else if (asked_.count(example) > 0) {
        lock.Wait(&there_);  // The client has a deadline, and says whom it asked.
      } else if (since = std::max(since, active_); Clock::now() > since + options_.timeout) {
        status = StandsStill(TextOf("example ", example), since);
      } else {
        lock.WaitUntil(&there_, since + options_.timeout + kLook);
      }
    }
    progress_.waited_micros += MicrosSince(begin);
  }
  GiveUp(example);
  return status;
}

Status ExampleStore::AwaitFilled(std::chrono::milliseconds time, bool* filled) {
  const auto deadline = Clock::now() + time;
  MutexLock lock(mutex_);
  while (true) {
    const int64_t done = own_->held() + static_cast<int64_t>(failed_.size());
    *filled = (own_->full() && writing_ == 0) || done == own_->end() - own_->begin();
    if (*filled) return failed_.empty() ? Status() : failed_.begin()->second;
    if (!closed_.ok()) return closed_;
    if (Clock::now() > active_ + options_.timeout) return StandsStill("an example", active_);
    if (Clock::now() >= deadline) return Status();
    lock.WaitUntil(&there_, deadline);
  }
}

void ExampleStore::Note(EventKind kind, int64_t examples, int64_t begin_us) const {
  if (options_.events == nullptr) return;
  options_.events->Add({kind, 0, 0, examples, begin_us, EventRecord::NowMicros()});
}

ExampleStore::Progress ExampleStore::progress() const {
  MutexLock lock(mutex_);
  Progress progress = progress_;
  progress.hits = hits_.load(std::memory_order_relaxed);
  progress.full = own_->full();
  progress.skipped = skipped_.size();
  progress.owned = own_->end() - own_->begin();
  progress.held = progress.held_on_node = own_->held();
  for (const Peer& peer : peers_) progress.held_on_node += peer.examples->held();
  if (server_ == nullptr) return progress;
  progress.served = server_->counts().served;
  progress.served_bytes = server_->counts().served_bytes;
  progress.refused = server_->counts().refused;
  return progress;
}

}  // namespace tfdear
