// What this program has: for a person, and for scripts.
#pragma once

#include <string>

namespace lnc {

/// A line for each chapter, on standard output.
void print_list();

/// Chapters, element types, problem sets and the dispatch's table, as one JSON object.
std::string list_as_json();

}  // namespace lnc
