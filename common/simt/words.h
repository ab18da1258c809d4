// How the machine names kernels, lines, threads and operations in its messages.
#pragma once

#include <cxxabi.h>
#include <dlfcn.h>
#include <vector_types.h>

#include <cstdlib>
#include <memory>
#include <source_location>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "common/simt/machine.h"

namespace simt {

inline std::string to_string(dim3 d) {
  std::ostringstream out;
  out << '(' << d.x << ", " << d.y << ", " << d.z << ')';
  return out.str();
}

// "ns::kernel<float>": the demangled name without its return type, tag and parameters.
inline std::string kernel_name(const void* kernel) {
  Dl_info info;
  if (kernel == nullptr || dladdr(kernel, &info) == 0 || info.dli_saddr != kernel)
    return "(unnamed)";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
  if (status != 0) return info.dli_sname;
  std::string name = text.get();
  int depth = 0;
  for (std::size_t i = name.size(); i-- > 0;) {  // from the end to the matching '('
    if (name[i] == ')') ++depth;
    if (name[i] == '(') --depth;
    if (depth == 0) {
      name.erase(i);
      break;
    }
  }
  constexpr std::string_view kTag = "[abi:kernel]";  // of __global__
  if (const std::size_t at = name.find(kTag); at != std::string::npos) name.erase(at, kTag.size());
  return name.starts_with("void ") ? name.substr(5) : name;
}

inline std::string kernel_name(const Launch& launch) {
  return launch.name != nullptr ? launch.name : kernel_name(launch.kernel);
}

// "common/kernel/reduce.h": the path relative to the repository's root, which is derived from this
// file's own path.
inline std::string in_repository(std::string_view file) {
  std::string_view root = std::source_location::current().file_name();
  root.remove_suffix(std::string_view("common/simt/words.h").size());
  if (file.starts_with(root)) file.remove_prefix(root.size());
  return std::string(file);
}

// "common/kernel/reduce.h:7"
inline std::string to_string(const std::source_location& where) {
  return in_repository(where.file_name()) + ":" + std::to_string(where.line());
}

inline std::string to_string(Op op, unsigned mask) {
  static constexpr const char* kNames[] = {
      "__syncthreads",     "__syncwarp",        "__shfl_sync",       "__shfl_up_sync",
      "__shfl_down_sync",  "__shfl_xor_sync",   "__ballot_sync",     "__any_sync",
      "__all_sync",        "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
      "__reduce_and_sync", "__reduce_or_sync",  "__reduce_xor_sync", "__match_any_sync",
      "__activemask",      "Barrier::init",     "Barrier::arrive",   "Barrier::wait",
      "bulk_load",         "bulk_store",        "wait_bulk_stores",  "cluster_arrive",
      "cluster_wait",      "remote_...",        "memcpy_async",      "wait_prior"};
  std::ostringstream out;
  out << kNames[static_cast<int>(op)] << '(';
  if (op > Op::BlockBarrier && op <= Op::Match) out << "mask 0x" << std::hex << mask;
  if (op == Op::BarrierWait) out << "parity " << mask;
  out << ')';
  return out.str();
}

// "thread 7", "threads 0-31, 64"
inline std::string to_string(const std::vector<unsigned>& threads) {
  std::string out = threads.size() == 1 ? "thread " : "threads ";
  std::size_t first = 0;  // of a run of consecutive numbers
  while (first < threads.size()) {
    std::size_t last = first;
    while (last + 1 < threads.size() && threads[last + 1] == threads[last] + 1) ++last;
    if (first > 0) out += ", ";
    out += std::to_string(threads[first]);
    if (last > first) out += "-" + std::to_string(threads[last]);
    first = last + 1;
  }
  return out;
}

}  // namespace simt
