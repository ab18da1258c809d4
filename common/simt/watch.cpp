#include "common/simt/watch.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "common/simt/block.h"
#include "common/simt/clock.h"
#include "common/simt/gpu.h"
#include "common/simt/symbols.h"

namespace simt {
namespace {

std::vector<DeviceBuffer>& known_buffers() {
  static std::vector<DeviceBuffer> buffers;
  return buffers;
}

// Those that were removed, in that order. They outlive the watchers, which write as the program
// ends.
std::vector<DeviceBuffer>& former_buffers() {
  static auto& buffers = *new std::vector<DeviceBuffer>;
  return buffers;
}

// Which memory an address is in; none if it is private to the thread.
std::optional<Space> space_of(const Block& block, const std::byte* p) {
  if (block.shared().holds(p)) {
    if (in_special_register(p) || block.shared().is_guard(p)) return std::nullopt;
    return Space::Shared;
  }
  if (device_buffer_of(p) != nullptr) return Space::Device;
  const Cluster& cluster = block.cluster();
  for (unsigned rank = 0; rank < cluster.size(); ++rank) {
    const Block* const other = cluster.block(rank);
    if (other != nullptr && other != &block && other->shared().holds(p)) return Space::Remote;
  }
  return std::nullopt;
}

void tell(Block& block, Place place, const void* address, std::uint32_t bytes, Kind kind,
          Scope scope = Scope::Device, bool past_l1 = false, bool is_word = false) {
  if (!block.is_watched()) return;
  const auto* const p = static_cast<const std::byte*>(address);
  if (const auto space = space_of(block, p)) {
    block.running().loaded_word = nullptr;
    block.witness().touches(block.running().number,
                            {place, p, bytes, kind, *space, scope, past_l1, is_word});
  }
}

}  // namespace

void add_device_buffer(const void* begin, std::size_t bytes) {
  auto& buffers = known_buffers();
  const DeviceBuffer buffer{static_cast<const std::byte*>(begin), bytes};
  const auto rising = [](const DeviceBuffer& a, const DeviceBuffer& b) {
    return a.begin < b.begin;
  };
  buffers.insert(std::upper_bound(buffers.begin(), buffers.end(), buffer, rising), buffer);
}
void name_device_buffer(const void* begin, std::string name, std::size_t element_bytes) {
  for (DeviceBuffer& buffer : known_buffers()) {
    if (buffer.begin != begin) continue;
    buffer.name = std::move(name);
    buffer.element_bytes = element_bytes;
  }
}
void set_buffer_gpu(const void* begin, int gpu) {
  for (DeviceBuffer& buffer : known_buffers())
    if (buffer.begin == begin) buffer.gpu = gpu;
}
bool is_across_link(const DeviceBuffer& buffer) {
  return gpu_here != nullptr && buffer.gpu != kNoGpu && buffer.gpu != gpu_here->number;
}
void remove_device_buffer(const void* begin) {
  std::erase_if(known_buffers(), [=](const DeviceBuffer& each) {
    if (each.begin == begin) former_buffers().push_back(each);
    return each.begin == begin;
  });
}
const DeviceBuffer* former_device_buffer_of(const std::byte* address) {
  const auto& former = former_buffers();
  const auto found = std::find_if(former.rbegin(), former.rend(), [=](const DeviceBuffer& each) {
    return address >= each.begin && address < each.begin + each.bytes;
  });
  return found == former.rend() ? nullptr : &*found;
}
const std::vector<DeviceBuffer>& device_buffers() { return known_buffers(); }
const DeviceBuffer* device_buffer_of(const std::byte* address) {
  const auto& buffers = known_buffers();
  const auto after = std::upper_bound(
      buffers.begin(), buffers.end(), address,
      [](const std::byte* at, const DeviceBuffer& buffer) { return at < buffer.begin; });
  if (after == buffers.begin()) return nullptr;
  const DeviceBuffer& buffer = *(after - 1);
  return address < buffer.begin + buffer.bytes ? &buffer : nullptr;
}

void add_device_variables() {
  static const bool added = [] {
    for (const Variable& each : variables()) {
      if (each.begin == nullptr || device_buffer_of(each.begin) != nullptr) continue;
      add_device_buffer(each.begin, each.bytes);
      name_device_buffer(each.begin, demangled(each.name), each.bytes % 4 == 0 ? 4 : 1);
      const_cast<DeviceBuffer*>(device_buffer_of(each.begin))->is_variable = true;
    }
    return true;
  }();
  (void)added;
}

Place here() { return current_block->running().place; }

void enters(Place place) {
  if (current_block == nullptr) return;
  give_way(place);
  current_block->witness().enters(current_block->running().number, place);
}
void touches(Place place, const void* address, std::uint32_t bytes, Kind kind) {
  if (current_block != nullptr) tell(*current_block, place, address, bytes, kind);
}
void updates(const void* address, std::uint32_t bytes, Scope scope) {
  tell(*Entered(), __builtin_return_address(0), address, bytes, Kind::Atomic, scope);
}
void loads_past_l1(const void* address, std::uint32_t bytes) {
  tell(*Entered(), __builtin_return_address(0), address, bytes, Kind::Load, Scope::Device, true);
}
void fence(Scope scope) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const Entered entered;
  Block& block = *entered;
  block.witness().fence(block.running().number, scope);
}
void stores_word(const void* to) {
  Block& block = *current_block;
  if (block.is_watched())
    tell(block, here(), to, kWordBytes, Kind::Store, Scope::System, false, true);
}
bool loads_word(const void* from) {
  Block& block = *current_block;
  Thread& self = block.running();
  const bool is_again = std::exchange(self.loaded_word, from) == from;
  const auto* const p = static_cast<const std::byte*>(from);
  if (!block.is_watched() || device_buffer_of(p) == nullptr) return true;
  return block.witness().loads_word(self.number, {.place = here(),
                                                  .address = p,
                                                  .bytes = kWordBytes,
                                                  .kind = Kind::Load,
                                                  .space = Space::Device,
                                                  .scope = Scope::System,
                                                  .is_word = true,
                                                  .is_again = is_again});
}
void launches_dependents() {
  const Entered entered;
  Block& block = *entered;
  block.witness().launches_dependents(block.running().number);
}

}  // namespace simt
