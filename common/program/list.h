// Lists what this program contains, for a person and for scripts.
#pragma once

#include <string>

#include "common/kernel/description.h"

namespace lnc {

/// Prints a line for each chapter. The program of all library kernels also prints which of them the
/// dispatch chooses for `problem` on this GPU, why, and on which GPU that was measured.
void print_list(const Problem& problem);

/// Chapters, element types, problem sets and the dispatch's table, as one JSON object.
std::string list_as_json();

}  // namespace lnc
