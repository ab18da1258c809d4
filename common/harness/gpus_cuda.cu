// The CUDA backend's GPUs, with windows from NCCL: a communicator of each GPU, all in this process.
#include <algorithm>
#include <stdexcept>

#include "common/cuda/events.h"
#include "common/cuda/launch.h"
#include "common/harness/device.h"
#include "common/harness/gpus.h"

#if defined(LNC_NCCL)
#include <barrier>
#include <exception>
#include <mutex>
#include <thread>

#include "common/cuda/communicator.h"
#include "common/kernel/peers.h"
#endif

namespace lnc {

constexpr int kMostGpus = 8;  // of a program that is not told how many

int gpu_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
  return count;
}

int usual_gpus() { return std::clamp(gpu_count(), 1, kMostGpus); }

std::string describe_gpus(int count) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "asking for the device's properties");
  const std::string name = properties.name;
  bool nvlink = true;  // NVLink has atomics on another GPU's memory, PCI Express has none
  for (int from = 0; from < count; ++from)
    for (int to = 0; to < count; ++to) {
      int atomics = 1;
      if (from != to)
        check_cuda(
            cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from, to),
            "asking how two GPUs are linked");
      nvlink = nvlink && atomics != 0;
    }
  return "GPUs 0 to " + std::to_string(count - 1) + ": " + name + ", linked by " +
         (nvlink ? "NVLink" : "PCI Express");
}

#if !defined(LNC_NCCL)

struct Gpus::State {};
Gpus::Gpus(int, std::int64_t) {
  throw std::runtime_error(
      "this program was built without NCCL 2.28 or newer, which the chapters "
      "for several GPUs need");
}
Gpus::~Gpus() = default;
int Gpus::count() const { return 0; }
const Peers& Gpus::peers(int) const { throw std::logic_error("there are no GPUs"); }
void Gpus::each(const std::function<void(int)>&) const {}
void Gpus::synchronize() const {}
std::vector<double> Gpus::time(const std::function<void(int)>&, const std::vector<int>&) const {
  return {};
}

#else

namespace {

void check_nccl(ncclResult_t status, const std::string& what) {
  if (status != ncclSuccess)
    throw std::runtime_error(what + " failed: NCCL: " + ncclGetErrorString(status));
}

/// A thread for each GPU, which is that thread's current one: NCCL's calls wait for all GPUs.
class Crew {
 public:
  explicit Crew(int gpus) : begin_(gpus + 1), end_(gpus + 1) {
    for (int gpu = 0; gpu < gpus; ++gpu) threads_.emplace_back([this, gpu] { serve(gpu); });
  }
  ~Crew() {
    work_ = nullptr;
    begin_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }
  Crew(const Crew&) = delete;

  /// Calls work(gpu) on each thread, and rethrows the first error when all have returned.
  void each(const std::function<void(int)>& work) {
    work_ = &work;
    first_ = nullptr;
    begin_.arrive_and_wait();
    end_.arrive_and_wait();
    if (first_) std::rethrow_exception(first_);
  }

 private:
  void serve(int gpu) {
    const cudaError_t chosen = cudaSetDevice(gpu);
    for (begin_.arrive_and_wait(); work_ != nullptr; begin_.arrive_and_wait()) {
      try {
        check_cuda(chosen, "choosing GPU " + std::to_string(gpu));
        (*work_)(gpu);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!first_) first_ = std::current_exception();
      }
      end_.arrive_and_wait();
    }
  }

  std::barrier<> begin_, end_;
  const std::function<void(int)>* work_ = nullptr;
  std::mutex mutex_;
  std::exception_ptr first_;
  std::vector<std::thread> threads_;
};

/// All GPUs go on when the last has come here.
__global__ void meet(Peers peers) {
  const unsigned epoch = epoch_of_launch(peers);
  if (threadIdx.x < static_cast<unsigned>(peers.ranks)) {
    send(peers, epoch, 0, static_cast<int>(threadIdx.x), {});
    receive(peers, epoch, 0, static_cast<int>(threadIdx.x));
  }
  __syncthreads();
  if (threadIdx.x == 0) advance_epoch(peers, epoch);
}

/// Memory of a GPU that the others reach.
struct Window {
  void* words = nullptr;
  ncclWindow_t registered = nullptr;

  void open(ncclComm_t communicator, std::size_t bytes) {
    check_nccl(ncclMemAlloc(&words, bytes), "allocating a window");
    check_cuda(cudaMemset(words, 0, bytes), "clearing a window");
    check_cuda(cudaDeviceSynchronize(), "clearing a window");
    check_nccl(
        ncclCommWindowRegister(communicator, words, bytes, &registered, NCCL_WIN_COLL_SYMMETRIC),
        "registering a window");
  }
  /// For a single GPU: NCCL's window of one rank has no addresses.
  Word* alone(int gpus) const { return gpus == 1 ? static_cast<Word*>(words) : nullptr; }
  void close(ncclComm_t communicator) {
    if (registered != nullptr) ncclCommWindowDeregister(communicator, registered);
    if (words != nullptr) ncclMemFree(words);
  }
};

struct LinkedGpu {
  ncclComm_t communicator = nullptr;
  Window window, meeting;  // for kernels, and for meet()
  Buffer counters, flushed;
};

}  // namespace

static thread_local ncclComm_t own_communicator = nullptr;
ncclComm_t current_communicator() { return own_communicator; }

struct Gpus::State {
  explicit State(int count) : gpus(count), crew(count) {}

  std::vector<LinkedGpu> gpus;
  std::vector<Peers> peers, meeting;  // of kernels, and of meet()
  unsigned* silent = nullptr;         // in host memory, which all GPUs reach
  Crew crew;

  void flush(int gpu, int times) {
    Buffer& flushed = gpus[gpu].flushed;
    if (flushed.bytes() == 0) flushed = Buffer(kFlushBytes);
    for (int flush = 0; flush < times; ++flush)
      check_cuda(cudaMemsetAsync(flushed.as<void>(), 0, flushed.bytes()), "flushing L2");
  }
  /// Keeps an idle GPU busy until its clock has risen.
  void warm_up(int gpu) {
    constexpr int kFlushes = 3000;  // about 0.3 s on an H100
    if (gpus[gpu].flushed.bytes() == 0) flush(gpu, kFlushes);
  }

  ~State() {
    crew.each([&](int number) {
      LinkedGpu& gpu = gpus[number];
      if (gpu.communicator == nullptr) return;
      gpu.window.close(gpu.communicator);
      gpu.meeting.close(gpu.communicator);
      ncclCommAbort(gpu.communicator);
    });
    if (silent != nullptr) cudaFreeHost(silent);
  }
};

Gpus::Gpus(int count, std::int64_t slots) {
  if (count > gpu_count())
    throw std::runtime_error("this machine has " + std::to_string(gpu_count()) + " GPUs, not " +
                             std::to_string(count));
  for (int from = 0; from < count; ++from)
    for (int to = 0; to < count; ++to) {
      int reaches = 1;
      if (from != to)
        check_cuda(cudaDeviceCanAccessPeer(&reaches, from, to), "asking how two GPUs are linked");
      if (reaches == 0)
        throw std::runtime_error("GPU " + std::to_string(from) +
                                 " cannot reach the memory of GPU " + std::to_string(to) +
                                 ": neither NVLink nor PCI Express links them");
    }
  state_ = std::make_unique<State>(count);
  check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&state_->silent), sizeof(unsigned),
                           cudaHostAllocPortable | cudaHostAllocMapped),
             "allocating host memory");
  *state_->silent = 0;
  ncclUniqueId id;
  check_nccl(ncclGetUniqueId(&id), "starting NCCL");
  state_->crew.each([&](int gpu) {
    LinkedGpu& made = state_->gpus[gpu];
    check_nccl(ncclCommInitRank(&made.communicator, count, id, gpu), "connecting the GPUs");
    own_communicator = made.communicator;
    made.counters = Buffer(4 * sizeof(unsigned));
    check_cuda(cudaMemset(made.counters.as<void>(), 0, made.counters.bytes()), "clearing counters");
    made.window.open(made.communicator,
                     2 * std::max<std::int64_t>(slots, 1) * count * sizeof(Word));
    made.meeting.open(made.communicator, 2 * count * sizeof(Word));
  });
  for (int gpu = 0; gpu < count; ++gpu) {
    const LinkedGpu& made = state_->gpus[gpu];
    auto* const counters = made.counters.as<unsigned>();
    unsigned* const silent = state_->silent;
    state_->peers.push_back({made.window.registered, made.window.alone(count), gpu, count, slots,
                             counters, counters + 1, silent});
    state_->meeting.push_back({made.meeting.registered, made.meeting.alone(count), gpu, count, 1,
                               counters + 2, counters + 3, silent});
  }
}

Gpus::~Gpus() = default;

int Gpus::count() const { return static_cast<int>(state_->gpus.size()); }
const Peers& Gpus::peers(int gpu) const { return state_->peers[gpu]; }

void Gpus::each(const std::function<void(int gpu)>& work) const { state_->crew.each(work); }

void Gpus::synchronize() const {
  each([](int) { lnc::synchronize(); });
  if (*state_->silent == 0) return;
  const std::string silent = std::to_string(*state_->silent - 1);
  throw std::runtime_error("GPU " + silent + " has not sent a word that another waited for: has " +
                           "its launch failed?");
}

std::vector<double> Gpus::time(const std::function<void(int gpu)>& work,
                               const std::vector<int>& flushes) const {
  struct Events {
    std::vector<Event> starts, stops;
  };
  std::vector<Events> events(count());
  each([&](int gpu) {
    auto& [starts, stops] = events[gpu];
    starts = std::vector<Event>(flushes.size());
    stops = std::vector<Event>(flushes.size());
    state_->warm_up(gpu);
    for (std::size_t i = 0; i < flushes.size(); ++i) {
      state_->flush(gpu, flushes[i]);
      launch(meet, {1, kWarpSize}, state_->meeting[gpu]);
      starts[i].record();
      work(gpu);
      stops[i].record();
    }
  });
  synchronize();
  std::vector<double> slowest(flushes.size(), 0.0);
  for (const Events& of_gpu : events)
    for (std::size_t i = 0; i < flushes.size(); ++i)
      slowest[i] = std::max(slowest[i], microseconds(of_gpu.starts[i], of_gpu.stops[i]));
  return slowest;
}

#endif

}  // namespace lnc
