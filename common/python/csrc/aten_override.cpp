// enable(): runs the kernels in PyTorch's own operators, which layer_norm and rms_norm call for
// every model, and whose backward passes autograd calls.
//
// The first enable() overrides PyTorch's functions with these, once per process. Each of them then
// checks whether it is enabled in the calling thread, and calls PyTorch's own if not. A norm's
// backward pass uses what its forward pass used, even in an autograd thread: the storage of rstd
// says whether the kernels produced it.
#include <ATen/ops/_fused_rms_norm_backward_native.h>
#include <ATen/ops/_fused_rms_norm_native.h>
#include <ATen/ops/native_layer_norm_backward_native.h>
#include <ATen/ops/native_layer_norm_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <atomic>
#include <limits>
#include <mutex>

#include "common/python/csrc/arguments.h"
#include "common/python/csrc/kernels.h"

namespace layernorm_chapters {
namespace {

using at::Tensor;
using Shape = at::IntArrayRef;

// --- Whether it is enabled ---

std::atomic<bool> enabled_everywhere = false;
thread_local int enabled_here = 0;          // depth of nested enter_enabled() in this thread
thread_local int batch_invariant_here = 0;  // depth of nested enter_batch_invariant()

bool is_enabled() { return enabled_everywhere || enabled_here > 0; }

// --- Which tensors the kernels take ---

/// Whether a tensor has a forward-mode derivative, which needs PyTorch's own statistics.
bool has_tangent(const Tensor& tensor) { return tensor._fw_grad(0).defined(); }

/// Whether the kernels take these tensors as they are; PyTorch's own kernels get the rest.
bool takes(const Tensor& x, Shape shape, const MaybeTensor& weight, const MaybeTensor& bias) {
  if (!is_row_type(x.scalar_type()) || shape.empty() || x.numel() == 0) return false;
  if (has_tangent(x) || x.dim() < static_cast<std::int64_t>(shape.size())) return false;
  if (x.sizes().slice(x.dim() - shape.size()) != shape) return false;
  for (const MaybeTensor* parameter : {&weight, &bias}) {
    if (!is_there(*parameter)) continue;
    const Tensor& it = **parameter;
    if (it.scalar_type() != x.scalar_type() || it.sizes() != shape || it.device() != x.device() ||
        has_tangent(it))
      return false;
  }
  return true;
}

bool takes_gradient(const Tensor& dy, const Tensor& x) {
  return dy.scalar_type() == x.scalar_type() && dy.sizes() == x.sizes();
}

Norm norm_of(const Tensor& x, Shape shape, double eps, bool rms, bool batch_invariant) {
  std::int64_t cols = 1;
  for (const std::int64_t size : shape) cols *= size;
  return {x.numel() / cols, cols, eps, rms, {}, batch_invariant};
}

// --- Statistics, and which kernels produced them ---

/// The type of PyTorch's statistics for x: float on a GPU, x's type on a CPU.
at::ScalarType statistics_type(const Tensor& x) {
  return x.is_cuda() ? at::kFloat : x.scalar_type();
}

/// Their shape: x's, with 1 for each normalised dimension.
c10::SmallVector<std::int64_t, 5> statistics_shape(const Tensor& x, Shape shape) {
  c10::SmallVector<std::int64_t, 5> sizes(x.sizes().begin(), x.sizes().end());
  for (std::size_t i = sizes.size() - shape.size(); i < sizes.size(); ++i) sizes[i] = 1;
  return sizes;
}

/// Extra elements in the storage after the last rstd. PyTorch's own kernels allocate none.
constexpr std::int64_t kOfKernels = 4;
constexpr std::int64_t kOfBatchInvariantKernels = 8;

Tensor new_rstd(const Tensor& x, Shape shape, std::int64_t rows, at::ScalarType type,
                bool batch_invariant) {
  const std::int64_t past = batch_invariant ? kOfBatchInvariantKernels : kOfKernels;
  Tensor rstd = allocate({rows + past}, type, x.device());
  rstd.unsafeGetTensorImpl()->set_sizes_contiguous(statistics_shape(x, shape));
  return rstd;
}

/// Whether the kernels run a backward pass, and how.
struct By {
  bool kernels;
  bool batch_invariant;
};

/// Which kernels run the backward pass of this rstd: those that produced it. A copy, as made by
/// saved-tensor hooks, does not show this; then what is enabled now decides.
By backward_by(const Tensor& rstd) {
  const std::int64_t elements = rstd.storage_offset() + rstd.numel();
  const std::int64_t in_storage =
      static_cast<std::int64_t>(rstd.storage().nbytes()) / rstd.element_size();
  if (rstd.is_contiguous() && in_storage == elements + kOfKernels) return {true, false};
  if (rstd.is_contiguous() && in_storage == elements + kOfBatchInvariantKernels)
    return {true, true};
  return {is_enabled(), batch_invariant_here > 0};
}

// --- The passes ---

struct Forward {
  Tensor y, mean, rstd;
};

/// None if the kernels do not take it.
std::optional<Forward> forward(const Tensor& x, Shape shape, const MaybeTensor& weight,
                               const MaybeTensor& bias, double eps, bool rms) {
  if (!is_enabled() || !takes(x, shape, weight, bias)) return {};
  const bool batch_invariant = batch_invariant_here > 0;
  const Norm of = norm_of(x, shape, eps, rms, batch_invariant);
  const Rows x_rows(x, shape.size(), true);
  const Tensor w = dense(weight);
  const Tensor b = dense(bias);
  Forward out;
  out.y = allocate(x.sizes(), x.scalar_type(), x.device());
  if (!rms) out.mean = allocate(statistics_shape(x, shape), at::kFloat, x.device());
  out.rstd = new_rstd(x, shape, of.rows, at::kFloat, batch_invariant);
  lnc_forward_args args{};
  args.problem = of.problem(x.scalar_type(), x.scalar_type());
  args.x = x_rows.pointer();
  args.x_rows = x_rows.where();
  args.weight = pointer(w);
  args.bias = pointer(b);
  args.y = pointer(out.y);
  args.mean = static_cast<float*>(pointer(out.mean));
  args.rstd = static_cast<float*>(pointer(out.rstd));
  if (!run_if_taken(args, of, x)) return {};
  if (const at::ScalarType type = statistics_type(x); type != at::kFloat) {
    const Tensor rstd = new_rstd(x, shape, of.rows, type, batch_invariant);
    out.rstd = rstd.copy_(out.rstd);
    if (!rms) out.mean = out.mean.to(type);
  }
  return out;
}

struct Gradients {
  Tensor dx, dweight, dbias;
};

/// None if the kernels do not take it. `mean` is undefined for RMS norm.
std::optional<Gradients> backward(const Tensor& dy, const Tensor& x, Shape shape,
                                  const Tensor& mean, const Tensor& rstd, const MaybeTensor& weight,
                                  const MaybeTensor& bias, bool wants_dweight, bool wants_dbias) {
  const By by = backward_by(rstd);
  const bool rms = !mean.defined();
  if (!by.kernels || !takes(x, shape, weight, bias) || !takes_gradient(dy, x)) return {};
  const Norm of = norm_of(x, shape, 0.0, rms, by.batch_invariant);
  const Rows dy_rows(dy, shape.size(), true);
  const Rows x_rows(x, shape.size(), true);
  const Tensor w = dense(weight);
  const Tensor mean_dense = rms ? mean : dense(mean.to(at::kFloat));
  const Tensor rstd_dense = dense(rstd.to(at::kFloat));
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
  if (!run_if_taken(args, of, x)) return {};
  return out;
}

// --- PyTorch's own kernels, for the rest ---

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
  if (auto out = forward(x, shape, weight, bias, eps, false))
    return {std::move(out->y), std::move(out->mean), std::move(out->rstd)};
  const c10::OptionalDeviceGuard guard(x.device());
  return Theirs::layer_norm(x, shape, weight, bias, eps);
}

template <typename Theirs>
Three layer_norm_backward(const Tensor& dy, const Tensor& x, Shape shape, const Tensor& mean,
                          const Tensor& rstd, const MaybeTensor& weight, const MaybeTensor& bias,
                          std::array<bool, 3> wanted) {
  if (auto out = backward(dy, x, shape, mean, rstd, weight, bias, wanted[1] && is_there(weight),
                          wanted[2] && is_there(bias)))
    return {wanted[0] ? out->dx : Tensor(), out->dweight, out->dbias};
  const c10::OptionalDeviceGuard guard(x.device());
  return Theirs::layer_norm_backward(dy, x, shape, mean, rstd, weight, bias, wanted);
}

#ifdef LNC_WITH_CUDA
Two rms_norm(const Tensor& x, Shape shape, const MaybeTensor& weight, std::optional<double> eps) {
  constexpr double kEps = std::numeric_limits<float>::epsilon();  // of the type it computes in
  if (auto out = forward(x, shape, weight, {}, eps.value_or(kEps), true))
    return {std::move(out->y), std::move(out->rstd)};
  const c10::OptionalDeviceGuard guard(x.device());
  return OnCuda::rms_norm(x, shape, weight, eps);
}

Two rms_norm_backward(const Tensor& dy, const Tensor& x, Shape shape, const Tensor& rstd,
                      const MaybeTensor& weight, std::array<bool, 2> wanted) {
  if (auto out = backward(dy, x, shape, {}, rstd, weight, {}, wanted[1] && is_there(weight), false))
    return {wanted[0] ? out->dx : Tensor(), out->dweight};
  const c10::OptionalDeviceGuard guard(x.device());
  return OnCuda::rms_norm_backward(dy, x, shape, rstd, weight, wanted);
}
#endif

// --- Overriding PyTorch's kernels ---

/// Suppresses PyTorch's warning that its kernels are overridden: the user has requested that.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void override_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    Silence silence;
    const c10::WarningUtils::WarningHandlerGuard silenced(&silence);
    const bool on_cuda = std::string(backend()) == "cuda";
    // Never freed: any thread of the process may still be running these functions.
    auto& overrides = *new torch::Library(torch::Library::IMPL, "aten",
                                          on_cuda ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU,
                                          __FILE__, __LINE__);
#ifdef LNC_WITH_CUDA
    if (on_cuda) {
      overrides.impl("native_layer_norm", layer_norm<OnCuda>);
      overrides.impl("native_layer_norm_backward", layer_norm_backward<OnCuda>);
      overrides.impl("_fused_rms_norm", rms_norm);
      overrides.impl("_fused_rms_norm_backward", rms_norm_backward);
      return;
    }
#endif
    overrides.impl("native_layer_norm", layer_norm<OnCpu>);
    overrides.impl("native_layer_norm_backward", layer_norm_backward<OnCpu>);
  });
}

void enable() {
  override_kernels();
  enabled_everywhere = true;
}

void enter_enabled() {
  override_kernels();
  ++enabled_here;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(layernorm_chapters, m) {
  m.def("enable() -> ()", enable);
  m.def("disable() -> ()", [] { enabled_everywhere = false; });
  m.def("is_enabled() -> bool", is_enabled);
  m.def("enter_enabled() -> ()", enter_enabled);
  m.def("leave_enabled() -> ()", [] { --enabled_here; });
  m.def("enter_batch_invariant() -> ()", [] { ++batch_invariant_here; });
  m.def("leave_batch_invariant() -> ()", [] { --batch_invariant_here; });
}

}  // namespace layernorm_chapters
