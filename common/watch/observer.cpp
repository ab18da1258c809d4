#include "common/watch/observer.h"

#include <link.h>

#include <algorithm>

#include "common/simt/words.h"

namespace lnc {
namespace {

const std::string kWorkspace = "workspace";

/// "buffer 2", in the order of their addresses.
std::string number_of_buffer(const std::byte* address) {
  std::vector<const std::byte*> begins;
  for (const simt::DeviceBuffer& buffer : simt::device_buffers())
    if (!buffer.is_variable) begins.push_back(buffer.begin);
  const auto before =
      std::count_if(begins.begin(), begins.end(), [&](const auto* p) { return p <= address; });
  return "buffer " + std::to_string(before);
}

/// Whether it is called by its own name where there are tensors: the window of one of several GPUs,
/// or a `__device__` variable.
bool has_own_name(const simt::DeviceBuffer& buffer) {
  return buffer.is_variable || (buffer.gpu != simt::kNoGpu && !buffer.name.empty());
}

}  // namespace

Names::Names(const Tensors& tensors) {
  for (const Tensor& tensor : tensors.all()) {
    if (tensor.count() == 0) continue;
    const bool in_rows = tensor.shape() == Shape::Matrix && !tensor.rows().apart;
    ranges_.push_back({tensor.data(), tensor.bytes(), std::string(tensor.name()),
                       element_type(tensor.dtype()).bytes, in_rows ? tensors.problem().cols : 0});
  }
}

std::optional<Names::Range> Names::find(const std::byte* address) const {
  for (const Range& range : ranges_)
    if (address >= range.begin && address < range.begin + range.bytes) return range;
  const simt::DeviceBuffer* buffer = simt::device_buffer_of(address);
  if (buffer == nullptr && ranges_.empty()) buffer = simt::former_device_buffer_of(address);
  if (buffer == nullptr) return std::nullopt;
  if (!ranges_.empty() && !has_own_name(*buffer)) return std::nullopt;
  return own(*buffer);
}

Names::Range Names::own(const simt::DeviceBuffer& buffer) {
  return {buffer.begin, static_cast<std::int64_t>(buffer.bytes),
          buffer.name.empty() ? number_of_buffer(buffer.begin) : buffer.name,
          static_cast<std::int64_t>(buffer.element_bytes), 0};
}

std::string Names::tensor(const std::byte* address) const {
  const auto range = find(address);
  return range ? range->name : kWorkspace;
}

std::string Names::in_buffer(const std::byte* begin) const {
  if (ranges_.empty()) return tensor(begin);
  const simt::DeviceBuffer* const buffer = simt::device_buffer_of(begin);
  if (buffer != nullptr && has_own_name(*buffer)) return own(*buffer).name;
  for (const Range& range : ranges_)  // may start after the buffer does: Problem::misalign
    if (simt::device_buffer_of(range.begin) == buffer) return range.name;
  return "workspace";
}

std::string Names::element(const std::byte* address) const {
  if (const auto range = find(address)) {
    const simt::DeviceBuffer* const buffer = simt::device_buffer_of(address);
    const bool is_one_of_several = buffer != nullptr && buffer->gpu != simt::kNoGpu;
    const std::string of_gpu = is_one_of_several ? " of GPU " + std::to_string(buffer->gpu) : "";
    if (range->bytes == range->element_bytes) return range->name + of_gpu;
    const std::int64_t i = (address - range->begin) / range->element_bytes;
    if (range->cols == 0) return range->name + "[" + std::to_string(i) + "]" + of_gpu;
    return range->name + "[" + std::to_string(i / range->cols) + ", " +
           std::to_string(i % range->cols) + "]" + of_gpu;
  }
  for (const simt::DeviceBuffer& buffer : simt::device_buffers())
    if (address >= buffer.begin && address < buffer.begin + buffer.bytes)
      return kWorkspace + " + " + std::to_string(address - buffer.begin);
  return "memory of no tensor";
}

Names::Numbered Names::numbered(const std::byte* address) const {
  if (const auto range = find(address))
    return {range->name, (address - range->begin) / range->element_bytes};
  for (const simt::DeviceBuffer& buffer : simt::device_buffers())
    if (address >= buffer.begin && address < buffer.begin + buffer.bytes)
      return {kWorkspace, address - buffer.begin};
  return {"memory of no tensor", 0};
}

nlohmann::ordered_json Names::as_json() const {
  using Json = nlohmann::ordered_json;
  constexpr std::uintptr_t kLine = 128;
  const auto in_line = [](const std::byte* p) {
    return reinterpret_cast<std::uintptr_t>(p) % kLine;
  };
  Json all = Json::object();
  std::vector<Range> ranges = ranges_;
  for (const simt::DeviceBuffer& buffer : simt::device_buffers())
    if (ranges_.empty() || (has_own_name(buffer) && !buffer.is_variable))
      ranges.push_back(own(buffer));
  for (const Range& range : ranges) {
    const std::int64_t count = range.bytes / range.element_bytes;
    all[range.name] = {{"space", "device"},
                       {"shape", range.cols == 0 ? Json::array({count})
                                                 : Json::array({count / range.cols, range.cols})},
                       {"element_bytes", range.element_bytes},
                       {"starts_at", in_line(range.begin)}};
  }
  for (const simt::DeviceBuffer& buffer : simt::device_buffers()) {
    const bool of_tensor = std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
      return range.begin >= buffer.begin && range.begin < buffer.begin + buffer.bytes;
    });
    if (of_tensor || buffer.is_variable) continue;
    all[kWorkspace] = {{"space", "device"},
                       {"shape", Json::array({buffer.bytes})},
                       {"element_bytes", 1},
                       {"starts_at", in_line(buffer.begin)}};
  }
  return all;
}

std::uintptr_t load_address() {
  std::uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        *static_cast<std::uintptr_t*>(out) = info->dlpi_addr;
        return 1;  // the first entry is the program itself
      },
      &address);
  return address;
}

SharedMemory::SharedMemory(const simt::BlockInfo& block)
    : dynamic_(block.dynamic_shared),
      dynamic_bytes_(block.launch.shared_bytes),
      static_(block.static_shared),
      thread_index_(reinterpret_cast<const std::byte*>(&threadIdx)) {}

std::optional<SharedMemory::Place> SharedMemory::find(const std::byte* address) const {
  if (address >= dynamic_ && address < dynamic_ + dynamic_bytes_)
    return Place{"dynamic", address - dynamic_};
  for (const simt::DeviceBuffer& part : static_)
    if (address >= part.begin && address < part.begin + part.bytes)
      return Place{"static", address - thread_index_};
  return std::nullopt;
}

}  // namespace lnc
