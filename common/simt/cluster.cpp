#include "common/simt/cluster.h"

#include <algorithm>
#include <limits>
#include <string>

#include "common/simt/block.h"
#include "common/simt/gpu.h"

namespace simt {

std::uint64_t Cluster::next(unsigned rank, std::atomic<std::uint64_t>& counter) {
  meeting_.arrive_and_wait();
  if (rank == 0) {
    number_ = failed_ ? std::numeric_limits<std::uint64_t>::max() : counter++;
    entered_ = 0;
    arrived_ = 0;
    exited_ = 0;
    phase_ = 0;
  }
  meeting_.arrive_and_wait();
  return number_;
}

void Cluster::enter(unsigned rank, Block* block, unsigned first) {
  {
    const std::lock_guard lock(mutex_);
    blocks_[rank] = block;
    stuck_[rank] = false;
    turn_ = first;
    ++entered_;
  }
  wake_all();
  wait_for_turn(rank);
}

void Cluster::leave(unsigned rank) {
  const std::lock_guard lock(mutex_);
  blocks_[rank] = nullptr;
  stuck_[rank] = true;
  if (turn_ == rank) turn_ = after(rank, 1);
  wake_all();
}

void Cluster::pass_turn(unsigned rank, unsigned steps) {
  if (blocks_.size() == 1) return;
  const unsigned next = after(rank, steps);
  {
    const std::lock_guard lock(mutex_);
    turn_ = next;
  }
  has_turn_[next].notify_one();
  wait_for_turn(rank);
}

bool Cluster::all_stuck(unsigned rank, bool stuck) {
  if (!stuck) {  // the others may have waited for what it did
    for (unsigned other = 0; other < size(); ++other) stuck_[other] = blocks_[other] == nullptr;
  }
  stuck_[rank] = stuck;
  return std::find(stuck_.begin(), stuck_.end(), false) == stuck_.end();
}

void Cluster::complete_phase() {
  if (arrived_ + exited_ < threads_) return;
  arrived_ = 0;
  ++phase_;
  for (Block* block : blocks_) {
    if (block != nullptr) block->wake();
  }
}

void Cluster::wake_all() {
  for (std::condition_variable& block : has_turn_) block.notify_one();
}

void Cluster::wait_for_turn(unsigned rank) {
  if (turn_here != nullptr) turn_here->give();
  {
    std::unique_lock lock(mutex_);
    has_turn_[rank].wait(lock, [&] { return failed_ || (entered_ == size() && turn_ == rank); });
  }
  if (turn_here != nullptr) turn_here->take();
}

unsigned Cluster::after(unsigned rank, unsigned steps) const {
  unsigned next = (rank + steps) % size();
  for (unsigned i = 0; i < size() && blocks_[next] == nullptr; ++i) next = (next + 1) % size();
  return next;
}

// ------------------------------------------------------------------------- what kernels call

unsigned cluster_rank() { return Entered()->rank(); }
unsigned cluster_size() { return Entered()->cluster().size(); }

void cluster_arrive(std::source_location where, Publishes what) {
  const Entered entered;
  Block& block = *entered;
  Thread& self = block.at(Op::ClusterArrive, where);
  if (self.cluster_phase > block.cluster().phase()) block.require("has arrived and did not wait");
  self.cluster_phase = block.cluster().phase() + 1;
  block.witness().cluster_arrives(self.number, what);
  block.cluster().arrive();
}

void cluster_wait(std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  const Thread& self = block.at(Op::ClusterWait, where);
  block.wait();
  block.witness().cluster_passes(self.number);
}

// The address in block `rank` that corresponds to `local` in this block. Only cluster_sync
// guarantees that the other block has started and has not yet ended.
static std::byte* address_in(const Block& block, const void* local, unsigned rank) {
  const std::string whose = "reaches for the shared memory of block " + std::to_string(rank);
  if (rank >= block.cluster().size()) block.require(whose + ", which the cluster does not have");
  if (block.cluster().phase() == 0)
    block.require(whose + ", which may not have started: cluster_sync() comes first");
  const Block* const other = block.cluster().block(rank);
  if (other == nullptr) block.require(whose + ", which has ended: cluster_sync() comes last");
  block.require_shared(local);
  return other->shared().same_place(block.shared(), static_cast<const std::byte*>(local));
}

std::byte* remote(const void* local, unsigned rank, std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  block.at(Op::Remote, where);
  return address_in(block, local, rank);
}

void remote_store_async(const void* local, unsigned rank, const void* value, std::size_t bytes,
                        const void* barrier, std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  if (block.cluster().size() < 2)
    block.require(
        "stores to another block's barrier, which needs a LaunchConfig::cluster of 2 or more");
  const Thread& self = block.at(Op::Remote, where);
  std::byte* const to = address_in(block, local, rank);
  const std::byte* const other_barrier = address_in(block, barrier, rank);
  CopyEngine& other = block.cluster().block(rank)->copies();
  if (!other.knows(other_barrier)) block.require("names a Barrier that is not initialised");
  const auto* const from = static_cast<const std::byte*>(value);
  const std::uint64_t number = next_copy();
  block.witness().begins(self.number, number,
                         {Copy::Kind::RemoteStore, self.place, to, nullptr, bytes, other_barrier});
  other.post({.to = to,
              .from = from,
              .data = {from, from + bytes},
              .barrier = other_barrier,
              .thread = self.number,
              .group = 0,
              .number = number,
              .where = where});
}

void remote_arrive(const void* barrier, unsigned rank, std::source_location where) {
  const Entered entered;
  Block& block = *entered;
  const Thread& self = block.at(Op::Remote, where);
  const std::byte* const other_barrier = address_in(block, barrier, rank);
  Block& other = *block.cluster().block(rank);
  block.witness().arrives_at(self.number, other.witness(), other_barrier);
  block.require(other.copies().arrive(other_barrier, 0));
  other.wake();
}

}  // namespace simt
