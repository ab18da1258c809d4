// What the lessons' time model needs to know of a GPU, measured on it: how long a load waits in
// each memory, how many bytes a second each gives, what a launch, a barrier and an atomic addition
// cost.
//
//   machine                        prints a table
//   machine --json FILE            and appends a record a line to FILE
//
// Everything is measured kRepeats times; a figure is the median, its spread the least and the most.
//
// Chapter zero (chapters/copy00_machine) explains each figure. CUDA only: none of this has a
// meaning on the CPU backend.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/harness/records.h"
#include "common/harness/statistics.h"
#include "common/harness/stopwatch.h"
#include "common/kernel/cluster_sums.h"
#include "common/kernel/launch.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"

namespace {
using namespace lnc;

constexpr int kLine = 128;  // bytes
constexpr std::int64_t kKiB = 1 << 10;
constexpr std::int64_t kMiB = 1 << 20;

constexpr int kRepeats = 5;

struct Figure {
  std::string name;
  std::string unit;
  std::vector<double> values;  ///< one a repeat
};

/// Figures in the order in which the first repeat measured them.
class Figures {
 public:
  void add(const std::string& name, double value, const std::string& unit) {
    const auto known = std::find_if(figures_.begin(), figures_.end(),
                                    [&](const Figure& figure) { return figure.name == name; });
    Figure& figure =
        known != figures_.end() ? *known : figures_.emplace_back(Figure{name, unit, {}});
    figure.values.push_back(value);
  }
  const std::vector<Figure>& all() const { return figures_; }

 private:
  std::vector<Figure> figures_;
};

/// `Launch` timed by the chapters' clock, with a cold L2.
double cold_us(const Launch& launch) {
  launch();
  synchronize();
  return time_launches({launch}, Sampling{.samples = 160}).median_us;
}

/// The time of one of `rounds` rounds inside a kernel, from launches with `rounds` and with twice
/// as many: so the launch and the first, cold round drop out.
template <typename LaunchRounds>
double us_of_a_round(LaunchRounds launch_rounds, int rounds) {
  const double once = cold_us([&] { launch_rounds(rounds); });
  const double twice = cold_us([&] { launch_rounds(2 * rounds); });
  return (twice - once) / rounds;
}

/// The cycles that a kernel wrote down at the last of many cold launches. `launch_with(cycles)`
/// puts it into the queue.
template <typename LaunchWith>
double counted_cycles(LaunchWith launch_with) {
  const Buffer cycles(sizeof(long long));
  cold_us([&] { launch_with(cycles.as<long long>()); });
  long long counted = 0;
  download(&counted, cycles.as<void>(), sizeof counted);
  return static_cast<double>(counted);
}

// --- How long one load waits ---------------------------------------------------------------------

enum class Memory { Shared, L1, BehindL1 };

template <Memory memory>
__device__ unsigned load(const unsigned* from) {
  if constexpr (memory == Memory::BehindL1) return __ldcg(from);
  if constexpr (memory == Memory::L1) return __ldca(from);
  return *from;
}

/// One thread goes from element to element; each says where the next is. Every load waits for the
/// one before it.
template <Memory memory>
__global__ void chase(const unsigned* next, int first, int hops, int rounds, long long* cycles,
                      unsigned* sink) {
  extern __shared__ unsigned copied[];
  if constexpr (memory == Memory::Shared) {
    for (int i = 0; i < hops; ++i) copied[i] = next[i];
    next = copied;
  }
  unsigned at = first;
  for (int round = 0; round < rounds; ++round) {
    const long long start = clock64();
    for (int hop = 0; hop < hops; ++hop) {
      at = load<memory>(next + at);
    }
    *sink = at;
    *cycles = clock64() - start;  // of the last round
  }
}

/// A random walk over `bytes` that comes to a line's first element in each step.
std::vector<unsigned> random_walk(std::int64_t bytes, int step_bytes) {
  const auto stops = static_cast<unsigned>(bytes / step_bytes);
  const unsigned step = step_bytes / sizeof(unsigned);
  std::vector<unsigned> order(stops);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin() + 1, order.end(), std::minstd_rand(1));
  std::vector<unsigned> next(bytes / sizeof(unsigned));
  for (unsigned i = 0; i < stops; ++i) {
    next[order[i] * step] = order[(i + 1) % stops] * step;
  }
  return next;
}

/// Cycles that a load waits. `rounds` 1: every line is met for the first time.
template <Memory memory>
double latency(std::int64_t bytes, int step_bytes, int hops, int rounds) {
  const std::vector<unsigned> walk = random_walk(bytes, step_bytes);
  const Buffer next(bytes);
  const Buffer sink(sizeof(unsigned));
  upload(next.as<void>(), walk.data(), bytes);
  const std::size_t shared = memory == Memory::Shared ? bytes : 0;
  const double counted = counted_cycles([&](long long* cycles) {
    launch(chase<memory>, {1, 1, shared}, next.as<unsigned>(), 0, hops, rounds, cycles,
           sink.as<unsigned>());
  });
  return counted / hops;
}

/// Cycles until `kLoads` loads that know their addresses are all there.
template <int kLoads>
__global__ void load_at_once(const unsigned* from, std::int64_t apart, long long* cycles) {
  __shared__ volatile unsigned sink;
  const long long start = clock64();
  unsigned value[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    value[i] = __ldcg(from + i * apart);
  }
  unsigned sum = 0;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    sum += value[i];
  }
  sink = sum;
  *cycles = clock64() - start;
}

template <int kLoads>
double cycles_of_loads_at_once() {
  constexpr int kAttempts = 5;
  constexpr std::int64_t kApart = 5 * kKiB + kLine;
  const Buffer from(64 * kApart);
  const std::int64_t apart = kApart / static_cast<std::int64_t>(sizeof(unsigned));
  std::vector<double> counts;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    counts.push_back(counted_cycles([&](long long* cycles) {
      launch(load_at_once<kLoads>, {1, 1}, from.as<unsigned>(), apart, cycles);
    }));
  }
  return median(counts);
}

// --- How long threads wait for each other --------------------------------------------------------

enum class Meeting { Fma, WarpSum, Barrier, BlockSum };

template <Meeting meeting, int kThreads>
__global__ void __launch_bounds__(kThreads) meet(int rounds, long long* cycles, float* sink) {
  float value = static_cast<float>(threadIdx.x);
  const long long start = clock64();
  for (int round = 0; round < rounds; ++round) {
    if constexpr (meeting == Meeting::Fma) value = fmaf(value, 0.5f, 1.0f);
    if constexpr (meeting == Meeting::WarpSum) value = 0.5f * warp_sum(value);
    if constexpr (meeting == Meeting::Barrier) __syncthreads();
    if constexpr (meeting == Meeting::BlockSum) value = 0.5f * block_sum<kThreads>(value);
  }
  const long long end = clock64();
  sink[threadIdx.x] = value;
  if (threadIdx.x == 0) *cycles = end - start;
}

template <Meeting meeting, int kThreads>
double cycles_of() {
  constexpr int kRounds = 1000;
  const Buffer sink(kThreads * sizeof(float));
  const double counted = counted_cycles([&](long long* cycles) {
    launch(meet<meeting, kThreads>, {1, kThreads}, kRounds, cycles, sink.as<float>());
  });
  return counted / kRounds;
}

constexpr int kClusterThreads = 256;  // of each of its blocks

/// Sums over a cluster, each of which needs the one before: bwd13's exchange.
__global__ void __launch_bounds__(kClusterThreads)
    meet_in_cluster(int rounds, long long* cycles, float* sink) {
  __shared__ Exchange exchange;
  if (threadIdx.x == 0) {
    exchange.init();
    fence_barrier_init();
  }
  cluster_sync();
  float2 value = make_float2(static_cast<float>(threadIdx.x), 1.0f);
  const long long start = clock64();
  for (int round = 0; round < rounds; ++round) {
    send_sums(value, exchange, round);
    value = receive_sums(exchange, round);
    value.x *= 0.001f;
    value.y *= 0.001f;
  }
  const long long end = clock64();
  cluster_sync();  // no block leaves while another may still send to it
  sink[threadIdx.x] = value.x + value.y;
  if (threadIdx.x == 0) *cycles = end - start;
}

double cycles_of_a_cluster_sum(unsigned blocks) {
  constexpr int kRounds = 1000;
  const Buffer sink(kClusterThreads * sizeof(float));
  const double counted = counted_cycles([&](long long* cycles) {
    launch(meet_in_cluster, {.grid = blocks, .block = kClusterThreads, .cluster = blocks}, kRounds,
           cycles, sink.as<float>());
  });
  return counted / kRounds;
}

// --- Bytes a second ------------------------------------------------------------------------------

/// All blocks read the same `vectors` vectors of 16 bytes again and again, past L1.
__global__ void read_l2(const float4* from, int vectors, int rounds, float* sink) {
  float sum = 0.0f;
  const int threads = gridDim.x * blockDim.x;
  for (int round = 0; round < rounds; ++round) {
#pragma unroll 4
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += threads) {
      const float4 value = __ldcg(from + i);
      sum += value.x + value.y + value.z + value.w;
    }
  }
  if (sum == 1.0f) *sink = sum;
}

/// Each block reads its own `vectors` vectors again and again: from L1, once they are there.
__global__ void read_l1(const float4* from, int vectors, int rounds, float* sink) {
  const float4* own = from + std::int64_t{blockIdx.x} * vectors;
  float sum = 0.0f;
  for (int round = 0; round < rounds; ++round) {
#pragma unroll 4
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
      const float4 value = __ldca(own + i);
      sum += value.x + value.y + value.z + value.w;
    }
  }
  if (sum == 1.0f) *sink = sum;
}

double l2_bytes_a_us() {
  constexpr std::int64_t kBytes = 16 * kMiB;
  const Buffer from(kBytes);
  const Buffer sink(sizeof(float));
  const double us = us_of_a_round(
      [&](int rounds) {
        launch(read_l2, {static_cast<unsigned>(2 * multiprocessors()), 1024}, from.as<float4>(),
               static_cast<int>(kBytes / 16), rounds, sink.as<float>());
      },
      16);
  return kBytes / us;
}

double l1_bytes_a_us() {
  constexpr std::int64_t kBytes = 64 * kKiB;
  const auto blocks = static_cast<unsigned>(2 * multiprocessors());
  const Buffer from(blocks * kBytes);
  const Buffer sink(sizeof(float));
  const double us = us_of_a_round(
      [&](int rounds) {
        launch(read_l1, {blocks, 1024}, from.as<float4>(), static_cast<int>(kBytes / 16), rounds,
               sink.as<float>());
      },
      256);
  return blocks * static_cast<double>(kBytes) / us;
}

/// Each warp asks again and again for 32 floats that lie `stride` floats apart, all of them in L1.
__global__ void ask_l1(const float* from, int stride, int rounds, long long* cycles, float* sink) {
  constexpr int kFloats = 16 * kKiB;  // 64 KB
  const int first = static_cast<int>(threadIdx.x) * stride;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < kFloats; i += blockDim.x) {
    sum += __ldca(from + i);
  }
  __syncthreads();
  const long long start = clock64();
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      sum += __ldca(from + (first + 32 * (8 * round + k)) % kFloats);
    }
  }
  __syncthreads();
  if (sum == 1.0f) *sink = sum;
  if (threadIdx.x == 0) *cycles = clock64() - start;
}

/// Cycles that a multiprocessor's L1 is busy with one request.
double cycles_of_a_request(int stride) {
  constexpr int kThreads = 512;
  constexpr int kRounds = 256;
  const Buffer from(64 * kKiB);
  const Buffer sink(sizeof(float));
  const double counted = counted_cycles([&](long long* cycles) {
    launch(ask_l1, {1, kThreads}, from.as<float>(), stride, kRounds, cycles, sink.as<float>());
  });
  return counted / (8.0 * kRounds * kThreads / kWarpSize);
}

/// Useful bytes a microsecond where neighbouring lanes read floats that lie `stride` floats apart.
__global__ void read_apart(const float* from, std::int64_t floats, int stride, float* sink) {
  float sum = 0.0f;
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
#pragma unroll 8
  for (std::int64_t i = first; i < floats; i += threads) {
    sum += from[i * stride];
  }
  if (sum == 1.0f) *sink = sum;
}

double apart_bytes_a_us(const Buffer& from, int stride) {
  const Buffer sink(sizeof(float));
  const std::int64_t floats = from.bytes() / sizeof(float) / stride;
  const double us = cold_us([&] {
    launch(read_apart, {static_cast<unsigned>(2 * multiprocessors()), 1024}, from.as<float>(),
           floats, stride, sink.as<float>());
  });
  return floats * sizeof(float) / us;
}

/// Bytes a microsecond with a block on each multiprocessor, of `threads` threads that each have
/// four vectors of 16 bytes on the way.
__global__ void read_with_few(const float4* from, std::int64_t vectors, float* sink) {
  constexpr int kOnTheWay = 4;
  float sum = 0.0f;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x * kOnTheWay;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x * kOnTheWay + threadIdx.x;
       i < vectors; i += step) {
    float4 value[kOnTheWay];
#pragma unroll
    for (int k = 0; k < kOnTheWay; ++k) {
      value[k] = i + k * blockDim.x < vectors ? __ldcg(from + i + k * blockDim.x) : float4{};
    }
#pragma unroll
    for (int k = 0; k < kOnTheWay; ++k) {
      sum += value[k].x + value[k].y + value[k].z + value[k].w;
    }
  }
  if (sum == 1.0f) *sink = sum;
}

double few_bytes_a_us(const Buffer& from, int threads) {
  const Buffer sink(sizeof(float));
  const auto blocks = static_cast<unsigned>(multiprocessors());
  const double us = cold_us([&] {
    launch(read_with_few, {blocks, static_cast<unsigned>(threads)}, from.as<float4>(),
           static_cast<std::int64_t>(from.bytes() / 16), sink.as<float>());
  });
  return static_cast<double>(from.bytes()) / us;
}

// --- Atomic additions ----------------------------------------------------------------------------

/// Each of `rows` warps adds to all of `cols` floats. `turned`: row r begins 32 · r columns later.
__global__ void add_rows(float* sums, int cols, bool turned, bool one_address) {
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int start = turned ? warp * kWarpSize % cols : 0;
  for (int col = lane; col < cols; col += kWarpSize) {
    const int at = one_address ? col - lane : (col + start) % cols;
    atomicAdd(sums + at, 1.0f);
  }
}

double add_rows_us(bool turned, bool one_address) {
  constexpr int kRows = 1024;
  constexpr int kCols = 4096;  // dweight and dbias of 2048 columns
  const Buffer sums(kCols * sizeof(float));
  return cold_us([&] {
    launch(add_rows, {kRows / 4, 128}, sums.as<float>(), kCols, turned, one_address);
  });
}

// --- A kernel's instructions, launches and partial sums ------------------------------------------

__global__ void nothing() {}

constexpr int kChains = 8;  // of multiply-adds in a thread: enough to hide the latency of each

/// Multiply-adds that wait for nothing but their own chain.
__global__ void __launch_bounds__(1024) issue(int rounds, long long* cycles, float* sink) {
  float value[kChains];
  for (int i = 0; i < kChains; ++i) {
    value[i] = static_cast<float>(threadIdx.x + i);
  }
  __syncthreads();
  const long long start = clock64();
#pragma unroll 8
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) {
      value[i] = fmaf(value[i], 0.5f, 1.0f);
    }
  }
  __syncthreads();
  const long long end = clock64();
  for (int i = 0; i < kChains; ++i) {
    sink[threadIdx.x] += value[i];
  }
  if (threadIdx.x == 0) *cycles = end - start;
}

/// Warp instructions that a multiprocessor issues in a cycle.
double issued_a_cycle() {
  constexpr int kRounds = 4096;
  constexpr int kThreads = 1024;
  const Buffer sink(kThreads * sizeof(float));
  const double counted = counted_cycles([&](long long* cycles) {
    launch(issue, {1, kThreads}, kRounds, cycles, sink.as<float>());
  });
  return double{kRounds} * kChains * kThreads / kWarpSize / counted;
}

/// Every block stores a row of sums for dweight and one for dbias.
__global__ void store_partials(PartialSums sums, int cols) {
  for (int col = threadIdx.x * 4; col < cols; col += blockDim.x * 4) {
    const float4 value = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    const std::int64_t at = blockIdx.x * sums.stride + col;
    *reinterpret_cast<float4*>(sums.dweight + at) = value;
    *reinterpret_cast<float4*>(sums.dbias + at) = value;
  }
}

/// What a MB of partial sums costs, stored by two blocks on each multiprocessor and added up by the
/// second kernel: from rows of 1024 and of 4096 columns, so the launches drop out.
double partial_sums_us_a_mb() {
  const auto blocks = static_cast<unsigned>(2 * multiprocessors());
  const auto us_and_mb = [&](std::int64_t cols) {
    Problem problem{};
    problem.cols = cols;
    const Buffer workspace(partial_sums_bytes(problem, blocks));
    const Buffer gradients(2 * cols * sizeof(float));
    BackwardArgs<float> a{};
    a.cols = cols;
    a.kind = Kind::Layer;
    a.workspace = workspace.as<void>();
    a.dweight = gradients.as<float>();
    a.dbias = a.dweight + cols;
    const PartialSums sums = partial_sums(a, blocks);
    const double us = cold_us([&] {
      launch(store_partials, {blocks, 256}, sums, static_cast<int>(cols));
      add_partial_sums(a, sums, blocks);
    });
    return std::pair{us, workspace.bytes() / 1e6};
  };
  const auto [few_us, few_mb] = us_and_mb(1024);
  const auto [many_us, many_mb] = us_and_mb(4096);
  return (many_us - few_us) / (many_mb - few_mb);
}

// --- All of it -----------------------------------------------------------------------------------

/// Measures everything once.
void measure(Figures& figures) {
  const auto say = [&](const std::string& name, double value, const std::string& unit) {
    figures.add(name, value, unit);
  };
  const CycleClock clock = *measure_cycle_clock();
  say("SM clock", clock.cycles_per_us / 1000, "GHz");
  say("events around a launch", clock.overhead_us, "us");
  const double alone = cold_us([] { launch(nothing, {1, 32}); });
  say("an empty kernel, with events", alone, "us");
  const double two = cold_us([] {
    launch(nothing, {1, 32});
    launch(nothing, {1, 32});
  });
  say("a second kernel, empty, behind the first", two - alone, "us");

  say("latency: a dependent multiply-add", cycles_of<Meeting::Fma, 32>(), "cycles");
  say("latency: shared memory", latency<Memory::Shared>(16 * kKiB, 4, 4096, 2), "cycles");
  say("latency: L1", latency<Memory::L1>(16 * kKiB, kLine, 128, 3), "cycles");
  say("latency: L2", latency<Memory::BehindL1>(4 * kMiB, kLine, 32768, 2), "cycles");
  say("latency: device memory", latency<Memory::BehindL1>(64 * kMiB, kLine, 4096, 1), "cycles");
  say("at once: 1 cold load", cycles_of_loads_at_once<1>(), "cycles");
  say("at once: 4 cold loads", cycles_of_loads_at_once<4>(), "cycles");
  say("at once: 8 cold loads", cycles_of_loads_at_once<8>(), "cycles");
  say("at once: 16 cold loads", cycles_of_loads_at_once<16>(), "cycles");

  say("meeting: warp_sum", cycles_of<Meeting::WarpSum, 32>(), "cycles");
  say("meeting: __syncthreads, 256 threads", cycles_of<Meeting::Barrier, 256>(), "cycles");
  say("meeting: __syncthreads, 1024 threads", cycles_of<Meeting::Barrier, 1024>(), "cycles");
  say("meeting: block_sum, 256 threads", cycles_of<Meeting::BlockSum, 256>(), "cycles");
  say("meeting: block_sum, 1024 threads", cycles_of<Meeting::BlockSum, 1024>(), "cycles");

  if (device().gpu.architecture >= 90) {
    for (const unsigned blocks : {2u, 8u}) {
      say("meeting: a sum over a cluster of " + std::to_string(blocks) + " blocks",
          cycles_of_a_cluster_sum(blocks), "cycles");
    }
  }

  for (const std::int64_t mib : {1, 8, 64, 1024}) {
    const double us = *roof_us(Direction::Forward, mib * kMiB, true);
    say("copy of " + std::to_string(mib) + " MiB", us, "us");
    say("bandwidth: copy of " + std::to_string(mib) + " MiB", 2.0 * mib * kMiB / us / 1e6, "TB/s");
    say("triad of " + std::to_string(mib) + " MiB", *roof_us(Direction::Backward, mib * kMiB, true),
        "us");
  }
  say("bandwidth: L2, read", l2_bytes_a_us() / 1e6, "TB/s");
  say("bandwidth: L1, read", l1_bytes_a_us() / 1e6, "TB/s");

  say("issue: warp instructions a cycle and multiprocessor", issued_a_cycle(), "instructions");
  say("partial sums: a MB written and added up", partial_sums_us_a_mb(), "us");
  say("L1: a request to 1 line", cycles_of_a_request(1), "cycles");
  say("L1: a request to 32 lines", cycles_of_a_request(32), "cycles");

  {
    const Buffer from(512 * kMiB);
    copy_on_device(from.as<char>(), from.as<char>() + 256 * kMiB, 256 * kMiB);
    for (const int stride : {1, 2, 4, 8, 16, 32}) {
      say("lanes " + std::to_string(stride) + " floats apart: useful",
          apart_bytes_a_us(from, stride) / 1e6, "TB/s");
    }
    for (const int threads : {32, 64, 128, 256, 512, 1024}) {
      say(std::to_string(threads * 64 / 1024) + " KB on the way a multiprocessor",
          few_bytes_a_us(from, threads) / 1e6, "TB/s");
    }
  }
  say("4 194 304 atomics, 1024 warps in step", add_rows_us(false, false), "us");
  say("4 194 304 atomics, each warp 32 columns later", add_rows_us(true, false), "us");
  say("4 194 304 atomics, a warp's lanes to one address", add_rows_us(false, true), "us");
}

}  // namespace

int main(int count, char** words) {
  CLI::App options{
      "Measures what the lessons' time model needs to know of a GPU, in about two minutes."};
  std::string path;
  options.add_option("--json", path, "append the figures to FILE, a record a line")
      ->type_name("FILE");
  CLI11_PARSE(options, count, words);
  try {
    std::ofstream file;
    if (!path.empty()) file.open(path, std::ios::app);
    if (!file) throw std::runtime_error("cannot write '" + path + "'");
    Figures figures;
    for (int repeat = 1; repeat <= kRepeats; ++repeat) {
      std::fprintf(stderr, "machine: repeat %d of %d\n", repeat, kRepeats);
      measure(figures);
    }
    for (const Figure& figure : figures.all()) {
      const auto [low, high] = std::minmax_element(figure.values.begin(), figure.values.end());
      const double value = median(figure.values);
      std::printf("%-52s %10.4g %10.4g to %.4g %s\n", figure.name.c_str(), value, *low, *high,
                  figure.unit.c_str());
      nlohmann::ordered_json record{{"figure", figure.name},
                                    {"value", value},
                                    {"low", *low},
                                    {"high", *high},
                                    {"unit", figure.unit}};
      record.update(made_by());
      if (!path.empty()) file << record.dump() << '\n';
    }
    if (path.empty()) return 0;
    if (!file.flush()) throw std::runtime_error("writing to '" + path + "' failed");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "machine: %s\n", error.what());
    return 1;
  }
}
