// What the harness needs of a backend. Two files implement it: common/harness/device_cuda.cu and
// common/harness/device_cpu.cpp; a program is linked with one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/kernel/description.h"

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

/// The facts about the GPU that is current in the calling thread; an H100's on the CPU. Unlike
/// `device`, it asks each time, and starts no other program.
Gpu current_gpu();

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

/// Every bit set: a NaN in each of the three dtypes, so that an element nobody writes is found.
void poison(const Buffer& buffer);

/// Waits for the device. @throws std::runtime_error where a kernel since the last call failed.
void synchronize();

/// Microseconds of each of `count` calls of `launch`, from the start of its first kernel to the end
/// of its last. `cold` overwrites a buffer larger than L2 before each.
std::vector<double> time_launches(const std::function<void()>& launch, int count, bool cold);

/// How event times turn into cycles. A kernel that spins for a known number of cycles, at two
/// lengths, gives a line: its slope is the SM clock, where it meets zero is what the events add.
struct Clock {
  double cycles_per_us;
  double overhead_us;

  double cycles(double event_us) const { return (event_us - overhead_us) * cycles_per_us; }
};
std::optional<Clock> measure_clock();

/// Microseconds that the device needs to stream tensors of `bytes` each: a copy (one read, one
/// write) for forward, a triad (two reads, one write) for backward. Median of `count`, the best of
/// a few launch shapes; none where the device is emulated, there is nothing to stream, or the
/// tensors do not fit in device memory beside what is there.
std::optional<double> roof_us(Direction direction, std::int64_t bytes, bool cold, int count);

}  // namespace lnc
