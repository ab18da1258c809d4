#include "common/harness/reference.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace lnc {

ReferenceForward::ReferenceForward(const Problem& problem, RowRange rows, bool absolute)
    : seeds_(dropout_seeds(problem, "seeds", rows)),
      seeds1_(dropout_seeds(problem, "seeds1", rows)) {
  const auto of = [&](std::string_view name) -> const std::vector<double>& {
    auto& values = kept_.emplace_back(reference_rows(problem, name, rows));
    if (absolute)
      for (double& value : values) value = std::abs(value);
    return values;
  };
  in = {.norm = reference_norm(problem.kind),
        .rows = rows.count,
        .cols = problem.cols,
        .x = of("x"),
        .rowscale = of("rowscale"),
        .x1 = of("x1"),
        .rowscale1 = of("rowscale1"),
        .residual = of("residual"),
        .weight = of("weight"),
        .bias = of("bias"),
        .weight1 = of("weight1"),
        .bias1 = of("bias1"),
        .eps = problem.eps,
        .rounded = absolute ? nullptr : rounding_to(problem.residual_dtype()),
        .dropout = problem.fusion.dropout,
        .seeds = seeds_,
        .seeds1 = seeds1_};
}

ReferenceBackward::ReferenceBackward(const Problem& problem, RowRange rows)
    : saved_(saved_forward(problem, rows)),
      seeds_(dropout_seeds(problem, "seeds", rows)),
      seeds1_(dropout_seeds(problem, "seeds1", rows)) {
  const auto of = [&](std::string_view name) -> const std::vector<double>& {
    return kept_.emplace_back(reference_rows(problem, name, rows));
  };
  in = {.norm = reference_norm(problem.kind),
        .rows = rows.count,
        .cols = problem.cols,
        .dy = of("dy"),
        .dy1 = of("dy1"),
        .dsum = of("dresidual_out"),
        .sum = saved_.sum,
        .mean = saved_.mean,
        .rstd = saved_.rstd,
        .weight = of("weight"),
        .weight1 = of("weight1"),
        .rowscale = of("rowscale"),
        .rowscale1 = of("rowscale1"),
        .second_input = problem.fusion.second_input,
        .dropout = problem.fusion.dropout,
        .seeds = seeds_,
        .seeds1 = seeds1_};
}

SavedForward saved_forward(const Problem& problem, RowRange rows) {
  const ReferenceForward forward(problem, rows);
  reference::FusedForward exact = forward.run();
  const auto round = [](DType dtype, std::vector<double>& values) {
    std::transform(values.begin(), values.end(), values.begin(), rounding_to(dtype));
  };
  round(problem.dtype, exact.y);
  round(DType::F32, exact.mean);
  round(DType::F32, exact.rstd);
  return {std::move(exact.y), std::move(exact.sum), std::move(exact.mean), std::move(exact.rstd)};
}

}  // namespace lnc
