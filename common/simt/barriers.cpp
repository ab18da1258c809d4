#include "common/simt/barriers.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "common/simt/block.h"

namespace simt {
namespace {

// The lane that a shuffle reads, as PTX defines `shfl`: past the end of its segment of `width`
// lanes (for up: before its start) a lane reads itself. Xor may reach into an earlier segment.
unsigned source_lane(Op op, unsigned lane, unsigned x, unsigned width) {
  const unsigned first = lane & ~(width - 1);
  const unsigned last = first + width - 1;
  x %= kWarpSize;
  switch (op) {
    case Op::Shuffle:
      return first + x % width;
    case Op::ShuffleUp:
      return lane >= first + x ? lane - x : lane;
    case Op::ShuffleDown:
      return lane + x <= last ? lane + x : lane;
    case Op::ShuffleXor:
      return (lane ^ x) <= last ? lane ^ x : lane;
    default:
      return lane;
  }
}

bool same_line(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

bool same_call(const std::source_location& a, const std::source_location& b) {
  return a.column() == b.column() && same_line(a, b);
}

bool is_shuffle(Op op) { return op >= Op::Shuffle && op <= Op::ShuffleXor; }

bool is_reduction(Op op) { return op >= Op::ReduceAdd && op <= Op::ReduceXor; }

std::uint64_t reduced(Op op, std::uint64_t a, std::uint64_t b) {
  switch (op) {
    case Op::ReduceAdd:
      return a + b;
    case Op::ReduceMin:
      return std::min(a, b);
    case Op::ReduceMax:
      return std::max(a, b);
    case Op::ReduceAnd:
      return a & b;
    case Op::ReduceOr:
      return a | b;
    default:
      return a ^ b;
  }
}

}  // namespace

Barriers::Barriers(std::vector<Thread>& threads, Scheduler& scheduler, const Faults& faults,
                   Witness& witness, bool watched)
    : threads_(threads),
      scheduler_(scheduler),
      faults_(faults),
      witness_(witness),
      watched_(watched),
      warps_((threads.size() + kWarpSize - 1) / kWarpSize) {
  const unsigned lanes_of_last = (threads.size() - 1) % kWarpSize + 1;
  warps_.back().exited = ~(~0u >> (kWarpSize - lanes_of_last));  // lanes that never existed
}

inline std::uint64_t Barriers::wait_for_block(std::source_location where, bool vote) {
  Thread& self = scheduler_.running();
  self.state = Thread::State::Waiting;
  self.op = Op::BlockBarrier;
  ++self.operations;
  self.where = where;
  // Every thread counts: one that has exited or waits elsewhere keeps the others waiting.
  // Hardware does not wait for exited threads, but CUDA's rule is that all threads reach the
  // barrier or none.
  votes_ += vote;
  ++at_barrier_;
  if (at_barrier_ < threads_.size()) {
    scheduler_.suspend_waiting();
    return self.result;
  }
  for (const Thread& other : threads_) {
    if (!same_line(other.where, where))
      throw faults_.of_block("divergent barrier: the threads are at different __syncthreads()");
  }
  at_barrier_ = 0;
  for (Thread& thread : threads_) {
    thread.result = votes_;
    thread.state = Thread::State::Runnable;
  }
  votes_ = 0;
  witness_.block_meets(self.place);
  return self.result;
}

// Inlined into the function that kernels call, for the reason given at Scheduler::suspend.
[[gnu::always_inline]] inline std::uint64_t Barriers::collective(Op op, unsigned mask,
                                                                 std::uint64_t value, int x,
                                                                 int width,
                                                                 std::source_location where) {
  Thread& self = scheduler_.running();
  const unsigned lane = self.lane();
  self.op = op;
  ++self.operations;
  self.mask = mask;
  self.value = value;
  self.where = where;
  if ((mask >> lane & 1) == 0) throw faults_.of(self, "is not in the mask that it passes");
  if (width < 1 || width > 32 || !std::has_single_bit(static_cast<unsigned>(width)))
    throw faults_.of(self, "passes a width that is not 1, 2, 4, 8, 16 or 32");
  self.source = source_lane(op, lane, static_cast<unsigned>(x), static_cast<unsigned>(width));
  self.state = Thread::State::Waiting;
  warps_[self.warp()].waiting |= 1u << lane;
  complete(self);
  if (self.state == Thread::State::Waiting) scheduler_.suspend_waiting();
  return self.result;
}

void Barriers::exit(const Thread& thread) {
  Warp& warp = warps_[thread.warp()];
  warp.exited |= 1u << thread.lane();
  const Thread* const lanes = lanes_of(thread);
  for (unsigned rest = warp.waiting; rest != 0; rest &= warp.waiting & (rest - 1))
    complete(lanes[std::countr_zero(rest)]);  // they may have waited only for this thread
}

// The core of every warp operation. Once all lanes in the thread's mask have arrived or exited, the
// last one to arrive reads every lane's input and writes every lane's result.
void Barriers::complete(const Thread& last) {
  Warp& warp = warps_[last.warp()];
  Thread* const lanes = lanes_of(last);
  const unsigned active = last.mask & ~warp.exited;
  if ((warp.waiting & active) != active) return;
  unsigned votes = 0;
  for (unsigned rest = active; rest != 0; rest &= rest - 1) {
    const Thread& other = lanes[std::countr_zero(rest)];
    if (other.op != last.op || other.mask != last.mask) return;
    if (other.value != 0) votes |= rest & -rest;
  }
  for (unsigned rest = active; rest != 0 && last.op != Op::SyncWarp; rest &= rest - 1)
    if (!same_call(lanes[std::countr_zero(rest)].where, last.where))
      throw faults_.of_block(
          "lanes of a warp meet in different calls, and only lanes at the same one exchange "
          "values");
  const bool shuffle = is_shuffle(last.op);
  std::uint64_t all = votes;
  if (is_reduction(last.op)) {
    all = last.value;
    for (unsigned rest = active & ~(1u << last.lane()); rest != 0; rest &= rest - 1)
      all = reduced(last.op, all, lanes[std::countr_zero(rest)].value);
  }
  for (unsigned rest = active; rest != 0; rest &= rest - 1) {
    Thread& reader = lanes[std::countr_zero(rest)];
    if (shuffle && (active >> reader.source & 1) == 0) throw no_source(reader);
    reader.result = shuffle ? lanes[reader.source].value : all;
    if (last.op == Op::Match) reader.result = same_as(reader, lanes, active);
    reader.state = Thread::State::Runnable;
  }
  warp.waiting &= ~active;
  if (watched_ && shuffle) tell_of_shuffle(lanes, active);
  witness_.meets(last.warp(), active, last.op, last.place);
}

unsigned Barriers::active_lanes(std::source_location where) {
  Thread& self = scheduler_.running();
  self.op = Op::ActiveMask;
  self.where = where;
  self.state = Thread::State::Waiting;
  scheduler_.suspend_waiting();
  return static_cast<unsigned>(self.result);
}

bool Barriers::end_active_lanes() {
  std::vector<Thread*> waiting;
  for (Thread& thread : threads_)
    if (thread.waits_at(Op::ActiveMask)) waiting.push_back(&thread);
  for (Thread* one : waiting) {
    one->result = 0;
    for (const Thread* other : waiting)
      if (other->warp() == one->warp() && same_line(other->where, one->where))
        one->result |= 1u << other->lane();
  }
  for (Thread* one : waiting) one->state = Thread::State::Runnable;
  return !waiting.empty();
}

// The lanes of `active` that passed the same value as `reader`.
unsigned Barriers::same_as(const Thread& reader, const Thread* lanes, unsigned active) {
  unsigned same = 0;
  for (unsigned rest = active; rest != 0; rest &= rest - 1)
    if (lanes[std::countr_zero(rest)].value == reader.value) same |= rest & -rest;
  return same;
}

// The fault of a shuffle that reads a lane outside its mask or the block, or one that has exited.
Fault Barriers::no_source(const Thread& reader) const {
  const unsigned number = reader.warp() * kWarpSize + reader.source;
  const char* why = number < threads_.size() ? "has exited" : "the block does not have";
  if ((reader.mask >> reader.source & 1) == 0) why = "is not in the mask";
  return faults_.of(reader, "reads lane " + std::to_string(reader.source) + ", which " + why);
}

void Barriers::tell_of_shuffle(const Thread* lanes, unsigned active) {
  std::array<unsigned, kWarpSize> from{};
  for (unsigned rest = active; rest != 0; rest &= rest - 1) {
    const unsigned lane = std::countr_zero(rest);
    from[lane] = lanes[lane].source;
  }
  witness_.shuffles(lanes->warp(), from);
}

std::uint64_t barrier(std::source_location where, bool vote) {
  return Entered()->barriers().wait_for_block(where, vote);
}

unsigned active_lanes(std::source_location where) {
  return Entered()->barriers().active_lanes(where);
}

std::uint64_t collective(Op op, unsigned mask, std::uint64_t value, int x, int width,
                         std::source_location where) {
  return Entered()->barriers().collective(op, mask, value, x, width, where);
}

}  // namespace simt
