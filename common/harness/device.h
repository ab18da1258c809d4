// What the harness needs of a backend: memory, launches in the queue with events around them, and
// two kernels to measure against. Two files implement it, device_cuda.cu and device_cpu.cpp; a
// program is linked with one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/kernel/gpu.h"

namespace lnc {

struct Device {
  std::string name;     ///< "NVIDIA H100 80GB HBM3"
  std::string backend;  ///< "cuda" or "cpu"
  std::string driver;   ///< "580.159.04"; empty on the CPU
  std::string cuda;     ///< "13.0"; empty on the CPU
  Gpu gpu;              ///< for predictions; an H100's on the CPU
  bool emulated;        ///< times are the SIMT machine's and say nothing about a GPU
};

/// The device that everything below works on.
/// @throws std::runtime_error where the CUDA backend finds no usable GPU.
const Device& device();

/// Bytes of device memory that can be allocated now, after what timing itself needs.
std::int64_t free_device_bytes();

/// Device memory with an owner. Zero bytes are allowed.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);
  Buffer(Buffer&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr;
    other.bytes_ = 0;
  }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

void upload(void* to_device, const void* from_host, std::size_t bytes);
void download(void* to_host, const void* from_device, std::size_t bytes);
void copy_on_device(void* to, const void* from, std::size_t bytes);

/// Every bit set: a NaN in each of the three dtypes, so that an element nobody writes is found.
void poison(const Buffer& buffer);

/// Waits for the device. @throws std::runtime_error where a kernel since the last call failed.
void synchronize();

using Launch = std::function<void()>;  ///< puts kernels on the default stream and does not wait

/// Bytes that one flush of L2 writes: more than L2 holds, in about 0.1 ms.
inline constexpr std::int64_t kFlushBytes = 256 << 20;

/// Microseconds of a launch for each number in `flushes`, from the start of its first kernel to the
/// end of its last. So many times L2 is flushed before it, in the queue. The launches take turns.
/// @param turn whose turn is first; moves on
std::vector<double> time_launches(const std::vector<Launch>& launches,
                                  const std::vector<int>& flushes, std::size_t& turn);

/// Launches a kernel of one thread that spins for so many cycles. Not where the device is emulated.
void launch_spin(long long cycles);

/// Launches a kernel that streams tensors: c = a, or c = a + b where b has bytes. It comes in
/// kStreamShapes launch shapes. Not where the device is emulated.
inline constexpr int kStreamShapes = 3;
void launch_stream(int shape, const Buffer& a, const Buffer& b, const Buffer& c);

}  // namespace lnc
