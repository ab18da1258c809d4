#include "common/simt/block.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include "common/simt/gpu.h"
#include "common/simt/gpus.h"
#include "common/simt/turns.h"
#include "common/simt/words.h"

namespace simt {

constinit thread_local Block* current_block = nullptr;

Block::Block(const Launch& launch, const std::function<void()>& body, std::uint64_t number,
             Cluster& cluster, Watch* watch)
    : launch_(launch),
      body_(body),
      number_(number),
      cluster_(cluster),
      rank_(number % cluster.size()),
      threads_(volume(launch.block)),
      shared_(launch.shared_bytes),
      watched_(watch == nullptr ? nullptr
                                : watch->begins_block({launch, number, rank_, current_gpu(),
                                                       shared_.dynamic(), shared_.static_parts()})),
      witness_(watched_ ? watched_.get() : &silent_),
      copies_(*witness_),
      faults_(launch, number, threads_, copies_),
      scheduler_(
          threads_, [this] { run_thread(); }, *witness_),
      barriers_(threads_, scheduler_, faults_, *witness_, is_watched()) {
  for (unsigned i = 0; i < threads_.size(); ++i) {
    threads_[i].number = i;
    threads_[i].index = index_of(i, launch.block);
  }
}

void Block::run(const Schedule& schedule, Progress& progress) {
  blockIdx = index_of(number_, launch_.grid);
  blockDim = launch_.block;
  gridDim = launch_.grid;
  Turns turns(schedule, number_, threads_.size());
  Scheduler::Round round;
  cluster_.enter(rank_, this, turns.first_block(cluster_.size()));
  progress.begins_block();
  while (exited_ < threads_.size() && !scheduler_.error() && !progress.failed()) {
    turns.begin_round(round.some_ran);
    bool stuck = std::none_of(threads_.begin(), threads_.end(),
                              [](const Thread& thread) { return thread.is_runnable(); });
    round = scheduler_.run_round(turns);
    if (!round.progress) std::this_thread::yield();  // what they spin on may need this core
    if (scheduler_.error()) break;
    const bool idle = stuck || !round.progress;
    bool moved = round.progress || std::exchange(memory_changed, false);
    if (idle && barriers_.end_active_lanes()) {
      moved = true;
      stuck = false;
    }
    std::string wrong = problem();
    if (wrong.empty() && copies_.in_flight() > 0) {
      if (const auto arriving = turns.arrival(copies_.in_flight(), idle)) {
        wrong = copies_.complete(*arriving);
        wake();
        stuck = false;
        moved = true;
      }
    }
    if (exited_ < threads_.size() && wrong.empty())
      wrong = progress.problem(moved, round.advances, schedule);
    // A watcher makes each access many times slower.
    constexpr int kWatched = 15;
    const auto limit = schedule.longest_run * (is_watched() ? kWatched : 1);
    if (const Thread* const endless = scheduler_.runs_longer_than(limit); endless && wrong.empty())
      wrong = "thread " + std::to_string(endless->number) +
              " runs on and on, and reaches neither a barrier nor its end; if that is right, "
              "SIMT_LONGEST_RUN=60 gives it a minute";
    if (cluster_.all_stuck(rank_, stuck) && wrong.empty()) wrong = faults_.what_is_missing();
    if (!wrong.empty()) {
      scheduler_.fail(std::make_exception_ptr(faults_.of_block(wrong)));
    } else if (exited_ < threads_.size()) {
      const auto steps = turns.steps_to_next_block(cluster_.size(), idle);
      if (steps) cluster_.pass_turn(rank_, *steps);
      if (turn_here != nullptr && turns.passes_turn(idle)) turn_here->pass();
    }
  }
  scheduler_.unwind();
  if (scheduler_.error()) std::rethrow_exception(scheduler_.error());
}

// What is wrong with the block once all its threads have ended; empty if nothing is.
std::string Block::problem() const {
  if (exited_ < threads_.size()) return "";
  if (shared_.overrun()) return "a thread has written past the end of its dynamic shared memory";
  return copies_.unfinished();
}

void Block::run_thread() {
  scheduler_.enters_kernel();
  body_();
  scheduler_.leaves_kernel();
  Thread& self = running();
  if (launch_.starts_early && !self.waited_for_grid) {
    throw faults_.of_block(
        "thread " + std::to_string(self.number) +
        " ends without grid_dependency_wait(), in a kernel that starts before the last has ended");
  }
  self.state = Thread::State::Exited;
  ++exited_;
  witness_->exits(self.number);
  cluster_.exit();
  barriers_.exit(self);
}

void Block::require_shared(const void* pointer) const {
  if (!shared_.holds(static_cast<const std::byte*>(pointer)))
    require("names a place that is not in shared memory");
}

void Block::wake() {
  for (Thread& thread : threads_) {
    if (thread.state == Thread::State::Waiting && is_over(thread))
      thread.state = Thread::State::Runnable;
  }
}

// Whether a thread's wait in wait() is over. Always false for the barriers of a block or a warp:
// Barriers ends those waits.
bool Block::is_over(const Thread& waiting) const {
  switch (waiting.op) {
    case Op::BarrierWait:
      return copies_.passed(waiting.object, waiting.mask);
    case Op::BulkWait:
      return waiting.groups <= waiting.mask ||
             !copies_.has_store(waiting.number, waiting.groups - waiting.mask);
    case Op::ClusterWait:
      return cluster_.phase() >= waiting.cluster_phase;
    default:
      return false;
  }
}

std::uint32_t shared_address(const void* pointer) {
  return Entered()->shared().address(static_cast<const std::byte*>(pointer));
}

std::byte* from_shared_address(std::uint32_t address) { return Entered()->shared().at(address); }

void fail_assertion(const char* text, const char* file, unsigned line, const char*) {
  const std::string what = std::string("assert(") + text + ") does not hold at " +
                           in_repository(file) + ":" + std::to_string(line);
  if (current_block == nullptr) {
    std::fprintf(stderr, "%s\n", what.c_str());
    std::abort();
  }
  const Entered entered;
  throw entered->fault("thread " + std::to_string(entered->running().number) + ": " + what);
}

void* dynamic_shared() { return Entered()->shared().dynamic(); }

void grid_dependency_wait() {
  const Entered entered;
  Block& block = *entered;
  block.running().waited_for_grid = true;
  block.witness().waits_for_grid(block.running().number);
}

}  // namespace simt
