#include "common/simt/scheduler.h"

#include <time.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/simt/block.h"
#include "common/simt/clock.h"
#include "common/simt/stacks.h"

namespace simt {
namespace {

using boost::context::fiber;

constexpr int kRepeated = 64;  // states of a thread that has been in each before

struct Unwind {};  // thrown in the suspended threads of an abandoned block

// The time of this core alone: on a busy machine a thread may take long for little.
std::chrono::duration<double> core_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Keeps a fiber that must never run again, with its stack.
void abandon(fiber&& thread) {
  static std::mutex mutex;
  static auto* const abandoned = new std::vector<fiber>;  // outlives the program's other objects
  const std::lock_guard lock(mutex);
  abandoned->push_back(std::move(thread));
}

}  // namespace

Scheduler::Round Scheduler::run_round(Turns& turns) {
  Round round{.some_ran = false, .progress = false};
  bool any_interrupted = false;
  for (const unsigned warp : turns.warps()) {
    if (turns.sleeps(warp)) continue;
    bool goes_on = true;
    while (goes_on && !error_) {
      warp_ = warp;
      lanes_ = turns.lanes();
      progress_ = interrupted_ = advances_ = false;
      if (Thread* const first = next_in_turn()) {
        round.some_ran = true;
        go_on_with(first, self_);
      }
      goes_on = progress_ && !interrupted_;
      round.progress = round.progress || progress_;
      round.advances = round.advances || advances_;
      any_interrupted = any_interrupted || interrupted_;
      if (turns.interrupts()) break;
    }
  }
  if (!any_interrupted) Clock::slow_down();
  return round;
}

void Scheduler::unwind() {
  unwinding_ = true;
  for (Thread& thread : threads_) {
    if (thread.interrupted_at != nullptr)
      abandon(std::move(thread.context.stopped));  // it may be where nothing can be thrown
    else if (thread.context.stopped)
      go_on_with(&thread, self_);
  }
}

// Inlined, as is what it calls: hundreds of threads are suspended here, and each frame on their
// stacks takes up L1 cache. A kernel with many barriers runs 15 % faster with one frame.
[[gnu::always_inline]] inline void Scheduler::suspend() {
  go_on_with(next_in_turn(), running_->context);
  if (unwinding_) throw Unwind{};
}

void Scheduler::suspend_waiting() {
  const Thread& self = *running_;
  witness_.waits(self.number, self.op, self.place, self.object);
  progress_ = true;
  suspend();
  witness_.goes_on(self.number);
}

// The next lane of the warp that can run; null if none is left and the scheduler must continue.
inline Thread* Scheduler::next_in_turn() {
  while (!lanes_.empty() && !error_ && !unwinding_) {
    const std::size_t number = warp_ * kWarpSize + lanes_.front();
    lanes_ = lanes_.subspan(1);
    if (number < threads_.size() && threads_[number].is_runnable()) return &threads_[number];
  }
  return nullptr;
}

// Suspends the caller in `from` and resumes `thread`; returns when the caller is resumed.
[[gnu::always_inline]] inline void Scheduler::go_on_with(Thread* thread, Context& from) {
  Context& to = context_of(thread);
  ++switches_;
  if (!to.stopped) start(*thread);
  left_ = &from;
  before_switch(&from.asan_keep, to.bottom, to.size);
  // A suspended fiber has no handle to itself: the one that resumes receives and stores it.
  fiber stopped = std::move(to.stopped).resume();
  left_->stopped = std::move(stopped);
  after_switch(from.asan_keep);
}

// The context of a thread, which becomes the running one; the scheduler's for null.
inline Context& Scheduler::context_of(Thread* thread) {
  if (thread == nullptr) return self_;
  running_ = thread;
  threadIdx = thread->index;
  return thread->context;
}

// A thread gets a stack when it starts. When it ends, the next thread to start inherits its stack
// and core: threads that never wait share one stack, warm in the cache.
void Scheduler::start(Thread& first) {
  const stack_context stack = stack_pool->take();
  // Stack addresses differ by multiples of a page. With equal offsets their tops would map to the
  // same few sets of the L1 cache and evict each other: 1.6 times the run time.
  const std::size_t offset = first.number % 32 * 128;
  const boost::context::preallocated memory(static_cast<char*>(stack.sp) - offset,
                                            stack.size - offset, stack);
  first.context.bottom = static_cast<char*>(stack.sp) - stack.size;
  first.context.size = stack.size;
  const auto threads = [this](fiber&& left) {
    after_switch(nullptr, &left_->bottom, &left_->size);
    left_->stopped = std::move(left);
    while (true) {
      run_to_its_end();
      Thread* const next = next_in_turn();  // null after an error
      left_ = &running_->context;
      ++switches_;
      Context& to = context_of(next);
      if (next == nullptr || to.stopped) {
        before_switch(nullptr, to.bottom, to.size);
        return std::move(to.stopped);
      }
      to.bottom = left_->bottom;
      to.size = left_->size;
    }
  };
  first.context.stopped = fiber(std::allocator_arg, memory, ReturnToPool{}, threads);
}

void Scheduler::run_to_its_end() {
  try {
    body_();
    progress_ = true;
  } catch (const Unwind&) {
    leaves_kernel();
  } catch (...) {
    leaves_kernel();
    error_ = std::current_exception();
  }
}

void Scheduler::interrupt(Place at, std::uint64_t state) {
  if (unwinding_ || error_) return;  // the kernel's destructors run
  leaves_kernel();
  Thread& self = *running_;
  interrupted_ = true;
  // A thread in a loop that changes nothing may show a rare state, but hardly two in a row.
  const bool is_new = std::find(self.states.begin(), self.states.end(), state) == self.states.end();
  if (is_new) self.states[self.newest_state++ % self.states.size()] = state;
  const bool computes = is_new && self.was_new;
  advances_ = advances_ || computes;
  self.was_new = is_new;
  self.interrupted_at = at;
  const auto now = core_time();
  forget_ended_run();
  if (long_run_.thread == nullptr && computes)
    long_run_ = {.thread = &self, .operations = self.operations, .since = now};
  if (long_run_.thread == &self) {
    long_run_.repeated = is_new ? 0 : long_run_.repeated + 1;
    if (long_run_.repeated > kRepeated) long_run_ = {};  // it spins
  }
  go_on_with(next_in_turn(), self.context);
  if (long_run_.thread == &self) {
    long_run_.went_on = core_time();
    long_run_.others = long_run_.went_on - now;
  }
  self.interrupted_before = std::exchange(self.interrupted_at, nullptr);
  enters_kernel();
}

bool Scheduler::may_run_on() const {
  return running_ == long_run_.thread && core_time() - long_run_.went_on < long_run_.others;
}

void Scheduler::forget_ended_run() {
  const Thread* const thread = long_run_.thread;
  if (thread != nullptr &&
      (thread->state == Thread::State::Exited || thread->operations != long_run_.operations))
    long_run_ = {};
}

const Thread* Scheduler::runs_longer_than(std::chrono::duration<double> limit) {
  forget_ended_run();
  const bool runs = long_run_.thread != nullptr && core_time() - long_run_.since > limit;
  return runs ? long_run_.thread : nullptr;
}

void yield(const void* polled, std::source_location where) {
  const Entered entered;
  Thread& self = entered->running();
  self.polled = polled;
  self.where = where;
  entered->scheduler().suspend();
}

void poll(const void* address, std::source_location where) {
  constexpr unsigned kPatience = 64;  // an atomic may well change nothing a few times
  const Entered entered;
  Thread& self = entered->running();
  self.polls = self.polled == address ? self.polls + 1 : 0;
  self.polled = address;
  self.where = where;
  if (self.polls > kPatience) entered->scheduler().suspend();
}

}  // namespace simt
