// What the three tools that watch a chapter have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/harness/tensors.h"
#include "common/simt/watch.h"

namespace lnc {

/// Names for the elements of device memory.
class Names {
 public:
  explicit Names(const Tensors& tensors);
  /// Of a program without tensors: its buffers are numbered.
  Names() = default;

  /// The tensor that holds the address; "workspace" for every other buffer.
  std::string tensor(const std::byte* address) const;
  /// The tensor in the buffer that begins at this address.
  std::string in_buffer(const std::byte* begin) const;
  /// "x[12, 5]", "mean[12]"; "workspace + 512" in bytes.
  std::string element(const std::byte* address) const;

  /// An element by its row-major index; in the workspace, a byte by its offset.
  struct Numbered {
    std::string tensor;
    std::int64_t number;
  };
  Numbered numbered(const std::byte* address) const;
  /// The tensors and the workspace: their shapes, bytes per element, and start within a cache line
  /// of 128 bytes.
  nlohmann::ordered_json as_json() const;

 private:
  struct Range {
    const std::byte* begin;
    std::int64_t bytes;
    std::string name;
    std::int64_t element_bytes;
    std::int64_t cols;  // of a matrix; 0: it has one dimension
  };
  /// A tensor, or in a program from elsewhere a buffer.
  std::optional<Range> find(const std::byte* address) const;

  static Range own(const simt::DeviceBuffer& buffer);

  std::vector<Range> ranges_;  // none in a program from elsewhere
};

/// The shared memory of a block. A byte of a `__shared__` is identified by its distance from
/// threadIdx, which is also a thread-local variable and has debug information.
class SharedMemory {
 public:
  /// Must run on the block's own core, whose thread-local variables it uses.
  explicit SharedMemory(const simt::BlockInfo& block);

  /// A byte of its "dynamic" or its "static" part.
  struct Place {
    const char* part;
    std::int64_t byte;
  };
  std::optional<Place> find(const std::byte* address) const;

 private:
  const std::byte* dynamic_;
  std::size_t dynamic_bytes_;
  std::vector<simt::DeviceBuffer> static_;
  const std::byte* thread_index_;
};

/// Watches all launches of a chapter, and reports what it has seen.
class Observer : public simt::Watch {
 public:
  /// For the tool's own script; places are numbers.
  virtual nlohmann::ordered_json seen() const = 0;
};

/// What a tool keeps of a launch that is running, in a vector of pointers. Several GPUs run at
/// once, so it is not always the last; `of` points to the launch that Watch::begins got.
template <typename Launches>
auto& running_launch(Launches& launches, const simt::Launch& launch) {
  return **std::find_if(launches.rbegin(), launches.rend(),
                        [&](const auto& each) { return each->of == &launch; });
}

/// The address at which the program was loaded: debug information gives places relative to it.
std::uintptr_t load_address();

/// A place as a number.
inline std::uint64_t number_of(simt::Place place) { return reinterpret_cast<std::uint64_t>(place); }

/// @param elements of the problem; where there are very many, only some blocks are counted
std::unique_ptr<Observer> count_requests(const Names& names, std::int64_t elements);
std::unique_ptr<Observer> find_races(const Names& names);
/// @param block whose events are recorded, in each launch
std::unique_ptr<Observer> trace_block(const Names& names, std::uint64_t block);

}  // namespace lnc
