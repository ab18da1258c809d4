// What the SIMT machine promises: CUDA's semantics, independence of the schedule, and faults in
// words.
#include <doctest/doctest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/simt/crashes.h"
#include "common/simt/hopper.h"
#include "common/simt/tests/faults.h"
#include "common/simt/tests/under.h"

using lnc::launch;
using simt::fault_of;
using simt::has;
using simt::kSchedules;
using simt::Under;

namespace {

constexpr unsigned kFull = 0xFFFF'FFFF;

}  // namespace

// Kernels need names that the linker exports, so that messages can show them.
namespace kernels {

__global__ void write_to_dynamic_shared(unsigned count) {
  if (threadIdx.x < count) lnc::dynamic_shared<float>()[threadIdx.x] = 1.0f;
}

__global__ void wait_for_the_grid_in(unsigned threads) {
  if (threadIdx.x < threads) lnc::grid_dependency_wait();
}

__device__ int linear_thread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// ------------------------------------------------------------------------------------- semantics

__global__ void indices(std::array<uint3, 2>* out, int* visits) {
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int i = block * blockDim.x * blockDim.y * blockDim.z + linear_thread();
  out[i] = {blockIdx, threadIdx};
  atomicAdd(&visits[i], 1);
}

__global__ void warp_of_3d_block(int* out) {  // warps are cut from the linear thread number
  out[linear_thread()] = __shfl_sync(kFull, linear_thread(), 5);
}

enum class Kind { Idx, Up, Down, Xor };
template <typename T>
__global__ void shuffled(T* out, Kind kind, int x, int width) {
  const T own = static_cast<T>(threadIdx.x + 100);
  T& result = out[threadIdx.x];
  if (kind == Kind::Idx) result = __shfl_sync(kFull, own, x, width);
  if (kind == Kind::Up) result = __shfl_up_sync(kFull, own, x, width);
  if (kind == Kind::Down) result = __shfl_down_sync(kFull, own, x, width);
  if (kind == Kind::Xor) result = __shfl_xor_sync(kFull, own, x, width);
}

struct Pair {
  float mean;
  int count;
};
__global__ void shuffled_struct(Pair* out) {
  out[threadIdx.x] = __shfl_xor_sync(kFull, Pair{threadIdx.x * 0.5f, int(threadIdx.x)}, 1);
}

__global__ void two_halves(int* out) {  // the halves loop a different number of times
  const unsigned mask = threadIdx.x < 16 ? 0x0000'FFFF : 0xFFFF'0000;
  int sum = threadIdx.x;
  for (int turn = 0; turn < (threadIdx.x < 16 ? 1 : 3); ++turn) {
    for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(mask, sum, offset);
  }
  out[threadIdx.x] = sum;
}

__global__ void votes(unsigned* out) {
  const int lane = threadIdx.x;
  if (lane == 0) return;  // an exited lane does not hold up the others, though the mask names it
  const unsigned odd = __ballot_sync(kFull, lane % 2);
  const bool any = __any_sync(kFull, lane == 7), none = __any_sync(kFull, lane > 31);
  const bool all = __all_sync(kFull, lane > 0), most = __all_sync(kFull, lane != 7);
  __syncwarp();
  if (lane == 31) out[0] = odd, out[1] = any, out[2] = none, out[3] = all, out[4] = most;
}

__global__ void exit_completes(int* out) {  // lanes 1-31 wait already when lane 0 leaves
  if (threadIdx.x == 0) {
    for (int i = 0; i < 3; ++i) __nanosleep(1);
    return;
  }
  out[threadIdx.x] = __ballot_sync(kFull, 1) == 0xFFFF'FFFE;
}

struct Totals {
  int sum;
  unsigned usum;
  unsigned long long lsum;
  float fsum;
  double dsum;
  int max, min;
  unsigned umax, umin;
  int exchanged, swapped;
};
__global__ void atomics(Totals* t) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&t->sum, i % 3);
  atomicAdd(&t->usum, 2u);
  atomicAdd(&t->lsum, 1ull << 32);
  atomicAdd(&t->fsum, 1);  // an int is converted, as in CUDA
  atomicAdd(&t->dsum, 0.5);
  atomicMax(&t->max, i);
  atomicMin(&t->min, -i);
  atomicMax(&t->umax, static_cast<unsigned>(i));
  atomicMin(&t->umin, static_cast<unsigned>(i) + 3);
  if (atomicExch(&t->exchanged, 1) == 0) atomicAdd(&t->sum, 1000);
  if (atomicCAS(&t->swapped, 0, 5) == 0) atomicAdd(&t->sum, 1000);
}

__device__ float block_sum(float value) {
  __shared__ float partial[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kFull, value, offset);
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  value = lane < warps ? partial[lane] : 0.0f;
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kFull, value, offset);
  __syncthreads();
  return value;
}

__global__ void __launch_bounds__(1024) centered(const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float mean = block_sum(__ldg(x + i)) / blockDim.x;
  const float d = x[i] - mean;
  y[i] = d * rsqrtf(block_sum(d * d) / blockDim.x);
}

__global__ void shared_is_poisoned(int* nans) {
  __shared__ float variable[32];
  for (float* const data : {lnc::dynamic_shared<float>(), variable}) {
    if (std::isnan(data[threadIdx.x])) atomicAdd(nans, 1);
    data[threadIdx.x] = 1;
  }
}

__global__ void order_of_turns(int* next, int* order) {
  order[atomicAdd(next, 1)] = blockIdx.x * blockDim.x + threadIdx.x;
}

__global__ void locked_count(int* lock, int* counter) {
  while (atomicCAS(lock, 0, 1) != 0) __nanosleep(20);
  __threadfence();
  const int old = *counter;
  __nanosleep(20);  // gives the others every chance to get in
  *counter = old + 1;
  __threadfence();
  atomicExch(lock, 0);
}

// Each of two blocks of two warps adds 1 to buffer[0] and buffer[1] under a lock. Warp 1 is slow:
// between its load and its store it waits for the other block's load, but not for ever, since with
// both barriers in place that cannot come.
template <bool kAfterAcquire, bool kBeforeRelease>
__global__ void locked_add(int* lock, int* loads, int* buffer, long long patience_ns) {
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    while (atomicExch(lock, 1) != 0) continue;
    __threadfence();
  }
  if (kAfterAcquire) __syncthreads();
  if (threadIdx.x % 32 == 0) {
    const int old = *static_cast<volatile int*>(&buffer[warp]);
    if (warp == 1) {
      atomicAdd(loads, 1);
      const long long start = clock64();
      while (atomicAdd(loads, 0) < 2 && clock64() - start < patience_ns) __nanosleep(100);
    }
    buffer[warp] = old + 1;
  }
  if (kBeforeRelease) __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicExch(lock, 0);
  }
}

__global__ void half_types(__half* h, __nv_bfloat16* b) {
  h[threadIdx.x] = __shfl_xor_sync(kFull, __float2half_rn(threadIdx.x * 0.5f), 1);
  b[threadIdx.x] = __shfl_xor_sync(kFull, __float2bfloat16_rn(threadIdx.x * 0.5f), 1);
}

// ---------------------------------------------------------------------------------------- faults

__global__ void missing_barrier(int* out) {
  __shared__ int data[64];
  data[threadIdx.x] = -1;
  __syncthreads();
  data[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = data[(threadIdx.x + 1) % 64];
}

constexpr int kDivergentLine = __LINE__ + 3;
__global__ void divergent_barrier() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

constexpr int kLoopLine = __LINE__ + 3;
template <int kTurns>
__global__ void barrier_in_a_loop(int) {
  for (unsigned turn = 0; turn < kTurns + threadIdx.x / 32; ++turn) __syncthreads();
}

constexpr int kEarlyLine = __LINE__ + 3;
__global__ void early_return() {
  if (threadIdx.x % 64 == 5 || threadIdx.x >= 100) return;
  __syncthreads();
}

constexpr int kMixedLine = __LINE__ + 4;
__global__ void barrier_against_shuffle() {
  if (threadIdx.x < 32) {
    if (threadIdx.x < 7)
      __shfl_down_sync(kFull, 1.0f, 1);
    else
      __syncthreads();
  } else {
    __syncthreads();
  }
}

template <int kBytes>
__global__ void much_static_shared(int* out) {
  __shared__ char tile[kBytes];
  __shared__ int more[256];
  tile[threadIdx.x] = 1;
  more[threadIdx.x] = tile[threadIdx.x];
  *out = more[threadIdx.x];
}

constexpr int kOutsideLine = __LINE__ + 1;
__global__ void reads_and_writes(const float* x, float* y, int at) { y[threadIdx.x] = x[at]; }

__device__ int deep(int n) {
  volatile int local[4096];
  for (int i = 0; i < 4096; ++i) local[i] = n;
  return n == 0 ? 0 : deep(n - 1) + local[n];
}
__global__ void fills_its_stack(int n, int* out) { *out = deep(n); }

constexpr int kAssertionLine = __LINE__ + 1;
__global__ void asserts(int limit) { assert(static_cast<int>(threadIdx.x) < limit); }

constexpr int kBranchLine = __LINE__ + 3;
__global__ void shuffles_in_both_branches(int* out) {
  if (threadIdx.x < 16)
    out[threadIdx.x] = __shfl_xor_sync(kFull, threadIdx.x, 16);
  else
    out[threadIdx.x] = __shfl_xor_sync(kFull, threadIdx.x, 16);
}

constexpr int kUnevenLine = __LINE__ + 4;
__global__ void shuffle_in_an_uneven_loop(int* out) {
  int sum = 0;
  for (unsigned i = threadIdx.x; i < 80; i += 32)
    sum += __shfl_xor_sync(kFull, static_cast<int>(i), 1);
  out[threadIdx.x] = __shfl_xor_sync(kFull, sum, 2);
}

constexpr int kExitedLane = __LINE__ + 3;
__global__ void read_exited_lane(int* out) {
  if (threadIdx.x == 33) return;
  out[threadIdx.x] = __shfl_sync(kFull, threadIdx.x, 1);
}

__global__ void read_lane_outside_mask(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xFFFFu, threadIdx.x, 20);
}

__global__ void read_lane_that_never_was(int* out) {
  out[threadIdx.x] = __shfl_xor_sync(kFull, threadIdx.x, 16);
}

constexpr int kNotInMaskLine = __LINE__ + 2;
__global__ void caller_not_in_mask(int* out) {
  out[threadIdx.x] = __shfl_sync(0x0000'FFFF, threadIdx.x, 0);
}

__global__ void different_masks() { __syncwarp(threadIdx.x < 16 ? 0x0001'FFFF : 0xFFFF'FFFF); }

__global__ void different_operations() {
  if (threadIdx.x < 16)
    __ballot_sync(kFull, 1);
  else
    __shfl_sync(kFull, 1, 0);
}

__global__ void odd_width(int* out) { out[threadIdx.x] = __shfl_sync(kFull, 1, 0, 12); }

struct CountsItsEnd {
  int* ended;
  ~CountsItsEnd() { atomicAdd(ended, 1); }
};
__global__ void throws(int* ended) {
  const CountsItsEnd guard{ended};
  if (threadIdx.x == 50) throw std::domain_error("thread 50 objects");
  __syncthreads();
}

__global__ void waits_for_a_dead_block(int* started, int* flag) {
  if (atomicAdd(started, 1) == 0) throw std::domain_error("the first never sets the flag");
  while (atomicCAS(flag, 1, 1) != 1) __nanosleep(100);
}

constexpr int kHopelessLine = __LINE__ + 4;
__global__ void hopeless_lock(int* lock) {
  if (threadIdx.x < 4) {
    while (atomicCAS(lock, 0, 1) != 0) continue;
    __syncthreads();  // its holder keeps the lock, and waits for those who wait for the lock
  }
}

constexpr int kVolatileLine = __LINE__ + 3;
__global__ void waits_for_a_flag(volatile int* flag, bool raise) {
  if (threadIdx.x < 40)
    while (*flag == 0) continue;
  if (threadIdx.x == 40 && raise) *flag = 1;
}

__device__ int ready;
constexpr int kPollLine = __LINE__ + 2;
__global__ void polls() {
  while (atomicAdd(&ready, 0) == 0) continue;
}

constexpr int kStandsStillLine = __LINE__ + 3;
__global__ void stands_still(const float* x, float* sum, int stride) {
  float total = 0;
  for (int i = threadIdx.x; i < 64; i += stride) total += x[i];
  sum[threadIdx.x] = total;
}

__global__ void waits_for_the_next_block(volatile int* flags) {
  flags[blockIdx.x] = 1;
  while (flags[(blockIdx.x + 1) % gridDim.x] == 0) continue;
}

__global__ void takes_long(float* out, int steps, int rounds) {
  float x = threadIdx.x;
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < steps; ++i) x = x * 0.999f + 1;
    __syncthreads();
  }
  out[threadIdx.x] = x;
}

constexpr int kEndlessLine = __LINE__ + 3;
__global__ void computes_for_ever(int* x) {
  if (threadIdx.x % 32 == 5)
    for (;;) x[threadIdx.x] = x[threadIdx.x] * 5 + 3;
  __syncthreads();
}
__global__ void runs_for_ever(volatile int* x) {
  for (int n = 0;; ++n) *x = n;
}
__global__ void adds_for_ever(int* x) {
  for (;;) atomicAdd(x, 1);
}

__global__ void nothing() {}

// ------------------------------------------------------------------------------ copies of a thread

enum class CopyMistake {
  None,
  NoWait,
  WaitsTooLittle,
  NoCommit,
  EarlyReuse,
  OwnStore,
  OddSize,
  OddSource,
  ToGlobal
};

/// out = 2 · in: each thread brings 4 floats a step to its own place in a ring of 3.
__global__ void own_copies(const float* in, float* out, int steps, CopyMistake mistake) {
  constexpr int kStages = 3;
  const auto is = [=](CopyMistake other) { return mistake == other; };
  auto* const ring = lnc::dynamic_shared<float>() + threadIdx.x * 4 * kStages;
  const auto at = [=](int step) { return (step * blockDim.x + threadIdx.x) * 4; };
  const auto request = [&](int step) {
    float* const to = is(CopyMistake::ToGlobal) ? out + at(0) : ring + step % kStages * 4;
    if (step < steps)
      __pipeline_memcpy_async(to, in + at(step) + is(CopyMistake::OddSource),
                              is(CopyMistake::OddSize) ? 12 : 16);
    if (!is(CopyMistake::NoCommit)) __pipeline_commit();
  };
  for (int step = 0; step < kStages; ++step) request(step);
  for (int step = 0; step < steps; ++step) {
    float* const stage = ring + step % kStages * 4;
    if (is(CopyMistake::OwnStore)) stage[1] = 0.0f;
    if (is(CopyMistake::EarlyReuse)) request(step + kStages);
    if (!is(CopyMistake::NoWait))
      __pipeline_wait_prior(kStages - 1 + is(CopyMistake::WaitsTooLittle));
    for (int i = 0; i < 4; ++i) out[at(step) + i] = 2.0f * stage[i];
    if (!is(CopyMistake::EarlyReuse)) request(step + kStages);
  }
}

/// Copies of 4, 8 and 16 bytes, whose last 4, 4 and 12 are zeros.
__global__ void copies_with_zeros(const float* in, float* out) {
  auto* const shared = lnc::dynamic_shared<float>();
  __pipeline_memcpy_async(shared, in, 4, 4);
  __pipeline_memcpy_async(shared + 2, in + 2, 8, 4);
  __pipeline_memcpy_async(shared + 4, in + 4, 16, 12);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  for (int i = 0; i < 8; ++i) out[i] = shared[i];
}

}  // namespace kernels

// ----------------------------------------------------------------------------------- test:
// semantics

TEST_CASE("every thread of a 3-D grid runs once, with its own indices") {
  const dim3 grid(3, 2, 4), block(4, 3, 5);
  std::vector<std::array<uint3, 2>> seen(24 * 60);
  std::vector<int> visits(seen.size());
  launch(kernels::indices, {grid, block}, seen.data(), visits.data());
  CHECK(visits == std::vector<int>(seen.size(), 1));
  for (unsigned i = 0; i < seen.size(); ++i) {
    const auto& [b, t] = seen[i];
    CHECK(((b.z * 2 + b.y) * 3 + b.x) == i / 60);
    CHECK(((t.z * 3 + t.y) * 4 + t.x) == i % 60);
  }
}

TEST_CASE("warps are made of consecutive linear thread numbers") {
  std::vector<int> out(64);
  launch(kernels::warp_of_3d_block, {1, dim3(4, 8, 2)}, out.data());
  for (int i = 0; i < 64; ++i) CHECK(out[i] == i / 32 * 32 + 5);
}

TEST_CASE_TEMPLATE("shuffles of every kind and width", T, char, float, long long) {
  using kernels::Kind;
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);
    for (const int width : {1, 2, 4, 8, 16, 32}) {
      for (const int x : {0, 3, 16, 31}) {
        std::vector<T> idx(32), up(32), down(32), exclusive(32);
        launch(kernels::shuffled<T>, {1, 32}, idx.data(), Kind::Idx, x, width);
        launch(kernels::shuffled<T>, {1, 32}, up.data(), Kind::Up, x, width);
        launch(kernels::shuffled<T>, {1, 32}, down.data(), Kind::Down, x, width);
        launch(kernels::shuffled<T>, {1, 32}, exclusive.data(), Kind::Xor, x, width);
        for (int lane = 0; lane < 32; ++lane) {
          const int first = lane / width * width;
          const int other = lane ^ x;
          CHECK(idx[lane] == T(100 + first + x % width));
          CHECK(up[lane] == T(100 + (lane - x < first ? lane : lane - x)));
          CHECK(down[lane] == T(100 + (lane + x >= first + width ? lane : lane + x)));
          CHECK(exclusive[lane] == T(100 + (other >= first + width ? lane : other)));
        }
      }
    }
  }
}

TEST_CASE("a shuffle carries any 8-byte struct, __half and __nv_bfloat16") {
  std::vector<kernels::Pair> out(32);
  launch(kernels::shuffled_struct, {1, 32}, out.data());
  std::vector<__half> h(32);
  std::vector<__nv_bfloat16> b(32);
  launch(kernels::half_types, {1, 32}, h.data(), b.data());
  for (int lane = 0; lane < 32; ++lane) {
    CHECK(out[lane].count == (lane ^ 1));
    CHECK(out[lane].mean == (lane ^ 1) * 0.5f);
    CHECK(__half2float(h[lane]) == (lane ^ 1) * 0.5f);
    CHECK(__bfloat162float(b[lane]) == (lane ^ 1) * 0.5f);
  }
}

TEST_CASE("two half-warps converge independently") {
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);
    std::vector<int> out(32);
    launch(kernels::two_halves, {1, 32}, out.data());
    for (int lane = 0; lane < 32; ++lane) CHECK(out[lane] == (lane < 16 ? 120 : 376 * 16 * 16));
  }
}

TEST_CASE("votes see the lanes that are there") {
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);
    std::vector<unsigned> out(5);
    launch(kernels::votes, {1, 32}, out.data());
    CHECK(out == std::vector<unsigned>{0xAAAA'AAAA, 1, 0, 1, 0});
    std::vector<int> done(32);
    launch(kernels::exit_completes, {1, 32}, done.data());
    CHECK(std::accumulate(done.begin(), done.end(), 0) == 31);
  }
}

TEST_CASE("atomics over many blocks lose nothing") {
  kernels::Totals t{};
  t.umin = 1'000'000;
  launch(kernels::atomics, {300, 96}, &t);
  CHECK(t.sum == 28800 + 2000);
  CHECK(t.usum == 57600);
  CHECK(t.lsum == 28800ull << 32);
  CHECK(t.fsum == 28800.0f);
  CHECK(t.dsum == 14400.0);
  CHECK(t.max == 28799);
  CHECK(t.min == -28799);
  CHECK(t.umax == 28799);
  CHECK(t.umin == 3);
  CHECK(t.exchanged == 1);
  CHECK(t.swapped == 5);
}

TEST_CASE("a race-free kernel gives the same bits under every schedule") {
  std::vector<float> x(64 * 1024);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) + 3;
  std::vector<float> expected(x.size());
  launch(kernels::centered, {64, 1024}, x.data(), expected.data());
  double squares = 0;
  for (int i = 0; i < 1024; ++i) squares += expected[i] * expected[i];
  CHECK(squares == doctest::Approx(1024).epsilon(1e-4));
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);
    std::vector<float> y(x.size());
    launch(kernels::centered, {64, 1024}, x.data(), y.data());
    CHECK(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("shared memory starts as NaN in every block") {
  int nans = 0;
  launch(kernels::shared_is_poisoned, {50, 32, 32 * sizeof(float)}, &nans);
  CHECK(nans == 2 * 50 * 32);
}

TEST_CASE("the schedule decides who goes first, and a seed replays it") {
  const auto turns = [](simt::Schedule schedule, int blocks) {
    const Under under(schedule);
    int next = 0;
    std::vector<int> order(blocks * 64);
    launch(kernels::order_of_turns, {unsigned(blocks), 64}, &next, order.data());
    return order;
  };
  std::vector<int> forward(64);
  std::iota(forward.begin(), forward.end(), 0);
  CHECK(turns({simt::Order::Forward}, 1) == forward);
  CHECK(turns({simt::Order::Reverse}, 1) == std::vector<int>(forward.rbegin(), forward.rend()));
  const std::vector<int> seven = turns({simt::Order::Random, 7}, 1);
  CHECK(seven != forward);
  CHECK(seven == turns({simt::Order::Random, 7}, 1));
  CHECK(seven != turns({simt::Order::Random, 8}, 1));
  CHECK(turns({simt::Order::Random, 7}, 1000).size() ==
        64000);  // each block once: no out of bounds
}

TEST_CASE("spin locks make progress within a block and between blocks") {
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);
    int lock = 0, counter = 0;
    launch(kernels::locked_count, {1, 96}, &lock, &counter);
    CHECK(counter == 96);
    launch(kernels::locked_count, {40, 8}, &lock, &counter);
    CHECK(counter == 96 + 320);
  }
}

TEST_CASE("sums under a lock need the barrier after the acquire and that before the release") {
  const int cores = omp_get_max_threads();
  omp_set_num_threads(2);  // two blocks at once, however few cores there are
  const auto sums = [](auto kernel, long long patience_ns) {
    int lock = 0, loads = 0;
    std::vector<int> buffer(2);
    launch(kernel, {2, 64}, &lock, &loads, buffer.data(), patience_ns);
    return buffer;
  };
  constexpr long long kInVain = 20'000'000, kUntilItComes = 20'000'000'000;
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);
    CHECK(sums(kernels::locked_add<true, true>, kInVain) == std::vector<int>{2, 2});
    CHECK(sums(kernels::locked_add<true, false>, kUntilItComes)[1] == 1);
    CHECK(sums(kernels::locked_add<false, true>, kUntilItComes)[1] == 1);
  }
  omp_set_num_threads(cores);
}

// --------------------------------------------------------------------- test: copies of a thread

TEST_CASE("a thread's copies are there when it has waited for them, and not before") {
  struct alignas(16) Memory {
    float at[32 * 4 * 10 + 4];
  };
  using kernels::CopyMistake;
  static Memory in, out;
  std::iota(std::begin(in.at), std::end(in.at), 1.0f);
  const auto run = [&](int steps, CopyMistake mistake) {
    launch(kernels::own_copies, {1, 32, 32 * 3 * 16}, in.at, out.at, steps, mistake);
    bool right = true;
    for (int i = 0; i < 32 * 4 * steps; ++i) right = right && out.at[i] == 2.0f * in.at[i];
    return right;
  };
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);
    CHECK(run(10, CopyMistake::None));
    for (const int steps : {1, 2, 3, 4}) {
      CHECK(run(steps, CopyMistake::None));
      for (const auto mistake :
           {CopyMistake::NoWait, CopyMistake::WaitsTooLittle, CopyMistake::NoCommit}) {
        CHECK_FALSE(run(steps, mistake));
        CHECK(std::isnan(out.at[0]));
      }
    }
    const auto fault = [&](CopyMistake mistake) { return fault_of([&] { run(10, mistake); }); };
    CHECK(has(fault(CopyMistake::WaitsTooLittle), "whose destination was written to before it"));
    CHECK(has(fault(CopyMistake::EarlyReuse), "whose destination was written to before it had"));
    CHECK(has(fault(CopyMistake::OwnStore), "whose destination was written to before it had"));
    CHECK(has(fault(CopyMistake::OddSize), "copies 12 bytes, and not 4, 8 or 16, at memcpy_async"));
    CHECK(has(fault(CopyMistake::OddSource), "from an address that is not a multiple of the size"));
    CHECK(has(fault(CopyMistake::ToGlobal), "names a place that is not in shared memory"));
  }
  launch(kernels::copies_with_zeros, {1, 1, 32}, in.at, out.at);
  const float expected[] = {0, NAN, 3, 0, 5, 0, 0, 0};
  for (int i = 0; i < 8; ++i) CHECK((i == 1 ? std::isnan(out.at[i]) : out.at[i] == expected[i]));
}

TEST_CASE("an empty grid launches nothing") {
  launch(kernels::nothing, {0, 32});
  launch(kernels::nothing, {dim3(1, 0), 32});
}

// ------------------------------------------------------------------------------------- faults

TEST_CASE("a missing barrier gives different results under different schedules") {
  std::vector<int> forward(64), reverse(64);
  {
    const Under under({simt::Order::Forward});
    launch(kernels::missing_barrier, {1, 64}, forward.data());
  }
  {
    const Under under({simt::Order::Reverse});
    launch(kernels::missing_barrier, {1, 64}, reverse.data());
  }
  CHECK(forward != reverse);
}

#if !defined(__SANITIZE_ADDRESS__)
TEST_CASE("a write past the end of dynamic shared memory is a fault") {
  const auto write_16_floats = [](std::size_t bytes) {
    const lnc::LaunchConfig config{.grid = 2, .block = 32, .shared_bytes = bytes};
    launch(kernels::write_to_dynamic_shared, config, 16u);
  };
  CHECK_NOTHROW(write_16_floats(16 * sizeof(float)));
  const std::string fault = fault_of([&] { write_16_floats(15 * sizeof(float)); });
  CHECK(has(fault, "written past the end of its dynamic shared memory"));
}
#endif

TEST_CASE("a kernel that starts early must wait for the kernel before it, in every thread") {
  const auto wait_in = [](unsigned threads) {
    const lnc::LaunchConfig config{.grid = 1, .block = 64, .starts_early = true};
    launch(kernels::wait_for_the_grid_in, config, threads);
  };
  CHECK_NOTHROW(wait_in(64));
  const std::string fault = fault_of([&] { wait_in(40); });
  CHECK(has(fault, "thread 40 ends without grid_dependency_wait()"));
}

TEST_CASE("faults name kernel, block, threads and line, under every schedule") {
  const std::string here = ", common/simt/tests/machine_test.cpp:";
  const auto at = [&](int line) { return here + std::to_string(line); };
  std::vector<int> out(128);
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);

    std::string text = fault_of([] { launch(kernels::divergent_barrier, {1, 64}); });
    CHECK(has(text, "kernel kernels::divergent_barrier, block (0, 0, 0): divergent barrier"));
    CHECK(has(text, "threads 0-39: at __syncthreads()" + at(kernels::kDivergentLine)));
    CHECK(has(text, "threads 40-63: at __syncthreads()" + at(kernels::kDivergentLine + 2)));

    text = fault_of([] { launch(kernels::barrier_in_a_loop<2>, {1, 96}, 0); });
    CHECK(has(text, "kernel kernels::barrier_in_a_loop<2>, block (0, 0, 0): not every thread"));
    CHECK(has(text, "threads 32-95: at __syncthreads()" + at(kernels::kLoopLine)));
    CHECK(has(text, "threads 0-31: exited"));

    text = fault_of([] { launch(kernels::early_return, {1, 128}); });
    CHECK(has(text, "threads 0-4, 6-68, 70-99: at __syncthreads()" + at(kernels::kEarlyLine)));
    CHECK(has(text, "threads 5, 69, 100-127: exited"));

    text = fault_of([] { launch(kernels::barrier_against_shuffle, {1, 64}); });
    CHECK(has(text, "threads 0-6: at __shfl_down_sync(mask 0xffffffff)" + at(kernels::kMixedLine)));
    CHECK(has(text, "threads 7-31: at __syncthreads()"));

    text = fault_of([] { launch(kernels::asserts, {dim3(1, 2), 64}, 40); });
    CHECK(has(text, ": assert(static_cast<int>(threadIdx.x) < limit) does not hold at" +
                        at(kernels::kAssertionLine).substr(1)));
    launch(kernels::asserts, {2, 64}, 64);

    text = fault_of([&] { launch(kernels::shuffles_in_both_branches, {1, 32}, out.data()); });
    CHECK(has(text, "lanes of a warp meet in different calls"));
    CHECK(
        has(text, "threads 0-15: at __shfl_xor_sync(mask 0xffffffff)" + at(kernels::kBranchLine)));
    CHECK(has(text,
              "threads 16-31: at __shfl_xor_sync(mask 0xffffffff)" + at(kernels::kBranchLine + 2)));

    text = fault_of([&] { launch(kernels::shuffle_in_an_uneven_loop, {1, 32}, out.data()); });
    CHECK(
        has(text, "threads 0-15: at __shfl_xor_sync(mask 0xffffffff)" + at(kernels::kUnevenLine)));
    CHECK(has(text,
              "threads 16-31: at __shfl_xor_sync(mask 0xffffffff)" + at(kernels::kUnevenLine + 1)));

    text = fault_of([&] { launch(kernels::read_exited_lane, {1, 64}, out.data()); });
    CHECK(has(text, "reads lane 1, which has exited, at __shfl_sync(mask 0xffffffff)" +
                        at(kernels::kExitedLane)));
    CHECK(has(text, "33: exited"));

    text = fault_of([&] { launch(kernels::read_lane_outside_mask, {1, 32}, out.data()); });
    CHECK(has(text, "reads lane 20, which is not in the mask"));

    text = fault_of([&] { launch(kernels::read_lane_that_never_was, {1, 48}, out.data()); });
    CHECK(has(text, "(lane 0) reads lane 16, which the block does not have"));

    text = fault_of([&] { launch(kernels::caller_not_in_mask, {1, 32}, out.data()); });
    CHECK(has(text, "is not in the mask that it passes, at __shfl_sync(mask 0xffff)" +
                        at(kernels::kNotInMaskLine)));

    text = fault_of([] { launch(kernels::different_masks, {1, 32}); });
    CHECK(has(text, "threads 0-15: at __syncwarp(mask 0x1ffff)"));

    text = fault_of([] { launch(kernels::different_operations, {1, 32}); });
    CHECK(has(text, "a warp operation waits for lanes of its mask"));
    CHECK(has(text, "threads 0-15: at __ballot_sync(mask 0xffffffff)"));
    CHECK(has(text, "threads 16-31: at __shfl_sync(mask 0xffffffff)"));

    text = fault_of([&] { launch(kernels::odd_width, {1, 32}, out.data()); });
    CHECK(has(text, "passes a width that is not"));

    // After all that, the machine still works.
    std::vector<int> sums(32);
    launch(kernels::two_halves, {1, 32}, sums.data());
    CHECK(sums[3] == 120);
  }
}

// What a program says that a launch ends, with exit status 1.
template <typename Action>
std::string last_words(Action action) {
  int ends[2] = {};
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    action();
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char part[256];
  for (ssize_t n = 0; (n = read(ends[0], part, sizeof part)) > 0;) said.append(part, n);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 1);
  return said;
}

TEST_CASE("accesses to memory that is not there end the program in a sentence") {
  const std::string at = "at common/simt/tests/machine_test.cpp:";
  const std::string here = at + std::to_string(kernels::kOutsideLine);
  auto* const x = static_cast<float*>(simt::allocate_buffer(1024));
  float y = 0;
  x[255] = 7;
  launch(kernels::reads_and_writes, {1, 1}, x, &y, 255);
  CHECK(y == 7);
  const auto said = [&](const float* from, float* to, int i) {
    return last_words([=] { launch(kernels::reads_and_writes, {1, 1}, from, to, i); });
  };
  std::string text = said(x, &y, 256);
  CHECK(has(text,
            "kernel kernels::reads_and_writes, block (0, 0, 0): thread 0 reads memory "
            "directly after the end of a buffer of 1024 bytes, " +
                here));
  CHECK(has(text, "`make sanitize` finds all accesses"));
  CHECK(
      has(said(&y, x + 300, 0), "writes memory 176 bytes after the end of a buffer of 1024 bytes"));
  CHECK(has(said(nullptr, x, 1), "reads memory through a null pointer, " + here));
  CHECK(has(said(x, x, 1 << 30), "at an address that is in no buffer"));
  text = last_words([&] {
    launch(kernels::fills_its_stack, {1, 1}, 10, reinterpret_cast<int*>(x));
  });
  CHECK(has(text, "needs more memory for its local variables than the 64 KB"));
  simt::free_buffer(x);
}

TEST_CASE("an offset that has overflowed is an access before a large buffer") {
  constexpr std::size_t kBytes = std::size_t{32} << 30;
  auto* const x = static_cast<float*>(simt::allocate_buffer(kBytes));
  float* const last = x + kBytes / sizeof(float) - 1;
  launch(kernels::reads_and_writes, {1, 1}, x, last, 0);
  CHECK(*last == 0);
  const std::string text = last_words([=] {
    launch(kernels::reads_and_writes, {1, 1}, x, last, static_cast<int>(0x80000000u));
  });
  CHECK(has(text, "reads memory 8589934592 bytes before a buffer of 34359738368 bytes"));
  simt::free_buffer(x);
}

TEST_CASE("the last block of a grid may run alone") {
  const Under under({.only_last = 1});
  std::vector<std::array<uint3, 2>> seen(24 * 60);
  std::vector<int> visits(seen.size()), last(seen.size());
  std::fill(last.end() - 60, last.end(), 1);
  launch(kernels::indices, {dim3(3, 2, 4), dim3(4, 3, 5)}, seen.data(), visits.data());
  CHECK(visits == last);
}

TEST_CASE("threads that spin for ever are found when patience ends") {
  const Under under({.patience = std::chrono::milliseconds(50)});
  int lock = 0;
  const std::string text = fault_of([&] { launch(kernels::hopeless_lock, {1, 32}, &lock); });
  CHECK(has(text, "its threads spin, and what they wait for does not come"));
  CHECK(has(text, "thread 0: at __syncthreads(), common/simt/tests/machine_test.cpp:" +
                      std::to_string(kernels::kHopelessLine)));
  CHECK(has(text, "threads 1-3: spinning on the address 0x"));
}

TEST_CASE("threads that spin without calling the machine let others run") {
  for (const simt::Schedule& schedule : kSchedules) {
    const Under under(schedule);
    int flag = 0;
    launch(kernels::waits_for_a_flag, {1, 64}, &flag, true);
    CHECK(flag == 1);
  }
  int flags[2] = {};
  launch(kernels::waits_for_the_next_block, {omp_get_max_threads() > 1 ? 2 : 1, 1}, flags);
  float out = 0;
  const Under under({.patience = std::chrono::milliseconds(300)});
  launch(kernels::takes_long, {1, 1}, &out, 100'000'000, 1);
  CHECK(out == doctest::Approx(1000).epsilon(0.01));
}

TEST_CASE("a thread that runs on for ever is found, with its line") {
  const Under under({.longest_run = std::chrono::milliseconds(300)});
  std::vector<int> x(1024);
  std::string text = fault_of([&] { launch(kernels::computes_for_ever, {1, 1024}, x.data()); });
  INFO(text);
  CHECK(has(text, " runs on and on, and reaches neither a barrier nor its end"));
  CHECK(has(text, "SIMT_LONGEST_RUN=60"));
  CHECK(has(text, "running at common/simt/tests/machine_test.cpp:" +
                      std::to_string(kernels::kEndlessLine) +
                      ": for (;;) x[threadIdx.x] = x[threadIdx.x] * 5 + 3;"));
  for (const unsigned threads : {1, 100}) {
    text = fault_of([&] { launch(kernels::runs_for_ever, {2, threads}, x.data()); });
    CHECK(has(text, " runs on and on"));
  }
  text = fault_of([&] { launch(kernels::adds_for_ever, {1, 33}, x.data()); });
  CHECK(has(text, " runs on and on"));
}

TEST_CASE("threads that compute for long, each for less than the limit, all come to their ends") {
  const Under under({.longest_run = std::chrono::milliseconds(500)});
  float out[10] = {};
  launch(kernels::takes_long, {1, 10}, out, 40'000'000, 1);
  for (const float each : out) CHECK(each == doctest::Approx(1000).epsilon(0.01));
  launch(kernels::takes_long, {1, 1}, out, 40'000'000, 8);  // waits between
}

TEST_CASE("threads that make no progress are found, with line and source") {
  const Under under({.patience = std::chrono::milliseconds(200)});
  const std::string here = "common/simt/tests/machine_test.cpp:";
  int flag = 0;
  for (const unsigned threads : {64, 1024}) {
    const std::string text = fault_of([&] {
      launch(kernels::waits_for_a_flag, {4, threads}, &flag, false);
    });
    CHECK(has(text, "its threads spin, and what they wait for does not come"));
    CHECK(has(text, "threads 0-39: running at " + here + std::to_string(kernels::kVolatileLine) +
                        ": while (*flag == 0) continue;"));
  }
  std::string text = fault_of([] { launch(kernels::polls, {2000, 32}); });
  CHECK(has(text, "spinning on `kernels::ready` at " + here + std::to_string(kernels::kPollLine)));
  CHECK(has(text, "blocks have not started, since a core runs one block at a time"));
  float x[64] = {}, sum[64];
  text = fault_of([&] { launch(kernels::stands_still, {1, 64}, x, sum, 0); });
  INFO(text);
  CHECK(has(text, "threads 0-63: running at " + here + std::to_string(kernels::kStandsStillLine) +
                      ": for (int i = threadIdx.x; i < 64; i += stride)"));
}

TEST_CASE("a fault in one of many blocks names that block") {
  const std::string text = fault_of([] { launch(kernels::early_return, {dim3(1, 1, 700), 128}); });
  CHECK(has(text, "block (0, 0, "));
}

TEST_CASE("a kernel's exception reaches the caller, and every thread is unwound") {
  int ended = 0;
  CHECK_THROWS_WITH_AS(launch(kernels::throws, {1, 64}, &ended), "thread 50 objects",
                       std::domain_error);
  CHECK(ended >= 1);
  CHECK(ended <= 64);
  {
    const Under under({simt::Order::Reverse});  // threads 63-51 wait at the barrier, then 50 throws
    ended = 0;
    CHECK_THROWS_AS(launch(kernels::throws, {1, 64}, &ended), std::domain_error);
    CHECK(ended == 14);
  }
  int started = 0,
      flag = 0;  // blocks that spin on what a failed block owes them are abandoned, not hung on
  CHECK_THROWS_AS(launch(kernels::waits_for_a_dead_block, {8, 32}, &started, &flag),
                  std::domain_error);
}

TEST_CASE("configurations that CUDA refuses are refused, with kernel and configuration") {
  const auto refusal = [](dim3 grid, dim3 block, std::size_t bytes = 0) -> std::string {
    try {
      launch(kernels::nothing, {grid, block, bytes});
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal(1, 1025) ==
        "kernel kernels::nothing cannot start with grid (1, 1, 1), block (1025, 1, 1), 0 bytes of "
        "shared memory: a block has at most 1024 threads");
  CHECK(has(refusal(1, dim3(64, 32)), "at most 1024 threads"));
  CHECK(has(refusal(1, 0), "at least one thread"));
  CHECK(has(refusal(1, dim3(32, 0)), "at least one thread"));
  CHECK(has(refusal(1, dim3(1, 1, 65)), "64 deep"));
  CHECK(has(refusal(dim3(1, 65536), 1), "65535"));
  CHECK(has(refusal(dim3(1, 1, 65536), 1), "65535"));
  CHECK(has(refusal(1u << 31, 1), "2^31 - 1"));
  CHECK(has(refusal(1, 1, 227 * 1024 + 1), "227 KB"));
  CHECK(refusal(1, 1024, 227 * 1024).empty());
  const auto refused = [](auto kernel, std::size_t bytes) -> std::string {
    int out = 0;
    try {
      launch(kernel, {1, 1, bytes}, &out);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(has(refused(kernels::much_static_shared<49'000>, 0),
            "50024 bytes of shared memory: its __shared__ variables can take at most 48 KB"));
  CHECK(refused(kernels::much_static_shared<48'000>, 100'000).empty());
  CHECK(has(refused(kernels::much_static_shared<48'000>, 200'000), "227 KB"));
  CHECK(refusal(dim3(1, 65535), 1).empty());
}

TEST_CASE("what only a kernel may call is refused outside of one") {
  CHECK_THROWS_AS(__syncthreads(), std::logic_error);
  CHECK_THROWS_AS(simt::dynamic_shared(), std::logic_error);
}

// ----------------------------------------------------------------------------- test: the
// environment

TEST_CASE("in a child: print the schedule" * doctest::skip()) {
  try {
    const simt::Schedule schedule = simt::schedule();
    std::printf("[%d %llu %g]", int(schedule.order), static_cast<unsigned long long>(schedule.seed),
                schedule.longest_run.count());
  } catch (const std::invalid_argument& error) {
    std::printf("[%s]", error.what());
  }
}

TEST_CASE("SIMT_SCHEDULE and SIMT_LONGEST_RUN choose the first schedule") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const auto schedule_with = [&](const std::string& value) {
    const std::string command = "SIMT_SCHEDULE='" + value + "' '" + self +
                                "' --no-skip --test-case='in a child: print the schedule'";
    std::FILE* const pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string text;
    for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
    pclose(pipe);
    return text;
  };
  CHECK(has(schedule_with("forward"), "[0 0 2]"));
  CHECK(has(schedule_with("reverse"), "[1 0 2]"));
  CHECK(has(schedule_with("random"), "[2 0 2]"));
  CHECK(has(schedule_with("random:18446744073709551615"), "[2 18446744073709551615 2]"));
  CHECK(has(schedule_with("forward' SIMT_LONGEST_RUN='0.5"), "[0 0 0.5]"));
  CHECK(has(schedule_with("forward' SIMT_LONGEST_RUN='1 hour"),
            "[SIMT_LONGEST_RUN is '1 hour'; it must be a number of seconds]"));
  for (const std::string bad : {"", "backward", "random:", "random:x", "random:1x"})
    CHECK(has(schedule_with(bad), "[SIMT_SCHEDULE is '" + bad + "'; it must be forward, reverse"));
}
