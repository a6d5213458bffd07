// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/engine/base/status.h"
#include "custom_ops/engine/base/thread_annotations.h"
#include "custom_ops/engine/queue/process_group.h"

namespace tfdear {

class Lane;

// A place in the order of collectives. Tickets are taken in program order, which all ranks share;
// the data come later, in any order. A ticket issues its collectives only when every ticket before
// it has issued all of its own, so all ranks issue the same sequence without negotiation.
class Ticket {
 public:
  virtual ~Ticket() = default;

  // Submits every collective that may go now, in the ticket's own order. Returns true when none is
  // left to issue. Called with the lane's mutex held: it must not block, and what reacts to the
  // collectives' end goes into `reactions`, because a collective may end at once and a reaction
  // may come back to the lane. The lane calls them without its mutex.
  using Reactions = std::vector<std::function<void()>>;
  virtual bool Issue(ProcessGroup* group, Reactions* reactions) = 0;
  // True while the ticket can be withdrawn without any rank noticing: nothing was issued.
  virtual bool Untouched() const = 0;
  // No collective of this ticket will be issued any more.
  virtual void Fail(const Status& cause) = 0;

  int64_t number() const { return number_; }

 private:
  friend class Lane;
  int64_t number_ = -1;
  // Keeps the lane, where that has owners: a ticket may outlive the strategy that opened it.
  std::shared_ptr<Lane> lane_of_ticket_;
};

// Words for a collective of a ticket. A rank that gives up a step before it sent anything goes on
// with its next ticket, and must not be added to the step that the others still take.
std::string WithTicket(const std::string& text, int64_t number);

// The process groups a rank belongs to, each with a lane (an order of collectives) of its own.
enum class LaneKind : int {
  kGradients = 0,  // All ranks: the large, overlapped collectives.
  kControl = 1,    // All ranks: tfdear's own small collectives, which a step waits for.
  kIntraNode = 2,  // Ranks of this node.
  kInterNode = 3,  // Ranks with this local rank on all nodes.
  // The two levels in which gradients can be summed. No tickets: steps of the gradients' lane run
  // in these groups, so that steps of different buckets run at once.
  kGradientsIntra = 4,  // Ranks of this node, or of this row of a grid.
  kGradientsInter = 5,  // Ranks in this place on all nodes, or of this column.
  // All ranks: ids and vectors of sharded tables, which a layer waits for, and rows of gradients,
  // those that the next step needs and the others.
  kEmbeddings = 6,
  kEmbeddingRows = 7,
  kDelayedRows = 8,
  // All ranks: the collectives that scripts and their layers call, and tables that a step reads
  // whole. Of any size, and in one order among themselves.
  kExchanges = 9,
  // All ranks: whether anybody has another batch of data that each rank has alone. In the order in
  // which scripts read; the sums are one batch ahead, and nothing of a step waits behind them.
  kLengths = 10,
};
inline bool CarriesGradients(LaneKind kind) {
  return kind == LaneKind::kGradients || kind == LaneKind::kGradientsIntra ||
         kind == LaneKind::kGradientsInter;
}
inline constexpr int kNumLanes = 11;

// The tickets of one process group in program order. tfdear has one lane for gradients, one for the
// small collectives that a step waits for (counts of examples, metrics, statistics) and one for
// what scripts exchange, so that the small ones never queue behind megabytes. Thread safe; no call
// blocks but Close().
class Lane : public std::enable_shared_from_this<Lane> {
 public:
  Lane(LaneKind kind, std::unique_ptr<ProcessGroup> group)
      : kind_(kind), group_(std::move(group)) {}

  LaneKind kind() const { return kind_; }
  ProcessGroup* group() { return group_.get(); }

  // Takes the next place for the ticket, and issues what of it needs no data.
  void Open(std::shared_ptr<Ticket> ticket);
  // Issues what has become ready. Called whenever a ticket may have made progress.
  void Advance();
  // Withdraws a ticket that its function gave up before it contributed anything, for example
  // because the data set ended; who waits for its sums hears kCancelled. Returns false if it is
  // still in line but has issued collectives or got data.
  bool Withdraw(Ticket* ticket);
  // How many tickets were opened so far.
  int64_t opened() const;
  // Every ticket in line and every later one fails with this cause.
  void Fail(const Status& cause);
  // The same, and ends the group's threads and connections. Whoever still holds a ticket may go on
  // calling it, and hears the cause. Not from a callback of the group's work.
  void Close(const Status& cause);

 private:
  void AdvanceLocked(Ticket::Reactions* reactions) TFDEAR_REQUIRES(mutex_);

  const LaneKind kind_;
  const std::unique_ptr<ProcessGroup> group_;
  mutable Mutex mutex_;
  std::deque<std::shared_ptr<Ticket>> line_ TFDEAR_GUARDED_BY(mutex_);
  int64_t next_number_ TFDEAR_GUARDED_BY(mutex_) = 0;
  Status failure_ TFDEAR_GUARDED_BY(mutex_);
};

}  // namespace tfdear
