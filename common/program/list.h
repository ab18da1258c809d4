// What this program has: for a person, and for scripts.
#pragma once

#include <string>

#include "common/kernel/description.h"

namespace lnc {

/// A line for each chapter, on standard output. Of all chapters also which the dispatch takes for
/// `problem` on this GPU, by which of its rules, and where that was measured.
void print_list(const Problem& problem);

/// Chapters, element types, problem sets and the dispatch's table, as one JSON object.
std::string list_as_json();

}  // namespace lnc
