#include "common/harness/tensors.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>

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

std::uint64_t random_bits(const Problem& problem, int stream, std::int64_t index) {
  return splitmix64(splitmix64(problem.seed * 16 + static_cast<std::uint64_t>(stream)) ^
                    static_cast<std::uint64_t>(index));
}

float random_value(const Problem& problem, Input input, std::int64_t index) {
  const float z = nearly_normal(random_bits(problem, static_cast<int>(input), index));
  switch (input) {
    case Input::X:
      return problem.offset + z;
    case Input::Weight:
    case Input::Weight1:
      return problem.weight_scale * (1.0f + 0.25f * z);
    case Input::Rowscale:
    case Input::Rowscale1:
      return 1.0f + 0.25f * z;
    case Input::Bias:
    case Input::Bias1:
      return 0.25f * z;
    case Input::Dy:
    case Input::X1:
    case Input::Residual:
    case Input::Dy1:
    case Input::DresidualOut:
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

/// `count` elements of an input from `begin` on, to the same place on the device; to nowhere where
/// this direction does not have the input.
template <typename T>
void upload_random(const Problem& problem, Input input, std::int64_t begin, std::int64_t count,
                   T* to) {
  if (!has(problem, input) || to == nullptr) return;
  const auto host = random_elements<T>(problem, input, begin, count);
  upload(to + begin, host.data(), host.size() * sizeof(T));
}

}  // namespace

bool has(const Problem& problem, Input input) {
  const Fusion& fusion = problem.fusion;
  const bool layer = problem.kind == Kind::Layer;
  switch (input) {
    case Input::X:
    case Input::Dy:
      return true;
    case Input::Weight:
      return problem.affine;
    case Input::Bias:
      return problem.affine && layer;
    case Input::X1:
      return fusion.second_input;
    case Input::Residual:
      return fusion.residual != Residual::None;
    case Input::Rowscale:
      return fusion.rowscale;
    case Input::Rowscale1:
      return fusion.rowscale && fusion.second_input;
    case Input::Weight1:
      return fusion.second_affine;
    case Input::Bias1:
      return fusion.second_affine && layer;
    case Input::Dy1:
      return fusion.second_affine;
    case Input::DresidualOut:
      return fusion.prenorm;
  }
  return false;
}

std::vector<std::uint32_t> dropout_seeds(const Problem& problem, Input input, std::int64_t begin,
                                         std::int64_t count) {
  if (problem.fusion.dropout == 0.0f || !has(problem, input)) return {};
  std::vector<std::uint32_t> seeds(count);
  const int stream = input == Input::X ? 14 : 15;
  for (std::int64_t row = 0; row < count; ++row)
    seeds[row] = static_cast<std::uint32_t>(random_bits(problem, stream, begin + row));
  return seeds;
}

double needed_device_bytes(const Chapter& chapter, const Problem& problem) {
  const double rows = static_cast<double>(problem.rows), cols = static_cast<double>(problem.cols);
  const double element = static_cast<double>(problem.element_bytes());
  const double tensors =
      chapter.direction() == Direction::Forward ? 2 : 3 + problem.recompute_output;
  const double workspace = chapter.workspace_bytes == nullptr
                               ? 0.0
                               : static_cast<double>(chapter.workspace_bytes(problem));
  const Fusion& fusion = problem.fusion;
  const double residual = static_cast<double>(problem.residual_element_bytes());
  double fused = element * (fusion.second_input + fusion.second_affine) +
                 residual * (has(problem, Input::Residual) + fusion.prenorm) +
                 (fusion.masks ? 2.0 : 0.0);
  if (chapter.direction() == Direction::Backward)  // the sum stands where x was
    fused = (residual - element) + element * (fusion.second_affine + problem.writes_dx1()) +
            residual * (fusion.prenorm + problem.writes_dresidual());
  return rows * cols * (tensors * element + fused) +
         8 * cols * static_cast<double>(problem.parameter_element_bytes()) + 24 * rows + workspace;
}

double needed_host_bytes(const Problem& problem) {
  constexpr double kVectors = 18;  // of doubles, alive at once in check_backward, from y
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
  if (!has(problem, input)) return {};
  std::vector<double> elements(count);
  for (std::int64_t i = 0; i < count; ++i)
    elements[i] = static_cast<float>(round_to<T>(random_value(problem, input, begin + i)));
  return elements;
}

template <typename T>
RowStatistics row_statistics(const Problem& problem, RowRange rows) {
  const auto x = reference_elements<T>(problem, Input::X, rows.begin * problem.cols,
                                       rows.count * problem.cols);
  const auto exact = reference::forward(reference_norm(problem.kind), rows.count, problem.cols, x,
                                        {}, {}, problem.eps);
  return {{exact.mean.begin(), exact.mean.end()}, {exact.rstd.begin(), exact.rstd.end()}};
}

template <typename T>
FusedInputs<T>::FusedInputs(const Problem& problem, RowRange rows) {
  const std::int64_t begin = rows.begin * problem.cols, count = rows.count * problem.cols;
  x = reference_elements<T>(problem, Input::X, begin, count);
  x1 = reference_elements<T>(problem, Input::X1, begin, count);
  residual = problem.residual_element_bytes() == 4
                 ? reference_elements<float>(problem, Input::Residual, begin, count)
                 : reference_elements<T>(problem, Input::Residual, begin, count);
  rowscale = reference_elements<float>(problem, Input::Rowscale, rows.begin, rows.count);
  rowscale1 = reference_elements<float>(problem, Input::Rowscale1, rows.begin, rows.count);
  seeds = dropout_seeds(problem, Input::X, rows.begin, rows.count);
  seeds1 = dropout_seeds(problem, Input::X1, rows.begin, rows.count);
}

template <typename T>
reference::FusedForwardInput FusedInputs<T>::without_parameters(const Problem& problem,
                                                                RowRange rows) const {
  return {.norm = reference_norm(problem.kind),
          .rows = rows.count,
          .cols = problem.cols,
          .x = x,
          .rowscale = rowscale,
          .x1 = x1,
          .rowscale1 = rowscale1,
          .residual = residual,
          .eps = problem.eps,
          .dropout = problem.fusion.dropout,
          .seeds = seeds,
          .seeds1 = seeds1};
}

template <typename T>
FusedRows fused_rows(const Problem& problem, RowRange rows) {
  const FusedInputs<T> inputs(problem, rows);
  auto exact = reference::fused_forward(inputs.without_parameters(problem, rows));
  for (double& value : exact.sum) {
    const auto sum = static_cast<float>(value);
    value = problem.residual_element_bytes() == 4 ? sum : static_cast<float>(round_to<T>(sum));
  }
  return {std::move(exact.sum),
          {{exact.mean.begin(), exact.mean.end()}, {exact.rstd.begin(), exact.rstd.end()}}};
}

template <typename T, typename W>
std::vector<T> forward_output(const Problem& problem, RowRange rows) {
  const auto x = reference_elements<T>(problem, Input::X, rows.begin * problem.cols,
                                       rows.count * problem.cols);
  const auto exact =
      reference::forward(reference_norm(problem.kind), rows.count, problem.cols, x,
                         reference_elements<W>(problem, Input::Weight, 0, problem.cols),
                         reference_elements<W>(problem, Input::Bias, 0, problem.cols), problem.eps);
  std::vector<T> y(exact.y.size());
  std::transform(exact.y.begin(), exact.y.end(), y.begin(),
                 [](double value) { return round_to<T>(static_cast<float>(value)); });
  return y;
}

template <typename T, typename W>
Instance<T, W>::Instance(const Problem& problem, Direction direction, bool from_y)
    : problem_(problem), direction_(direction), from_y_(from_y) {
  const std::int64_t rows = problem.rows, cols = problem.cols, all = rows * cols;
  const bool layer = problem.kind == Kind::Layer, backward = direction == Direction::Backward;
  const int misalign = problem.misalign;
  const bool starts_from_sum = backward && problem.fusion != Fusion{};
  x_ = Tensor<T>(starts_from_sum ? 0 : all, misalign);
  y_ = Tensor<T>(all, misalign);
  mean_ = Tensor<float>(layer && !from_y ? rows : 0, 0);
  rstd_ = Tensor<float>(rows, 0);
  weight_ = Tensor<W>(problem.affine ? cols : 0, misalign);
  upload_random(problem, Input::Weight, 0, cols, weight_.data());
  if (backward) {
    dy_ = Tensor<T>(all, misalign);
    dweight_ = Tensor<W>(cols, misalign);
    dbias_ = Tensor<W>(layer ? cols : 0, misalign);
    y_again_ = Tensor<T>(problem.recompute_output ? all : 0, misalign);
    if (starts_from_sum) allocate_fused_backward();
  } else {
    allocate_fusion();
  }
  bias_ = Tensor<W>(problem.affine && layer ? cols : 0, misalign);
  upload_random(problem, Input::Bias, 0, cols, bias_.data());
  for_each_row_chunk(problem, [&](RowRange chunk) { upload_rows(chunk); });
}

template <typename T, typename W>
void Instance<T, W>::allocate_fusion() {
  const Fusion& fusion = problem_.fusion;
  const std::int64_t rows = problem_.rows, cols = problem_.cols, all = rows * cols;
  const int misalign = problem_.misalign;
  const auto elements = [&](Input input, std::int64_t count) {
    return has(problem_, input) ? count : 0;
  };
  const std::int64_t residual_element = problem_.residual_element_bytes();
  const int residual_misalign = misalign * static_cast<int>(residual_element);
  x1_ = Tensor<T>(elements(Input::X1, all), misalign);
  residual_ =
      Tensor<std::byte>(elements(Input::Residual, all * residual_element), residual_misalign);
  residual_out_ = Tensor<std::byte>(fusion.prenorm ? all * residual_element : 0, residual_misalign);
  rowscale_ = Tensor<float>(elements(Input::Rowscale, rows), 0);
  rowscale1_ = Tensor<float>(elements(Input::Rowscale1, rows), 0);
  weight1_ = Tensor<W>(elements(Input::Weight1, cols), misalign);
  bias1_ = Tensor<W>(elements(Input::Bias1, cols), misalign);
  upload_random(problem_, Input::Weight1, 0, cols, weight1_.data());
  upload_random(problem_, Input::Bias1, 0, cols, bias1_.data());
  y1_ = Tensor<T>(fusion.second_affine ? all : 0, misalign);
  const bool dropout = fusion.dropout > 0.0f;
  seeds_ = Tensor<std::uint32_t>(dropout ? rows : 0, 0);
  seeds1_ = Tensor<std::uint32_t>(dropout && fusion.second_input ? rows : 0, 0);
  mask_ = Tensor<std::uint8_t>(dropout && fusion.masks ? all : 0, misalign);
  mask1_ = Tensor<std::uint8_t>(dropout && fusion.masks && fusion.second_input ? all : 0, misalign);
}

template <typename T, typename W>
void Instance<T, W>::allocate_fused_backward() {
  const std::int64_t rows = problem_.rows, cols = problem_.cols, all = rows * cols;
  const bool second_affine = problem_.fusion.second_affine, dropout = problem_.fusion.dropout > 0;
  const int misalign = problem_.misalign;
  const auto residual_tensor = [&](bool there) {
    const std::int64_t element = problem_.residual_element_bytes();
    return Tensor<std::byte>(there ? all * element : 0, misalign * static_cast<int>(element));
  };
  residual_out_ = residual_tensor(true);
  dresidual_out_ = residual_tensor(has(problem_, Input::DresidualOut));
  dresidual_ = residual_tensor(problem_.writes_dresidual());
  dy1_ = Tensor<T>(has(problem_, Input::Dy1) ? all : 0, misalign);
  dx1_ = Tensor<T>(problem_.writes_dx1() ? all : 0, misalign);
  rowscale_ = Tensor<float>(has(problem_, Input::Rowscale) ? rows : 0, 0);
  rowscale1_ = Tensor<float>(has(problem_, Input::Rowscale1) ? rows : 0, 0);
  seeds_ = Tensor<std::uint32_t>(dropout ? rows : 0, 0);
  seeds1_ = Tensor<std::uint32_t>(dropout && problem_.fusion.second_input ? rows : 0, 0);
  weight1_ = Tensor<W>(second_affine ? cols : 0, misalign);
  upload_random(problem_, Input::Weight1, 0, cols, weight1_.data());
  dweight1_ = Tensor<W>(second_affine ? cols : 0, misalign);
  dbias1_ = Tensor<W>(second_affine && problem_.kind == Kind::Layer ? cols : 0, misalign);
}

template <typename T, typename W>
void Instance<T, W>::upload_rows(RowRange rows) {
  const std::int64_t begin = rows.begin * problem_.cols, count = rows.count * problem_.cols;
  const auto upload_residual = [&](Input input, std::byte* to) {
    if (problem_.residual_element_bytes() == 4)
      upload_random(problem_, input, begin, count, reinterpret_cast<float*>(to));
    else
      upload_random(problem_, input, begin, count, reinterpret_cast<T*>(to));
  };
  if (from_y_) {
    const auto y = forward_output<T, W>(problem_, rows);
    upload(x_.data() + begin, y.data(), y.size() * sizeof(T));
  } else {
    upload_random(problem_, Input::X, begin, count, x_.data());
  }
  if (direction_ == Direction::Backward) {
    upload_random(problem_, Input::Dy, begin, count, dy_.data());
    RowStatistics statistics;
    if (problem_.fusion == Fusion{}) {
      statistics = row_statistics<T>(problem_, rows);
    } else {
      auto saved = fused_rows<T>(problem_, rows);
      statistics = std::move(saved.statistics);
      const auto upload_sum = [&]<typename R>(R* to) {
        std::vector<R> sum(count);
        for (std::int64_t i = 0; i < count; ++i)
          sum[i] = round_to<R>(static_cast<float>(saved.sum[i]));
        upload(to + begin, sum.data(), count * sizeof(R));
      };
      if (problem_.residual_element_bytes() == 4)
        upload_sum(reinterpret_cast<float*>(residual_out_.data()));
      else
        upload_sum(reinterpret_cast<T*>(residual_out_.data()));
    }
    upload(rstd_.data() + rows.begin, statistics.rstd.data(), rows.count * sizeof(float));
    if (mean_.count() > 0)
      upload(mean_.data() + rows.begin, statistics.mean.data(), rows.count * sizeof(float));
  }
  upload_random(problem_, Input::X1, begin, count, x1_.data());
  upload_random(problem_, Input::Dy1, begin, count, dy1_.data());
  upload_residual(Input::Residual, residual_.data());
  upload_residual(Input::DresidualOut, dresidual_out_.data());
  upload_random(problem_, Input::Rowscale, rows.begin, rows.count, rowscale_.data());
  upload_random(problem_, Input::Rowscale1, rows.begin, rows.count, rowscale1_.data());
  const auto seeds = dropout_seeds(problem_, Input::X, rows.begin, rows.count);
  const auto seeds1 = dropout_seeds(problem_, Input::X1, rows.begin, rows.count);
  if (!seeds.empty())
    upload(seeds_.data() + rows.begin, seeds.data(), seeds.size() * sizeof(std::uint32_t));
  if (!seeds1.empty())
    upload(seeds1_.data() + rows.begin, seeds1.data(), seeds1.size() * sizeof(std::uint32_t));
}

template <typename T, typename W>
ForwardArgs<T, W> Instance<T, W>::forward_args(const Buffer& workspace) const {
  return {
      .x = x_.data(),
      .weight = weight_.data(),
      .bias = bias_.data(),
      .y = y_.data(),
      .mean = mean_.data(),
      .rstd = rstd_.data(),
      .rows = problem_.rows,
      .cols = problem_.cols,
      .eps = problem_.eps,
      .group = problem_.group,
      .kind = problem_.kind,
      .workspace = workspace.as<void>(),
      .stream = nullptr,
      .fused = {.rowscale = rowscale_.data(),
                .seeds = seeds_.data(),
                .x1 = x1_.data(),
                .rowscale1 = rowscale1_.data(),
                .seeds1 = seeds1_.data(),
                .residual = residual_.data(),
                .residual_out = residual_out_.data(),
                .weight1 = weight1_.data(),
                .bias1 = bias1_.data(),
                .y1 = y1_.data(),
                .mask = mask_.data(),
                .mask1 = mask1_.data(),
                .dropout = problem_.fusion.dropout,
                .residual_is_float = problem_.residual_element_bytes() == 4},
  };
}

template <typename T, typename W>
BackwardArgs<T, W> Instance<T, W>::backward_args(const Buffer& workspace) const {
  return {
      .dy = dy_.data(),
      .x = from_y_ ? nullptr : x_.data(),
      .y = from_y_ ? x_.data() : nullptr,
      .weight = weight_.data(),
      .mean = mean_.data(),
      .rstd = rstd_.data(),
      .bias = bias_.data(),
      .dx = y_.data(),
      .dweight = dweight_.data(),
      .dbias = dbias_.data(),
      .y_again = y_again_.data(),
      .rows = problem_.rows,
      .cols = problem_.cols,
      .eps = problem_.eps,
      .group = problem_.group,
      .kind = problem_.kind,
      .workspace = workspace.as<void>(),
      .stream = nullptr,
      .fused = {.dy1 = dy1_.data(),
                .residual_out = residual_out_.data(),
                .dresidual_out = dresidual_out_.data(),
                .weight1 = weight1_.data(),
                .rowscale = rowscale_.data(),
                .seeds = seeds_.data(),
                .rowscale1 = rowscale1_.data(),
                .seeds1 = seeds1_.data(),
                .dx1 = dx1_.data(),
                .dresidual = dresidual_.data(),
                .dweight1 = dweight1_.data(),
                .dbias1 = dbias1_.data(),
                .dropout = problem_.fusion.dropout,
                .residual_is_float = problem_.residual_element_bytes() == 4},
  };
}

template <typename T, typename W>
std::vector<const Buffer*> Instance<T, W>::output_buffers() const {
  if (direction_ == Direction::Backward)
    return {&y_.buffer(),   &dweight_.buffer(),   &dbias_.buffer(),    &y_again_.buffer(),
            &dx1_.buffer(), &dresidual_.buffer(), &dweight1_.buffer(), &dbias1_.buffer()};
  return {&y_.buffer(),    &mean_.buffer(), &rstd_.buffer(), &y1_.buffer(), &residual_out_.buffer(),
          &mask_.buffer(), &mask1_.buffer()};
}

template <typename T, typename W>
void Instance<T, W>::poison_outputs() const {
  for (const Buffer* buffer : output_buffers()) poison(*buffer);
}

template <typename T, typename W>
std::vector<std::vector<std::byte>> Instance<T, W>::outputs() const {
  synchronize();
  std::vector<std::vector<std::byte>> outputs;
  for (const Buffer* buffer : output_buffers()) {
    auto& host = outputs.emplace_back(buffer->bytes());
    download(host.data(), buffer->as<void>(), host.size());
  }
  return outputs;
}

namespace {

template <typename T>
constexpr const char* kNumpyType = "<f4";
template <>
constexpr const char* kNumpyType<__half> = "<f2";
template <>
constexpr const char* kNumpyType<__nv_bfloat16> = "<u2";
template <>
constexpr const char* kNumpyType<std::uint32_t> = "<u4";
template <>
constexpr const char* kNumpyType<std::uint8_t> = "|u1";

/// NumPy's file format, version 1.0; nothing for an absent tensor.
template <typename T>
void write_npy(const std::string& path, const T* data, std::int64_t rows, std::int64_t cols) {
  if (data == nullptr) return;
  const std::string shape =
      cols == 0 ? std::to_string(rows) + "," : std::to_string(rows) + ", " + std::to_string(cols);
  std::string header = std::string("{'descr': '") + kNumpyType<T> +
                       "', 'fortran_order': False, 'shape': (" + shape + "), }";
  constexpr std::size_t kPreamble = 10, kAlignment = 64;
  header.append(kAlignment - (kPreamble + header.size() + 1) % kAlignment, ' ');
  header += '\n';
  std::vector<T> host(rows * std::max<std::int64_t>(cols, 1));
  download(host.data(), data, host.size() * sizeof(T));
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY\x01" << '\0' << static_cast<char>(header.size() & 0xff)
       << static_cast<char>(header.size() >> 8) << header;
  file.write(reinterpret_cast<const char*>(host.data()),
             static_cast<std::streamsize>(host.size() * sizeof(T)));
  if (!file) throw std::runtime_error("cannot write '" + path + "': does its directory exist?");
}

}  // namespace

template <typename T, typename W>
void Instance<T, W>::dump(const std::string& directory) const {
  const std::int64_t rows = problem_.rows, cols = problem_.cols;
  const auto write = [&](const char* name, const auto* data, std::int64_t m, std::int64_t n) {
    write_npy(directory + "/" + name + ".npy", data, m, n);
  };
  const bool forward = direction_ == Direction::Forward;
  write(from_y_ ? "y" : "x", x_.data(), rows, cols);
  write("dy", dy_.data(), rows, cols);
  write("weight", weight_.data(), cols, 0);
  write("bias", bias_.data(), cols, 0);
  write("mean", mean_.data(), rows, 0);
  write("rstd", rstd_.data(), rows, 0);
  write(forward ? "y" : "dx", y_.data(), rows, cols);
  write("dweight", dweight_.data(), cols, 0);
  write("dbias", dbias_.data(), cols, 0);
  write("x1", x1_.data(), rows, cols);
  write("y1", y1_.data(), rows, cols);
  write("y", y_again_.data(), rows, cols);
  write("weight1", weight1_.data(), cols, 0);
  write("bias1", bias1_.data(), cols, 0);
  write("rowscale", rowscale_.data(), rows, 0);
  write("rowscale1", rowscale1_.data(), rows, 0);
  write("seeds", seeds_.data(), rows, 0);
  write("seeds1", seeds1_.data(), rows, 0);
  write("mask", mask_.data(), rows, cols);
  write("mask1", mask1_.data(), rows, cols);
  write("dy1", dy1_.data(), rows, cols);
  write("dx1", dx1_.data(), rows, cols);
  write("dweight1", dweight1_.data(), cols, 0);
  write("dbias1", dbias1_.data(), cols, 0);
  const auto write_residual = [&](const char* name, const Tensor<std::byte>& residual) {
    if (problem_.residual_element_bytes() == 4)
      write(name, reinterpret_cast<const float*>(residual.data()), rows, cols);
    else
      write(name, reinterpret_cast<const T*>(residual.data()), rows, cols);
  };
  write_residual("residual", residual_);
  write_residual("residual_out", residual_out_);
  write_residual("dresidual_out", dresidual_out_);
  write_residual("dresidual", dresidual_);
}

#define LNC_INSTANTIATE(T)                                                                       \
  template std::vector<T> random_elements<T>(const Problem&, Input, std::int64_t, std::int64_t); \
  template std::vector<double> reference_elements<T>(const Problem&, Input, std::int64_t,        \
                                                     std::int64_t);                              \
  template RowStatistics row_statistics<T>(const Problem&, RowRange);                            \
  template struct FusedInputs<T>;                                                                \
  template FusedRows fused_rows<T>(const Problem&, RowRange);
LNC_INSTANTIATE(float)
LNC_INSTANTIATE(__half)
LNC_INSTANTIATE(__nv_bfloat16)
#undef LNC_INSTANTIATE
#define LNC_INSTANTIATE(T, W)    \
  template class Instance<T, W>; \
  template std::vector<T> forward_output<T, W>(const Problem&, RowRange);
LNC_INSTANTIATE(float, float)
LNC_INSTANTIATE(__half, __half)
LNC_INSTANTIATE(__nv_bfloat16, __nv_bfloat16)
LNC_INSTANTIATE(__half, float)
LNC_INSTANTIATE(__nv_bfloat16, float)
#undef LNC_INSTANTIATE

}  // namespace lnc
