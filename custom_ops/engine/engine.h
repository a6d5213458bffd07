// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/memory/fusion_buffer.h"
#include "custom_ops/engine/queue/lane.h"
#include "custom_ops/engine/record/event_record.h"
#include "custom_ops/engine/record/table_counts.h"
#include "custom_ops/engine/record/waits.h"
#include "custom_ops/engine/schedule/compression_state.h"
#include "custom_ops/engine/schedule/reduction.h"
#include "custom_ops/engine/schedule/right_of_way.h"
#include "custom_ops/engine/schedule/single_collective.h"
#include "custom_ops/engine/schedule/table_lookup.h"
#include "custom_ops/engine/updates/pending_updates.h"

namespace tfdear {

// What kernels talk to: takes gradients, keeps the order of collectives, knows which variables have
// updates in flight, and turns the first failure into an error on everything that waits. A strategy
// starts and stops it; one at a time.
//
// [Note: closed strategies]
// What TensorFlow holds outlives the strategy that it was made with: functions with the numbers of
// layouts and lookups, variant tensors with tickets, variables with numbers. So numbers are never
// used twice, and what belongs to a strategy that was closed says so in words. A ticket keeps its
// lane (`lane.h`), and with that the shell of its process group, whose threads and connections are
// gone. Variables stay what they are: they have no updates in flight, and are read as before.
class Engine {
 public:
  struct Options {
    int max_delay_ms = 0;  // Injected before every collective and update (tests).
    // Executions of a layout of gradients before the ranks first agree on a plan; 0: never.
    int64_t first_agreement = 0;
    // Whether rows and vectors of tables go before dense gradients, or all as they come.
    bool tables_first = false;
  };

  // The process's own, for callers that can be handed nothing: kernels and the C functions.
  static Engine* Get();

  Engine()
      : right_of_way_([this](const std::vector<int64_t>& variables) {
          return pending_.HasReaders(variables);
        }),
        pending_(&events_,
                 [this](int64_t variable) {
                   if (variable == PendingUpdates::kAll) return right_of_way_.Release();
                   right_of_way_.VariableWanted(variable);
                 }),
        pool_(std::make_shared<FusionBufferPool>()) {}
  // Waits for the collectives that run. Nobody may wait for others: Abort() ends what does.
  ~Engine();

  // Takes the lanes' process groups. Lanes may be null (a rank alone has none).
  Status Start(const Options& options, std::array<std::unique_ptr<ProcessGroup>, kNumLanes> groups);
  // Waits until no update is in flight, then ends whatever is still in the lanes with an error,
  // frees the groups, with their threads and connections, and forgets layouts, lookups and
  // compression; see [Note: closed strategies]. It stops in any case: an error says what became of
  // the updates. Start() works again, unless the engine was aborted. Not from a callback.
  Status Stop(std::chrono::milliseconds timeout);
  bool started() const;

  // Layouts are described tensor by tensor while a function is traced and fixed by their first use.
  int64_t CreateLayout(const std::string& name, LaneKind lane);
  Status AddTensor(int64_t layout, const TensorSpec& tensor);
  Status SetLane(int64_t layout, LaneKind lane);
  // The tensor is the gradient of this variable; see [Note: traces of one step] and
  // [Note: identity of tensors].
  Status SetVariable(int64_t layout, int tensor, int64_t variable, const std::string& name,
                     const std::string& comparable, const std::string& kind);
  // Says that a tensor of a layout is the gradient of a table that the ranks hold in parts: its
  // rows go to those that hold them. Before the first use, on all ranks.
  Status SetPartition(int64_t layout, int tensor, TablePartition partition);
  // Says that a sparse tensor is the gradient of this table: how its rows travel if all ranks have
  // the table whole, and where they are counted. Before the first use, on all ranks.
  Status SetTable(int64_t layout, int tensor, int64_t variable, WholeTable whole);
  // The layout whose plan this one follows: itself, as long as it was not used.
  int64_t SharedWith(int64_t layout);
  // An optimizer gets the sums of this layout, and applies this momentum to them.
  Status SetOptimizer(int64_t layout, float momentum);
  // Norms are wanted with the sum of this tensor: Reduction::AddLayer() will be called for it.
  Status RequestNorms(int64_t layout, int tensor);
  // Bucket sizes of the layout's plan, in bytes; empty before its first use.
  std::vector<size_t> BucketBytes(int64_t layout);

  // Takes the next place in the layout's lane and calls `opened`: at once, or, when this is an
  // execution at which the ranks agree on a plan, once rank 0's is here. Until then nothing else
  // may be opened. `lane` is where to advance or withdraw.
  using Opened = std::function<void(const Status&, std::shared_ptr<Reduction>, Lane* lane)>;
  void Open(int64_t layout, Opened opened);
  // Waits for that.
  Status Open(int64_t layout, std::shared_ptr<Reduction>* reduction, Lane** lane);

  // Nobody will contribute to the ticket any more. One that got no data makes room for the next in
  // its lane; one that got only some cannot be completed by this rank, which ends the job for all.
  void GiveUp(Ticket* ticket, Lane* lane);
  void GiveUp(Reduction* reduction) { GiveUp(reduction, reduction->lane()); }

  // Sets the plan that a layout starts with; before its first use, on all ranks alike.
  Status SetPlan(int64_t layout, const std::vector<int64_t>& plan);
  // See [Note: agreement on plans]. On rank 0: what the other ranks will hear at the next
  // agreement. `plan` empty: to keep the plan. `next_agreement`: executions until the one after.
  Status Propose(int64_t layout, const std::vector<int64_t>& plan, int64_t next_agreement);
  // The plan of the layout's last execution, encoded, and how many there were.
  std::vector<int64_t> PlanOf(int64_t layout, int64_t* executions);
  // Lookups in tables that the ranks hold in parts, described table by table while a function is
  // traced; the first use ends the description.
  int64_t CreateLookup();
  Status AddLookupTable(int64_t lookup, LookupLayout::Table table);
  // Says of a lookup that its steps know the ids of the next one; of a table of such a lookup, that
  // vectors which a step does not change are looked up early.
  Status LookAhead(int64_t lookup);
  Status LookUpEarly(int64_t lookup, int table);
  // Lets the holders of columns pool vectors of such elements; before the first use.
  Status MayPool(int64_t lookup, int table, size_t element_bytes);
  Status OpenLookup(int64_t lookup, std::shared_ptr<TableLookup>* opened, Lane** lane);
  // Opens the ticket that looks ahead of a lookup.
  Status OpenLookAhead(TableLookup* lookup, std::shared_ptr<TableLookup>* opened, Lane** lane);
  Status OpenCollective(LaneKind lane, std::shared_ptr<SingleCollective>* collective,
                        Lane** opened);

  // Whose gradients; none: those of all layouts.
  using Variables = std::set<int64_t>;

  // Compresses gradients from now on; on all ranks alike, before the first layout is used. Until
  // SetDensity() everything is sent, dense.
  Status Compress(const Compression& compression);
  // Of the layouts that are opened from now on. 1: everything is sent, dense, with what was held
  // back so far.
  Status SetDensity(double density);
  // What sparse exchanges hold back now, as bytes, of all layouts or of those that bring gradients
  // of `variables` alone; waits for those in flight. The caller sees to it that no step opens,
  // issues or ends meanwhile: it waits for all updates first and starts no step
  // (`tfdear_synchronize`), since an exchange changes its state without a lock.
  Status SaveCompression(const Variables& variables, std::vector<char>* state);
  // Takes up a saved state of all layouts, or of those of `variables`: each gets the first that was
  // saved of one with the same tensors, the layouts that were used already before others, with its
  // plan if it was not used yet; and else starts with nothing held back. Empty: all do.
  Status LoadCompression(const std::vector<char>& state, const Variables& variables);

  int64_t CreateVariable() { return next_variable_++; }
  PendingUpdates* pending() { return &pending_; }
  // Waits for all updates in flight, which are held back no longer; see PendingUpdates.
  Status WaitForUpdates(std::chrono::milliseconds timeout) { return pending_.WaitAll(timeout); }
  EventRecord* events() { return &events_; }
  Waits* waits() { return &waits_; }
  TableCounts* table_counts() { return &table_counts_; }
  std::shared_ptr<Lane> lane(LaneKind kind) {
    MutexLock lock(mutex_);
    return LaneOf(kind);
  }
  int max_delay_ms() const { return max_delay_ms_.load(std::memory_order_relaxed); }

  // Fails everything that waits now and everything later. The first cause wins.
  void Abort(const Status& cause);
  Status failure() const;

 private:
  struct LayoutEntry {
    // What it is; fixed by its first use.
    std::string name;
    LaneKind lane;
    std::vector<TensorSpec> tensors;
    std::vector<int64_t> variables;  // Whose gradients the tensors are; -1: nobody said.
    bool optimizer = false;          // Whether one gets the sums,
    float momentum = 0;              // and its momentum.
    int64_t shared = -1;             // The layout whose plan this one follows, once it was used.
    // How it travels.
    Plan plan;
    std::shared_ptr<const ReductionLayout> current;  // Made from the plan; null before first use.
    int64_t executions = 0;
    struct {
      int64_t execution = 0;      // At which the ranks agree next.
      std::vector<int64_t> plan;  // What rank 0 will say there,
      int64_t interval = 0;       // if it has something to say: else 0.
    } agreement;
    // What sparse exchanges hold back.
    struct {
      // One of both, after the first execution; the other is null.
      std::shared_ptr<CompressionState> state;
      HeldBack flushed;  // Goes into the next execution.
      int64_t used = 0;  // After those with a lower number.
    } held;
  };

  static constexpr char kOfClosedStrategy[] =
      "this function belongs to a strategy that was closed; create the model and compile it in the "
      "scope of the new one";
  using Lanes = std::array<std::shared_ptr<Lane>, kNumLanes>;

  const std::shared_ptr<Lane>& LaneOf(LaneKind kind) const TFDEAR_REQUIRES(mutex_) {
    return lanes_[static_cast<int>(kind)];
  }
  Status NotStarted() const TFDEAR_REQUIRES(mutex_);
  LevelGroups GroupsOfLevels() TFDEAR_REQUIRES(mutex_);
  Levels Existing() TFDEAR_REQUIRES(mutex_);
  std::pair<int, int> PlaceOfExchange() TFDEAR_REQUIRES(mutex_);
  // States that were loaded and that no layout has taken up.
  struct Loaded {
    Variables variables;  // Of these; none: of all.
    std::vector<std::unique_ptr<CompressionState>> states;
  };

  static HeldBack HeldBackBy(const LayoutEntry& entry);
  static bool AreOf(const LayoutEntry& entry, const Variables& variables);
  std::vector<LayoutEntry*> HoldingBack(const Variables& variables) TFDEAR_REQUIRES(mutex_);
  std::shared_ptr<CompressionState> NothingHeldBack(const LayoutEntry& entry)
      TFDEAR_REQUIRES(mutex_);
  bool TakeUp(LayoutEntry* entry, Loaded* loaded) TFDEAR_REQUIRES(mutex_);
  void TakeUpLoaded(LayoutEntry* entry) TFDEAR_REQUIRES(mutex_);
  std::vector<HeldBack> TakeOver(const LayoutEntry& entry) TFDEAR_REQUIRES(mutex_);
  SparseExchangeOptions ExchangeOf(const LayoutEntry& entry) const TFDEAR_REQUIRES(mutex_);
  CompressionOfStep CompressionOf(LayoutEntry* entry) TFDEAR_REQUIRES(mutex_);
  Status Find(int64_t layout, bool open_to_change, LayoutEntry** entry) TFDEAR_REQUIRES(mutex_);
  static Status CheckTensor(const LayoutEntry& entry, int tensor);
  void FindShared(int64_t layout) TFDEAR_REQUIRES(mutex_);
  Status Fix(LayoutEntry* entry) TFDEAR_REQUIRES(mutex_);
  void Agree(int64_t layout, Opened opened);
  Status Adopt(int64_t layout, const std::vector<int64_t>& words, int64_t interval);
  void OpenNow(int64_t layout, const Opened& opened);
  std::shared_ptr<Reduction> MakeReduction(LayoutEntry* entry) TFDEAR_REQUIRES(mutex_);

  struct LookupEntry {
    std::shared_ptr<LookupLayout> layout;  // Null: of a strategy that was closed.
    bool used = false;
    // What looked ahead last; the next lookup takes it.
    std::shared_ptr<TableLookup> ahead;
  };
  Status FindLookup(int64_t lookup, LookupEntry** entry) TFDEAR_REQUIRES(mutex_);
  Status FindLookupTable(int64_t lookup, int table, LookupLayout::Table** found)
      TFDEAR_REQUIRES(mutex_);

  EventRecord events_;
  RightOfWay* right_of_way() TFDEAR_REQUIRES(mutex_) {
    return options_.tables_first ? &right_of_way_ : nullptr;
  }

  RightOfWay right_of_way_;
  Waits waits_{&events_};
  TableCounts table_counts_;
  PendingUpdates pending_;
  std::atomic<int> max_delay_ms_{0};  // Of the options; asked for with every update.
  std::atomic<int64_t> next_variable_{0};

  mutable Mutex mutex_;
  bool started_ TFDEAR_GUARDED_BY(mutex_) = false;
  bool was_stopped_ TFDEAR_GUARDED_BY(mutex_) = false;
  Options options_ TFDEAR_GUARDED_BY(mutex_);
  Lanes lanes_ TFDEAR_GUARDED_BY(mutex_);
  std::shared_ptr<FusionBufferPool> pool_ TFDEAR_GUARDED_BY(mutex_);
  // Of the memory that the group wants; or null.
  std::shared_ptr<FusionBufferPool> group_pool_ TFDEAR_GUARDED_BY(mutex_);
  // And what they hold. Null: of a strategy that was closed.
  std::vector<std::unique_ptr<LayoutEntry>> layouts_ TFDEAR_GUARDED_BY(mutex_);
  std::vector<LookupEntry> lookups_ TFDEAR_GUARDED_BY(mutex_);
  bool compressed_ TFDEAR_GUARDED_BY(mutex_) = false;
  Compression compression_ TFDEAR_GUARDED_BY(mutex_);
  double density_ TFDEAR_GUARDED_BY(mutex_) = 1;
  std::vector<Loaded> loaded_ TFDEAR_GUARDED_BY(mutex_);
  int64_t uses_ TFDEAR_GUARDED_BY(mutex_) = 0;  // Of layouts that are compressed.
  Status failure_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
