#include "common/simt/machine.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <boost/context/fiber.hpp>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/simt/stacks.h"
#include "common/simt/words.h"

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

namespace simt {
namespace {

using boost::context::fiber;

constexpr unsigned kWarpSize = 32;

// Stacks and their guard pages are two memory mappings each, and Linux grants a process 65530, so
// 16 blocks of 1024 threads are as many as can run at once.
constexpr int kMaxCores = 16;

struct Unwind {};  // thrown through the threads of an abandoned block, so that destructors run

uint3 index_of(std::uint64_t i, dim3 extent) {
  return {static_cast<unsigned>(i % extent.x), static_cast<unsigned>(i / extent.x % extent.y),
          static_cast<unsigned>(i / extent.x / extent.y)};
}

std::uint64_t volume(dim3 d) { return std::uint64_t{d.x} * d.y * d.z; }

// ------------------------------------------------------------------------------------- one block

class Block {
 public:
  Block(const Launch& launch, const std::function<void()>& body, std::uint64_t number)
      : launch_(launch),
        body_(body),
        number_(number),
        threads_(volume(launch.block)),
        warps_((threads_.size() + kWarpSize - 1) / kWarpSize),
        shared_(static_cast<std::byte*>(::operator new(launch.shared_bytes, kSharedAlignment))) {
    std::memset(shared_.get(), 0xFF, launch.shared_bytes);
    for (unsigned i = 0; i < threads_.size(); ++i) {
      threads_[i].number = i;
      threads_[i].index = index_of(i, launch.block);
    }
    const unsigned lanes_of_last = (threads_.size() - 1) % kWarpSize + 1;
    warps_.back().exited = ~(~0u >> (kWarpSize - lanes_of_last));  // lanes that never existed
  }

  // Rounds over the threads until all have exited. Gives up early when another block has failed.
  void run(Schedule schedule, const std::atomic<bool>& failed) {
    blockIdx = index_of(number_, launch_.grid);
    blockDim = launch_.block;
    gridDim = launch_.grid;
    std::mt19937_64 random(schedule.seed + number_);
    std::vector<unsigned> turns(threads_.size());
    std::iota(turns.begin(), turns.end(), 0u);
    if (schedule.order == Order::Reverse) std::reverse(turns.begin(), turns.end());

    // A random order also lets half of the warps sleep, for 8 rounds on average, so that the others
    // get far ahead of them: a barrier that only a fast warp would need is missed otherwise.
    constexpr unsigned kRoundsOfSleep = 8;
    std::uint64_t awake = ~std::uint64_t{0};  // a bit for each warp
    bool nobody_ran = false;

    auto last_progress = std::chrono::steady_clock::now();
    while (exited_ < threads_.size() && !error_ && !failed.load(std::memory_order_relaxed)) {
      if (schedule.order == Order::Random) {
        std::shuffle(turns.begin(), turns.end(), random);
        if (nobody_ran || random() % kRoundsOfSleep == 0) awake = random();
      }
      bool stuck = true, spinning = true;
      nobody_ran = true;
      for (std::size_t i = 0; i < turns.size() && !error_; ++i) {
        Thread& thread = threads_[turns[i]];
        if (thread.state != State::Runnable) continue;
        stuck = false;
        if ((awake >> thread.number / kWarpSize & 1) == 0) continue;
        nobody_ran = false;
        yielded_ = false;
        resume(thread);
        spinning = spinning && yielded_;
      }
      const auto now = std::chrono::steady_clock::now();
      if (!spinning) last_progress = now;
      if (spinning) std::this_thread::yield();  // what it waits for may need this very core
      if (error_) break;
      const char* problem = nullptr;
      if (now - last_progress > schedule.patience)
        problem = "its threads spin, and what they wait for does not come";
      if (stuck && at_barrier_ == 0)
        problem = "a warp operation waits for lanes of its mask that never come to it";
      if (stuck && at_barrier_ > 0)
        problem = "not every thread of the block reaches __syncthreads()";
      if (problem != nullptr) error_ = std::make_exception_ptr(fault(problem));
    }
    unwinding_ = true;
    for (Thread& thread : threads_) {
      if (thread.context) resume(thread);
    }
    if (error_) std::rethrow_exception(error_);
  }

  void barrier(std::source_location where) {
    Thread& self = *running_;
    self.state = State::Waiting;
    self.op = Op::BlockBarrier;
    self.where = where;
    // Every thread counts: one that has exited, or waits elsewhere, keeps the others here. Hardware
    // lets exited threads off, but CUDA's rule is that all threads reach the barrier or none does.
    if (++at_barrier_ < threads_.size()) return suspend();
    for (const Thread& other : threads_) {
      if (other.where.line() != where.line() ||
          std::strcmp(other.where.file_name(), where.file_name()) != 0) {
        throw fault("divergent barrier: the threads are at different __syncthreads()");
      }
    }
    at_barrier_ = 0;
    for (Thread& thread : threads_) thread.state = State::Runnable;
  }

  std::uint64_t collective(Op op, unsigned mask, std::uint64_t value, int x, int width,
                           std::source_location where) {
    Thread& self = *running_;
    const unsigned lane = self.number % kWarpSize;
    self.op = op;
    self.mask = mask;
    self.value = value;
    self.where = where;
    if ((mask >> lane & 1) == 0) throw fault(self, "is not in the mask that it passes");
    if (width < 1 || width > 32 || !std::has_single_bit(static_cast<unsigned>(width))) {
      throw fault(self, "passes a width that is not 1, 2, 4, 8, 16 or 32");
    }
    self.source = source_lane(op, lane, static_cast<unsigned>(x), static_cast<unsigned>(width));
    self.state = State::Waiting;
    warps_[self.number / kWarpSize].waiting |= 1u << lane;
    complete(self);
    if (self.state == State::Waiting) suspend();
    return self.result;
  }

  // For a thread that spins. A round in which no thread does anything else is no progress.
  void yield() {
    yielded_ = true;
    suspend();
  }

  // Back to the scheduler; returns when this thread has its next turn.
  void suspend() {
    Thread& self = *running_;
    before_switch(&self.asan_keep, scheduler_bottom_, scheduler_size_);
    scheduler_ = std::move(scheduler_).resume();
    after_switch(self.asan_keep);
    if (unwinding_) throw Unwind{};
  }

  void* shared() const { return shared_.get(); }

 private:
  enum class State { Runnable, Waiting, Exited };

  struct Thread {
    unsigned number;
    uint3 index;
    State state = State::Runnable;
    fiber context;  // where it stopped; empty before its first turn and after its last
    stack_context stack;
    void* asan_keep = nullptr;
    // What a waiting thread waits at, what it brings, and what it will take away.
    Op op = Op::BlockBarrier;
    unsigned mask = 0;
    std::uint64_t value = 0;
    unsigned source = 0;
    std::source_location where;
    std::uint64_t result = 0;
  };

  struct Warp {
    unsigned waiting = 0;  // lanes at a warp operation
    unsigned exited = 0;
  };

  static constexpr std::align_val_t kSharedAlignment{128};
  struct DeleteShared {
    void operator()(std::byte* p) const { ::operator delete(p, kSharedAlignment); }
  };

  // Gives a thread its turn; returns when it waits, yields or has exited.
  void resume(Thread& thread) {
    if (!thread.context) start(thread);
    running_ = &thread;
    threadIdx = thread.index;
    void* keep = nullptr;
    before_switch(&keep, static_cast<char*>(thread.stack.sp) - thread.stack.size,
                  thread.stack.size);
    thread.context = std::move(thread.context).resume();
    after_switch(keep);
  }

  // A stack is taken only now, so threads that never wait share one, warm in the cache.
  void start(Thread& thread) {
    thread.stack = stack_pool.take();
    // Stacks lie a multiple of a page apart. Begun at the same offset, their tops would fall into
    // the same few sets of the L1 cache and push each other out: 1.6 times the run time.
    const std::size_t offset = thread.number % 32 * 128;
    const boost::context::preallocated memory(static_cast<char*>(thread.stack.sp) - offset,
                                              thread.stack.size - offset, thread.stack);
    thread.context = fiber(std::allocator_arg, memory, ReturnToPool{}, [&](fiber&& scheduler) {
      after_switch(nullptr, &scheduler_bottom_, &scheduler_size_);
      scheduler_ = std::move(scheduler);
      try {
        body_();
        exit(thread);
      } catch (const Unwind&) {
      } catch (...) {
        error_ = std::current_exception();
      }
      before_switch(nullptr, scheduler_bottom_, scheduler_size_);
      return std::move(scheduler_);
    });
  }

  void exit(Thread& self) {
    self.state = State::Exited;
    ++exited_;
    Warp& warp = warps_[self.number / kWarpSize];
    warp.exited |= 1u << self.number % kWarpSize;
    Thread* const lanes = &threads_[self.number / kWarpSize * kWarpSize];
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {  // perhaps they waited only for this one
      if (warp.waiting >> lane & 1) complete(lanes[lane]);
    }
  }

  // The heart of every warp operation: if all lanes named in self's mask are there, or have exited,
  // the last to come reads what each has brought and writes what each takes away.
  void complete(Thread& self) {
    Warp& warp = warps_[self.number / kWarpSize];
    Thread* const lanes = &threads_[self.number / kWarpSize * kWarpSize];
    const unsigned active = self.mask & ~warp.exited;
    if ((warp.waiting & active) != active) return;
    unsigned votes = 0;
    for (unsigned rest = active; rest != 0; rest &= rest - 1) {
      const Thread& other = lanes[std::countr_zero(rest)];
      if (other.op != self.op || other.mask != self.mask) return;
      if (other.value != 0) votes |= rest & -rest;
    }
    const bool shuffle = self.op >= Op::Shuffle && self.op <= Op::ShuffleXor;
    for (unsigned rest = active; rest != 0; rest &= rest - 1) {
      Thread& reader = lanes[std::countr_zero(rest)];
      if (shuffle && (active >> reader.source & 1) == 0) {
        const unsigned number = self.number / kWarpSize * kWarpSize + reader.source;
        const char* why = number < threads_.size() ? "has exited" : "the block does not have";
        if ((self.mask >> reader.source & 1) == 0) why = "is not in the mask";
        throw fault(reader, "reads lane " + std::to_string(reader.source) + ", which " + why);
      }
      reader.result = shuffle ? lanes[reader.source].value : votes;
      reader.state = State::Runnable;
    }
    warp.waiting &= ~active;
  }

  // The lane that a shuffle reads, as PTX defines `shfl`: past the end of its segment of `width`
  // lanes (the start, for up) a lane reads itself. Xor may reach into an earlier segment.
  static unsigned source_lane(Op op, unsigned lane, unsigned x, unsigned width) {
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

  Fault fault(const Thread& thread, const std::string& does) const {
    return fault("thread " + std::to_string(thread.number) + " (lane " +
                 std::to_string(thread.number % kWarpSize) + ") " + does + ", at " +
                 to_string(thread.op, thread.mask) + ", " + to_string(thread.where));
  }

  Fault fault(const std::string& what) const {
    std::map<std::string, std::vector<unsigned>> groups;
    for (const Thread& thread : threads_) {
      std::string place =
          "at " + to_string(thread.op, thread.mask) + ", " + to_string(thread.where);
      if (thread.state == State::Exited) place = "exited";
      if (thread.state == State::Runnable) place = "can run";
      groups[place].push_back(thread.number);
    }
    const uint3 index = index_of(number_, launch_.grid);
    std::string text = "kernel " + kernel_name(launch_.kernel) + ", block " +
                       to_string(dim3(index.x, index.y, index.z)) + ": " + what;
    for (const auto& [place, threads] : groups) text += "\n  " + to_string(threads) + ": " + place;
    return Fault(text);
  }

  const Launch& launch_;
  const std::function<void()>& body_;
  const std::uint64_t number_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::unique_ptr<std::byte, DeleteShared> shared_;

  fiber scheduler_;  // where run() stopped, while a thread has its turn
  const void* scheduler_bottom_ = nullptr;
  std::size_t scheduler_size_ = 0;
  Thread* running_ = nullptr;
  std::size_t exited_ = 0;
  std::size_t at_barrier_ = 0;
  std::exception_ptr error_;
  bool yielded_ = false;  // how the last turn ended
  bool unwinding_ = false;
};

thread_local Block* current_block = nullptr;

Block& this_block() {
  if (current_block == nullptr) throw std::logic_error("only a kernel may call this");
  return *current_block;
}

// ---------------------------------------------------------------------------------- the whole grid

void check(const Launch& launch) {
  const dim3 grid = launch.grid, block = launch.block;
  const char* problem = nullptr;
  if (volume(block) == 0) problem = "a block needs at least one thread in each dimension";
  if (volume(block) > 1024 || block.x > 1024 || block.y > 1024)
    problem = "a block has at most 1024 threads";
  if (block.z > 64) problem = "a block is at most 64 deep";
  if (grid.x > 0x7FFF'FFFFu) problem = "grid.x is at most 2^31 - 1";
  if (grid.y > 65535 || grid.z > 65535) problem = "grid.y and grid.z are at most 65535";
  if (launch.shared_bytes > 227 * 1024) problem = "a block has at most 227 KB of shared memory";
  if (problem == nullptr) return;
  throw std::runtime_error("kernel " + kernel_name(launch.kernel) + " cannot start with grid " +
                           to_string(grid) + ", block " + to_string(block) + ", " +
                           std::to_string(launch.shared_bytes) +
                           " bytes of shared memory: " + problem);
}

Schedule schedule_from_environment() {
  const char* const variable = std::getenv("SIMT_SCHEDULE");
  std::string_view text = variable == nullptr ? "forward" : variable;
  if (text == "forward") return {Order::Forward};
  if (text == "reverse") return {Order::Reverse};
  if (text == "random") return {Order::Random};
  std::uint64_t seed = 0;
  if (text.starts_with("random:")) {
    const std::string_view digits = text.substr(7);
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, seed);
    if (error == std::errc{} && stop == end) return {Order::Random, seed};
  }
  throw std::invalid_argument("SIMT_SCHEDULE is '" + std::string(text) +
                              "'; it must be forward, reverse, random or random:SEED");
}

Schedule& active_schedule() {
  static Schedule schedule = schedule_from_environment();
  return schedule;
}

}  // namespace

Schedule schedule() { return active_schedule(); }

void set_schedule(Schedule schedule) { active_schedule() = schedule; }

void run(const Launch& launch, const std::function<void()>& thread_body) {
  check(launch);
  const Schedule schedule = active_schedule();
  const std::uint64_t blocks = volume(launch.grid);
  std::vector<std::uint64_t> shuffled;
  if (schedule.order == Order::Random) {
    shuffled.resize(blocks);
    std::iota(shuffled.begin(), shuffled.end(), std::uint64_t{0});
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(schedule.seed));
  }
  std::atomic<bool> failed = false;
  std::exception_ptr error;
  const int cores = std::min(omp_get_max_threads(), kMaxCores);
#pragma omp parallel for schedule(dynamic) num_threads(cores) if (blocks > 1)
  for (std::uint64_t i = 0; i < blocks; ++i) {
    if (failed) continue;
    try {
      const std::uint64_t number = schedule.order == Order::Forward   ? i
                                   : schedule.order == Order::Reverse ? blocks - 1 - i
                                                                      : shuffled[i];
      Block block(launch, thread_body, number);
      current_block = &block;
      block.run(schedule, failed);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
    current_block = nullptr;
  }
  if (error) std::rethrow_exception(error);
}

void* dynamic_shared() { return this_block().shared(); }

void barrier(std::source_location where) { this_block().barrier(where); }

std::uint64_t collective(Op op, unsigned mask, std::uint64_t value, int x, int width,
                         std::source_location where) {
  return this_block().collective(op, mask, value, x, width, where);
}

void yield() { this_block().yield(); }

}  // namespace simt
