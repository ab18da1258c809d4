#include "common/harness/tensors.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <stdexcept>

#include "common/harness/reference.h"
#include "common/harness/row_chunks.h"

namespace lnc {
namespace {

/// Values as elements of a type that represents them exactly.
std::vector<std::byte> as_elements(DType dtype, const auto& values) {
  std::vector<std::byte> bytes(values.size() * element_type(dtype).bytes);
  with_element_type(dtype, [&]<typename T>() {
    auto* const elements = reinterpret_cast<T*>(bytes.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_integral_v<T>)
        elements[i] = static_cast<T>(values[i]);
      else
        elements[i] = T(static_cast<float>(values[i]));
    }
  });
  return bytes;
}

void upload_elements(const Tensor& tensor, std::int64_t begin, const auto& values) {
  const auto bytes = as_elements(tensor.dtype(), values);
  upload(tensor.data() + begin * element_type(tensor.dtype()).bytes, bytes.data(), bytes.size());
}

/// Uploads whole rows of a matrix, wherever they start.
void upload_rows(const Tensor& tensor, const Problem& problem, RowRange rows, const auto& values) {
  const std::int64_t cols = problem.cols;
  if (!tensor.rows().apart) return upload_elements(tensor, rows.begin * cols, values);
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const std::int64_t start = row_start(problem, tensor.rows(), rows.begin + row);
    upload_elements(tensor, start, std::span(values).subspan(row * cols, cols));
  }
}

/// A tensor's elements, without the gaps between rows.
std::vector<char> dense_elements(const Tensor& tensor, const Problem& problem) {
  std::vector<char> host(tensor.bytes());
  download(host.data(), tensor.data(), host.size());
  if (!tensor.rows().apart) return host;
  const std::int64_t element = element_type(tensor.dtype()).bytes;
  const std::int64_t row_bytes = problem.cols * element;
  std::vector<char> dense(problem.rows * row_bytes);
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    const std::int64_t start = row_start(problem, tensor.rows(), row) * element;
    std::copy_n(host.begin() + start, row_bytes, dense.begin() + row * row_bytes);
  }
  return dense;
}

const std::vector<double>& of(const SavedForward& saved, Saved what) {
  switch (what) {
    case Saved::Y:
      return saved.y;
    case Saved::Mean:
      return saved.mean;
    case Saved::Rstd:
      return saved.rstd;
    case Saved::Sum:
      break;
  }
  return saved.sum;
}

/// Writes NumPy's file format, version 1.0.
void write_npy(const std::string& path, const Tensor& tensor, const Problem& problem) {
  std::string shape = std::to_string(tensor.count()) + ",";
  if (tensor.shape() == Shape::Matrix)
    shape = std::to_string(problem.rows) + ", " + std::to_string(problem.cols);
  std::string header = "{'descr': '" + std::string(element_type(tensor.dtype()).numpy) +
                       "', 'fortran_order': False, 'shape': (" + shape + "), }";
  constexpr std::size_t kPreamble = 10, kAlignment = 64;
  header.append(kAlignment - (kPreamble + header.size() + 1) % kAlignment, ' ');
  header += '\n';
  const std::vector<char> host = dense_elements(tensor, problem);
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY\x01" << '\0' << static_cast<char>(header.size() & 0xff)
       << static_cast<char>(header.size() >> 8) << header;
  file.write(host.data(), static_cast<std::streamsize>(host.size()));
  if (!file) throw std::runtime_error("cannot write '" + path + "': does its directory exist?");
}

}  // namespace

double needed_host_bytes(const Problem& problem) {
  constexpr double kVectors = 26;  // of doubles, alive at once in the check of a fused gradient
  const auto chunk = static_cast<double>(std::max(kChunkElements, problem.cols));
  const auto threads = std::min<std::int64_t>(omp_get_max_threads(), problem.rows);
  return kVectors * 8 * chunk * static_cast<double>(threads);
}

Tensor::Tensor(TensorDescription description, Direction direction, const Problem& problem,
               int number)
    : description_(std::move(description)), slot_(description_.slot(direction)), number_(number) {
  slot_.set = nullptr;
  there_ = description_.in(direction);
  count_ = there_ ? elements(problem, description_.shape) : 0;
  span_ = there_ ? span_elements(problem, description_) : 0;
  const std::int64_t element = element_type(slot_.dtype).bytes;
  const std::int64_t shift = problem.misalign + std::int64_t{number} * problem.stagger;
  offset_ = description_.shape == Shape::Rows ? 0 : shift * element;
  buffer_ = Buffer(count_ == 0 ? 0 : span_ * element + offset_);
}

Tensors::Tensors(const Problem& problem, Direction direction, bool from_y, int copies,
                 RowRange rows)
    : problem_(problem), rows_(rows), direction_(direction), from_y_(from_y) {
  int number = 0;
  for (TensorDescription& description : describe_tensors(problem, from_y)) {
    tensors_.emplace_back(std::move(description), direction, problem, number);
    number += tensors_.back().there() && tensors_.back().shape() != Shape::Rows;
    poison(tensors_.back());
  }
  for (const Tensor& tensor : tensors_) {
    if (tensor.count() == 0 || tensor.is_output() || tensor.shape() != Shape::Columns) continue;
    upload_elements(tensor, 0, random_elements(problem, tensor.name(), 0, problem.cols));
  }
  for_each_row_chunk(rows, problem.cols, [&](RowRange chunk) { fill(chunk); });
  copy_inputs(copies);
}

void Tensors::poison(const Tensor& tensor) const {
  if (are_whole() || tensor.shape() == Shape::Columns) return lnc::poison(tensor.buffer());
  if (tensor.count() == 0 || !tensor.is_output()) return;
  const std::int64_t row_bytes = tensor.bytes() / problem_.rows;
  const std::vector<std::byte> poisoned(rows_.count * row_bytes, std::byte{0xff});
  upload(tensor.data() + rows_.begin * row_bytes, poisoned.data(), poisoned.size());
}

void Tensors::fill(RowRange rows) const {
  SavedForward saved;
  for (const Tensor& tensor : tensors_) {
    if (tensor.count() == 0 || tensor.is_output() || tensor.shape() == Shape::Columns) continue;
    const bool matrix = tensor.shape() == Shape::Matrix;
    const std::int64_t width = matrix ? problem_.cols : 1;
    const std::int64_t begin = rows.begin * width;
    const auto upload_them = [&](const auto& values) {
      if (matrix) return upload_rows(tensor, problem_, rows, values);
      upload_elements(tensor, begin, values);
    };
    if (const auto* what = std::get_if<Saved>(&tensor.source())) {
      if (saved.rstd.empty()) saved = saved_forward(problem_, rows);
      upload_them(of(saved, *what));
    } else if (std::holds_alternative<Seeds>(tensor.source())) {
      upload_elements(tensor, begin, dropout_seeds(problem_, tensor.name(), rows));
    } else {
      upload_them(random_elements(problem_, tensor.name(), begin, rows.count * width));
    }
  }
}

void Tensors::copy_inputs(int copies) {
  std::int64_t bytes = 0;
  for (const Tensor& tensor : tensors_)
    if (!tensor.is_output()) bytes += tensor.bytes();
  for (int copy = 1; copy < copies; ++copy) {
    if (bytes > free_device_bytes() / 2) return;
    auto& inputs = more_inputs_.emplace_back();
    auto descriptions = describe_tensors(problem_, from_y_);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].count() == 0 || tensors_[i].is_output()) continue;
      const Tensor& made = inputs.emplace_back(std::move(descriptions[i]), direction_, problem_,
                                               tensors_[i].number());
      poison(made);
      copy_on_device(made.data(), tensors_[i].data(), made.bytes());
    }
  }
}

const Tensor* Tensors::find(std::string_view name) const {
  for (const Tensor& tensor : tensors_)
    if (tensor.name() == name && tensor.there()) return &tensor;
  return nullptr;
}

std::byte* Tensors::data(std::string_view name, int copy) const {
  if (copy > 0)
    for (const Tensor& input : more_inputs_[copy - 1])
      if (input.name() == name) return input.data();
  const Tensor* tensor = find(name);
  return tensor == nullptr ? nullptr : tensor->data();
}

void Tensors::poison_outputs() const {
  for (const Tensor& tensor : tensors_)
    if (tensor.is_output()) poison(tensor);
}

std::vector<std::pair<std::string, std::vector<std::byte>>> Tensors::outputs() const {
  synchronize();
  std::vector<std::pair<std::string, std::vector<std::byte>>> outputs;
  for (const Tensor& tensor : tensors_) {
    if (tensor.count() == 0 || !tensor.is_output()) continue;
    std::vector<std::byte> host(tensor.bytes());
    download(host.data(), tensor.data(), host.size());
    outputs.emplace_back(tensor.name(), std::move(host));
  }
  return outputs;
}

void Tensors::dump(const std::string& directory) const {
  for (const Tensor& tensor : tensors_)
    if (tensor.count() > 0)
      write_npy(directory + "/" + std::string(tensor.name()) + ".npy", tensor, problem_);
}

namespace {

/// The arguments of every direction; only those of the tensors' direction have pointers.
template <typename T, typename W>
Arguments<T, W> arguments(const Tensors& tensors, void* workspace, int copy) {
  const Problem& problem = tensors.problem();
  Arguments<T, W> args{
      {}, arguments_of<ForwardArgs<T, W>>(problem), arguments_of<BackwardArgs<T, W>>(problem)};
  args.copy.count = problem.rows * problem.cols;
  args.forward.workspace = args.backward.workspace = workspace;
  for (const auto& tensor : describe_tensors<T, W>(problem, tensors.from_y(), args))
    if (tensor.in(tensors.direction()))
      tensor.slot(tensors.direction()).set(tensors.data(tensor.name, copy));
  return args;
}

}  // namespace

template <typename T, typename W>
CopyArgs<T, W> copy_args(const Tensors& tensors, int copy) {
  return arguments<T, W>(tensors, nullptr, copy).copy;
}

template <typename T, typename W>
ForwardArgs<T, W> forward_args(const Tensors& tensors, void* workspace, int copy) {
  return arguments<T, W>(tensors, workspace, copy).forward;
}

template <typename T, typename W>
BackwardArgs<T, W> backward_args(const Tensors& tensors, void* workspace, int copy) {
  return arguments<T, W>(tensors, workspace, copy).backward;
}

#define LNC_INSTANTIATE(name, T, W)                                          \
  template CopyArgs<T, W> copy_args<T, W>(const Tensors&, int);              \
  template ForwardArgs<T, W> forward_args<T, W>(const Tensors&, void*, int); \
  template BackwardArgs<T, W> backward_args<T, W>(const Tensors&, void*, int);
LNC_TYPE_PAIRS(LNC_INSTANTIATE)
#undef LNC_INSTANTIATE

}  // namespace lnc
