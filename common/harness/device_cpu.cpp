// The CPU backend's device: host memory, and wall time, which is always reported as emulated.
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "common/harness/device.h"
#include "common/harness/host_memory.h"
#include "common/simt/crashes.h"
#include "common/simt/launch.h"
#include "common/simt/machine.h"

namespace lnc {
const Device& device() {
  (void)simt::schedule();  // a bad SIMT_SCHEDULE ends the program before anything runs
  static const Device cpu{
      .name = "CPU, " + std::to_string(std::thread::hardware_concurrency()) + " cores",
      .backend = "cpu",
      .driver = "",
      .cuda = "",
      .gpu = current_gpu(),
      .emulated = true,
  };
  return cpu;
}

std::int64_t free_device_bytes() { return free_host_bytes(); }

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) { data_ = simt::allocate_buffer(bytes); }
Buffer::~Buffer() { simt::free_buffer(data_); }

void upload(void* to_device, const void* from_host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to_device, from_host, bytes);
}
void download(void* to_host, const void* from_device, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to_host, from_device, bytes);
}
void copy_on_device(void* to, const void* from, std::size_t bytes) { upload(to, from, bytes); }
void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
               std::size_t bytes, std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row)
    upload(static_cast<std::byte*>(to) + row * to_pitch,
           static_cast<const std::byte*>(from) + row * from_pitch, bytes);
}
void poison(const Buffer& buffer) {
  if (buffer.bytes() > 0) std::memset(buffer.as<void>(), 0xff, buffer.bytes());
}
void synchronize() {}  // a launch returns only after its last block has ended

std::vector<Sample> time_launches(const std::vector<Launch>& launches,
                                  const std::vector<int>& flushes, std::size_t& turn, Host) {
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < flushes.size(); ++i) {
    const auto start = std::chrono::steady_clock::now();
    launches[turn]();
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - start;
    samples.push_back({.us = elapsed.count(), .late = false});
    turn = (turn + 1) % launches.size();
  }
  return samples;
}

void launch_spin(long long) { throw std::logic_error("an emulated device has no clock"); }
void launch_stream(int, const Buffer&, const Buffer&, const Buffer&) {
  throw std::logic_error("an emulated device has no roof");
}

}  // namespace lnc
