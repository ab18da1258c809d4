#include "common/problem.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "reference_cpu/layer_norm.h"

namespace lnc {
namespace {

/// Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators": the output mix.
std::uint64_t splitmix64(std::uint64_t state) {
  state += 0x9e3779b97f4a7c15u;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return state ^ (state >> 31);
}

/// Mean 0, variance 1: the sum of four uniform numbers (Irwin and Hall), within 3.5 deviations.
float nearly_normal(std::uint64_t bits) {
  float sum = 0.0f;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xffff);
  constexpr float kSqrt3 = 1.7320508f;
  return (sum * (1.0f / 65536.0f) - 2.0f) * kSqrt3;
}

float random_value(const Problem& problem, Input input, std::int64_t index) {
  const std::uint64_t stream = splitmix64(problem.seed * 4 + static_cast<std::uint64_t>(input));
  const float z = nearly_normal(splitmix64(stream ^ static_cast<std::uint64_t>(index)));
  switch (input) {
    case Input::X:
      return 0.5f + z;
    case Input::Weight:
      return 1.0f + 0.25f * z;
    case Input::Bias:
      return 0.25f * z;
    case Input::Dy:
      break;
  }
  return z;
}

template <typename T>
T round_to(float value) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(value);
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(value);
  else
    return value;
}

bool is_null(const Problem& problem, Input input) {
  if (input == Input::Weight) return !problem.affine;
  if (input == Input::Bias) return !problem.affine || problem.kind == Kind::Rms;
  return false;
}

reference::Norm norm(Kind kind) {
  return kind == Kind::Layer ? reference::Norm::Layer : reference::Norm::Rms;
}

template <typename T>
void upload_parameter(const Problem& problem, Input input, const Buffer& to) {
  if (is_null(problem, input)) return;
  const auto host = random_elements<T>(problem, input, 0, problem.cols);
  upload(to.as<void>(), host.data(), host.size() * sizeof(T));
}

}  // namespace

double needed_device_bytes(const Chapter& chapter, const Problem& problem) {
  const double rows = static_cast<double>(problem.rows), cols = static_cast<double>(problem.cols);
  const double element = static_cast<double>(problem.element_bytes());
  const double tensors = chapter.direction() == Direction::Forward ? 2 : 3;
  const double workspace = chapter.workspace_bytes == nullptr
                               ? 0.0
                               : static_cast<double>(chapter.workspace_bytes(problem));
  return tensors * rows * cols * element + 4 * cols * element + 8 * rows + workspace;
}

double needed_host_bytes(const Problem& problem) {
  constexpr double kVectors = 12;  // of doubles, alive at once in check_backward
  const auto chunk = static_cast<double>(std::max(kChunkElements, problem.cols));
  const auto threads = std::min<std::int64_t>(omp_get_max_threads(), problem.rows);
  return kVectors * 8 * chunk * static_cast<double>(threads);
}

std::int64_t free_host_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, rest;
  for (std::int64_t kib = 0; meminfo >> key >> kib; std::getline(meminfo, rest))
    if (key == "MemAvailable:") return kib * 1024;
  return std::int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

template <typename T>
std::vector<T> random_elements(const Problem& problem, Input input, std::int64_t begin,
                               std::int64_t count) {
  std::vector<T> elements(count);
  for (std::int64_t i = 0; i < count; ++i)
    elements[i] = round_to<T>(random_value(problem, input, begin + i));
  return elements;
}

template <typename T>
std::vector<double> reference_elements(const Problem& problem, Input input, std::int64_t begin,
                                       std::int64_t count) {
  if (is_null(problem, input)) return {};
  std::vector<double> elements(count);
  for (std::int64_t i = 0; i < count; ++i)
    elements[i] = static_cast<float>(round_to<T>(random_value(problem, input, begin + i)));
  return elements;
}

template <typename T>
RowStatistics row_statistics(const Problem& problem, RowRange rows) {
  const auto x = reference_elements<T>(problem, Input::X, rows.begin * problem.cols,
                                       rows.count * problem.cols);
  const auto exact =
      reference::forward(norm(problem.kind), rows.count, problem.cols, x, {}, {}, problem.eps);
  return {{exact.mean.begin(), exact.mean.end()}, {exact.rstd.begin(), exact.rstd.end()}};
}

template <typename T>
Instance<T>::Instance(const Problem& problem, Direction direction)
    : problem_(problem), direction_(direction) {
  const bool forward = direction == Direction::Forward, layer = problem.kind == Kind::Layer;
  const std::size_t tensor = problem.tensor_bytes();
  const std::size_t vector = problem.cols * sizeof(T);
  const std::size_t column = problem.rows * sizeof(float);
  x_ = Buffer(tensor);
  tensor_ = Buffer(tensor);
  mean_ = Buffer(layer ? column : 0);
  rstd_ = Buffer(column);
  weight_ = Buffer(problem.affine ? vector : 0);
  upload_parameter<T>(problem, Input::Weight, weight_);
  if (forward) {
    bias_ = Buffer(problem.affine && layer ? vector : 0);
    upload_parameter<T>(problem, Input::Bias, bias_);
  } else {
    dy_ = Buffer(tensor);
    dweight_ = Buffer(vector);
    dbias_ = Buffer(layer ? vector : 0);
  }
  for_each_row_chunk(problem, [&](RowRange rows) {
    const std::int64_t begin = rows.begin * problem.cols, count = rows.count * problem.cols;
    const auto x = random_elements<T>(problem, Input::X, begin, count);
    upload(x_.as<T>() + begin, x.data(), count * sizeof(T));
    if (forward) return;
    const auto dy = random_elements<T>(problem, Input::Dy, begin, count);
    upload(dy_.as<T>() + begin, dy.data(), count * sizeof(T));
    const RowStatistics statistics = row_statistics<T>(problem, rows);
    upload(rstd_.as<float>() + rows.begin, statistics.rstd.data(), rows.count * sizeof(float));
    if (layer)
      upload(mean_.as<float>() + rows.begin, statistics.mean.data(), rows.count * sizeof(float));
  });
}

template <typename T>
ForwardArgs<T> Instance<T>::forward_args(const Buffer& workspace) const {
  return {x_.as<T>(),        weight_.as<T>(),   bias_.as<T>(),        tensor_.as<T>(),
          mean_.as<float>(), rstd_.as<float>(), problem_.rows,        problem_.cols,
          problem_.eps,      problem_.kind,     workspace.as<void>(), nullptr};
}

template <typename T>
BackwardArgs<T> Instance<T>::backward_args(const Buffer& workspace) const {
  return {
      dy_.as<T>(),     x_.as<T>(),           weight_.as<T>(), mean_.as<float>(), rstd_.as<float>(),
      tensor_.as<T>(), dweight_.as<T>(),     dbias_.as<T>(),  problem_.rows,     problem_.cols,
      problem_.kind,   workspace.as<void>(), nullptr};
}

template <typename T>
std::vector<const Buffer*> Instance<T>::output_buffers() const {
  if (direction_ == Direction::Forward) return {&tensor_, &mean_, &rstd_};
  return {&tensor_, &dweight_, &dbias_};
}

template <typename T>
void Instance<T>::poison_outputs() const {
  for (const Buffer* buffer : output_buffers()) poison(*buffer);
}

template <typename T>
std::vector<std::vector<std::byte>> Instance<T>::outputs() const {
  synchronize();
  std::vector<std::vector<std::byte>> outputs;
  for (const Buffer* buffer : output_buffers()) {
    auto& host = outputs.emplace_back(buffer->bytes());
    download(host.data(), buffer->as<void>(), host.size());
  }
  return outputs;
}

#define LNC_INSTANTIATE(T)                                                                       \
  template class Instance<T>;                                                                    \
  template std::vector<T> random_elements<T>(const Problem&, Input, std::int64_t, std::int64_t); \
  template std::vector<double> reference_elements<T>(const Problem&, Input, std::int64_t,        \
                                                     std::int64_t);                              \
  template RowStatistics row_statistics<T>(const Problem&, RowRange);
LNC_INSTANTIATE(float)
LNC_INSTANTIATE(__half)
LNC_INSTANTIATE(__nv_bfloat16)
#undef LNC_INSTANTIATE

}  // namespace lnc
