// How messages name places in a kernel's machine code, and memory.
#pragma once

#include <source_location>
#include <string>

#include "common/simt/watch.h"

namespace simt {

/// A line of the source, and its text, if the source is here: "kernel.cu:7: while (*flag == 0) {}".
std::string line_at(const std::source_location& where);

/// The same for a place in the machine code, if the program has line numbers. In code that was
/// inlined, the innermost line that is not the machine's. Runs addr2line: for messages only.
std::string line_at(Place place);

/// "`counter`", "4 bytes from the start of a buffer of 16 bytes", "shared memory" or an address.
std::string memory_at(const void* address);

}  // namespace simt
