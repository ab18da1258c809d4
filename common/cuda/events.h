// Events in a stream, between which the GPU measures time.
#pragma once

#include <utility>

#include "common/cuda/launch.h"

namespace lnc {

/// An event of the GPU that is current when it is made.
class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "creating an event"); }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  void record() { check_cuda(cudaEventRecord(event_), "recording an event"); }
  /// Whether the device has reached the event.
  bool reached() const { return cudaEventQuery(event_) == cudaSuccess; }
  friend double microseconds(const Event& from, const Event& to) {
    float milliseconds = 0.0f;
    check_cuda(cudaEventElapsedTime(&milliseconds, from.event_, to.event_), "reading events");
    return 1e3 * milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace lnc
