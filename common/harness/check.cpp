#include "common/harness/check.h"

#include <type_traits>

#include "common/harness/comparison.h"
#include "common/harness/row_chunks.h"
#include "common/harness/values.h"

namespace lnc {
namespace {

/// The check of a copy: y must equal x.
std::vector<OutputCheck> check_copy(const Tensors& tensors) {
  const Problem& problem = tensors.problem();
  ExactComparison y(tensors, "y");
  for_each_row_chunk(tensors.rows(), problem.cols, [&](RowRange rows) {
    y.add(reference_rows(problem, "x", rows), rows.begin * problem.cols);
  });
  return {y.result()};
}

}  // namespace

std::vector<double> download_elements(const Tensor& tensor, std::int64_t begin,
                                      std::int64_t count) {
  std::vector<double> values(count);
  with_element_type(tensor.dtype(), [&]<typename T>() {
    std::vector<T> host(count);
    download(host.data(), reinterpret_cast<const T*>(tensor.data()) + begin, count * sizeof(T));
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_integral_v<T>)
        values[i] = host[i];
      else
        values[i] = static_cast<float>(host[i]);
    }
  });
  return values;
}

std::string OutputCheck::place(std::int64_t cols) const {
  if (output == "mean" || output == "rstd") return "row " + std::to_string(worst_index);
  if (output.starts_with("dw") || output.starts_with("db"))
    return "column " + std::to_string(worst_index);
  return "row " + std::to_string(worst_index / cols) + ", column " +
         std::to_string(worst_index % cols);
}

std::vector<OutputCheck> check(const Tensors& tensors) {
  synchronize();
  if (tensors.direction() == Direction::Copy) return check_copy(tensors);
  if (tensors.direction() == Direction::Forward) return check_forward(tensors);
  return check_backward(tensors);
}

}  // namespace lnc
