// The CUDA backend's device: memory, events, the L2 flush, and the kernels that calibrate times.
#include <array>
#include <cstdio>

#include "common/cuda/events.h"
#include "common/cuda/launch.h"
#include "common/harness/device.h"

namespace lnc {
namespace {

std::string first_line_of(const char* command) {
  std::array<char, 256> line{};
  if (FILE* pipe = popen(command, "r")) {
    if (std::fgets(line.data(), line.size(), pipe) == nullptr) line[0] = '\0';
    pclose(pipe);
  }
  std::string text = line.data();
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

Device query() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0)
    throw std::runtime_error(std::string("no usable NVIDIA GPU: ") + cudaGetErrorString(status) +
                             "; BACKEND=cpu runs without one");
  int index = 0;
  check_cuda(cudaGetDevice(&index), "asking for the current device");
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index), "asking for the device's properties");
  int runtime = 0;
  check_cuda(cudaRuntimeGetVersion(&runtime), "asking for the CUDA version");
  return {
      .name = properties.name,
      .backend = "cuda",
      .driver = first_line_of("nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0 "
                              "2>/dev/null"),
      .cuda = std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10),
      .gpu = current_gpu(),
      .emulated = false,
  };
}

const Buffer& flush_buffer() {
  static const Buffer buffer(kFlushBytes);
  return buffer;
}
void flush_l2() {
  check_cuda(cudaMemsetAsync(flush_buffer().as<void>(), 0, kFlushBytes), "flushing L2");
}

/// An idle GPU runs at a fraction of its clock; keeps it busy until the clock has risen.
void warm_up() {
  static const bool once = [] {
    constexpr int kFlushes = 3000;  // about 0.3 s on an H100
    for (int i = 0; i < kFlushes; ++i) flush_l2();
    synchronize();
    return true;
  }();
  (void)once;
}

__global__ void spin(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

template <int kReads, int kUnroll>
__global__ void stream(const float4* a, const float4* b, float4* c, std::int64_t count) {
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x * kUnroll + threadIdx.x;
  float4 value[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const std::int64_t at = first + i * std::int64_t{blockDim.x};
    if (at >= count) continue;
    value[i] = a[at];
    if constexpr (kReads == 2) {
      const float4 other = b[at];
      value[i].x += other.x;
      value[i].y += other.y;
      value[i].z += other.z;
      value[i].w += other.w;
    }
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const std::int64_t at = first + i * std::int64_t{blockDim.x};
    if (at < count) c[at] = value[i];
  }
}

template <int kReads, int kUnroll>
void launch_stream(const Buffer& a, const Buffer& b, const Buffer& c, std::int64_t count) {
  constexpr int kThreads = 256;
  const auto blocks =
      static_cast<unsigned>((count + kThreads * kUnroll - 1) / (kThreads * kUnroll));
  launch(stream<kReads, kUnroll>, {blocks, kThreads}, a.as<float4>(), b.as<float4>(),
         c.as<float4>(), count);
}

}  // namespace

const Device& device() {
  static const Device gpu = query();
  return gpu;
}

std::int64_t free_device_bytes() {
  flush_buffer();
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free device memory");
  return static_cast<std::int64_t>(free);
}

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0)
    check_cuda(cudaMalloc(&data_, bytes),
               "allocating " + std::to_string(bytes) + " bytes of device memory");
}
Buffer::~Buffer() { cudaFree(data_); }

void upload(void* to_device, const void* from_host, std::size_t bytes) {
  check_cuda(cudaMemcpy(to_device, from_host, bytes, cudaMemcpyHostToDevice), "an upload");
}
void download(void* to_host, const void* from_device, std::size_t bytes) {
  check_cuda(cudaMemcpy(to_host, from_device, bytes, cudaMemcpyDeviceToHost), "a download");
}
void copy_on_device(void* to, const void* from, std::size_t bytes) {
  check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice), "a copy on the device");
}
void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
               std::size_t bytes, std::size_t rows) {
  if (bytes == 0 || rows == 0) return;
  check_cuda(cudaMemcpy2D(to, to_pitch, from, from_pitch, bytes, rows, cudaMemcpyDefault),
             "copying rows");
}
void poison(const Buffer& buffer) {
  check_cuda(cudaMemset(buffer.as<void>(), 0xff, buffer.bytes()), "poisoning a buffer");
}
void synchronize() {
  check_cuda(cudaGetLastError(), "a launch");
  check_cuda(cudaDeviceSynchronize(), "running a kernel");
}

std::vector<Sample> time_launches(const std::vector<Launch>& launches,
                                  const std::vector<int>& flushes, std::size_t& turn, Host host) {
  warm_up();
  std::vector<Event> starts(flushes.size());
  std::vector<Event> stops(flushes.size());
  std::vector<Sample> samples(flushes.size());
  for (std::size_t i = 0; i < flushes.size(); ++i) {
    for (int flush = 0; flush < flushes[i]; ++flush) flush_l2();
    if (host == Host::Counted) synchronize();
    starts[i].record();
    launches[turn]();
    stops[i].record();
    samples[i].late = host == Host::Hidden && flushes[i] > 0 && starts[i].reached();
    turn = (turn + 1) % launches.size();
  }
  synchronize();
  for (std::size_t i = 0; i < flushes.size(); ++i)
    samples[i].us = microseconds(starts[i], stops[i]);
  return samples;
}

void launch_spin(long long cycles) { launch(spin, {1, 1}, cycles); }

void launch_stream(int shape, const Buffer& a, const Buffer& b, const Buffer& c) {
  const auto count = static_cast<std::int64_t>(c.bytes() / sizeof(float4));
  const auto with_unroll = [&]<int kReads>() {
    if (shape == 0) launch_stream<kReads, 1>(a, b, c, count);
    if (shape == 1) launch_stream<kReads, 2>(a, b, c, count);
    if (shape == 2) launch_stream<kReads, 4>(a, b, c, count);
  };
  if (b.bytes() == 0)
    with_unroll.template operator()<1>();
  else
    with_unroll.template operator()<2>();
}

}  // namespace lnc
