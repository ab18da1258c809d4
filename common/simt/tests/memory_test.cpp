// What the sanitizers see through the SIMT machine. Built with -fsanitize=address,undefined
// -fno-sanitize-recover=all, the machine included.
//
// A sanitizer ends the process at the first fault, so each case runs in a child of its own:
// `memory_test CASE` runs one, `memory_test` runs all and checks how they end.
#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/kernel/hopper.h"

namespace kernels {

__global__ void copy(const float* in, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i];
}

__global__ void read_dynamic_shared(float* out, int at) {
  out[threadIdx.x] = lnc::dynamic_shared<float>()[at];
}

__global__ void read_static_shared(float* out, int at) {
  __shared__ float s[32];
  s[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = s[at];
}

[[gnu::noinline]] void store(float* array, int at) { array[at] = 1.0f; }

__global__ void write_past_local_array(float* out, int at) {
  float local[8] = {};
  store(local, at);
  __syncthreads();
  out[threadIdx.x] = local[at % 8];
}

// Everything that switches stacks, with locals that live across the switches.
__global__ void correct(float* out) {
  __shared__ float partial[32];
  float* dynamic = lnc::dynamic_shared<float>();
  float local[8];
  for (int i = 0; i < 8; ++i) local[i] = static_cast<float>(threadIdx.x + i);
  float sum = 0;
  for (const float& value : local) {
    float part = value;
    for (int offset = 16; offset > 0; offset /= 2)
      part += __shfl_xor_sync(0xFFFF'FFFF, part, offset);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = part;
    __syncthreads();
    dynamic[threadIdx.x] = partial[threadIdx.x % (blockDim.x / 32)];
    __syncthreads();
    sum += dynamic[(threadIdx.x + 1) % blockDim.x];
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

__global__ void copy_in_bulk(const float* in, float* out, unsigned bytes) {
  __shared__ lnc::Barrier barrier;
  float* const dynamic = lnc::dynamic_shared<float>();
  barrier.init(1);
  lnc::fence_barrier_init();
  barrier.arrive_and_expect(bytes);
  lnc::bulk_load(dynamic, in, bytes, barrier);
  barrier.wait(0);
  lnc::fence_proxy_async();
  lnc::bulk_store(out, dynamic, bytes);
  lnc::commit_bulk_stores();
  lnc::wait_bulk_stores_read<0>();
}

__global__ void next_block(float* out) {
  __shared__ float own;
  if (threadIdx.x == 0) own = static_cast<float>(blockIdx.x);
  lnc::cluster_sync();
  const unsigned next = (lnc::cluster_rank() + 1) % lnc::cluster_size();
  if (threadIdx.x == 0) out[blockIdx.x] = lnc::remote_load(&own, next);
  lnc::cluster_sync();
}

__global__ void early_return() {
  std::vector<int> owned(8);  // unwinding must free it
  if (threadIdx.x >= 16) return;
  __syncthreads();
}

}  // namespace kernels

namespace {

struct Case {
  const char* name;
  const char* report;  // what the sanitizer must say; nullptr: nothing, and the child succeeds
  std::function<void()> run;
};

// 512 bytes, from and to buffers that may be shorter.
void copy_in_bulk(int in_bytes, int out_bytes, unsigned shared_bytes) {
  const auto in = std::make_unique<float[]>(in_bytes / 4);
  const auto out = std::make_unique<float[]>(out_bytes / 4);
  lnc::launch(kernels::copy_in_bulk, {1, 1, shared_bytes}, in.get(), out.get(), 512u);
}

const std::vector<Case> kCases = {
    {"correct kernel", nullptr,
     [] {
       for (const auto order : {simt::Order::Forward, simt::Order::Reverse, simt::Order::Random}) {
         simt::set_schedule({order, 1});
         const auto out = std::make_unique<float[]>(20 * 256);
         lnc::launch(kernels::correct, {20, 256, 256 * sizeof(float)}, out.get());
         for (int i = 0; i < 20 * 256; ++i) {
           if (!std::isfinite(out[i])) std::exit(3);
         }
       }
     }},
    {"fault unwinds cleanly", nullptr,
     [] {
       for (int i = 0; i < 3; ++i) {
         try {
           lnc::launch(kernels::early_return, {40, 64});
           std::exit(3);
         } catch (const simt::Fault&) {
         }
       }
       const auto out = std::make_unique<float[]>(256);
       lnc::launch(kernels::correct, {1, 256, 256 * sizeof(float)}, out.get());
     }},
    {"read past a device buffer", "heap-buffer-overflow",
     [] {
       const auto in = std::make_unique<float[]>(99), out = std::make_unique<float[]>(100);
       lnc::launch(kernels::copy, {4, 32}, in.get(), out.get(), 100);
     }},
    {"write past a device buffer", "heap-buffer-overflow",
     [] {
       const auto in = std::make_unique<float[]>(100), out = std::make_unique<float[]>(99);
       lnc::launch(kernels::copy, {4, 32}, in.get(), out.get(), 100);
     }},
    {"clusters of many sizes", nullptr,  // more cores and fewer, so that their memory changes hands
     [] {
       for (int i = 0; i < 40; ++i) {
         const unsigned size = 1 + i * 7 % 16;
         std::vector<float> out(3 * size);
         lnc::launch(kernels::next_block, {3 * size, 64, 0, nullptr, size}, out.data());
         for (unsigned block = 0; block < 3 * size; ++block)
           if (out[block] != static_cast<float>(block / size * size + (block + 1) % size))
             std::exit(3);
       }
     }},
    {"bulk copies within their buffers", nullptr, [] { copy_in_bulk(512, 512, 512); }},
    {"bulk load past a device buffer", "heap-buffer-overflow", [] { copy_in_bulk(508, 512, 512); }},
    {"bulk load past shared memory", "heap-buffer-overflow", [] { copy_in_bulk(512, 512, 508); }},
    {"bulk store past a device buffer", "heap-buffer-overflow",
     [] { copy_in_bulk(512, 508, 512); }},
    {"read past dynamic shared memory", "heap-buffer-overflow",
     [] {
       const auto out = std::make_unique<float[]>(32);
       lnc::launch(kernels::read_dynamic_shared, {1, 32, 33 * sizeof(float)}, out.get(), 33);
     }},
    {"read dynamic shared memory of size 0", "heap-buffer-overflow",
     [] {
       const auto out = std::make_unique<float[]>(32);
       lnc::launch(kernels::read_dynamic_shared, {1, 32}, out.get(), 0);
     }},
    {"read past static shared memory", "index 33 out of bounds",
     [] {
       const auto out = std::make_unique<float[]>(32);
       lnc::launch(kernels::read_static_shared, {1, 32}, out.get(), 33);
     }},
    {"write past a local array", "stack-buffer-overflow",
     [] {
       const auto out = std::make_unique<float[]>(32);
       lnc::launch(kernels::write_past_local_array, {1, 32}, out.get(), 8);
     }},
};

// Runs one case in a child; returns what is wrong with how it ended, or "".
std::string verdict(const std::string& self, const Case& c) {
  std::FILE* const pipe = popen(("'" + self + "' '" + c.name + "' 2>&1").c_str(), "r");
  if (pipe == nullptr) return "cannot start a child";
  std::string output;
  for (int ch; (ch = std::fgetc(pipe)) != EOF;) output += static_cast<char>(ch);
  const int status = pclose(pipe);
  const bool succeeded = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (c.report == nullptr && succeeded && output.empty()) return "";
  if (c.report != nullptr && !succeeded && output.find(c.report) != std::string::npos) return "";
  return std::string("expected ") + (c.report ? c.report : "a silent success") + ", got status " +
         std::to_string(status) + " and:\n" + output;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) {
    for (const Case& c : kCases) {
      if (c.name == std::string(argv[1])) return c.run(), 0;
    }
    std::fprintf(stderr, "memory_test has no case '%s'\n", argv[1]);
    return 2;
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  int failures = 0;
  for (const Case& c : kCases) {
    const std::string problem = verdict(self, c);
    std::printf("%s  %s%s%s\n", problem.empty() ? "ok    " : "FAILED", c.name,
                problem.empty() ? "" : ": ", problem.c_str());
    if (!problem.empty()) ++failures;
  }
  return failures == 0 ? 0 : 1;
}
