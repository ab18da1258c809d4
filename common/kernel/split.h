// Which part of a problem each GPU has, if several share it: Chapter::split.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/kernel/contract.h"

namespace lnc {

/// Neighbouring rows, or columns, of a problem.
struct Part {
  std::int64_t begin, count;
};

/// What GPU `gpu` has: whole 16-byte vectors of columns, or rows. Problem::gpus GPUs have all.
inline Part part_of(const Problem& problem, Split split, int gpu) {
  if (split == Split::None) return {0, problem.rows};
  const std::int64_t unit = split == Split::Columns ? 16 / problem.element_bytes() : 1;
  const std::int64_t all = split == Split::Columns ? problem.cols : problem.rows;
  const std::int64_t gpus = problem.gpus;
  const auto begin_of = [&](std::int64_t g) {
    const std::int64_t parts = problem.uneven ? gpus * (gpus + 1) / 2 : gpus;
    const std::int64_t before = problem.uneven ? g * (g + 1) / 2 : g;
    return std::min((all / unit * before / parts) * unit, all);
  };
  const std::int64_t end = gpu + 1 == problem.gpus ? all : begin_of(gpu + 1);
  return {begin_of(gpu), end - begin_of(gpu)};
}

/// The problem that GPU `gpu` has.
inline Problem problem_of_gpu(Problem problem, Split split, int gpu) {
  const Part part = part_of(problem, split, gpu);
  if (split == Split::Columns) problem.cols = part.count;
  if (split == Split::Rows) problem.rows = part.count;
  return problem;
}

/// The problem of the GPU that has most; the whole one if only one GPU works on it.
inline Problem largest_of_gpus(const Problem& problem, Split split) {
  Problem largest = problem_of_gpu(problem, split, 0);
  for (int gpu = 1; gpu < problem.gpus; ++gpu) {
    const Problem other = problem_of_gpu(problem, split, gpu);
    if (other.rows * other.cols > largest.rows * largest.cols) largest = other;
  }
  return largest;
}

}  // namespace lnc
