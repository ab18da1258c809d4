// What the harness needs from a backend: memory, launches timed by events in the queue, and two
// kernels that calibrate these times. device_cuda.cu and device_cpu.cpp implement it; a program
// links one of them.
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
  bool emulated;        ///< times come from the SIMT machine and say nothing about a GPU
};

/// The device that everything below uses.
/// @throws std::runtime_error if the CUDA backend finds no usable GPU.
const Device& device();

/// Bytes of device memory that can be allocated now, not counting what timing itself needs.
std::int64_t free_device_bytes();

/// Owns device memory. Zero bytes are allowed.
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
/// Copies `rows` rows of `bytes` each, which start `to_pitch` and `from_pitch` bytes apart, also
/// from one GPU to another.
void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
               std::size_t bytes, std::size_t rows);

/// Sets every bit: a NaN in each of the three dtypes, so that the check finds unwritten elements.
void poison(const Buffer& buffer);

/// Waits for the device. @throws std::runtime_error if a kernel has failed since the last call.
void synchronize();

using Launch = std::function<void()>;  ///< enqueues kernels on the default stream; does not wait

/// Bytes that one flush of L2 writes, in about 0.1 ms: more than L2 holds.
inline constexpr std::int64_t kFlushBytes = 256 << 20;

struct Sample {
  double us;  ///< from the start of the launch's first kernel to the end of its last
  bool late;  ///< the device was waiting for the host, so `us` may include the host's time
};

/// Whether the host enqueues a launch while the device is still flushing L2, or only after that, so
/// that a sample includes the host's time.
enum class Host { Hidden, Counted };

/// Times one launch for each number in `flushes`, which says how often L2 is flushed before it, in
/// the queue.
/// @param turn index of the launch to use first; the launches are used in turn
std::vector<Sample> time_launches(const std::vector<Launch>& launches,
                                  const std::vector<int>& flushes, std::size_t& turn, Host host);

/// Launches a kernel of one thread that spins for `cycles`. Not available on an emulated device.
void launch_spin(long long cycles);

/// Launches a kernel that streams tensors: c = a, or c = a + b if b is not empty. It has
/// kStreamShapes launch shapes. Not available on an emulated device.
inline constexpr int kStreamShapes = 3;
void launch_stream(int shape, const Buffer& a, const Buffer& b, const Buffer& c);

}  // namespace lnc
