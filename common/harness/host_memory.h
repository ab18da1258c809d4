// How much memory the host has left.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace lnc {

/// Bytes of host memory that can be allocated now.
inline std::int64_t free_host_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, rest;
  for (std::int64_t kib = 0; meminfo >> key >> kib; std::getline(meminfo, rest))
    if (key == "MemAvailable:") return kib * 1024;
  return std::int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

}  // namespace lnc
