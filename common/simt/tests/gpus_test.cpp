// Several GPUs whose kernels send each other words while they run.
#include "common/simt/gpus.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/simt/crashes.h"
#include "common/simt/hopper.h"
#include "common/simt/peers.h"
#include "common/simt/tests/faults.h"
#include "common/simt/tests/under.h"

using lnc::launch;
using lnc::LaunchConfig;
using simt::fault_of;
using simt::has;
using simt::kSchedules;
using simt::run_on_gpus;
using simt::Under;

namespace {

struct alignas(16) Word {
  float first, second, third;
  unsigned epoch;
};

/// A window of words in each GPU.
class Words {
 public:
  Words(int gpus, int words) {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      bases_.push_back(static_cast<std::byte*>(simt::allocate_buffer(words * sizeof(Word))));
      std::fill_n(reinterpret_cast<Word*>(bases_.back()), words, Word{});
    }
    window_ = simt::make_window(bases_);
  }
  ~Words() {
    for (std::byte* base : bases_) simt::free_buffer(base);
  }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  operator ncclWindow_t() const { return window_.get(); }

 private:
  std::vector<std::byte*> bases_;
  std::unique_ptr<simt::Window> window_;
};

}  // namespace

namespace kernels {

__device__ Word* word_of(ncclWindow_t window, int number, int gpu) {
  return static_cast<Word*>(ncclGetLsaPointer(window, number * sizeof(Word), gpu));
}
__device__ Word wait_for(ncclWindow_t window, int number, unsigned epoch) {
  const Word* const from =
      static_cast<const Word*>(ncclGetLocalPointer(window, number * sizeof(Word)));
  Word word = lnc::load_word(from);
  while (word.epoch != epoch) word = lnc::load_word(from);
  return word;
}

// Each block sends a value to the same block of each GPU, and adds up what it gets.
__global__ void sum_over_gpus(ncclWindow_t window, int gpu, int gpus, unsigned epoch, float* out) {
  const int slot = (epoch % 2 * gridDim.x + blockIdx.x) * gpus;
  __shared__ float of_gpu[8];
  const int peer = threadIdx.x;
  if (peer < gpus) {
    const float mine = static_cast<float>((gpu + 1) * (blockIdx.x + 1)) + epoch;
    lnc::store_word(word_of(window, slot + gpu, peer), {mine, -mine, 0.0f, epoch});
    const Word word = wait_for(window, slot + peer, epoch);
    of_gpu[peer] = word.first - word.second;
  }
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < gpus; ++i) sum += of_gpu[i];
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// All blocks wait for what the last one of each GPU sends.
__global__ void last_tells_all(ncclWindow_t window, int gpu) {
  if (threadIdx.x != 0) return;
  for (int to = 0; to < 2 && blockIdx.x == gridDim.x - 1; ++to)
    lnc::store_word(word_of(window, gpu, to), {1, 2, 3, 1});
  for (int from = 0; from < 2; ++from) wait_for(window, from, 1);
}

__global__ void waits_for(ncclWindow_t window, unsigned epoch) {
  if (threadIdx.x == 0) wait_for(window, 3, epoch);
}
__global__ void tells(ncclWindow_t window, int number, int gpu, unsigned epoch) {
  if (threadIdx.x == 0) lnc::store_word(word_of(window, number, gpu), {0, 0, 0, epoch});
}

__global__ void stores_at(ncclWindow_t window, std::size_t offset) {
  if (threadIdx.x == 0)
    lnc::store_word(static_cast<Word*>(ncclGetLsaPointer(window, offset, 1)), {});
}

// In one round of its warps.
__global__ void works_long_and_tells(ncclWindow_t window, int number, int gpu, unsigned epoch) {
  const long long start = clock64();
  while (__all_sync(~0u, clock64() - start < 1'000'000'000)) {
  }
  if (threadIdx.x == 0) lnc::store_word(word_of(window, number, gpu), {0, 0, 0, epoch});
}

__global__ void half_a_barrier() {
  if (threadIdx.x == 0) __syncthreads();
}

// Rows come by bulk copies, a warp for each stage; the sum of a row meets that of the other GPU.
__global__ void rows_by_copies(ncclWindow_t window, int gpu, const float* x, float* out, int rows,
                               unsigned epoch) {
  constexpr int kStages = 2, kCols = 64;
  alignas(128) __shared__ float slot[kStages][kCols];
  __shared__ lnc::Barrier full[kStages], empty[kStages];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].init(1);
      empty[stage].init(1);
    }
    lnc::fence_barrier_init();
  }
  __syncthreads();
  for (int row = blockIdx.x, n = 0; row < rows; row += gridDim.x, ++n) {
    const int stage = n % kStages, parity = n / kStages % 2;
    if (warp == 0) {
      if (lane != 0) continue;
      empty[stage].wait(parity ^ 1);
      full[stage].arrive_and_expect(sizeof slot[stage]);
      lnc::bulk_load(slot[stage], x + row * kCols, sizeof slot[stage], full[stage]);
    } else {
      full[stage].wait(parity);
      float sum = slot[stage][lane] + slot[stage][lane + 32];
      for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
      lnc::fence_proxy_async();
      __syncwarp();
      if (lane != 0) continue;
      empty[stage].arrive();
      const int place = epoch % 2 * rows + row;
      lnc::store_word(word_of(window, place, 1 - gpu), {sum, 0, 0, epoch});
      out[row] = sum + wait_for(window, place, epoch).first;
    }
  }
}

__global__ void pair_and_gpus(ncclWindow_t window, int gpu, float* out) {
  __shared__ float of_block;
  const unsigned rank = lnc::cluster_rank();
  if (threadIdx.x == 0) {
    const int place = blockIdx.x;
    lnc::store_word(word_of(window, place, 1 - gpu), {1.0f + gpu, 0, 0, 1});
    of_block = wait_for(window, place, 1).first;
  }
  lnc::cluster_sync();
  if (threadIdx.x == 0) out[blockIdx.x] = of_block + 10 * lnc::remote_load(&of_block, 1 - rank);
  lnc::cluster_sync();
}

__global__ void early(float* out) {
  lnc::grid_dependency_wait();
  if (threadIdx.x == 0) out[blockIdx.x] += 1.0f;
}

__global__ void what_it_is(int* gpu) { *gpu = simt::current_gpu(); }

}  // namespace kernels

TEST_CASE("each of 1 to 4 GPUs adds up what all send, launch after launch") {
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);
    for (const int gpus : {1, 2, 3, 4}) {
      constexpr int kBlocks = 3, kLaunches = 5;
      const Words window(gpus, 2 * kBlocks * gpus);
      std::vector<std::vector<float>> out(gpus, std::vector<float>(kBlocks * kLaunches));
      run_on_gpus(gpus, [&](int gpu) {
        for (int i = 0; i < kLaunches; ++i)
          launch(kernels::sum_over_gpus, {kBlocks, 160}, window, gpu, gpus, i + 1u,
                 &out[gpu][i * kBlocks]);
      });
      for (int i = 0; i < kLaunches; ++i)
        for (int block = 0; block < kBlocks; ++block) {
          const float sum = (block + 1) * gpus * (gpus + 1) / 2 + gpus * (i + 1);
          for (const auto& of_gpu : out) CHECK(of_gpu[i * kBlocks + block] == 2 * sum);
        }
    }
  }
}

TEST_CASE("a GPU is one of several only inside, and runs as many blocks as it holds") {
  CHECK(lnc::multiprocessors() == 132);
  int number = -1;
  std::atomic<int> sum = 0;
  run_on_gpus(3, [&](int gpu) {
    sum += simt::current_gpu();
    int of_kernel = -1;
    launch(kernels::what_it_is, {1, 1}, &of_kernel);
    CHECK(of_kernel == gpu);
    if (gpu == 2) number = lnc::multiprocessors();
  });
  CHECK(sum == 3);
  CHECK(number == 2);
  CHECK(simt::current_gpu() == 0);
  CHECK(lnc::multiprocessors() == 132);
  CHECK_THROWS_AS(run_on_gpus(0, [](int) {}), std::invalid_argument);
  CHECK_THROWS_AS(run_on_gpus(9, [](int) {}), std::invalid_argument);
}

TEST_CASE("grids may differ, and all blocks that a GPU holds are there at once") {
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);
    const Words window(2, 2);
    run_on_gpus(2, [&](int gpu) {  // each of 2 multiprocessors holds 3 blocks of 320 threads
      launch(kernels::last_tells_all, {gpu == 0 ? 6u : 1u, 320}, window, gpu);
    });
  }
}

TEST_CASE("of a larger grid some blocks have not started, as a fault says") {
  const Under under({.patience = std::chrono::duration<double>(0.3)});
  const Words window(2, 2);
  const std::string fault = fault_of([&] {
    run_on_gpus(2, [&](int gpu) {
      launch(kernels::last_tells_all, {gpu == 0 ? 8u : 7u, 320}, window, gpu);
    });
  });
  INFO(fault);
  const std::string of_gpu_0 = "2 blocks have not started, since the GPU holds 6 at once";
  const std::string of_gpu_1 = "1 block has not started, since the GPU holds 6 at once";
  CHECK(has(fault, has(fault, "GPU 0, block (") ? of_gpu_0 : of_gpu_1));
  CHECK(has(fault, " of a buffer of 32 bytes, to which no thread has stored a word, at "));
}

TEST_CASE("a wait for a word that never comes ends with its line, its word and its GPU") {
  const Under under({.patience = std::chrono::duration<double>(0.3)});
  const Words window(2, 4);
  const auto start = std::chrono::steady_clock::now();
  const std::string fault = fault_of([&] {
    run_on_gpus(2, [&](int gpu) {
      if (gpu == 1) launch(kernels::waits_for, {1, 64}, window, 7u);
    });
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(took.count() < 3.0);
  CHECK(has(fault, "kernel kernels::waits_for, GPU 1, block (0, 0, 0): its threads spin"));
  CHECK(has(fault,
            "thread 0: spinning on byte 48 of a buffer of 64 bytes, to which no thread has "
            "stored a word, at common/simt/tests/gpus_test.cpp:"));
  CHECK(has(fault, "since every other thread waits, spins or has ended"));
}

TEST_CASE("a wait for a word that the next one has overwritten says so") {
  const Under under({.patience = std::chrono::duration<double>(0.3)});
  const Words window(2, 4);
  const auto tell_and_wait = [&](std::vector<unsigned> epochs, unsigned wanted) {
    return fault_of([&] {
      std::atomic<bool> told = false;
      run_on_gpus(2, [&](int gpu) {
        if (gpu == 0) {
          for (const unsigned epoch : epochs) launch(kernels::tells, {1, 32}, window, 3, 1, epoch);
          told = true;
        } else {
          while (!told) std::this_thread::yield();
          launch(kernels::waits_for, {1, 32}, window, wanted);
        }
      });
    });
  };
  CHECK(has(tell_and_wait({5, 6}, 5),
            "a word of epoch 6 that overwrote the word of epoch 5 before it was read, at "));
  CHECK(has(tell_and_wait({5}, 6), "a word of epoch 5, at "));
}

TEST_CASE("a GPU whose host thread still works is waited for") {
  const Under under({.patience = std::chrono::duration<double>(0.1)});
  const Words window(2, 4);
  run_on_gpus(2, [&](int gpu) {
    if (gpu == 0) return launch(kernels::waits_for, {1, 32}, window, 7u);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    launch(kernels::tells, {1, 32}, window, 3, 0, 7u);
  });
}

TEST_CASE("a host thread that launches nothing is not waited for without end") {
  const Under under({.patience = std::chrono::duration<double>(0.05)});
  const Words window(2, 4);
  const std::string fault = fault_of([&] {
    run_on_gpus(2, [&](int gpu) {
      if (gpu == 0) return launch(kernels::waits_for, {1, 32}, window, 7u);
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    });
  });
  CHECK(has(fault, "what they wait for does not come, and another GPU runs no kernel"));
}

TEST_CASE("a GPU that works without a stop is waited for") {
  const Under under({.patience = std::chrono::duration<double>(0.1)});
  const Words window(2, 4);
  run_on_gpus(2, [&](int gpu) {
    if (gpu == 0) return launch(kernels::waits_for, {1, 32}, window, 7u);
    launch(kernels::works_long_and_tells, {1, 32}, window, 3, 0, 7u);
  });
}

TEST_CASE("a failure of one GPU ends the others, and is what is said") {
  const Under under({.patience = std::chrono::duration<double>(20)});
  const Words window(2, 4);
  bool went_on = false;
  const auto start = std::chrono::steady_clock::now();
  const std::string fault = fault_of([&] {
    run_on_gpus(2, [&](int gpu) {
      if (gpu == 1) launch(kernels::half_a_barrier, {1, 32});
      if (gpu == 0) launch(kernels::waits_for, {1, 64}, window, 7u);
      went_on = true;
    });
  });
  CHECK(has(fault, "kernels::half_a_barrier, GPU 1, block (0, 0, 0): not every thread"));
  CHECK_FALSE(went_on);
  CHECK_THROWS_WITH(run_on_gpus(2,
                                [&](int gpu) {
                                  if (gpu == 1) throw std::runtime_error("of the host");
                                  launch(kernels::waits_for, {1, 64}, window, 7u);
                                }),
                    "of the host");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(took.count() < 10.0);
}

TEST_CASE("a peer or a place that there is not is a fault") {
  const Words window(2, 4);
  const std::string fault = fault_of([&] {
    run_on_gpus(2, [&](int gpu) { launch(kernels::tells, {1, 32}, window, 3, gpu + 1, 7u); });
  });
  CHECK(has(fault,
            "GPU 1, block (0, 0, 0): thread 0 asks for the window of GPU 2, and there are 2 GPUs, "
            "at common/simt/tests/gpus_test.cpp:"));
  const auto fault_of_place = [&](std::size_t offset) {
    return fault_of([&] {
      run_on_gpus(2, [&](int gpu) {
        if (gpu == 0) launch(kernels::stores_at, {1, 32}, window, offset);
      });
    });
  };
  CHECK(has(fault_of_place(65), "thread 0 asks for byte 65 of a window of 64 bytes, at common/"));
  CHECK(has(fault_of_place(24), "thread 0 names a word whose address is not a multiple of 16, at"));
}

TEST_CASE("copies, Barriers and stages work beside messages") {
  constexpr int kRows = 10, kCols = 64;
  std::vector<float*> x;
  for (int gpu = 0; gpu < 2; ++gpu) {
    x.push_back(static_cast<float*>(simt::allocate_buffer(kRows * kCols * sizeof(float))));
    for (int i = 0; i < kRows * kCols; ++i) x[gpu][i] = static_cast<float>(gpu + i / kCols);
  }
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);
    const Words window(2, 2 * kRows);
    std::vector<std::vector<float>> out(2, std::vector<float>(kRows));
    run_on_gpus(2, [&](int gpu) {
      for (unsigned epoch = 1; epoch < 4; ++epoch)
        launch(kernels::rows_by_copies, {3, 64}, window, gpu, x[gpu], out[gpu].data(), kRows,
               epoch);
    });
    for (int row = 0; row < kRows; ++row) {
      CHECK(out[0][row] == 64.0f * (2 * row + 1));
      CHECK(out[1][row] == out[0][row]);
    }
  }
  for (float* each : x) simt::free_buffer(each);
}

TEST_CASE("clusters, and kernels that start early") {
  for (const simt::Schedule schedule : kSchedules) {
    const Under under(schedule);
    const Words window(2, 4);
    std::vector<std::vector<float>> out(2, std::vector<float>(4));
    run_on_gpus(2, [&](int gpu) {
      launch(kernels::pair_and_gpus, {4, 32, 0, nullptr, 2}, window, gpu, out[gpu].data());
      launch(kernels::early, {4, 32, 0, nullptr, 0, true}, out[gpu].data());
    });
    for (int block = 0; block < 4; ++block) {
      CHECK(out[0][block] == 23.0f);
      CHECK(out[1][block] == 12.0f);
    }
  }
}
