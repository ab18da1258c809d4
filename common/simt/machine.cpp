#include "common/simt/machine.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <boost/context/fiber.hpp>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/simt/async.h"
#include "common/simt/cluster.h"
#include "common/simt/stacks.h"
#include "common/simt/watch.h"
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

// ------------------------------------------------------------------------------------- one block

class Block {
  struct Thread;

 public:
  Block(const Launch& launch, const std::function<void()>& body, std::uint64_t number,
        Cluster<Block>& cluster, Watch* watch)
      : launch_(launch),
        body_(body),
        number_(number),
        cluster_(cluster),
        rank_(number % cluster.size()),
        threads_(volume(launch.block)),
        warps_((threads_.size() + kWarpSize - 1) / kWarpSize),
        shared_(static_cast<std::byte*>(
            ::operator new(launch.shared_bytes + kBehindShared, kSharedAlignment))) {
    std::memset(shared_.get(), 0xFF, launch.shared_bytes + kBehindShared);
    for (unsigned i = 0; i < threads_.size(); ++i) {
      threads_[i].number = i;
      threads_[i].index = index_of(i, launch.block);
    }
    const unsigned lanes_of_last = (threads_.size() - 1) % kWarpSize + 1;
    warps_.back().exited = ~(~0u >> (kWarpSize - lanes_of_last));  // lanes that never existed
    if (watch != nullptr)
      watched_ = watch->begins_block({launch, number_, rank_, shared_.get(), watched_static()});
    if (watched_) witness_ = watched_.get();
  }

  // In which order warps, and the lanes of each, take their turns.
  struct Turns {
    std::vector<unsigned> warps;
    std::array<unsigned, kWarpSize> lanes;

    Turns(std::size_t count, Order order) : warps(count) {
      std::iota(warps.begin(), warps.end(), 0u);
      std::iota(lanes.begin(), lanes.end(), 0u);
      if (order != Order::Reverse) return;
      std::reverse(warps.begin(), warps.end());
      std::reverse(lanes.begin(), lanes.end());
    }
    void shuffle(std::mt19937_64& random) {
      std::shuffle(warps.begin(), warps.end(), random);
      std::shuffle(lanes.begin(), lanes.end(), random);
    }
  };

  // Rounds over the warps until all threads have exited. Gives up early when another block has
  // failed.
  void run(Schedule schedule, const std::atomic<bool>& failed) {
    blockIdx = index_of(number_, launch_.grid);
    blockDim = launch_.block;
    gridDim = launch_.grid;
    std::mt19937_64 random(schedule.seed + number_);
    Turns turns(warps_.size(), schedule.order);

    // A random order also lets half of the warps sleep, for 8 rounds on average, so that the others
    // get far ahead of them: a barrier that only a fast warp would need is missed otherwise.
    // A warp goes on until all its lanes wait, which keeps their stacks in the cache; in a random
    // order it stops earlier now and then.
    constexpr unsigned kRoundsOfSleep = 8;
    constexpr unsigned kChanceToStop = 4;
    std::uint64_t awake = ~std::uint64_t{0};  // a bit for each warp
    bool nobody_ran = false;

    const unsigned backward = cluster_.size() - 1;
    const unsigned step = schedule.order == Order::Reverse ? backward : 1;
    cluster_.enter(rank_, this, schedule.order == Order::Reverse ? backward : 0);
    auto last_progress = std::chrono::steady_clock::now();
    while (exited_ < threads_.size() && !error_ && !failed.load(std::memory_order_relaxed)) {
      if (schedule.order == Order::Random) {
        turns.shuffle(random);
        if (nobody_ran || random() % kRoundsOfSleep == 0) awake = random();
      }
      bool stuck = std::none_of(threads_.begin(), threads_.end(), is_runnable);
      bool spinning = true;
      nobody_ran = true;
      for (const unsigned warp : turns.warps) {
        if ((awake >> warp & 1) == 0) continue;
        bool goes_on = true;
        while (goes_on && !error_) {
          turn_ = {warp, turns.lanes};
          if (Thread* const first = next_in_turn()) {
            nobody_ran = false;
            go_on_with(first, scheduler_);
          }
          goes_on = turn_.somebody_goes_on;
          spinning = spinning && !goes_on;
          if (schedule.order == Order::Random && random() % kChanceToStop == 0) break;
        }
      }
      const auto now = std::chrono::steady_clock::now();
      if (!spinning) last_progress = now;
      if (spinning) std::this_thread::yield();  // what it waits for may need this very core
      if (error_) break;
      std::string problem;
      if (now - last_progress > schedule.patience)
        problem = "its threads spin, and what they wait for does not come";
      if (exited_ == threads_.size()) problem = async_.unfinished();
      if (exited_ == threads_.size() && wrote_behind_shared())
        problem = "a thread has written past the end of its dynamic shared memory";
      const bool idle = stuck || spinning;
      if (problem.empty() && async_.on_their_way() > 0) {
        if (const auto copy = copy_to_complete(schedule.order, idle, random)) {
          problem = complete_copy(*copy);
          wake();
          stuck = false;
        }
      }
      if (cluster_.all_stuck(rank_, stuck) && problem.empty()) problem = what_is_missing();
      if (!problem.empty()) {
        error_ = std::make_exception_ptr(fault(problem));
      } else if (exited_ < threads_.size()) {
        if (schedule.order != Order::Random && idle) cluster_.pass_turn(rank_, step);
        const bool ends = schedule.order == Order::Random && random() % kChanceToStop == 0;
        if (ends) cluster_.pass_turn(rank_, random() % cluster_.size());
      }
    }
    unwinding_ = true;
    for (Thread& thread : threads_) {
      if (thread.context.stopped) go_on_with(&thread, scheduler_);
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
    ++at_barrier_;
    if (at_barrier_ < threads_.size()) return suspend_at(self);
    for (const Thread& other : threads_) {
      const bool same_file = other.where.file_name() == where.file_name() ||
                             std::strcmp(other.where.file_name(), where.file_name()) == 0;
      if (other.where.line() != where.line() || !same_file) {
        throw fault("divergent barrier: the threads are at different __syncthreads()");
      }
    }
    at_barrier_ = 0;
    for (Thread& thread : threads_) thread.state = State::Runnable;
    witness_->block_meets(self.place);
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
    if (self.state == State::Waiting) suspend_at(self);
    return self.result;
  }

  // Hopper's operations. What goes wrong names the thread, the operation and the line.
  Thread& at(Op op, std::source_location where) {
    running_->op = op;
    running_->where = where;
    return *running_;
  }
  void require(const std::string& problem) const {
    if (!problem.empty()) throw fault(*running_, problem);
  }
  const Cluster<Block>& cluster() const { return cluster_; }
  unsigned rank() const { return rank_; }

  void barrier_init(const void* barrier, unsigned arrivals, std::source_location where) {
    at(Op::BarrierInit, where);
    shared_offset(barrier);
    require(async_.init(barrier, arrivals));
    witness_->inits(running_->number, barrier);
  }
  void fence_barrier_init() {
    async_.fence_init();
    witness_->fence_barrier_init(running_->number);
  }
  void fence_proxy_async() {
    async_.fence_stores();
    witness_->fence_for_copies(running_->number);
  }
  void barrier_arrive(const void* barrier, std::uint32_t bytes, std::source_location where) {
    at(Op::BarrierArrive, where);
    const std::uint64_t phase = async_.phase(barrier);
    witness_->arrives(running_->number, barrier);
    require(async_.arrive(barrier, bytes));
    tell_of_phase(barrier, phase);
    wake();
  }
  void barrier_wait(const void* barrier, unsigned parity, Scope scope, std::source_location where) {
    Thread& self = at(Op::BarrierWait, where);
    if (!async_.knows(barrier)) require("waits for a Barrier that is not initialised");
    if (parity > 1) require("waits for a parity that is not 0 or 1");
    self.object = barrier;
    self.mask = parity;
    wait(self);
    witness_->passes(self.number, barrier, scope);
  }
  void bulk_copy(Op op, void* to, const void* from, std::uint32_t bytes, const void* barrier,
                 std::source_location where) {
    Thread& self = at(op, where);
    shared_offset(op == Op::BulkLoad ? to : from);
    const BulkCopy copy{.to = static_cast<std::byte*>(to),
                        .from = static_cast<const std::byte*>(from),
                        .data = {},
                        .barrier = barrier,
                        .thread = self.number,
                        .group = self.groups,
                        .number = next_copy(),
                        .where = where};
    const bool loads = op == Op::BulkLoad;
    tell_of({loads ? Copy::Kind::BulkLoad : Copy::Kind::BulkStore, self.place, to, from, bytes,
             barrier},
            copy.number);
    require(async_.begin(copy, bytes));
  }
  void commit_bulk_stores() {
    ++running_->groups;
    witness_->commits(running_->number, Copy::Kind::BulkStore);
  }
  void wait_bulk_stores(unsigned groups, std::source_location where) {
    Thread& self = at(Op::BulkWait, where);
    self.mask = groups;
    wait(self);
    witness_->waited(self.number, Copy::Kind::BulkStore, groups);
  }
  void memcpy_async(void* to, const void* from, std::size_t bytes, std::size_t zeros,
                    std::source_location where) {
    Thread& self = at(Op::MemcpyAsync, where);
    shared_offset(to);
    const std::uint64_t number = next_copy();
    tell_of({Copy::Kind::OfThread, self.place, to, from, bytes - std::min(zeros, bytes), nullptr},
            number);
    require(self.copies.begin(to, from, bytes, zeros, number));
  }
  void commit_copies() {
    running_->copies.commit();
    witness_->commits(running_->number, Copy::Kind::OfThread);
  }
  void wait_for_copies(std::size_t prior, std::source_location where) {
    Thread& self = at(Op::WaitPrior, where);
    const auto arrives = [&](std::uint64_t number) { witness_->arrives(number); };
    require(self.copies.wait(prior, arrives));
    witness_->waited(self.number, Copy::Kind::OfThread, prior);
  }
  void cluster_arrive(std::source_location where, Publishes what) {
    Thread& self = at(Op::ClusterArrive, where);
    if (self.cluster_phase > cluster_.phase()) require("has arrived and did not wait");
    self.cluster_phase = cluster_.phase() + 1;
    witness_->cluster_arrives(self.number, what);
    cluster_.arrive();
  }
  void cluster_wait(std::source_location where) {
    wait(at(Op::ClusterWait, where));
    witness_->cluster_passes(running_->number);
  }
  // The place in another block's shared memory. That it has started, all know from a cluster_sync
  // only, and likewise that it has not ended.
  std::byte* remote(const void* local, unsigned rank, std::source_location where) {
    at(Op::Remote, where);
    const std::string whose = "reaches for the shared memory of block " + std::to_string(rank);
    if (rank >= cluster_.size()) require(whose + ", which the cluster does not have");
    if (cluster_.phase() == 0)
      require(whose + ", which may not have started: cluster_sync() comes first");
    if (cluster_.block(rank) == nullptr)
      require(whose + ", which has ended: cluster_sync() comes last");
    const auto [is_static, offset] = shared_offset(local);
    const Block& other = *cluster_.block(rank);
    return (is_static ? other.static_.data() : other.shared_.get()) + offset;
  }
  void remote_store_async(const void* local, unsigned rank, const void* value, std::size_t bytes,
                          const void* barrier, std::source_location where) {
    if (launch_.cluster < 2)
      require(
          "stores to another block's barrier, which needs a LaunchConfig::cluster of 2 or more");
    std::byte* const to = remote(local, rank, where);
    const std::byte* const other_barrier = remote(barrier, rank, where);
    Async& other = cluster_.block(rank)->async_;
    if (!other.knows(other_barrier)) require("names a Barrier that is not initialised");
    const auto* const from = static_cast<const std::byte*>(value);
    const std::uint64_t number = next_copy();
    tell_of({Copy::Kind::RemoteStore, running_->place, to, nullptr, bytes, other_barrier}, number);
    other.post({.to = to,
                .from = from,
                .data = {from, from + bytes},
                .barrier = other_barrier,
                .thread = running_->number,
                .group = 0,
                .number = number,
                .where = where});
  }
  void remote_arrive(const void* barrier, unsigned rank, std::source_location where) {
    const std::byte* const other_barrier = remote(barrier, rank, where);
    Block& other = *cluster_.block(rank);
    const std::uint64_t phase = other.async_.phase(other_barrier);
    witness_->arrives_at(running_->number, *other.witness_, other_barrier);
    require(other.async_.arrive(other_barrier, 0));
    other.tell_of_phase(other_barrier, phase);
    other.wake();
  }

  void grid_dependency_wait() {
    running_->waited_for_grid = true;
    witness_->waits_for_grid(running_->number);
  }

  // What the running thread does, for those who watch.
  void is_at(Place place) { running_->place = place; }
  void enters(Place place) { witness_->enters(running_->number, place); }
  Place here() const { return running_->place; }
  void touches(Place place, const void* address, std::uint32_t bytes, Kind kind,
               Scope scope = Scope::Device, bool past_l1 = false) {
    if (!watched_) return;
    const auto* const p = static_cast<const std::byte*>(address);
    if (const auto space = space_of(p))
      witness_->touches(running_->number, {place, p, bytes, kind, *space, scope, past_l1});
  }
  void fence(Scope scope) { witness_->fence(running_->number, scope); }
  void launches_dependents() { witness_->launches_dependents(running_->number); }

  // Lets those threads run whose wait is over.
  void wake() {
    for (Thread& thread : threads_) {
      if (thread.state == State::Waiting && is_over(thread)) thread.state = State::Runnable;
    }
  }

  // For a thread that spins. A round in which no thread does anything else is no progress.
  void yield() { suspend(); }

  // On to whoever has the next turn; returns when it is this thread's again.
  void suspend() {
    go_on_with(next_in_turn(), running_->context);
    if (unwinding_) throw Unwind{};
  }

  void* shared() const { return shared_.get(); }

 private:
  enum class State { Runnable, Waiting, Exited };

  // Where a thread, or the scheduler, has stopped, and on which stack.
  struct Context {
    fiber stopped;  // empty while it runs, and of a thread before its first turn and after its last
    const void* bottom = nullptr;  // of its stack
    std::size_t size = 0;
    void* asan_keep = nullptr;
  };

  struct Thread {
    unsigned number;
    uint3 index;
    State state = State::Runnable;
    Context context;
    // What a waiting thread waits at, what it brings, and what it will take away.
    Op op = Op::BlockBarrier;
    unsigned mask = 0;
    std::uint64_t value = 0;
    unsigned source = 0;
    std::source_location where;
    std::uint64_t result = 0;
    const void* object = nullptr;  // the Barrier that it waits for
    ThreadCopies copies;
    unsigned groups = 0;              // of bulk stores that it has committed
    Place place = nullptr;            // of its last operation, in the kernel's machine code
    std::uint64_t cluster_phase = 0;  // the last that it has arrived for
    bool waited_for_grid = false;     // grid_dependency_wait
  };

  static bool is_runnable(const Thread& thread) { return thread.state == State::Runnable; }

  struct Warp {
    unsigned waiting = 0;  // lanes at a warp operation
    unsigned exited = 0;
  };

  bool wrote_behind_shared() const {
    const std::byte* const end = shared_.get() + launch_.shared_bytes;
    return std::any_of(end, end + kBehindShared, [](std::byte byte) { return byte != kUntouched; });
  }

  static constexpr std::align_val_t kSharedAlignment{128};
  static constexpr std::byte kUntouched{0xFF};
  struct DeleteShared {
    void operator()(std::byte* p) const { ::operator delete(p, kSharedAlignment); }
  };

  // Which of the copies on their way arrives now, if one does: in a random order any may at any
  // time, else one where no thread can go on without it.
  std::optional<std::size_t> copy_to_complete(Order order, bool idle,
                                              std::mt19937_64& random) const {
    const std::size_t copies = async_.on_their_way();
    if (order == Order::Random) {
      const std::size_t drawn = random() % (idle ? copies : 2 * copies);
      if (drawn < copies) return drawn;
      return std::nullopt;
    }
    if (!idle) return std::nullopt;
    return order == Order::Reverse ? copies - 1 : 0;
  }

  // One round over a warp's lanes. A thread that stops hands the core to the next of them, and the
  // last to the scheduler.
  struct Turn {
    unsigned warp = 0;
    std::span<const unsigned> lanes;  // those whose turn is still to come
    bool somebody_goes_on = false;    // a thread has done more than spin
  };
  Thread* next_in_turn() {
    while (!turn_.lanes.empty() && !error_ && !unwinding_) {
      const std::size_t number = turn_.warp * kWarpSize + turn_.lanes.front();
      turn_.lanes = turn_.lanes.subspan(1);
      if (number < threads_.size() && is_runnable(threads_[number])) return &threads_[number];
    }
    return nullptr;
  }

  // Goes on with a thread, or where there is none, with the scheduler. Returns when somebody goes
  // on with `from`, which is where the caller stops.
  void go_on_with(Thread* thread, Context& from) {
    Context& to = context_of(thread);
    if (!to.stopped) start(*thread);
    left_ = &from;
    before_switch(&from.asan_keep, to.bottom, to.size);
    note_stop_of_left(std::move(to.stopped).resume());
    after_switch(from.asan_keep);
  }
  // What it returns is about to go on.
  Context& context_of(Thread* thread) {
    if (thread == nullptr) return scheduler_;
    running_ = thread;
    threadIdx = thread->index;
    return thread->context;
  }
  // Who comes to a stop cannot know where; the one that goes on is told.
  void note_stop_of_left(fiber&& stopped) { left_->stopped = std::move(stopped); }

  // A stack is taken only now, so threads that never wait share one, warm in the cache: a thread
  // that has exited leaves its stack, and the core with it, to the next that starts.
  void start(Thread& first) {
    const stack_context stack = stack_pool->take();
    // Stacks lie a multiple of a page apart. Begun at the same offset, their tops would fall into
    // the same few sets of the L1 cache and push each other out: 1.6 times the run time.
    const std::size_t offset = first.number % 32 * 128;
    const boost::context::preallocated memory(static_cast<char*>(stack.sp) - offset,
                                              stack.size - offset, stack);
    first.context.bottom = static_cast<char*>(stack.sp) - stack.size;
    first.context.size = stack.size;
    const auto threads = [this](fiber&& left) {
      after_switch(nullptr, &left_->bottom, &left_->size);
      note_stop_of_left(std::move(left));
      while (true) {
        run_to_its_end(*running_);
        Thread* const next = next_in_turn();  // nobody after an error
        left_ = &running_->context;
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
  void run_to_its_end(Thread& self) {
    try {
      body_();
      exit(self);
      turn_.somebody_goes_on = true;
    } catch (const Unwind&) {
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  // Whether what a waiting thread waits for has come; the waits below end in other ways.
  bool is_over(const Thread& thread) const {
    if (thread.op == Op::BarrierWait) return async_.passed(thread.object, thread.mask);
    if (thread.op == Op::BulkWait)
      return thread.groups <= thread.mask ||
             !async_.has_store(thread.number, thread.groups - thread.mask);
    return thread.op == Op::ClusterWait && cluster_.phase() >= thread.cluster_phase;
  }
  void wait(Thread& self) {
    while (!is_over(self)) {
      self.state = State::Waiting;
      suspend_at(self);
    }
  }

  // A thread that waits, which is seen.
  void suspend_at(const Thread& self) {
    witness_->waits(self.number, self.op, self.place, self.object);
    turn_.somebody_goes_on = true;
    suspend();
    witness_->goes_on(self.number);
  }
  void tell_of(const Copy& copy, std::uint64_t number) {
    witness_->begins(running_->number, number, copy);
  }
  void tell_of_phase(const void* barrier, std::uint64_t before) {
    if (async_.phase(barrier) != before) witness_->completes(barrier);
  }
  std::string complete_copy(std::size_t i) {
    const auto [number, barrier] = async_.identity(i);
    const std::uint64_t phase = async_.phase(barrier);
    std::string problem = async_.complete(i);
    witness_->arrives(number);
    tell_of_phase(barrier, phase);
    return problem;
  }

  // Where every __shared__ of the program lies: among its thread-local variables, of which the
  // kernels use no others but CUDA's special registers.
  std::vector<DeviceBuffer> watched_static() const {
    const auto place_of = [](const auto& variable) {
      return DeviceBuffer{reinterpret_cast<const std::byte*>(&variable), sizeof variable};
    };
    std::array registers{place_of(threadIdx), place_of(blockIdx), place_of(blockDim),
                         place_of(gridDim)};
    std::sort(registers.begin(), registers.end(),
              [](const DeviceBuffer& a, const DeviceBuffer& b) { return a.begin < b.begin; });
    std::vector<DeviceBuffer> parts;
    const std::byte* from = static_.data();
    for (const DeviceBuffer& each : registers) {
      if (each.begin > from) parts.push_back({from, static_cast<std::size_t>(each.begin - from)});
      from = each.begin + each.bytes;
    }
    const std::byte* const end = static_.data() + static_.size();
    if (end > from) parts.push_back({from, static_cast<std::size_t>(end - from)});
    return parts;
  }
  bool holds(const std::byte* p) const {
    if (p >= shared_.get() && p < shared_.get() + launch_.shared_bytes) return true;
    return p >= static_.data() && p < static_.data() + static_.size();
  }
  // What memory a place is in; none where it is a thread's own.
  std::optional<Space> space_of(const std::byte* p) const {
    const auto of_register = [p](const auto& variable) {
      const auto* const begin = reinterpret_cast<const std::byte*>(&variable);
      return p >= begin && p < begin + sizeof variable;
    };
    if (holds(p)) {
      const bool is_register = of_register(threadIdx) || of_register(blockIdx) ||
                               of_register(blockDim) || of_register(gridDim);
      if (is_register) return std::nullopt;
      return Space::Shared;
    }
    if (device_buffer_of(p) != nullptr) return Space::Device;
    for (unsigned rank = 0; rank < cluster_.size(); ++rank) {
      const Block* const other = cluster_.block(rank);
      if (other != nullptr && other != this && other->holds(p)) return Space::Remote;
    }
    return std::nullopt;
  }

  // Where in shared memory a pointer points: in __shared__ (true) or in dynamic_shared.
  std::pair<bool, std::ptrdiff_t> shared_offset(const void* pointer) const {
    const auto* const place = static_cast<const std::byte*>(pointer);
    if (place >= static_.data() && place < static_.data() + static_.size())
      return {true, place - static_.data()};
    if (place < shared_.get() || place >= shared_.get() + launch_.shared_bytes)
      require("names a place that is not in shared memory");
    return {false, place - shared_.get()};
  }

  std::string what_is_missing() const {
    const auto any_at = [&](Op op) {
      return std::any_of(threads_.begin(), threads_.end(), [&](const Thread& thread) {
        return thread.state == State::Waiting && thread.op == op;
      });
    };
    if (any_at(Op::BarrierWait)) return "a Barrier waits for what never comes";
    if (at_barrier_ > 0) return "not every thread of the block reaches __syncthreads()";
    if (any_at(Op::ClusterWait)) return "not every thread of the cluster reaches cluster_sync()";
    return "a warp operation waits for lanes of its mask that never come to it";
  }

  void exit(Thread& self) {
    if (launch_.starts_early && !self.waited_for_grid) {
      throw fault(
          "thread " + std::to_string(self.number) +
          " ends without grid_dependency_wait(), in a kernel that starts before the last has "
          "ended");
    }
    self.state = State::Exited;
    ++exited_;
    witness_->exits(self.number);
    cluster_.exit();
    Warp& warp = warps_[self.number / kWarpSize];
    warp.exited |= 1u << self.number % kWarpSize;
    Thread* const lanes = &threads_[self.number / kWarpSize * kWarpSize];
    for (unsigned rest = warp.waiting; rest != 0; rest &= warp.waiting & (rest - 1))
      complete(lanes[std::countr_zero(rest)]);  // perhaps they waited only for this one
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
    if (watched_ && shuffle) tell_of_shuffle(lanes, self.number / kWarpSize, active);
    witness_->meets(self.number / kWarpSize, active, self.op, self.place);
  }

  void tell_of_shuffle(const Thread* lanes, unsigned warp, unsigned active) const {
    std::array<unsigned, kWarpSize> from{};
    for (unsigned rest = active; rest != 0; rest &= rest - 1) {
      const unsigned lane = std::countr_zero(rest);
      from[lane] = lanes[lane].source;
    }
    witness_->shuffles(warp, from);
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
      if (thread.op == Op::BarrierWait) place += ", which " + async_.missing(thread.object);
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
  Cluster<Block>& cluster_;
  const unsigned rank_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::unique_ptr<std::byte, DeleteShared> shared_;
  const std::span<std::byte> static_ = static_shared();
  Async async_;
  std::unique_ptr<Witness> watched_;  // null where nobody watches
  Witness nobody_;
  Witness* witness_ = &nobody_;

  Context scheduler_;  // where run() stopped, while a thread has its turn
  Turn turn_;
  Context* left_ = nullptr;  // who was the last to stop
  Thread* running_ = nullptr;
  std::size_t exited_ = 0;
  std::size_t at_barrier_ = 0;
  std::exception_ptr error_;
  bool unwinding_ = false;
};

thread_local Block* current_block = nullptr;

// The running block. Inlined into the functions that kernels call, it notes from where.
[[gnu::always_inline]] inline Block& this_block() {
  if (current_block == nullptr) throw std::logic_error("only a kernel may call this");
  current_block->is_at(__builtin_return_address(0));
  return *current_block;
}

// ---------------------------------------------------------------------------------- the whole grid

void check(const Launch& launch) {
  const dim3 grid = launch.grid;
  const dim3 block = launch.block;
  const char* problem = nullptr;
  if (volume(block) == 0) problem = "a block needs at least one thread in each dimension";
  if (volume(block) > 1024 || block.x > 1024 || block.y > 1024)
    problem = "a block has at most 1024 threads";
  if (block.z > 64) problem = "a block is at most 64 deep";
  if (grid.x > 0x7FFF'FFFFu) problem = "grid.x is at most 2^31 - 1";
  if (grid.y > 65535 || grid.z > 65535) problem = "grid.y and grid.z are at most 65535";
  if (launch.shared_bytes > 227 * 1024) problem = "a block has at most 227 KB of shared memory";
  if (launch.cluster > 16) problem = "a cluster has at most 16 blocks";
  if (launch.cluster > 0 && grid.x % launch.cluster != 0)
    problem = "grid.x is no multiple of the blocks a cluster";
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

// The kernels that have run. At the end of the program their names, as the linker has them, are
// written to the file that SIMT_LAUNCHED names, if it names one.
class Launched {
 public:
  void add(const void* kernel) { kernels_.insert(kernel); }
  ~Launched() {
    const char* const path = std::getenv("SIMT_LAUNCHED");
    if (path == nullptr) return;
    std::ofstream file(path);
    for (const void* kernel : kernels_) {
      Dl_info info;
      if (dladdr(kernel, &info) != 0 && info.dli_saddr == kernel) file << info.dli_sname << '\n';
    }
  }

 private:
  std::set<const void*> kernels_;
};

Watch* active_watch = nullptr;

std::vector<DeviceBuffer>& known_buffers() {
  static std::vector<DeviceBuffer> buffers;
  return buffers;
}

}  // namespace

Schedule schedule() { return active_schedule(); }

void set_schedule(Schedule schedule) { active_schedule() = schedule; }

void run(const Launch& launch, const std::function<void()>& thread_body) {
  check(launch);
  // One grid at a time, whichever threads of the program launch it: more are too many stacks.
  static std::mutex one_grid;
  const std::lock_guard lock(one_grid);
  static Launched launched;
  launched.add(launch.kernel);
  Watch* const watch = active_watch;
  if (watch != nullptr) watch->begins(launch);
  static StackPool stack_pools[kMaxCores];
  const Schedule schedule = active_schedule();
  const int size = static_cast<int>(std::max(launch.cluster, 1u));
  const std::uint64_t clusters = volume(launch.grid) / size;
  std::vector<std::uint64_t> shuffled;
  if (schedule.order == Order::Random) {
    shuffled.resize(clusters);
    std::iota(shuffled.begin(), shuffled.end(), std::uint64_t{0});
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(schedule.seed));
  }
  std::atomic<bool> failed = false;
  std::exception_ptr error;
  const auto fail = [&] {
    if (!failed.exchange(true)) error = std::current_exception();
  };
  const auto at_once = watch != nullptr && watch->one_at_a_time()
                           ? 1
                           : std::clamp<std::uint64_t>(
                                 std::min(omp_get_max_threads(), kMaxCores / size), 1, clusters);
  std::vector<std::unique_ptr<Cluster<Block>>> places(at_once);
  for (auto& place : places)
    place = std::make_unique<Cluster<Block>>(size, size * volume(launch.block), failed);
  std::atomic<std::uint64_t> next = 0;
  const int cores = static_cast<int>(at_once) * size;
#pragma omp parallel num_threads(cores) if (cores > 1)
  try {
    const int core = omp_get_thread_num();
    const int whole_clusters = omp_get_num_threads() / size;
    stack_pool = &stack_pools[core];
    if (whole_clusters == 0)
      throw std::runtime_error("a cluster needs a thread of the system for each of its blocks");
    Cluster<Block>& cluster = *places[core / size];
    const unsigned rank = core % size;
    while (core / size < whole_clusters) {
      const std::uint64_t i = cluster.next(rank, next);
      if (i >= clusters) break;
      std::uint64_t number = i;
      if (schedule.order == Order::Reverse) number = clusters - 1 - i;
      if (schedule.order == Order::Random) number = shuffled[i];
      try {
        Block block(launch, thread_body, number * size + rank, cluster, watch);
        current_block = &block;
        block.run(schedule, failed);
      } catch (...) {
        fail();
      }
      current_block = nullptr;
      cluster.leave(rank);
    }
  } catch (...) {
    fail();
  }
  if (error) std::rethrow_exception(error);
  if (watch != nullptr) watch->ends(launch);
}

Place here() { return current_block->here(); }

void set_watch(Watch* watch) { active_watch = watch; }

void add_device_buffer(const void* begin, std::size_t bytes) {
  auto& buffers = known_buffers();
  const DeviceBuffer buffer{static_cast<const std::byte*>(begin), bytes};
  const auto rising = [](const DeviceBuffer& a, const DeviceBuffer& b) {
    return a.begin < b.begin;
  };
  buffers.insert(std::upper_bound(buffers.begin(), buffers.end(), buffer, rising), buffer);
}
void remove_device_buffer(const void* begin) {
  std::erase_if(known_buffers(), [=](const DeviceBuffer& each) { return each.begin == begin; });
}
const std::vector<DeviceBuffer>& device_buffers() { return known_buffers(); }
const DeviceBuffer* device_buffer_of(const std::byte* address) {
  const auto& buffers = known_buffers();
  const auto behind = std::upper_bound(
      buffers.begin(), buffers.end(), address,
      [](const std::byte* at, const DeviceBuffer& buffer) { return at < buffer.begin; });
  if (behind == buffers.begin()) return nullptr;
  const DeviceBuffer& buffer = *(behind - 1);
  return address < buffer.begin + buffer.bytes ? &buffer : nullptr;
}

void* dynamic_shared() { return this_block().shared(); }

void barrier(std::source_location where) { this_block().barrier(where); }

std::uint64_t collective(Op op, unsigned mask, std::uint64_t value, int x, int width,
                         std::source_location where) {
  return this_block().collective(op, mask, value, x, width, where);
}

void memcpy_async(void* to, const void* from, std::size_t bytes, std::size_t zeros,
                  std::source_location where) {
  this_block().memcpy_async(to, from, bytes, zeros, where);
}
void commit_copies() { this_block().commit_copies(); }
void wait_for_copies(std::size_t prior, std::source_location where) {
  this_block().wait_for_copies(prior, where);
}

void barrier_init(const void* barrier, unsigned arrivals, std::source_location where) {
  this_block().barrier_init(barrier, arrivals, where);
}
void fence_barrier_init() { this_block().fence_barrier_init(); }
void fence_proxy_async() { this_block().fence_proxy_async(); }
void barrier_arrive(const void* barrier, std::uint32_t bytes, std::source_location where) {
  this_block().barrier_arrive(barrier, bytes, where);
}
void barrier_wait(const void* barrier, unsigned parity, Scope scope, std::source_location where) {
  this_block().barrier_wait(barrier, parity, scope, where);
}
void bulk_load(void* to, const void* from, std::uint32_t bytes, const void* barrier,
               std::source_location where) {
  this_block().bulk_copy(Op::BulkLoad, to, from, bytes, barrier, where);
}
void bulk_store(void* to, const void* from, std::uint32_t bytes, std::source_location where) {
  this_block().bulk_copy(Op::BulkStore, to, from, bytes, nullptr, where);
}
void commit_bulk_stores() { this_block().commit_bulk_stores(); }
void wait_bulk_stores(unsigned groups, std::source_location where) {
  this_block().wait_bulk_stores(groups, where);
}
unsigned cluster_rank() { return this_block().rank(); }
unsigned cluster_size() { return this_block().cluster().size(); }
void cluster_arrive(std::source_location where, Publishes what) {
  this_block().cluster_arrive(where, what);
}
void cluster_wait(std::source_location where) { this_block().cluster_wait(where); }
std::byte* remote(const void* local, unsigned rank, std::source_location where) {
  return this_block().remote(local, rank, where);
}
void remote_store_async(const void* local, unsigned rank, const void* value, std::size_t bytes,
                        const void* barrier, std::source_location where) {
  this_block().remote_store_async(local, rank, value, bytes, barrier, where);
}
void remote_arrive(const void* barrier, unsigned rank, std::source_location where) {
  this_block().remote_arrive(barrier, rank, where);
}
void grid_dependency_wait() { this_block().grid_dependency_wait(); }

void yield() { this_block().yield(); }

void enters(Place place) {
  if (current_block != nullptr) current_block->enters(place);
}
void touches(Place place, const void* address, std::uint32_t bytes, Kind kind) {
  if (current_block != nullptr) current_block->touches(place, address, bytes, kind);
}
void updates(const void* address, std::uint32_t bytes, Scope scope) {
  this_block().touches(__builtin_return_address(0), address, bytes, Kind::Atomic, scope);
}
void loads_past_l1(const void* address, std::uint32_t bytes) {
  this_block().touches(__builtin_return_address(0), address, bytes, Kind::Load, Scope::Device,
                       true);
}
void fence(Scope scope) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  this_block().fence(scope);
}
void launches_dependents() { this_block().launches_dependents(); }

}  // namespace simt
