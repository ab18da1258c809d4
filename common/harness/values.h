// The elements of a problem's inputs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/kernel/description.h"

namespace lnc {

/// A range of whole rows, [begin, begin + count).
struct RowRange {
  std::int64_t begin;
  std::int64_t count;
};

/// Elements [begin, begin + count) of a random input, rounded to its type; empty if the problem
/// does not have it.
std::vector<float> random_elements(const Problem& problem, std::string_view name,
                                   std::int64_t begin, std::int64_t count);

/// The same as doubles, for the reference.
std::vector<double> reference_elements(const Problem& problem, std::string_view name,
                                       std::int64_t begin, std::int64_t count);
std::vector<double> reference_rows(const Problem& problem, std::string_view name, RowRange rows);

/// The dropout seeds of some rows: `name` is "seeds" or "seeds1"; empty without dropout.
std::vector<std::uint32_t> dropout_seeds(const Problem& problem, std::string_view name,
                                         RowRange rows);

/// Rounds each value to the nearest number of a type; F32 changes nothing.
void round_to(DType dtype, std::span<float> values);

/// A function that rounds a number first to float, in which kernels compute, and then to the type.
double (*rounding_to(DType dtype))(double);

}  // namespace lnc
