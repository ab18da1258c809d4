#include "common/simt/gpus.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "common/simt/block.h"
#include "common/simt/gpu.h"

namespace simt {
namespace {

constexpr int kMultiprocessors = 132;   // of an H100
constexpr int kFewMultiprocessors = 2;  // of each of several GPUs
constexpr std::size_t kMostShared = 227 << 10;
constexpr std::size_t kWordBytes = 16;

// What a word's 16 bytes are read and written under.
std::mutex& lock_of(const void* word) {
  static std::array<std::mutex, 64> locks;
  return locks[reinterpret_cast<std::uintptr_t>(word) / kWordBytes % locks.size()];
}

// No GPU waits for another's launch: in an order of the schedule, one is late.
void pause_before_launch(const Schedule& schedule) {
  constexpr std::chrono::microseconds kPause{500};
  Gpu& gpu = *gpu_here;
  const int launch = gpu.launches++;
  int pauses = schedule.order == Order::Forward ? gpu.number : gpu.all.count - 1 - gpu.number;
  if (schedule.order == Order::Random)
    pauses = std::mt19937(static_cast<unsigned>(schedule.seed + 8 * launch + gpu.number))() % 4;
  if (pauses > 0) std::this_thread::sleep_for(pauses * kPause);
}

}  // namespace

constinit thread_local Gpu* gpu_here = nullptr;
constinit thread_local Turn* turn_here = nullptr;

std::mutex& alone() {
  static std::mutex mutex;
  return mutex;
}

// ------------------------------------------------------------------------------------ host threads

void run_on_gpus(int gpus, const std::function<void(int)>& work) {
  if (gpus < 1 || gpus > kMaxGpus)
    throw std::invalid_argument("run_on_gpus runs 1 to " + std::to_string(kMaxGpus) +
                                " GPUs, not " + std::to_string(gpus));
  if (gpu_here != nullptr) throw std::invalid_argument("run_on_gpus does not nest");
  const std::lock_guard lock(alone());
  Gpus all(gpus);
  std::exception_ptr error;
  std::mutex mutex;
  const auto host = [&](int number) {
    Gpu gpu(all, number);
    gpu_here = &gpu;
    try {
      work(number);
    } catch (const Stopped&) {
    } catch (...) {
      const std::lock_guard one(mutex);
      if (error == nullptr) error = std::current_exception();
      all.running.failed = true;
    }
    --all.running.hosts;
    gpu_here = nullptr;
  };
  {
    std::vector<std::jthread> hosts;
    for (int number = 0; number < gpus; ++number) hosts.emplace_back(host, number);
  }
  if (error) std::rethrow_exception(error);
}

int current_gpu() { return gpu_here == nullptr ? 0 : gpu_here->number; }

int multiprocessors_of_a_gpu() {
  return gpu_here == nullptr ? kMultiprocessors : kFewMultiprocessors;
}
int resident_blocks(int threads, std::size_t shared_bytes) {
  const auto fit = static_cast<int>(kMostShared / (shared_bytes + 1024));
  int most = std::max(1024 / threads, 1);
  if (gpu_here != nullptr) most = std::min(most, kGpuCores / kFewMultiprocessors);
  return std::clamp(fit, 1, most);
}
int resident_clusters(int cluster, int threads, std::size_t shared_bytes) {
  const int fit = multiprocessors_of_a_gpu() / cluster * resident_blocks(threads, shared_bytes);
  return gpu_here == nullptr ? fit : std::max(fit, 1);
}

InLaunch::InLaunch(const Schedule& schedule) {
  if (gpu_here == nullptr) return;
  pause_before_launch(schedule);
  Running& running = gpu_here->all.running;
  running.cores[gpu_here->first_core].moves += 1;
  --running.hosts;
}
InLaunch::~InLaunch() {
  if (gpu_here != nullptr) ++gpu_here->all.running.hosts;
}

void Turn::take() {
  std::unique_lock lock(mutex_);
  if (!taken_) {
    taken_ = true;
    return;
  }
  const auto self = waiting_.emplace(waiting_.end());
  self->goes_on.wait(lock, [&] { return self->has_turn; });
  waiting_.erase(self);
}

void Turn::give() {
  const std::lock_guard lock(mutex_);
  taken_ = !waiting_.empty();
  if (!taken_) return;
  auto next = waiting_.begin();
  if (schedule().order == Order::Random) std::advance(next, random_() % waiting_.size());
  next->has_turn = true;
  next->goes_on.notify_one();
}

// ------------------------------------------------------------------------------------- what is
// shared

Window::Window(std::vector<std::byte*> bases) : bases_(std::move(bases)) {
  for (std::size_t gpu = 0; gpu < bases_.size(); ++gpu)
    set_buffer_gpu(bases_[gpu], static_cast<int>(gpu));
}

std::byte* Window::at(std::size_t offset, int gpu) const {
  if (gpu >= 0 && gpu < static_cast<int>(bases_.size())) return bases_[gpu] + offset;
  const std::string problem = "asks for the window of GPU " + std::to_string(gpu) +
                              ", and there are " + std::to_string(bases_.size()) + " GPUs";
  if (current_block == nullptr) throw std::out_of_range("the host " + problem);
  const Entered entered;
  throw entered->fault("thread " + std::to_string(entered->running().number) + " " + problem);
}

std::unique_ptr<Window> make_window(std::vector<std::byte*> bases) {
  return std::make_unique<Window>(std::move(bases));
}

namespace {
void require_aligned(const Block& block, const void* word) {
  if (reinterpret_cast<std::uintptr_t>(word) % kWordBytes != 0)
    throw block.fault("thread " + std::to_string(block.running().number) +
                      " names a word whose address is not a multiple of 16");
}
}  // namespace

void store_word(void* to, const void* word, std::source_location) {
  const Entered entered;
  require_aligned(*entered, to);
  const std::lock_guard lock(lock_of(to));
  if (std::memcmp(to, word, kWordBytes) != 0) memory_changed = true;
  std::memcpy(to, word, kWordBytes);
}

void load_word(void* word, const void* from, std::source_location where) {
  require_aligned(*Entered(), from);
  yield(from, where);
  const Entered entered;
  const std::lock_guard lock(lock_of(from));
  std::memcpy(word, from, kWordBytes);
}

}  // namespace simt
