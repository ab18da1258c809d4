// The headers of CUDA's libraries that kernels from elsewhere include, in common/simt/include: each
// against what CUDA's documentation says of it, and how faults look through them.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda_pipeline.h>
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cub/cub.cuh>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/functional>
#include <cuda/pipeline>
#include <cuda/std/limits>
#include <numeric>
#include <string>
#include <vector>

#include "common/simt/launch.h"
#include "common/simt/tests/faults.h"
#include "common/simt/tests/under.h"

namespace cg = cooperative_groups;
using lnc::launch;
using simt::fault_of;
using simt::has;
using simt::kSchedules;
using simt::Under;

namespace {

// "facades_test.cpp:47", by which a fault names a line of this file.
std::string line(int number) { return "facades_test.cpp:" + std::to_string(number); }

std::vector<float> wave(int count) {
  std::vector<float> x(count);
  for (int i = 0; i < count; ++i)
    x[i] = 3.0f + std::sin(0.7f * static_cast<float>(i)) * static_cast<float>(1 + i % 5);
  return x;
}

}  // namespace

namespace kernels {

// --------------------------------------------------------------------------- cooperative groups

struct Ranks {
  unsigned block, tile, tiles, tile_of_block, tile_of_tile;
  unsigned long long grid;
};
__global__ void rank(Ranks* out) {
  const auto block = cg::this_thread_block();
  const auto eight = cg::tiled_partition<8>(block);
  const auto two = cg::tiled_partition<2>(eight);
  const auto grid = cg::this_grid();
  out[grid.thread_rank()] = {block.thread_rank(),     eight.thread_rank(),
                             eight.meta_group_size(), eight.meta_group_rank(),
                             two.meta_group_rank(),   grid.size()};
}

struct Big {
  double a, b, c;
};
__global__ void exchange_in_tiles(int* out, unsigned* votes, Big* big) {
  const auto block = cg::this_thread_block();
  const cg::thread_block_tile<8> tile = cg::tiled_partition<8>(block);
  const int t = static_cast<int>(block.thread_rank());
  int* const mine = out + 4 * t;
  mine[0] = tile.shfl(t, 2);
  mine[1] = tile.shfl_up(t, 1);
  mine[2] = tile.shfl_down(t, 3);
  mine[3] = tile.shfl_xor(t, 4);
  votes[t] = tile.ballot(t % 2) | tile.match_any(t % 4) << 8 | tile.any(t == 9) << 16 |
             tile.all(t < 16) << 17;
  big[t] = tile.shfl(Big{1.0 * t, 2.0 * t, 3.0 * t}, 7);
  tile.sync();
}

__global__ void reduce_in_tiles(float* sums, int* most, unsigned* bits, int* scanned) {
  const auto block = cg::this_thread_block();
  const auto tile = cg::tiled_partition<16>(block);
  const auto t = block.thread_rank();
  sums[t] = cg::reduce(tile, static_cast<float>(t), cg::plus<float>{});
  most[t] = cg::reduce(tile, static_cast<int>(t) - 100, cg::greater<int>());
  most[t] += 1000 * cg::reduce(cg::tiled_partition<4>(tile), static_cast<int>(t), cg::less<int>());
  bits[t] = cg::reduce(tile, 1u << t % 8, cg::bit_or<unsigned>());
  scanned[2 * t] = cg::inclusive_scan(tile, 1);
  scanned[2 * t + 1] = cg::exclusive_scan(tile, static_cast<int>(t % 16), cg::plus<int>());
}

// CUDA's example of an atomic that one lane of those in a branch performs for all.
__global__ void count_with_coalesced_threads(int* counter, int* places, float* sums) {
  const auto t = threadIdx.x;
  if (t % 3 != 0) return;
  const cg::coalesced_group active = cg::coalesced_threads();
  int first = 0;
  if (active.thread_rank() == 0) first = atomicAdd(counter, static_cast<int>(active.size()));
  places[t] = active.shfl(first, 0) + static_cast<int>(active.thread_rank());
  sums[t] = cg::reduce(active, static_cast<float>(t), cg::plus<float>());
  const auto even = cg::binary_partition(active, t % 2 == 0);
  sums[t] += 1000.0f * static_cast<float>(even.size());
}

__device__ int sum_of(const cg::thread_group& group, int* room, int value) {
  for (unsigned half = group.size() / 2; half > 0; half /= 2) {
    room[group.thread_rank()] = value;
    group.sync();
    if (group.thread_rank() < half) value += room[group.thread_rank() + half];
    group.sync();
  }
  return value;
}
__global__ void sum_in_any_group(int* out) {
  __shared__ int room[64];
  const cg::thread_block block = cg::this_thread_block();
  const int all = sum_of(block, room, static_cast<int>(threadIdx.x));
  const auto tile = cg::tiled_partition(block, 16);
  const auto first = block.thread_rank() / 16 * 16;
  const int of_tile = sum_of(tile, room + first, static_cast<int>(threadIdx.x));
  if (block.thread_rank() == 0) out[0] = all;
  if (tile.thread_rank() == 0) out[1 + first / 16] = of_tile;
}

__global__ void sync_in_a_branch(int* line) {
  const auto block = cg::this_thread_block();
  if (threadIdx.x == 0) *line = __LINE__ + 1;
  if (threadIdx.x < 40) block.sync();
}

__global__ void sync_tile_in_a_branch() {
  const auto tile = cg::tiled_partition<32>(cg::this_thread_block());
  if (threadIdx.x < 7) {
    tile.sync();
  } else {
    tile.any(1);
  }
}

__global__ void copy_and_wait(const float* in, float* out, int n, bool waits) {
  __shared__ float s[100];
  const auto block = cg::this_thread_block();
  cg::memcpy_async(block, s, in + blockIdx.x * n, sizeof(float) * n);
  if (waits)
    cg::wait(block);
  else
    block.sync();
  for (int i = static_cast<int>(block.thread_rank()); i < n; i += static_cast<int>(block.size()))
    out[blockIdx.x * n + i] = s[n - 1 - i];
  block.sync();
  cg::wait(block);
}

__global__ void read_next_block(int* out) {
  __shared__ int own;
  const cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) own = 10 * static_cast<int>(blockIdx.x);
  cluster.sync();
  const unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
  const int* const other = cluster.map_shared_rank(&own, static_cast<int>(next));
  if (threadIdx.x == 0) out[blockIdx.x] = *other;
  cluster.sync();
}

// Layer norm with a warp for each row, as in llm.c.
__global__ void layer_norm(float* out, const float* in, const float* weight, const float* bias,
                           int rows, int cols) {
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  const int row = static_cast<int>(blockIdx.x * warp.meta_group_size() + warp.meta_group_rank());
  if (row >= rows) return;
  const float* const x = in + row * cols;
  float sum = 0.0f;
  for (int i = warp.thread_rank(); i < cols; i += warp.size()) sum += x[i];
  const float mean = cg::reduce(warp, sum, cg::plus<float>{}) / static_cast<float>(cols);
  sum = 0.0f;
  for (int i = warp.thread_rank(); i < cols; i += warp.size()) sum += (x[i] - mean) * (x[i] - mean);
  sum = cg::reduce(warp, sum, cg::plus<float>{});
  const float scale = rsqrtf(sum / static_cast<float>(cols) + 1e-5f);
  for (int i = warp.thread_rank(); i < cols; i += warp.size())
    __stcs(out + row * cols + i, scale * (x[i] - mean) * weight[i] + bias[i]);
}

// ------------------------------------------------------------------------------------------ CUB

__global__ void reduce_in_warps(int* out, float* undefined) {
  using WarpReduce = cub::WarpReduce<int>;
  __shared__ WarpReduce::TempStorage storage[2];
  const int t = static_cast<int>(threadIdx.x), warp = t / 32;
  const int sum = WarpReduce(storage[warp]).Sum(t);
  const int most = WarpReduce(storage[warp]).Reduce(t, cuda::maximum<>{});
  const int few = WarpReduce(storage[warp]).Sum(t, 3);
  if (t % 32 == 0) out[3 * warp] = sum, out[3 * warp + 1] = most, out[3 * warp + 2] = few;
  __shared__ typename cub::WarpReduce<float, 8>::TempStorage eighth;
  undefined[t] = cub::WarpReduce<float, 8>(eighth).Sum(1.0f);
}

__global__ void scan_in_warps(int* out) {
  using WarpScan = cub::WarpScan<int>;
  __shared__ WarpScan::TempStorage storage;
  const int t = static_cast<int>(threadIdx.x);
  int inclusive, exclusive, all, most;
  WarpScan(storage).InclusiveSum(t, inclusive);
  WarpScan(storage).ExclusiveSum(t, exclusive, all);
  WarpScan(storage).ExclusiveScan(t == 5 ? 50 : t, most, -1, cuda::maximum<>{});
  out[4 * t] = inclusive, out[4 * t + 1] = exclusive, out[4 * t + 2] = all, out[4 * t + 3] = most;
}

template <int kThreads>
__global__ void reduce_in_a_block(int* out) {
  using BlockReduce = cub::BlockReduce<int, kThreads>;
  __shared__ typename BlockReduce::TempStorage storage;
  const int t = static_cast<int>(threadIdx.x);
  const int sum = BlockReduce(storage).Sum(t);
  __syncthreads();
  const int some = BlockReduce(storage).Sum(t, 35);
  __syncthreads();
  int items[2] = {t, 1000 - t};
  const int most = BlockReduce(storage).Reduce(items, [](int a, int b) { return a > b ? a : b; });
  if (t == 0) out[0] = sum, out[1] = some, out[2] = most;
}

template <int kThreads>
__global__ void scan_in_a_block(int* out) {
  using BlockScan = cub::BlockScan<int, kThreads>;
  __shared__ typename BlockScan::TempStorage storage;
  const int t = static_cast<int>(threadIdx.x);
  int inclusive, all, items[2] = {t, 1};
  BlockScan(storage).InclusiveSum(1, inclusive, all);
  __syncthreads();
  BlockScan(storage).ExclusiveSum(items, items);
  __syncthreads();
  int least;
  BlockScan(storage).ExclusiveScan(1000 - t, least, 5000, cuda::minimum<>{});
  int* const mine = out + 5 * t;
  mine[0] = inclusive, mine[1] = all, mine[2] = items[0], mine[3] = items[1], mine[4] = least;
}

template <int kThreads>
__global__ void softmax(const float* in, float* out, int cols) {
  using BlockReduce = cub::BlockReduce<float, kThreads>;
  __shared__ typename BlockReduce::TempStorage storage;
  __shared__ float most, sum;
  const float* const x = in + blockIdx.x * cols;
  float value = -INFINITY;
  for (int i = threadIdx.x; i < cols; i += kThreads) value = fmaxf(value, x[i]);
  value = BlockReduce(storage).Reduce(value, cub::Max());  // as before CUDA 13
  if (threadIdx.x == 0) most = value;
  __syncthreads();
  value = 0.0f;
  for (int i = threadIdx.x; i < cols; i += kThreads) value += expf(x[i] - most);
  value = BlockReduce(storage).Sum(value);
  if (threadIdx.x == 0) sum = value;
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += kThreads)
    out[blockIdx.x * cols + i] = expf(x[i] - most) / sum;
}

__global__ void reduce_in_a_branch(int* line, float* out) {
  __shared__ cub::BlockReduce<float, 64>::TempStorage storage;
  if (threadIdx.x == 0) *line = __LINE__ + 1;
  if (threadIdx.x < 32) out[0] = cub::BlockReduce<float, 64>(storage).Sum(1.0f);
}

// ----------------------------------------------------------------------------------------- cuda

using Barrier = cuda::barrier<cuda::thread_scope_block>;

// Each thread passes its value to the next through shared memory, several times.
__global__ void pass_around(int* out) {
  __shared__ Barrier barrier;
  __shared__ int s[64];
  const auto t = threadIdx.x;
  if (t == 0) init(&barrier, blockDim.x);
  __syncthreads();
  int value = static_cast<int>(t);
  for (int turn = 0; turn < 5; ++turn) {
    s[t] = value;
    Barrier::arrival_token token = barrier.arrive();
    barrier.wait(std::move(token));
    value = s[(t + 1) % blockDim.x];
    barrier.arrive_and_wait();
  }
  out[t] = value;
}

__global__ void copy_with_a_barrier(const float* in, float* out, int n, bool waits) {
  __shared__ Barrier barrier;
  __shared__ float s[100];
  const auto block = cg::this_thread_block();
  if (block.thread_rank() == 0) init(&barrier, block.size());
  block.sync();
  cuda::memcpy_async(block, s, in, sizeof(float) * n, barrier);
  block.sync();
  if (waits) barrier.arrive_and_wait();
  for (int i = static_cast<int>(block.thread_rank()); i < n; i += static_cast<int>(block.size()))
    out[i] = s[n - 1 - i];
  block.sync();
  if (!waits) barrier.arrive_and_wait();
}

__global__ void copy_in_bulk(const float* in, float* out) {
  __shared__ Barrier barrier;
  alignas(128) __shared__ float s[64];
  if (threadIdx.x == 0) {
    init(&barrier, blockDim.x);
    cuda::device::experimental::fence_proxy_async_shared_cta();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::device::memcpy_async_tx(s, in, cuda::aligned_size_t<16>(sizeof s), barrier);
    barrier.wait(cuda::device::barrier_arrive_tx(barrier, 1, sizeof s));
  } else {
    barrier.arrive_and_wait();
  }
  out[threadIdx.x] = s[63 - threadIdx.x];
}

__global__ void wait_for_arrivals_that_never_come(int* line) {
  __shared__ Barrier barrier;
  if (threadIdx.x == 0) init(&barrier, blockDim.x + 1);
  __syncthreads();
  if (threadIdx.x == 0) *line = __LINE__ + 1;
  barrier.arrive_and_wait();
}

__global__ void copy_in_two_stages(const float* in, float* out, int tiles) {
  __shared__ float s[2][32];
  auto pipe = cuda::make_pipeline();
  const int t = static_cast<int>(threadIdx.x);
  const auto load = [&](int tile) {
    pipe.producer_acquire();
    if (tile < tiles) cuda::memcpy_async(&s[tile % 2][t], in + 32 * tile + t, sizeof(float), pipe);
    pipe.producer_commit();
  };
  load(0);
  for (int tile = 0; tile < tiles; ++tile) {
    load(tile + 1);
    pipe.consumer_wait();
    __syncthreads();
    out[32 * tile + t] = 2.0f * s[tile % 2][31 - t];
    __syncthreads();
    pipe.consumer_release();
  }
}

struct Counters {
  int sum, most, bits;
  float halves;
  unsigned long long exchanged;
};
__global__ void update(Counters* counters) {
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  cuda::atomic_ref<int, cuda::thread_scope_device> sum(counters->sum);
  sum.fetch_add(t, cuda::memory_order_relaxed);
  ++sum;
  cuda::atomic_ref<int, cuda::thread_scope_device>(counters->most).fetch_max(t);
  cuda::atomic_ref<int>(counters->bits).fetch_or(1 << t % 31, cuda::std::memory_order_relaxed);
  cuda::atomic_ref<float> halves(counters->halves);
  float old = halves.load(cuda::memory_order_relaxed);
  while (!halves.compare_exchange_weak(old, old + 0.5f)) {
  }
  __shared__ cuda::atomic<int, cuda::thread_scope_block> in_block;
  if (threadIdx.x == 0) in_block.store(0);
  __syncthreads();
  in_block.fetch_sub(1);
  __syncthreads();
  if (threadIdx.x == 0)
    cuda::atomic_ref<unsigned long long>(counters->exchanged).fetch_add(-in_block.load());
}

// The last block to finish adds the sums of all, which the others have published.
__global__ void sum_in_the_last_block(const int* in, int* parts, int* finished, int* out) {
  if (threadIdx.x != 0) return;
  parts[blockIdx.x] = in[2 * blockIdx.x] + in[2 * blockIdx.x + 1];
  cuda::atomic_ref<int, cuda::thread_scope_device> count(*finished);
  const int before = count.fetch_add(1, cuda::memory_order_acq_rel);
  if (before != static_cast<int>(gridDim.x) - 1) return;
  int least = cuda::std::numeric_limits<int>::max();
  for (unsigned i = 0; i < gridDim.x; ++i) {
    out[0] += parts[i];
    least = cuda::std::min(least, parts[i]);
  }
  out[1] = cuda::minimum<>()(least, 1000);
}

__global__ void spin_on_a_flag(int* flag, int* data, int* out) {
  cuda::atomic_ref<int, cuda::thread_scope_device> ready(*flag);
  if (threadIdx.x == 0) {
    while (ready.load(cuda::memory_order_acquire) == 0) {
    }
    *out = *data;
  }
  if (threadIdx.x == 40) {
    *data = 42;
    ready.store(1, cuda::memory_order_release);
  }
}

}  // namespace kernels

using namespace kernels;

// ----------------------------------------------------------------------------- cooperative groups

TEST_CASE("groups know their threads' ranks, in x first") {
  std::vector<Ranks> out(2 * 2 * 48);
  launch(rank, {{2, 2}, {12, 2, 2}}, out.data());
  for (unsigned i = 0; i < out.size(); ++i) {
    CHECK(out[i].block == i % 48);
    CHECK(out[i].tile == i % 8);
    CHECK(out[i].tiles == 6);
    CHECK(out[i].tile_of_block == i % 48 / 8);
    CHECK(out[i].tile_of_tile == i % 8 / 2);
    CHECK(out[i].grid == out.size());
  }
}

TEST_CASE("a tile's shuffles, votes and matches are of its own threads") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<int> out(4 * 32);
    std::vector<unsigned> votes(32);
    std::vector<Big> big(32);
    launch(exchange_in_tiles, {1, 32}, out.data(), votes.data(), big.data());
    for (int t = 0; t < 32; ++t) {
      const int first = t / 8 * 8;
      CHECK(out[4 * t] == first + 2);
      CHECK(out[4 * t + 1] == (t == first ? t : t - 1));
      CHECK(out[4 * t + 2] == (t + 3 < first + 8 ? t + 3 : t));
      CHECK(out[4 * t + 3] == (t ^ 4));
      const unsigned any = first == 8, all = first < 16;
      CHECK(votes[t] == (0xAAu | 0x11u << t % 4 << 8 | any << 16 | all << 17));
      CHECK(big[t].c == 3.0 * (first + 7));
    }
  }
}

TEST_CASE("a tile reduces and scans") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<float> sums(64);
    std::vector<int> most(64), scanned(128);
    std::vector<unsigned> bits(64);
    launch(reduce_in_tiles, {1, 64}, sums.data(), most.data(), bits.data(), scanned.data());
    for (int t = 0; t < 64; ++t) {
      const int first = t / 16 * 16;
      CHECK(sums[t] == static_cast<float>(16 * first + 120));
      CHECK(most[t] == first + 15 - 100 + 1000 * (t / 4 * 4));
      CHECK(bits[t] == 0xFF);
      CHECK(scanned[2 * t] == t % 16 + 1);
      CHECK(scanned[2 * t + 1] == t % 16 * (t % 16 - 1) / 2);
    }
  }
}

TEST_CASE("coalesced threads are those of one branch, ranked by lane") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    int counter = 0;
    std::vector<int> places(32, -1);
    std::vector<float> sums(32);
    launch(count_with_coalesced_threads, {1, 32}, &counter, places.data(), sums.data());
    CHECK(counter == 11);
    for (int t = 0; t < 32; t += 3) {
      CHECK(places[t] == t / 3);
      CHECK(sums[t] == 165.0f + (t % 2 == 0 ? 6000.0f : 5000.0f));
    }
  }
}

TEST_CASE("a group of a kind known only at run time") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<int> out(5);
    launch(sum_in_any_group, {1, 64}, out.data());
    CHECK(out == std::vector<int>{2016, 120, 376, 632, 888});
  }
}

TEST_CASE("a fault at a group's sync names the line that calls it") {
  int at = 0;
  const std::string block = fault_of([&] { launch(sync_in_a_branch, {1, 64}, &at); });
  CHECK(has(block, "sync_in_a_branch"));
  CHECK(has(block, "not every thread of the block reaches __syncthreads()"));
  CHECK(has(block, "at __syncthreads(), "));
  CHECK(has(block, line(at)));
  const std::string tile = fault_of([] { launch(sync_tile_in_a_branch, {1, 32}); });
  CHECK(has(tile, "a warp operation waits for lanes of its mask that never come to it"));
  CHECK(has(tile, "facades_test.cpp"));
}

TEST_CASE("a group copies together, and a missing wait shows as NaN") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    for (const int n : {1, 4, 31, 64, 100}) {
      const std::vector<float> in = wave(3 * n);
      std::vector<float> out(3 * n);
      launch(copy_and_wait, {3, 32}, in.data(), out.data(), n, true);
      for (int i = 0; i < 3 * n; ++i) CHECK(out[i] == in[i / n * n + n - 1 - i % n]);
    }
    const std::vector<float> in = wave(64);
    std::vector<float> out(64);
    launch(copy_and_wait, {1, 32}, in.data(), out.data(), 64, false);
    CHECK(std::isnan(out[0]));
  }
}

TEST_CASE("a cluster's blocks read each other's shared memory") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<int> out(8);
    launch(read_next_block, {8, 32, 0, nullptr, 4}, out.data());
    CHECK(out == std::vector<int>{10, 20, 30, 0, 50, 60, 70, 40});
  }
}

TEST_CASE("llm.c's layer norm with a tile for each row") {
  constexpr int kRows = 7, kCols = 100;
  const std::vector<float> in = wave(kRows * kCols), weight = wave(kCols), bias = wave(kCols);
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<float> out(kRows * kCols);
    launch(layer_norm, {2, 128}, out.data(), in.data(), weight.data(), bias.data(), kRows, kCols);
    for (int row = 0; row < kRows; ++row) {
      const float* const x = in.data() + row * kCols;
      const double mean = std::accumulate(x, x + kCols, 0.0) / kCols;
      double variance = 0;
      for (int i = 0; i < kCols; ++i) variance += (x[i] - mean) * (x[i] - mean) / kCols;
      for (int i = 0; i < kCols; ++i) {
        const double y = (x[i] - mean) / std::sqrt(variance + 1e-5) * weight[i] + bias[i];
        CHECK(out[row * kCols + i] == doctest::Approx(y).epsilon(1e-5));
      }
    }
  }
}

// -------------------------------------------------------------------------------------------- CUB

TEST_CASE("cub::WarpReduce: lane 0 has the result, and the others NaN") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<int> out(6);
    std::vector<float> undefined(64);
    launch(reduce_in_warps, {1, 64}, out.data(), undefined.data());
    CHECK(out == std::vector<int>{496, 31, 3, 1520, 63, 99});
    for (int t = 0; t < 64; ++t) {
      if (t % 8 == 0)
        CHECK(undefined[t] == 8.0f);
      else
        CHECK(std::isnan(undefined[t]));
    }
  }
}

TEST_CASE("cub::WarpScan") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<int> out(4 * 32);
    launch(scan_in_warps, {1, 32}, out.data());
    for (int t = 0; t < 32; ++t) {
      CHECK(out[4 * t] == t * (t + 1) / 2);
      CHECK(out[4 * t + 1] == t * (t - 1) / 2);
      CHECK(out[4 * t + 2] == 496);
      CHECK(out[4 * t + 3] == (t <= 5 ? t - 1 : 50));
    }
  }
}

TEST_CASE("cub::BlockReduce, of whole warps and not") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<int> out(3);
    launch(reduce_in_a_block<128>, {1, 128}, out.data());
    CHECK(out == std::vector<int>{8128, 595, 1000});
    launch(reduce_in_a_block<48>, {1, 48}, out.data());
    CHECK(out == std::vector<int>{1128, 595, 1000});
  }
}

TEST_CASE("cub::BlockScan, of whole warps and not") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    for (const int threads : {128, 48}) {
      std::vector<int> out(5 * threads);
      launch(threads == 48 ? scan_in_a_block<48> : scan_in_a_block<128>,
             {1, static_cast<unsigned>(threads)}, out.data());
      for (int t = 0; t < threads; ++t) {
        CHECK(out[5 * t] == t + 1);
        CHECK(out[5 * t + 1] == threads);
        CHECK(out[5 * t + 2] == t * (t - 1) / 2 + t);
        CHECK(out[5 * t + 3] == t * (t - 1) / 2 + 2 * t);
        CHECK(out[5 * t + 4] == (t == 0 ? 5000 : 1001 - t));
      }
    }
  }
}

TEST_CASE("a softmax with cub::BlockReduce") {
  constexpr int kRows = 3, kCols = 300;
  const std::vector<float> in = wave(kRows * kCols);
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<float> out(kRows * kCols);
    launch(softmax<96>, {kRows, 96}, in.data(), out.data(), kCols);
    for (int row = 0; row < kRows; ++row) {
      double sum = 0;
      for (int i = 0; i < kCols; ++i) sum += std::exp(double{in[row * kCols + i]});
      for (int i = row * kCols; i < (row + 1) * kCols; ++i)
        CHECK(out[i] == doctest::Approx(std::exp(double{in[i]}) / sum).epsilon(1e-5));
    }
  }
}

TEST_CASE("a fault inside cub::BlockReduce names the kernel's line") {
  int at = 0;
  float out = 0;
  const std::string branch = fault_of([&] { launch(reduce_in_a_branch, {1, 64}, &at, &out); });
  CHECK(has(branch, "not every thread of the block reaches __syncthreads()"));
  CHECK(has(branch, line(at)));
  const std::string size = fault_of([&] { launch(reduce_in_a_branch, {1, 32}, &at, &out); });
  CHECK(has(size, "for blocks of 64 threads is used in one of 32"));
  CHECK(has(size, line(at)));
}

// ------------------------------------------------------------------------------------------- cuda

TEST_CASE("a cuda::barrier goes through phases, by which threads exchange data") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<int> out(64);
    launch(pass_around, {1, 64}, out.data());
    for (int t = 0; t < 64; ++t) CHECK(out[t] == (t + 5) % 64);
  }
}

TEST_CASE("copies complete on a cuda::barrier, and a missing wait shows as NaN") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    const std::vector<float> in = wave(100);
    std::vector<float> out(100);
    launch(copy_with_a_barrier, {1, 32}, in.data(), out.data(), 100, true);
    for (int i = 0; i < 100; ++i) CHECK(out[i] == in[99 - i]);
    launch(copy_with_a_barrier, {1, 32}, in.data(), out.data(), 100, false);
    for (int i = 0; i < 100; ++i) CHECK(std::isnan(out[i]));
    launch(copy_in_bulk, {1, 64}, in.data(), out.data());
    for (int i = 0; i < 64; ++i) CHECK(out[i] == in[63 - i]);
  }
}

TEST_CASE("a fault at a cuda::barrier names the line that waits") {
  int at = 0;
  const std::string fault = fault_of([&] {
    launch(wait_for_arrivals_that_never_come, {1, 32}, &at);
  });
  CHECK(has(fault, "a thread waits at a Barrier for what never comes"));
  CHECK(has(fault, "lacks 1 arrivals"));
  CHECK(has(fault, line(at)));
}

TEST_CASE("a thread's cuda::pipeline of two stages") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    const std::vector<float> in = wave(5 * 32);
    std::vector<float> out(in.size());
    launch(copy_in_two_stages, {1, 32}, in.data(), out.data(), 5);
    for (int i = 0; i < 5 * 32; ++i) CHECK(out[i] == 2.0f * in[i / 32 * 32 + 31 - i % 32]);
  }
}

TEST_CASE("cuda::atomic and cuda::atomic_ref") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    Counters counters{};
    launch(update, {4, 64}, &counters);
    CHECK(counters.sum == 255 * 128 + 256);
    CHECK(counters.most == 255);
    CHECK(counters.bits == 0x7FFF'FFFF);
    CHECK(counters.halves == 128.0f);
    CHECK(counters.exchanged == 256);
    std::vector<int> in(40), parts(20), out(2);
    std::iota(in.begin(), in.end(), 0);
    int finished = 0, flag = 0, data = 0, seen = 0;
    launch(sum_in_the_last_block, {20, 32}, in.data(), parts.data(), &finished, out.data());
    CHECK(out == std::vector<int>{780, 1});
    launch(spin_on_a_flag, {1, 64}, &flag, &data, &seen);
    CHECK(seen == 42);
  }
}
