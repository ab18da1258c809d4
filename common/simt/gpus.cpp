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
#include <unordered_map>
#include <utility>

#include "common/simt/block.h"
#include "common/simt/gpu.h"
#include "common/simt/places.h"

namespace simt {
namespace {

constexpr int kMultiprocessors = 132;   // of an H100
constexpr int kFewMultiprocessors = 2;  // of each of several GPUs
constexpr std::size_t kMostShared = 227 << 10;

// The stacks of the GPUs' cores are kept for the next run_on_gpus, unless there are many: the
// system allows a process 32765 (progress.h), and other launches keep theirs, too.
std::array<std::array<StackPool, kGpuCores>, kMaxGpus> stack_pools;
void unmap_many_stacks() {
  constexpr std::size_t kMost = 8192;
  std::size_t stacks = 0;
  for (const auto& of_gpu : stack_pools)
    for (const StackPool& of_core : of_gpu) stacks += of_core.free.size();
  if (stacks <= kMost) return;
  for (auto& of_gpu : stack_pools)
    for (StackPool& of_core : of_gpu) of_core.unmap();
}

// The words that kernels have stored, in parts that have a lock each.
struct Stored {
  std::array<std::byte, kWordBytes> before{};  // what the last store overwrote
  bool before_was_read = true;
  bool is_read = true;  // what the last store has left
};
struct StoredWords {
  std::mutex mutex;
  std::unordered_map<const void*, Stored> words;
};
std::array<StoredWords, 64> stored_words;
StoredWords& stored_near(const void* word) {
  return stored_words[reinterpret_cast<std::uintptr_t>(word) / kWordBytes % stored_words.size()];
}

// The last part of a word.
unsigned epoch_in(const void* word) {
  unsigned epoch = 0;
  std::memcpy(&epoch, static_cast<const std::byte*>(word) + kWordBytes - sizeof epoch,
              sizeof epoch);
  return epoch;
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
  for (StoredWords& each : stored_words) each.words.clear();
  Watch* const watcher = watch();
  if (watcher != nullptr) watcher->gpus_meet();
  Gpus all(gpus);
  std::exception_ptr error;
  std::mutex mutex;
  const auto host = [&](int number) {
    Gpu gpu(all, number, stack_pools[number].data());
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
  unmap_many_stacks();
  if (watcher != nullptr) watcher->gpus_meet();
  if (error) std::rethrow_exception(error);
}

std::optional<int> one_of_several_gpus() {
  return gpu_here == nullptr ? std::nullopt : std::optional(gpu_here->number);
}
int current_gpu() { return one_of_several_gpus().value_or(0); }

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

// ------------------------------------------------------------------------------- windows and words

Window::Window(std::vector<std::byte*> bases) : bases_(std::move(bases)) {
  for (std::size_t gpu = 0; gpu < bases_.size(); ++gpu) {
    const DeviceBuffer* const buffer = device_buffer_of(bases_[gpu]);
    if (buffer == nullptr) continue;
    set_buffer_gpu(buffer->begin, static_cast<int>(gpu));
    if (buffer->name.empty()) name_device_buffer(buffer->begin, "window", kWordBytes);
    bytes_ = std::min(bytes_, buffer->bytes - (bases_[gpu] - buffer->begin));
  }
}

// The fault of the running thread where it names what is not there.
static Fault fault_at(const std::source_location& where, const std::string& does) {
  const Entered entered;
  return entered->fault("thread " + std::to_string(entered->running().number) + " " + does +
                        ", at " + line_at(where));
}

std::byte* Window::at(std::size_t offset, int gpu, std::source_location where) const {
  const bool is_there = gpu >= 0 && gpu < static_cast<int>(bases_.size());
  if (is_there && offset <= bytes_) return bases_[gpu] + offset;
  const std::string problem = !is_there
                                  ? "asks for the window of GPU " + std::to_string(gpu) +
                                        ", and there are " + std::to_string(bases_.size()) + " GPUs"
                                  : "asks for byte " + std::to_string(offset) + " of a window of " +
                                        std::to_string(bytes_) + " bytes";
  if (current_block == nullptr) throw std::out_of_range("the host " + problem);
  throw fault_at(where, problem);
}

std::unique_ptr<Window> make_window(std::vector<std::byte*> bases) {
  return std::make_unique<Window>(std::move(bases));
}

static void require_aligned(const void* word, const std::source_location& where) {
  if (reinterpret_cast<std::uintptr_t>(word) % kWordBytes != 0)
    throw fault_at(where, "names a word whose address is not a multiple of 16");
}

void store_word(void* to, const void* word, std::source_location where) {
  require_aligned(to, where);
  const Entered entered;
  StoredWords& all = stored_near(to);
  const std::lock_guard lock(all.mutex);
  stores_word(to);
  Stored& stored = all.words[to];
  std::memcpy(stored.before.data(), to, kWordBytes);
  stored.before_was_read = std::exchange(stored.is_read, false);
  if (std::memcmp(to, word, kWordBytes) != 0) memory_changed = true;
  std::memcpy(to, word, kWordBytes);
}

void load_word(void* word, const void* from, std::source_location where) {
  require_aligned(from, where);
  const Entered entered;
  const Place place = here();
  yield(from, where);
  entered->scheduler().leaves_kernel();
  entered->running().place = place;
  StoredWords& all = stored_near(from);
  const std::lock_guard lock(all.mutex);
  const bool is_newest = loads_word(from);
  const auto stored = all.words.find(from);
  if (stored == all.words.end() || is_newest)
    std::memcpy(word, from, kWordBytes);
  else
    std::memcpy(word, stored->second.before.data(), kWordBytes);
  if (stored != all.words.end() && is_newest) stored->second.is_read = true;
}

std::string word_at(const void* address) {
  StoredWords& all = stored_near(address);
  const std::lock_guard lock(all.mutex);
  const auto stored = all.words.find(address);
  if (stored == all.words.end()) return ", to which no thread has stored a word,";
  const std::string epoch = ", a word of epoch " + std::to_string(epoch_in(address));
  if (stored->second.before_was_read) return epoch + ",";
  return epoch + " that overwrote the word of epoch " +
         std::to_string(epoch_in(stored->second.before.data())) + " before it was read,";
}

}  // namespace simt
