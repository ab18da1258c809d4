// What the SIMT machine promises of Hopper's barriers, bulk copies and clusters: right programs
// work under every schedule, and what each wrong one does is seen.
#include "common/kernel/hopper.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "common/simt/tests/faults.h"
#include "common/simt/tests/under.h"

using namespace lnc;

using simt::has;
using simt::kSchedules;
using simt::Under;

namespace {

template <typename Body>
void under_each_schedule(const Body& body) {
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);
    INFO("order " << static_cast<int>(schedule.order) << ", seed " << schedule.seed);
    body();
  }
}

/// What a launch says: the message of its fault, or "".
template <typename... Params, typename... Args>
std::string fault_of(void (*kernel)(Params...), const LaunchConfig& config, Args&&... args) {
  try {
    launch(kernel, config, std::forward<Args>(args)...);
  } catch (const simt::Fault& fault) {
    return fault.what();
  }
  return "";
}

std::vector<float> numbers(int count) {
  std::vector<float> all(count);
  std::iota(all.begin(), all.end(), 1.0f);
  return all;
}

/// Memory that starts at a 16-byte boundary.
struct alignas(16) Memory {
  float at[4096];
};

}  // namespace

namespace kernels {

// ------------------------------------------------------------------------------ barriers, copies

enum class Mistake {
  None,
  NoWait,
  WrongParity,
  TooFewBytes,
  TooManyBytes,
  NoArrival,
  NoInit,
  NoInitFence,
  TwoInits,
  EarlyReload,
  OwnStore,
  OddBytes,
  OddSource,
  OddTarget,
  NoSyncthreads,
  LeavesEarly,
};

constexpr int kStages = 3, kThreads = 64, kStageFloats = 2 * kThreads;
constexpr int kWaitLine = __LINE__ + 34;

/// A ring of stages, as fwd08 has it: out = 2 · in.
__global__ void ring(const float* in, float* out, int steps, Mistake mistake) {
  __shared__ Barrier full[kStages];
  auto* const data = dynamic_shared<float>();
  const auto is = [&](Mistake other) { return mistake == other; };
  const auto request = [&](int step) {
    Barrier& barrier = full[step % kStages];
    float* const to = data + step % kStages * kStageFloats;
    const float* const from = in + step * kStageFloats;
    constexpr unsigned kBytes = kStageFloats * sizeof(float), kHalf = kBytes / 2;
    if (!is(Mistake::NoArrival))
      barrier.arrive_and_expect(is(Mistake::TooFewBytes)    ? kHalf
                                : is(Mistake::TooManyBytes) ? kBytes + 16
                                                            : kBytes);
    bulk_load(to + is(Mistake::OddTarget), from + is(Mistake::OddSource),
              kHalf - 4 * is(Mistake::OddBytes), barrier);
    bulk_load(to + kThreads, from + kThreads, kHalf, barrier);
  };
  if (threadIdx.x == 0) {
    for (Barrier& barrier : full) {
      if (!is(Mistake::NoInit)) barrier.init(1);
      if (is(Mistake::TwoInits)) barrier.init(1);
    }
    if (!is(Mistake::NoInitFence)) fence_barrier_init();
    for (int step = 0; step < kStages && step < steps; ++step) request(step);
  }
  if (is(Mistake::LeavesEarly)) return;
  if (!is(Mistake::NoSyncthreads)) __syncthreads();
  for (int step = 0; step < steps; ++step) {
    const unsigned parity = step / kStages % 2 != is(Mistake::WrongParity);
    float* const stage = data + step % kStages * kStageFloats;
    if (is(Mistake::OwnStore)) stage[threadIdx.x] = 0.0f;
    if (!is(Mistake::NoWait)) full[step % kStages].wait(parity);
    for (unsigned i = threadIdx.x; i < kStageFloats; i += kThreads)
      out[step * kStageFloats + i] = 2.0f * stage[i];
    if (!is(Mistake::EarlyReload)) __syncthreads();
    if (threadIdx.x == 0 && step + kStages < steps) request(step + kStages);
  }
}

/// Half of the block produces, half consumes; full and empty barriers, no __syncthreads.
__global__ void producers_and_consumers(float* out, int steps) {
  __shared__ Barrier full[2], empty[2];
  __shared__ float data[2][32];
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) full[i].init(32), empty[i].init(32);
    fence_barrier_init();
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  for (int step = 0; step < steps; ++step) {
    const int slot = step % 2;
    const unsigned parity = step / 2 % 2;
    if (threadIdx.x < 32) {
      empty[slot].wait(parity ^ 1);  // of the phase before: passes at once the first time
      data[slot][lane] = static_cast<float>(step * 32 + lane);
      full[slot].arrive();
    } else {
      full[slot].wait(parity);
      out[step * 32 + lane] = data[slot][31 - lane];
      empty[slot].arrive();
    }
  }
}

enum class StoreMistake { None, NoFence, NoWait, NoCommit, EarlyReuse, EarlyExit };

/// out = in + 1, through shared memory and bulk stores, two slots in turns.
__global__ void stores(const float* in, float* out, int steps, StoreMistake mistake) {
  alignas(16) __shared__ float slots[2][kThreads];
  const auto is = [&](StoreMistake other) { return mistake == other; };
  for (int step = 0; step < steps; ++step) {
    float* const slot = slots[step % 2];
    if (threadIdx.x == 0 && !is(StoreMistake::EarlyReuse)) wait_bulk_stores_read<1>();
    __syncthreads();
    slot[threadIdx.x] = in[step * kThreads + threadIdx.x] + 1.0f;
    if (!is(StoreMistake::NoFence)) fence_proxy_async();
    __syncthreads();
    if (threadIdx.x != 0) continue;
    bulk_store(out + step * kThreads, slot, sizeof slots[0]);
    if (!is(StoreMistake::NoCommit)) commit_bulk_stores();
  }
  if (threadIdx.x == 0 && !is(StoreMistake::EarlyExit)) wait_bulk_stores_read<0>();
}

__global__ void too_many_arrivals() {
  __shared__ Barrier barrier;
  if (threadIdx.x == 0) {
    barrier.init(2);
    fence_barrier_init();
    barrier.arrive_and_expect(16);
    barrier.arrive();
    barrier.arrive();
  }
}

__global__ void load_to_global(const float* in, float* out) {
  __shared__ Barrier barrier;
  barrier.init(1);
  fence_barrier_init();
  bulk_load(out, in, 16, barrier);
}

// -------------------------------------------------------------------------------------- clusters

__global__ void ranks(unsigned* out) {
  out[2 * blockIdx.x] = cluster_rank();
  out[2 * blockIdx.x + 1] = cluster_size();
}

enum class ClusterMistake { None, NoFirstSync, NoMiddleSync, NoLastSync, OneWarpLess, NoSuchRank };

/// Each block tells the others its number in static and in dynamic shared memory; out = the sums.
__global__ void exchange(float* out, ClusterMistake mistake) {
  __shared__ float own;
  auto* const dynamic = dynamic_shared<float>();
  float* const told = dynamic + 1;
  const auto is = [&](ClusterMistake other) { return mistake == other; };
  const unsigned rank = cluster_rank(), size = cluster_size();
  if (!is(ClusterMistake::NoFirstSync)) cluster_sync();
  if (threadIdx.x == 0) own = dynamic[0] = static_cast<float>(blockIdx.x);
  if (threadIdx.x < size)
    remote_store(&told[rank], threadIdx.x + is(ClusterMistake::NoSuchRank) * size,
                 static_cast<float>(blockIdx.x));
  if (is(ClusterMistake::OneWarpLess) && rank == 1 && threadIdx.x / 32 == 1) return;
  if (!is(ClusterMistake::NoMiddleSync)) cluster_sync();
  float sum = 0.0f, sum_own = 0.0f, sum_dynamic = 0.0f;
  for (unsigned other = 0; other < size; ++other) {
    sum += told[other];
    sum_own += remote_load(&own, other);
    sum_dynamic += remote_load(dynamic, other);
  }
  if (!is(ClusterMistake::NoLastSync)) cluster_sync();
  const bool same = sum == sum_own && sum == sum_dynamic;
  out[blockIdx.x * blockDim.x + threadIdx.x] = same ? sum : NAN;
}

/// The same by stores that a Barrier counts, twice, with no cluster_sync in between.
__global__ void exchange_async(float* out) {
  __shared__ Barrier full[2];
  __shared__ float told[2][16];
  const unsigned rank = cluster_rank(), size = cluster_size();
  if (threadIdx.x == 0) {
    for (Barrier& barrier : full) barrier.init(1);
    fence_barrier_init();
    for (Barrier& barrier : full) barrier.arrive_and_expect(size * sizeof(float));
  }
  cluster_sync();
  float sum = static_cast<float>(blockIdx.x);
  for (int turn = 0; turn < 2; ++turn) {
    if (threadIdx.x < size) remote_store_async(&told[turn][rank], threadIdx.x, sum, full[turn]);
    full[turn].wait(0);
    sum = 0.0f;
    for (unsigned other = 0; other < size; ++other) sum += told[turn][other];
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  cluster_sync();
}

enum class ArriveMistake { None, NoSuchRank, NotInitialised, NoWait };

/// Block 0 sends 1, 2, … to one place in block 1, which says each time that it has read it.
__global__ void sends_again(float* out, int turns, ArriveMistake mistake) {
  __shared__ Barrier full, empty;
  __shared__ float place;
  const auto is = [&](ArriveMistake other) { return mistake == other; };
  if (threadIdx.x == 0) {
    full.init(1);
    if (!is(ArriveMistake::NotInitialised)) empty.init(1);
    fence_barrier_init();
  }
  cluster_sync();
  for (int turn = 0; turn < turns && threadIdx.x == 0; ++turn) {
    if (cluster_rank() == 0) {
      if (turn > 0 && !is(ArriveMistake::NoWait)) empty.wait_at_cluster_scope((turn - 1) % 2);
      remote_store_async(&place, 1, static_cast<float>(turn + 1), full);
    } else {
      full.arrive_and_expect(sizeof place);
      full.wait_at_cluster_scope(turn % 2);
      out[turn] = place;
      remote_arrive(empty, is(ArriveMistake::NoSuchRank) ? 2 : 0);
    }
  }
  cluster_sync();
}

__global__ void waits_for_what_no_block_sends() {
  __shared__ Barrier barrier;
  if (threadIdx.x == 0) barrier.init(1);
  __syncthreads();
  if (cluster_rank() == 1) barrier.wait(0);
  cluster_sync();
}

__global__ void one_block_throws(int* alive) {
  if (blockIdx.x == 1) throw std::domain_error("block 1 objects");
  cluster_sync();
  atomicAdd(alive, 1);
}

__global__ void order_of_turns(int* next, int* order) {
  for (int turn = 0; turn < 2; ++turn) {
    order[atomicAdd(next, 1)] = blockIdx.x * blockDim.x + threadIdx.x;
    cluster_sync();
  }
}

__global__ void arrives_twice() {
  cluster_arrive();
  cluster_arrive();
}

}  // namespace kernels

using kernels::ClusterMistake;
using kernels::kStageFloats;
using kernels::kThreads;
using kernels::Mistake;
using kernels::StoreMistake;

namespace {

constexpr int kSteps = 10;

std::string run_ring(Mistake mistake, Memory& out, int steps = kSteps) {
  static const Memory in = [] {
    Memory memory;
    std::iota(std::begin(memory.at), std::end(memory.at), 1.0f);
    return memory;
  }();
  for (float& value : out.at) value = 0.0f;
  return fault_of(kernels::ring, {1, kThreads, kernels::kStages * kStageFloats * sizeof(float)},
                  in.at, out.at, steps, mistake);
}

bool doubled(const Memory& out, int steps = kSteps) {
  for (int i = 0; i < steps * kStageFloats; ++i)
    if (out.at[i] != 2.0f * static_cast<float>(i + 1)) return false;
  return true;
}

std::string run_stores(StoreMistake mistake, Memory& out) {
  const auto in = numbers(kSteps * kThreads);
  return fault_of(kernels::stores, {1, kThreads}, in.data(), out.at, kSteps, mistake);
}

}  // namespace

TEST_CASE("a ring of bulk loads brings what it should") {
  under_each_schedule([] {
    Memory out;
    for (const int steps : {1, 2, 3, 4, 6, 10, 19}) {
      CHECK(run_ring(Mistake::None, out, steps) == "");
      CHECK(doubled(out, steps));
    }
  });
}

TEST_CASE("producers and consumers with full and empty barriers") {
  under_each_schedule([] {
    std::vector<float> out(20 * 32);
    launch(kernels::producers_and_consumers, {1, 64}, out.data(), 20);
    for (int i = 0; i < 20 * 32; ++i) CHECK(out[i] == i / 32 * 32 + 31 - i % 32);
  });
}

TEST_CASE("a reader that does not wait reads NaN") {
  under_each_schedule([] {
    Memory out;
    run_ring(Mistake::NoWait, out);
    CHECK(std::isnan(out.at[0]));
  });
}

TEST_CASE("a wait for the other parity passes too early, or never") {
  under_each_schedule([] {
    Memory out;
    const std::string fault = run_ring(Mistake::WrongParity, out);
    CHECK((fault != "" || std::isnan(out.at[0])));
  });
  Memory out;
  CHECK(std::isnan((run_ring(Mistake::WrongParity, out, 1), out.at[0])));
}

TEST_CASE("bytes that are not expected, or do not come, are told") {
  under_each_schedule([] {
    Memory out;
    CHECK(run_ring(Mistake::TooFewBytes, out) != "");
    CHECK(has(run_ring(Mistake::TooFewBytes, out, 1), "it ends while "));
    std::string fault = run_ring(Mistake::TooManyBytes, out);
    CHECK(has(fault, "a thread waits at a Barrier for what never comes"));
    CHECK(has(fault,
              "threads 0-63: at Barrier::wait(parity 0), common/simt/tests/hopper_test.cpp:" +
                  std::to_string(kernels::kWaitLine) + ", which lacks 0 arrivals and 16 bytes"));
    fault = run_ring(Mistake::NoArrival, out);
    CHECK(has(fault, "which lacks 1 arrivals and -512 bytes"));
  });
}

TEST_CASE("a stage that is loaded again while some still read it") {
  bool seen = false;
  under_each_schedule([&] {
    Memory out;
    const std::string fault = run_ring(Mistake::EarlyReload, out);
    seen = seen || fault != "" || !doubled(out);
  });
  CHECK(seen);
}

TEST_CASE("misuse of barriers and copies is a fault in words") {
  under_each_schedule([] {
    Memory out;
    const auto says = [&](Mistake mistake, const std::string& part) {
      const std::string fault = run_ring(mistake, out);
      INFO(fault);
      CHECK(has(fault, part));
    };
    says(Mistake::NoInit, "arrives at a Barrier that is not initialised");
    says(Mistake::TwoInits, "initialises a Barrier for the second time");
    says(Mistake::NoInitFence, "the copy engine does not know: fence_barrier_init()");
    says(Mistake::OddBytes,
         "thread 0 (lane 0) copies 252 bytes, which is not a multiple of 16, at ");
    says(Mistake::OddSource, "copies from an address that is not a multiple of 16");
    says(Mistake::OddTarget, "copies to an address that is not a multiple of 16");
    says(Mistake::OwnStore, "had not arrived when its destination was written to");
    says(Mistake::LeavesEarly, "it ends while the bulk load of 256 bytes that thread 0 began at ");
    CHECK(has(fault_of(kernels::too_many_arrivals, {1, 32}),
              "arrives at a Barrier that has all arrivals of its phase"));
    CHECK(has(fault_of(kernels::load_to_global, {1, 1}, out.at, out.at),
              "names a place that is not in shared memory"));
  });
}

TEST_CASE("a barrier that others use before it is initialised") {
  const Under under({simt::Order::Reverse});
  Memory out;
  CHECK(has(run_ring(Mistake::NoSyncthreads, out), "waits for a Barrier that is not initialised"));
}

TEST_CASE("bulk stores write what is in shared memory, and what may go wrong is told") {
  under_each_schedule([] {
    Memory out;
    CHECK(run_stores(StoreMistake::None, out) == "");
    for (int i = 0; i < kSteps * kThreads; ++i) CHECK(out.at[i] == i + 2.0f);
    CHECK(has(run_stores(StoreMistake::NoFence, out),
              "is not yet visible to the copy engine: fence_proxy_async()"));
    CHECK(run_stores(StoreMistake::NoCommit, out) != "");
    CHECK(has(run_stores(StoreMistake::EarlyExit, out),
              "it ends while the bulk store of 256 bytes that thread 0 began at "));
  });
  const Under under({});
  Memory out;
  CHECK(has(run_stores(StoreMistake::EarlyReuse, out),
            "had not read its source when that was written to"));
}

TEST_CASE("blocks know their place in a cluster") {
  for (const unsigned size : {1u, 2u, 3u, 8u, 16u}) {
    std::vector<unsigned> out(2 * 48);
    launch(kernels::ranks, {48, 32, 0, nullptr, size}, out.data());
    for (unsigned block = 0; block < 48; ++block) {
      CHECK(out[2 * block] == block % size);
      CHECK(out[2 * block + 1] == size);
    }
  }
}

TEST_CASE("the blocks of a cluster reach for each other's shared memory") {
  const auto check = [](auto kernel, unsigned size, auto factor, auto... args) {
    std::vector<float> out(48 * 64);
    CHECK(fault_of(kernel, {48, 64, 68, nullptr, size}, out.data(), args...) == "");
    for (unsigned i = 0; i < out.size(); ++i) {
      const unsigned first = i / 64 / size * size;
      CHECK(out[i] == factor(size) * (size * first + size * (size - 1) / 2.0f));
    }
  };
  under_each_schedule([&] {
    for (const unsigned size : {1u, 2u, 3u, 8u, 16u}) {
      check(
          kernels::exchange, size, [](unsigned) { return 1.0f; }, ClusterMistake::None);
      if (size > 1) check(kernels::exchange_async, size, [](unsigned size) { return size * 1.0f; });
    }
  });
}

TEST_CASE("a store to a cluster's barrier without other blocks is told") {
  std::vector<float> out(64);
  for (const unsigned size : {0u, 1u})
    CHECK(has(fault_of(kernels::exchange_async, {1, 64, 68, nullptr, size}, out.data()),
              "needs a LaunchConfig::cluster of 2 or more"));
}

TEST_CASE("a missing cluster_sync is told") {
  std::vector<float> out(8 * 64);
  const auto run = [&](ClusterMistake mistake) {
    return fault_of(kernels::exchange, {8, 64, 68, nullptr, 4}, out.data(), mistake);
  };
  bool middle_seen = false;
  under_each_schedule([&] {
    CHECK(has(run(ClusterMistake::NoFirstSync), "which may not have started"));
    CHECK(has(run(ClusterMistake::NoLastSync), "which has ended: cluster_sync() comes last"));
    CHECK(has(run(ClusterMistake::NoSuchRank), "which the cluster does not have"));
    middle_seen = middle_seen || run(ClusterMistake::NoMiddleSync) != "" || std::isnan(out[0]) ||
                  out[0] != 6.0f;
    CHECK(run(ClusterMistake::OneWarpLess) == "");  // threads that have ended count as there
  });
  CHECK(middle_seen);
  CHECK(has(fault_of(kernels::arrives_twice, {2, 32, 0, nullptr, 2}), "has arrived and did not"));
}

TEST_CASE("a cluster in which nobody can go on is told, and one that fails does not hang") {
  under_each_schedule([] {
    const std::string fault =
        fault_of(kernels::waits_for_what_no_block_sends, {4, 32, 0, nullptr, 2});
    INFO(fault);
    CHECK((has(fault, "a thread waits at a Barrier for what never comes") ||
           has(fault, "not every thread of the cluster reaches cluster_sync()")));
    int alive = 0;
    CHECK_THROWS_AS(launch(kernels::one_block_throws, {64, 32, 0, nullptr, 4}, &alive),
                    std::domain_error);
  });
}

TEST_CASE("a block that arrives at another's Barrier lets it send again") {
  using kernels::ArriveMistake;
  constexpr int kTurns = 20;
  std::vector<float> out(kTurns);
  const auto run = [&](ArriveMistake mistake) {
    out.assign(kTurns, 0.0f);
    return fault_of(kernels::sends_again, {2, 32, 0, nullptr, 2}, out.data(), kTurns, mistake);
  };
  under_each_schedule([&] {
    CHECK(run(ArriveMistake::None) == "");
    for (int turn = 0; turn < kTurns; ++turn) CHECK(out[turn] == turn + 1);
    CHECK(has(run(ArriveMistake::NoSuchRank), "which the cluster does not have"));
    CHECK(has(run(ArriveMistake::NotInitialised), "a Barrier that is not initialised"));
    CHECK(run(ArriveMistake::NoWait) != "");
  });
}

TEST_CASE("a seed replays the turns of a cluster") {
  const auto turns = [](simt::Schedule schedule) {
    const Under under(schedule);
    int next = 0;
    std::vector<int> order(2 * 4 * 32);
    launch(kernels::order_of_turns, {4, 32, 0, nullptr, 4}, &next, order.data());
    return order;
  };
  std::vector<int> forward(128);
  std::iota(forward.begin(), forward.end(), 0);
  auto first = turns({simt::Order::Forward});
  first.resize(128);
  CHECK(first == forward);
  CHECK(turns({simt::Order::Random, 5}) == turns({simt::Order::Random, 5}));
  CHECK(turns({simt::Order::Random, 5}) != turns({simt::Order::Random, 6}));
}

TEST_CASE("clusters that CUDA refuses are refused") {
  unsigned out[64];
  CHECK_THROWS_WITH_AS(launch(kernels::ranks, {6, 32, 0, nullptr, 4}, out),
                       doctest::Contains("grid.x is not a multiple"), std::runtime_error);
  CHECK_THROWS_WITH_AS(launch(kernels::ranks, {34, 32, 0, nullptr, 17}, out),
                       doctest::Contains("a cluster has at most 16 blocks"), std::runtime_error);
}
