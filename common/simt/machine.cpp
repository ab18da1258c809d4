// Runs a grid: its blocks, cluster by cluster, on the cores.
#include "common/simt/machine.h"

#include <dlfcn.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/simt/block.h"
#include "common/simt/clock.h"
#include "common/simt/cluster.h"
#include "common/simt/crashes.h"
#include "common/simt/gpu.h"
#include "common/simt/gpus.h"
#include "common/simt/progress.h"
#include "common/simt/stacks.h"
#include "common/simt/symbols.h"
#include "common/simt/watch.h"
#include "common/simt/words.h"

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

namespace simt {
namespace {

void check(const Launch& launch) {
  const dim3 grid = launch.grid;
  const dim3 block = launch.block;
  const char* problem = nullptr;
  if (current_block != nullptr)
    problem = "a kernel launches it, and the SIMT machine has no dynamic parallelism";
  if (volume(grid) == 0) problem = "a grid needs at least one block in each dimension";
  if (volume(block) == 0) problem = "a block needs at least one thread in each dimension";
  if (volume(block) > 1024 || block.x > 1024 || block.y > 1024)
    problem = "a block has at most 1024 threads";
  if (block.z > 64) problem = "a block is at most 64 deep";
  if (grid.x > 0x7FFF'FFFFu) problem = "grid.x is at most 2^31 - 1";
  if (grid.y > 65535 || grid.z > 65535) problem = "grid.y and grid.z are at most 65535";
  const std::size_t own_bytes = static_shared_bytes(launch);
  if (launch.shared_bytes + own_bytes > 227 * 1024)
    problem = "a block has at most 227 KB of shared memory";
  if (own_bytes > 48 * 1024)
    problem =
        "its __shared__ variables can take at most 48 KB, and only dynamic shared memory more";
  if (launch.cluster > 16) problem = "a cluster has at most 16 blocks";
  if (launch.cluster > 0 && grid.x % launch.cluster != 0)
    problem = "grid.x is not a multiple of the blocks a cluster";
  if (problem == nullptr) return;
  throw std::runtime_error("kernel " + kernel_name(launch) + " cannot start with grid " +
                           to_string(grid) + ", block " + to_string(block) + ", " +
                           std::to_string(launch.shared_bytes + own_bytes) +
                           " bytes of shared memory: " + problem);
}

Schedule order_from_environment() {
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

Schedule schedule_from_environment() {
  Schedule schedule = order_from_environment();
  if (const char* const text = std::getenv("SIMT_LONGEST_RUN")) {
    char* end = nullptr;
    const double seconds = std::strtod(text, &end);
    if (*end != '\0' || !(seconds > 0))
      throw std::invalid_argument("SIMT_LONGEST_RUN is '" + std::string(text) +
                                  "'; it must be a number of seconds");
    schedule.longest_run = std::chrono::duration<double>(seconds);
  }
  return schedule;
}

Schedule& active_schedule() {
  static Schedule schedule = schedule_from_environment();
  return schedule;
}

// The kernels that have run. When the program ends, writes their linker symbols to the file that
// SIMT_LAUNCHED names, if any.
class Launched {
 public:
  void add(const void* kernel) {
    const std::lock_guard lock(mutex_);
    kernels_.insert(kernel);
  }
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
  std::mutex mutex_;
  std::set<const void*> kernels_;
};

Watch* active_watch = nullptr;

}  // namespace

Schedule schedule() { return active_schedule(); }

void set_schedule(Schedule schedule) { active_schedule() = schedule; }

void run(const Launch& launch, const std::function<void()>& thread_body) {
  check(launch);
  Gpu* const gpu = gpu_here;
  std::unique_lock one_grid(alone(), std::defer_lock);
  if (gpu == nullptr) one_grid.lock();
  static Launched launched;
  Watch* const watch = active_watch;
  const bool one_by_one = watch != nullptr && (gpu != nullptr || watch->one_at_a_time());
  if (watch != nullptr) {
    const OneAtATime turn(one_by_one);
    watch->begins(launch);
  }
  static StackPool own_stack_pools[kMaxCores];
  StackPool* const stack_pools = gpu == nullptr ? own_stack_pools : gpu->stack_pools;
  const Schedule schedule = active_schedule();
  if (launch.kernel != nullptr && !schedule.only_last) launched.add(launch.kernel);
  const int size = static_cast<int>(std::max(launch.cluster, 1u));
  const std::uint64_t clusters = volume(launch.grid) / size;
  std::vector<std::uint64_t> shuffled;
  if (schedule.order == Order::Random) {
    shuffled.resize(clusters);
    std::iota(shuffled.begin(), shuffled.end(), std::uint64_t{0});
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(schedule.seed));
  }
  int most = one_by_one ? 1 : std::min(omp_get_max_threads(), kMaxCores / size);
  if (gpu != nullptr)
    most = resident_clusters(size, static_cast<int>(volume(launch.block)), launch.shared_bytes);
  const auto at_once = std::clamp<std::uint64_t>(most, 1, clusters);
  std::optional<Running> own;
  Running& running = gpu == nullptr ? own.emplace(kMaxCores) : gpu->all.running;
  const InLaunch in_launch(schedule);
  Grid state{volume(launch.grid), gpu == nullptr ? 0 : at_once * size, running};
  std::exception_ptr error;
  const auto fail = [&] {
    if (!running.failed.exchange(true)) error = std::current_exception();
  };
  std::vector<std::unique_ptr<Cluster>> places(at_once);
  for (auto& place : places)
    place = std::make_unique<Cluster>(size, size * volume(launch.block), running.failed);
  std::atomic<std::uint64_t> next =
      clusters - std::min(schedule.only_last.value_or(clusters), clusters);
  const int cores = static_cast<int>(at_once) * size;
#pragma omp parallel num_threads(cores) if (cores > 1)
  try {
    const int core = omp_get_thread_num();
    const int whole_clusters = omp_get_num_threads() / size;
    stack_pool = &stack_pools[core];
    gpu_here = gpu;
    const int number_of_core = gpu == nullptr ? core : gpu->first_core + core;
    const Clock clock;
    const Crashes crashes(number_of_core);
    Progress progress(state, number_of_core);
    if (whole_clusters == 0 || (gpu != nullptr && omp_get_num_threads() < cores))
      throw std::runtime_error(
          "each block of a cluster, or of one of several GPUs, needs a thread of the system");
    Cluster& cluster = *places[core / size];
    const unsigned rank = core % size;
    while (core / size < whole_clusters) {
      const std::uint64_t i = cluster.next(rank, next);
      if (i >= clusters) break;
      std::uint64_t number = i;
      if (schedule.order == Order::Reverse) number = clusters - 1 - i;
      if (schedule.order == Order::Random) number = shuffled[i];
      try {
        const OneAtATime turn(one_by_one);
        Block block(launch, thread_body, number * size + rank, cluster, watch);
        current_block = &block;
        block.run(schedule, progress);
      } catch (...) {
        fail();
      }
      current_block = nullptr;
      progress.ends_block();
      cluster.leave(rank);
    }
  } catch (...) {
    fail();
  }
  if (error) std::rethrow_exception(error);
  if (running.failed) throw Stopped();
  if (watch != nullptr) {
    const OneAtATime turn(one_by_one);
    watch->ends(launch);
  }
}

Watch* watch() { return active_watch; }

void set_watch(Watch* watch) {
  if (watch != nullptr) add_device_variables();
  active_watch = watch;
}

}  // namespace simt
