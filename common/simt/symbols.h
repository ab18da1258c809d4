// The variables of the program, or of the library that contains the machine and its kernels, as the
// linker knows them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/simt/machine.h"

namespace simt {

struct Variable {
  std::string name;        ///< the linker's
  const std::byte* begin;  ///< of a `__shared__`, which each core has: null
  std::size_t bytes;
  std::size_t offset;  ///< of a `__shared__` among all of them
};

/// Every variable of static storage that the program can write, and every thread-local one, among
/// them each `__shared__`; without those of libraries. None if the program is stripped.
const std::vector<Variable>& variables();

/// The bytes of the `__shared__` variables that a kernel declares itself.
std::size_t static_shared_bytes(const Launch& launch);

/// "ns::counter", from the linker's name.
std::string demangled(const std::string& name);

}  // namespace simt
