// enable(): the kernels behind PyTorch's own operators. layer_norm and rms_norm call these for
// every model, compiled or not, and autograd calls their backward passes.
#include <ATen/ops/_fused_rms_norm_backward_native.h>
#include <ATen/ops/_fused_rms_norm_native.h>
#include <ATen/ops/native_layer_norm_backward_native.h>
#include <ATen/ops/native_layer_norm_native.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <memory>
#include <mutex>

#include "common/python/csrc/arguments.h"
#include "common/python/csrc/kernels.h"

namespace layernorm_chapters {
namespace {

using at::Tensor;
using Shape = at::IntArrayRef;

/// PyTorch takes any number.
bool takes(double eps) { return eps >= 0.0 && std::isfinite(eps); }

/// Whether the kernels take these tensors as they are; PyTorch's own kernels get the rest.
bool takes(const Tensor& x, Shape shape, const MaybeTensor& weight, const MaybeTensor& bias) {
  if (!is_row_type(x.scalar_type()) || shape.empty() || x.numel() == 0) return false;
  if (x.dim() < static_cast<std::int64_t>(shape.size())) return false;
  if (x.sizes().slice(x.dim() - shape.size()) != shape) return false;
  for (const MaybeTensor* parameter : {&weight, &bias}) {
    if (!is_there(*parameter)) continue;
    const Tensor& it = **parameter;
    if (it.scalar_type() != x.scalar_type() || it.sizes() != shape || it.device() != x.device())
      return false;
  }
  return true;
}

Norm norm_of(const Tensor& x, Shape shape, double eps, bool rms) {
  std::int64_t cols = 1;
  for (const std::int64_t size : shape) cols *= size;
  return {x.numel() / cols, cols, eps, rms, {}};
}

/// The shape of PyTorch's statistics: x's, with 1 where it is normalised over.
c10::SmallVector<std::int64_t, 5> statistics_shape(const Tensor& x, Shape shape) {
  c10::SmallVector<std::int64_t, 5> sizes(x.sizes().begin(), x.sizes().end());
  for (std::size_t i = sizes.size() - shape.size(); i < sizes.size(); ++i) sizes[i] = 1;
  return sizes;
}

struct Forward {
  Tensor y, mean, rstd;
};
Forward forward(const Tensor& x, Shape shape, const MaybeTensor& weight, const MaybeTensor& bias,
                double eps, bool rms) {
  const Norm of = norm_of(x, shape, eps, rms);
  const Rows x_rows(x, shape.size(), true);
  const Tensor w = dense(weight);
  const Tensor b = dense(bias);
  const auto sizes = statistics_shape(x, shape);
  Forward out;
  out.y = allocate(x.sizes(), x.scalar_type(), x.device());
  if (!rms) out.mean = allocate(sizes, at::kFloat, x.device());
  out.rstd = allocate(sizes, at::kFloat, x.device());
  lnc_forward_args args{};
  args.problem = of.problem(x.scalar_type(), x.scalar_type());
  args.x = x_rows.pointer();
  args.x_rows = x_rows.where();
  args.weight = pointer(w);
  args.bias = pointer(b);
  args.y = pointer(out.y);
  args.mean = static_cast<float*>(pointer(out.mean));
  args.rstd = static_cast<float*>(pointer(out.rstd));
  run(args, of, x);
  return out;
}

struct Gradients {
  Tensor dx, dweight, dbias;
};
Gradients backward(const Tensor& dy, const Tensor& x, Shape shape, const Tensor& mean,
                   const Tensor& rstd, const MaybeTensor& weight, bool wants_dweight,
                   bool wants_dbias, bool rms) {
  const Norm of = norm_of(x, shape, 0.0, rms);
  const Rows dy_rows(dy, shape.size(), true);
  const Rows x_rows(x, shape.size(), true);
  const Tensor w = dense(weight);
  const Tensor mean_dense = dense(mean);
  const Tensor rstd_dense = dense(rstd);
  Gradients out;
  out.dx = allocate(x.sizes(), x.scalar_type(), x.device());
  if (wants_dweight) out.dweight = allocate(shape, x.scalar_type(), x.device());
  if (wants_dbias) out.dbias = allocate(shape, x.scalar_type(), x.device());
  lnc_backward_args args{};
  args.problem = of.problem(x.scalar_type(), x.scalar_type());
  args.dy = dy_rows.pointer();
  args.dy_rows = dy_rows.where();
  args.x = x_rows.pointer();
  args.x_rows = x_rows.where();
  args.weight = pointer(w);
  args.mean = static_cast<const float*>(pointer(mean_dense));
  args.rstd = static_cast<const float*>(pointer(rstd_dense));
  args.dx = pointer(out.dx);
  args.dweight = pointer(out.dweight);
  args.dbias = pointer(out.dbias);
  run(args, of, x);
  return out;
}

bool takes_gradient(const Tensor& dy, const Tensor& x) {
  return dy.scalar_type() == x.scalar_type() && dy.sizes() == x.sizes();
}
bool are_float(const Tensor& statistics) { return statistics.scalar_type() == at::kFloat; }

// PyTorch's own kernels, for the rest.
struct OnCpu {
  static constexpr auto layer_norm = at::native::layer_norm_cpu;
  static constexpr auto layer_norm_backward = at::native::layer_norm_backward_cpu;
};
#ifdef LNC_WITH_CUDA
struct OnCuda {
  static constexpr auto layer_norm = at::native::layer_norm_cuda;
  static constexpr auto layer_norm_backward = at::native::layer_norm_backward_cuda;
  static constexpr auto rms_norm = at::native::_fused_rms_norm_cuda;
  static constexpr auto rms_norm_backward = at::native::_fused_rms_norm_backward_cuda;
};
#endif

template <typename Theirs>
Three layer_norm(const Tensor& x, Shape shape, const MaybeTensor& weight, const MaybeTensor& bias,
                 double eps) {
  if (!takes(eps) || !takes(x, shape, weight, bias))
    return Theirs::layer_norm(x, shape, weight, bias, eps);
  Forward out = forward(x, shape, weight, bias, eps, false);
  return {std::move(out.y), std::move(out.mean), std::move(out.rstd)};
}

template <typename Theirs>
Three layer_norm_backward(const Tensor& dy, const Tensor& x, Shape shape, const Tensor& mean,
                          const Tensor& rstd, const MaybeTensor& weight, const MaybeTensor& bias,
                          std::array<bool, 3> wanted) {
  if (!takes(x, shape, weight, bias) || !takes_gradient(dy, x) || !are_float(mean) ||
      !are_float(rstd))
    return Theirs::layer_norm_backward(dy, x, shape, mean, rstd, weight, bias, wanted);
  Gradients out = backward(dy, x, shape, mean, rstd, weight, wanted[1] && is_there(weight),
                           wanted[2] && is_there(bias), false);
  return {wanted[0] ? out.dx : Tensor(), out.dweight, out.dbias};
}

#ifdef LNC_WITH_CUDA
Two rms_norm(const Tensor& x, Shape shape, const MaybeTensor& weight, std::optional<double> eps) {
  constexpr double kEps = std::numeric_limits<float>::epsilon();  // of the type it computes in
  if (!takes(eps.value_or(kEps)) || !takes(x, shape, weight, {}))
    return OnCuda::rms_norm(x, shape, weight, eps);
  Forward out = forward(x, shape, weight, {}, eps.value_or(kEps), true);
  return {std::move(out.y), std::move(out.rstd)};
}

Two rms_norm_backward(const Tensor& dy, const Tensor& x, Shape shape, const Tensor& rstd,
                      const MaybeTensor& weight, std::array<bool, 2> wanted) {
  if (!takes(x, shape, weight, {}) || !takes_gradient(dy, x) || !are_float(rstd))
    return OnCuda::rms_norm_backward(dy, x, shape, rstd, weight, wanted);
  Gradients out =
      backward(dy, x, shape, {}, rstd, weight, wanted[1] && is_there(weight), false, true);
  return {wanted[0] ? out.dx : Tensor(), out.dweight};
}
#endif

/// For PyTorch's warning that its kernels are overridden, which is what was asked for.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::mutex changing;
std::unique_ptr<torch::Library> enabled;  // its end takes the kernels back

void enable() {
  const std::lock_guard lock(changing);
  if (enabled != nullptr) return;
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard silenced(&silence);
  const bool on_cuda = std::string(backend()) == "cuda";
  enabled = std::make_unique<torch::Library>(
      torch::Library::IMPL, "aten", on_cuda ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU,
      __FILE__, __LINE__);
#ifdef LNC_WITH_CUDA
  if (on_cuda) {
    enabled->impl("native_layer_norm", layer_norm<OnCuda>);
    enabled->impl("native_layer_norm_backward", layer_norm_backward<OnCuda>);
    enabled->impl("_fused_rms_norm", rms_norm);
    enabled->impl("_fused_rms_norm_backward", rms_norm_backward);
    return;
  }
#endif
  enabled->impl("native_layer_norm", layer_norm<OnCpu>);
  enabled->impl("native_layer_norm_backward", layer_norm_backward<OnCpu>);
}

void disable() {
  const std::lock_guard lock(changing);
  enabled.reset();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(layernorm_chapters, m) {
  m.def("enable() -> ()", enable);
  m.def("disable() -> ()", disable);
  m.def("is_enabled() -> bool", [] { return enabled != nullptr; });
}

}  // namespace layernorm_chapters
