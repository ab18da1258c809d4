#include "common/simt/shared_memory.h"

#include <link.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "common/simt/stacks.h"
#include "common/simt/symbols.h"

namespace simt {
namespace {

constexpr std::byte kUntouched{0xFF};

// This core's copy of the thread-local variables of the program, or of the library that contains
// this machine. They include every __shared__, and `found` itself.
std::span<std::byte> thread_local_variables() {
  thread_local std::span<std::byte> found;
  if (!found.empty()) return found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        for (const auto& part : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
          if (part.p_type != PT_TLS || info->dlpi_tls_data == nullptr) continue;
          const std::span variables(static_cast<std::byte*>(info->dlpi_tls_data), part.p_memsz);
          auto* const here = static_cast<std::byte*>(out);
          if (here < variables.data() || here >= variables.data() + variables.size()) continue;
          *static_cast<std::span<std::byte>*>(out) = variables;
          return 1;
        }
        return 0;
      },
      &found);
  return found;
}

// In ascending order of address.
std::array<DeviceBuffer, 4> special_registers() {
  const auto place_of = [](const auto& variable) {
    return DeviceBuffer{reinterpret_cast<const std::byte*>(&variable), sizeof variable};
  };
  std::array registers{place_of(threadIdx), place_of(blockIdx), place_of(blockDim),
                       place_of(gridDim)};
  std::sort(registers.begin(), registers.end(),
            [](const DeviceBuffer& a, const DeviceBuffer& b) { return a.begin < b.begin; });
  return registers;
}

// Every __shared__ of the program.
const std::vector<Variable>& shared_variables() {
  static const std::vector<Variable> found = [] {
    std::vector<Variable> all = variables();
    std::erase_if(all, [](const Variable& each) {
      return each.begin != nullptr || each.name.find("B6shared") == std::string::npos ||
             each.name.starts_with("_ZGV");
    });
    return all;
  }();
  return found;
}

}  // namespace

SharedMemory::SharedMemory(std::size_t bytes)
    : bytes_(bytes),
      dynamic_(static_cast<std::byte*>(::operator new(bytes + kBehindShared, kAlignment))),
      static_(thread_local_variables()) {
  std::memset(dynamic(), static_cast<int>(kUntouched), bytes + kBehindShared);
  for (const Variable& each : shared_variables())
    std::memset(static_.data() + each.offset, static_cast<int>(kUntouched), each.bytes);
}

std::uint32_t SharedMemory::address(const std::byte* p) const {
  if (p >= static_.data() && p < static_.data() + static_.size())
    return kStaticAt + static_cast<std::uint32_t>(p - static_.data());
  return kDynamicAt + static_cast<std::uint32_t>(p - dynamic());
}

std::byte* SharedMemory::at(std::uint32_t address) const {
  return address < kDynamicAt ? static_.data() + (address - kStaticAt)
                              : dynamic() + (address - kDynamicAt);
}

std::byte* SharedMemory::same_place(const SharedMemory& other, const std::byte* p) const {
  if (p >= other.static_.data() && p < other.static_.data() + other.static_.size())
    return static_.data() + (p - other.static_.data());
  if (p >= other.dynamic() && p < other.dynamic() + bytes_)
    return dynamic() + (p - other.dynamic());
  return nullptr;
}

bool SharedMemory::is_guard(const std::byte* p) const {
  static const std::vector<Variable> guards = [] {
    std::vector<Variable> found = variables();
    std::erase_if(found, [](const Variable& each) {
      return each.begin != nullptr || !each.name.starts_with("_ZGV");
    });
    return found;
  }();
  return std::any_of(guards.begin(), guards.end(), [&](const Variable& each) {
    const std::byte* const begin = static_.data() + each.offset;
    return p >= begin && p < begin + each.bytes;
  });
}

bool SharedMemory::overrun() const {
  const std::byte* const end = dynamic() + bytes_;
  return std::any_of(end, end + kBehindShared, [](std::byte byte) { return byte != kUntouched; });
}

std::vector<DeviceBuffer> SharedMemory::static_parts() const {
  std::vector<DeviceBuffer> parts;
  const std::byte* from = static_.data();
  const auto add_until = [&](const std::byte* end) {
    if (end > from) parts.push_back({from, static_cast<std::size_t>(end - from)});
  };
  for (const DeviceBuffer& each : special_registers()) {
    add_until(each.begin);
    from = each.begin + each.bytes;
  }
  add_until(static_.data() + static_.size());
  return parts;
}

bool in_special_register(const std::byte* p) {
  const auto holds = [p](const auto& variable) {
    const auto* const begin = reinterpret_cast<const std::byte*>(&variable);
    return p >= begin && p < begin + sizeof variable;
  };
  return holds(threadIdx) || holds(blockIdx) || holds(blockDim) || holds(gridDim);
}

}  // namespace simt
