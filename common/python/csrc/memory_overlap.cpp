#include "common/python/csrc/memory_overlap.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace layernorm_chapters {
namespace {

/// `count` positions, `stride` bytes apart.
struct Steps {
  std::int64_t stride;
  std::int64_t count;
};

/// A tensor's memory: runs of contiguous bytes, and the steps from run to run in each dimension.
struct Runs {
  std::int64_t run_bytes;
  std::vector<Steps> steps;
};

Runs runs_of(const at::Tensor& tensor) {
  std::vector<Steps> steps;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1)
      steps.push_back({tensor.stride(i) * tensor.element_size(), tensor.size(i)});
  }
  std::sort(steps.begin(), steps.end(),
            [](const Steps& a, const Steps& b) { return a.stride < b.stride; });
  Runs runs{tensor.element_size(), {}};
  for (const Steps& step : steps) {
    if (runs.steps.empty() && step.stride == runs.run_bytes) {
      runs.run_bytes *= step.count;  // adjacent runs form a longer one
    } else {
      runs.steps.push_back(step);
    }
  }
  return runs;
}

/// Searches for numbers n_i from 0 to count_i - 1 with least <= sum of n_i · stride_i <= most.
class Search {
 public:
  /// @param steps in descending order of stride
  explicit Search(std::vector<Steps> steps) : steps_(std::move(steps)), beyond_(steps_.size() + 1) {
    for (std::size_t i = steps_.size(); i-- > 0;)
      beyond_[i] = beyond_[i + 1] + steps_[i].stride * (steps_[i].count - 1);
  }
  /// Also true if the search takes too long.
  bool finds(std::int64_t least, std::int64_t most, std::size_t from = 0) {
    if (most < 0 || least > beyond_[from]) return false;
    if (from == steps_.size() || ++tried_ > kMostTries) return true;
    const auto [stride, count] = steps_[from];
    const std::int64_t needed = std::max<std::int64_t>(least - beyond_[from + 1], 0);
    const std::int64_t first = (needed + stride - 1) / stride;
    const std::int64_t last = std::min(most / stride, count - 1);
    for (std::int64_t n = first; n <= last; ++n) {
      if (finds(least - n * stride, most - n * stride, from + 1)) return true;
    }
    return false;
  }

 private:
  static constexpr int kMostTries = 10'000;
  std::vector<Steps> steps_;
  std::vector<std::int64_t> beyond_;  // for each step, the largest sum of it and all later ones
  int tried_ = 0;
};

}  // namespace

bool has_own_memory(const at::Tensor& tensor) {
  const Runs runs = runs_of(tensor);
  std::int64_t inside = runs.run_bytes;  // extent of the inner dimensions in bytes
  for (const auto& [stride, count] : runs.steps) {
    if (stride < inside) return false;
    inside += stride * (count - 1);
  }
  return true;
}

// A run of a at A and one of b at B share a byte if -(bytes of a's run) < A - B < bytes of b's run.
// A - B is the distance between the tensors' first bytes, plus a's steps, minus b's. To search with
// positive steps only, b's steps are counted back from its last run.
bool may_share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const Runs of_a = runs_of(a);
  const Runs of_b = runs_of(b);
  std::int64_t distance =
      static_cast<const std::byte*>(a.data_ptr()) - static_cast<const std::byte*>(b.data_ptr());
  std::vector<Steps> steps = of_a.steps;
  for (const Steps& step : of_b.steps) {
    steps.push_back(step);
    distance -= step.stride * (step.count - 1);
  }
  std::erase_if(steps, [](const Steps& step) { return step.stride == 0; });
  std::sort(steps.begin(), steps.end(),
            [](const Steps& one, const Steps& other) { return one.stride > other.stride; });
  return Search(std::move(steps))
      .finds(1 - of_a.run_bytes - distance, of_b.run_bytes - 1 - distance);
}

}  // namespace layernorm_chapters
