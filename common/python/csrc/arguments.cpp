#include "common/python/csrc/arguments.h"

#include <ATen/Context.h>
#include <ATen/ops/add.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <string>

#include "common/python/csrc/kernels.h"
#include "common/python/csrc/words.h"

namespace layernorm_chapters {

std::string words(at::ScalarType type) {
  return "torch." + std::string(c10::getDtypeNames(type).first);
}

std::string words(const c10::SymInt& size) {
  const auto number = size.maybe_as_int();
  return number.has_value() ? std::to_string(*number) : size.toSymNode()->str();
}

std::string words(c10::SymIntArrayRef shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + words(shape[i]);
  return text + "]";
}

std::string words(const at::Device& device) { return device.str(); }

std::string words(at::Layout layout) {
  switch (layout) {
    case at::kStrided:
      return "torch.strided";
    case at::kJagged:
      return "torch.jagged";
    case at::kMkldnn:
      return "torch._mkldnn";
    case at::kSparse:
      return "torch.sparse_coo";
    case at::kSparseCsr:
      return "torch.sparse_csr";
    case at::kSparseCsc:
      return "torch.sparse_csc";
    case at::kSparseBsr:
      return "torch.sparse_bsr";
    case at::kSparseBsc:
      return "torch.sparse_bsc";
    default:
      return "number " + std::to_string(static_cast<int>(layout));
  }
}

std::string words(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

namespace {

bool same(c10::SymIntArrayRef a, c10::SymIntArrayRef b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

void check_layout(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, name, " is of layout ", words(tensor.layout()),
                   "; it must be dense, torch.strided");
}

}  // namespace

void check_rows(const char* name, const at::Tensor& x, c10::SymIntArrayRef shape) {
  check_layout(name, x);
  TORCH_CHECK_TYPE(is_row_type(x.scalar_type()), name, " is of ", words(x.scalar_type()),
                   "; the kernels take float32, float16 and bfloat16");
  const auto sizes = x.sym_sizes();
  const bool fits = !shape.empty() && sizes.size() >= shape.size() &&
                    same(sizes.slice(sizes.size() - shape.size()), shape);
  TORCH_CHECK_VALUE(fits, "normalized_shape is ", words(shape), ", and the last dimensions of ",
                    name, ", whose shape is ", words(sizes), ", are not these");
  for (const c10::SymInt& size : shape) {
    TORCH_CHECK_VALUE(size != 0, "normalized_shape is ", words(shape),
                      ": there is nothing to normalise over");
  }
}

void check_parameter(const char* name, const MaybeTensor& parameter, const at::Tensor& x,
                     c10::SymIntArrayRef shape) {
  if (!is_there(parameter)) return;
  check_layout(name, *parameter);
  TORCH_CHECK_VALUE(same(parameter->sym_sizes(), shape), name, " has shape ",
                    words(parameter->sym_sizes()), "; it must be normalized_shape, ", words(shape));
  TORCH_CHECK_VALUE(parameter->device() == x.device(), name, " is on ", words(parameter->device()),
                    " and x on ", words(x.device()), ": they must be on one device");
  TORCH_CHECK_TYPE(at::isFloatingType(parameter->scalar_type()), name, " is of ",
                   words(parameter->scalar_type()), "; it must be of a floating type");
}

void check_like(const char* name, const MaybeTensor& other, const at::Tensor& x,
                std::initializer_list<at::ScalarType> types) {
  if (!is_there(other)) return;
  check_layout(name, *other);
  TORCH_CHECK_VALUE(same(other->sym_sizes(), x.sym_sizes()), name, " has shape ",
                    words(other->sym_sizes()), "; it must be that of x, ", words(x.sym_sizes()));
  TORCH_CHECK_VALUE(other->device() == x.device(), name, " is on ", words(other->device()),
                    " and x on ", words(x.device()), ": they must be on one device");
  const auto type = other->scalar_type();
  TORCH_CHECK_TYPE(std::find(types.begin(), types.end(), type) != types.end(), name, " is of ",
                   words(type), " and x of ", words(x.scalar_type()), "; it must be of x's type",
                   types.size() > 1 ? " or torch.float32" : "");
}

void check_each_row(const char* name, const MaybeTensor& tensor, const at::Tensor& x,
                    const c10::SymInt& rows, at::ScalarType type) {
  if (!is_there(tensor)) return;
  check_layout(name, *tensor);
  TORCH_CHECK_VALUE(tensor->sym_numel() == rows, name, " has shape ", words(tensor->sym_sizes()),
                    "; it must have a number for each of x's ", words(rows), " rows");
  TORCH_CHECK_VALUE(tensor->device() == x.device(), name, " is on ", words(tensor->device()),
                    " and x on ", words(x.device()), ": they must be on one device");
  TORCH_CHECK_TYPE(tensor->scalar_type() == type, name, " is of ", words(tensor->scalar_type()),
                   "; it must be of ", words(type));
}

void check_device(const at::Tensor& x) {
  const std::string works_on = backend();
  if (works_on == "cuda" ? x.is_cuda() : x.is_cpu()) return;
  const char* remedy = "move it to the GPU";
  if (works_on == "cuda" && !at::globalContext().hasCUDA())
    remedy =
        "PyTorch sees no GPU here; to use CPU tensors, build the CPU kernels: 'make library "
        "BACKEND=cpu'";
  if (works_on == "cpu" && x.is_cuda())
    remedy = "install the package where nvcc and the GPU are, or run 'make library BACKEND=cuda'";
  if (works_on == "cpu" && !x.is_cuda()) remedy = "move it to the CPU";
  TORCH_CHECK(false, "x is on ", words(x.device()), ", and the kernels that are loaded work on ",
              works_on, " tensors: ", remedy);
}

std::pair<c10::SymInt, c10::SymInt> rows_and_cols(const at::Tensor& x, c10::SymIntArrayRef shape) {
  c10::SymInt cols = 1;
  for (const c10::SymInt& size : shape) cols = cols * size;
  c10::SymInt rows = 1;
  const auto sizes = x.sym_sizes();
  for (std::size_t i = 0; i + shape.size() < sizes.size(); ++i) rows = rows * sizes[i];
  return {rows, cols};
}

namespace {

/// Whether the elements of each row are contiguous.
bool has_dense_rows(const at::Tensor& tensor, std::size_t dims) {
  std::int64_t stride = 1;
  for (std::int64_t i = tensor.dim() - 1; i >= tensor.dim() - static_cast<std::int64_t>(dims);
       --i) {
    if (tensor.size(i) != 1 && tensor.stride(i) != stride) return false;
    stride *= tensor.size(i);
  }
  return true;
}

/// Where the rows start; none if that takes more than two dimensions, or for more than 2^31 - 1
/// rows.
std::optional<lnc_rows> find_rows(const at::Tensor& tensor, std::size_t dims) {
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  struct Dimension {
    std::int64_t size = 1;
    std::int64_t stride = 0;
  };
  std::array<Dimension, 2> found;  // the inner one first
  std::size_t count = 0;
  std::int64_t rows = 1;
  for (std::int64_t i = tensor.dim() - static_cast<std::int64_t>(dims) - 1; i >= 0; --i) {
    const Dimension next{tensor.size(i), tensor.stride(i)};
    if (next.size == 1) continue;
    rows *= next.size;
    const bool continues =
        count > 0 && next.stride == found[count - 1].size * found[count - 1].stride;
    if (continues) {
      found[count - 1].size *= next.size;
      continue;
    }
    if (count == found.size()) return {};
    found[count] = next;
    ++count;
  }
  if (rows > kMostRows) return {};
  const auto& [inner, outer] = found;
  return lnc_rows{inner.stride, count == 2 ? inner.size : 0, outer.stride};
}

}  // namespace

Rows::Rows(const at::Tensor& given, std::size_t dims, bool may_lie_apart) : tensor_(given) {
  if (given.is_contiguous()) return;
  if (may_lie_apart && has_dense_rows(given, dims)) where_ = find_rows(given, dims);
  if (!where_.has_value()) tensor_ = given.contiguous();
}

Parameters::Parameters(at::ScalarType row_type, bool zero_centred,
                       std::initializer_list<MaybeTensor> all)
    : type_(row_type), zero_centred_(zero_centred) {
  bool all_as_x = !zero_centred;
  bool any = false;
  for (const MaybeTensor& parameter : all) {
    if (!is_there(parameter)) continue;
    any = true;
    all_as_x = all_as_x && parameter->scalar_type() == row_type;
  }
  if (any && !all_as_x) type_ = at::kFloat;
}

at::Tensor Parameters::weight(const MaybeTensor& given) const {
  if (!is_there(given)) return {};
  const at::Tensor weight = bias(given);
  return zero_centred_ ? at::add(weight, 1.0) : weight;
}

at::Tensor Parameters::bias(const MaybeTensor& given) const {
  if (!is_there(given)) return {};
  return dense(given->scalar_type() == type_ ? *given : given->to(type_));
}

}  // namespace layernorm_chapters
