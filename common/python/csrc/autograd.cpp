// The gradients of norm and add_norm: nodes of PyTorch's graph that keep what the backward pass
// needs. They are written by hand, as PyTorch's own are: a node costs the host less time than a
// torch::autograd::Function, and works under torch.func.grad.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <vector>

#include "common/python/csrc/operators.h"

namespace layernorm_chapters {
namespace {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

template <typename Signature>
const c10::TypedOperatorHandle<Signature>& find(const char* name) {
  static const auto found =
      c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
  return found;
}

/// A node in the pointer type of this version of PyTorch: newer ones use intrusive pointers.
template <typename Of>
auto new_node() {
  using Held = decltype(torch::autograd::Edge::function);
  if constexpr (std::is_same_v<Held, std::shared_ptr<Node>>) {
    return std::shared_ptr<Of>(new Of(), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Of>();
  }
}

MaybeName name_of(const std::string& chapter) {
  return chapter.empty() ? MaybeName() : MaybeName(chapter);
}

MaybeTensor maybe(Tensor tensor) {
  return tensor.defined() ? MaybeTensor(std::move(tensor)) : MaybeTensor();
}

Tensor wanted(bool is_wanted, const Tensor& gradient) { return is_wanted ? gradient : Tensor(); }

/// Refuses forward-mode derivatives, which would otherwise be lost silently.
void check_no_tangents(std::initializer_list<const Tensor*> inputs) {
  for (const Tensor* input : inputs) {
    TORCH_CHECK_NOT_IMPLEMENTED(!input->defined() || !input->_fw_grad(0).defined(),
                                "layernorm_chapters has no forward-mode derivatives, as "
                                "torch.func.jvp and hessian ask for: take "
                                "torch.nn.functional.layer_norm or rms_norm where you need them");
  }
}

/// Refuses a gradient of a rowscale, which would also be lost silently.
void check_no_gradient(const char* name, const Tensor& rowscale) {
  TORCH_CHECK_NOT_IMPLEMENTED(!torch::autograd::compute_requires_grad(rowscale), name,
                              " requires a gradient, and the fused passes have none for it: "
                              "multiply x by it before the call, or detach it");
}

/// What the nodes of both passes keep besides tensors.
struct Settings {
  std::vector<c10::SymInt> shape;
  double eps;
  bool rms;
  bool zero_centred;
  std::string chapter;
  bool batch_invariant;
};

// --- Gradients that have gradients ---

/// The last `count` dimensions of x, over which it is normalised, as negative numbers.
std::vector<std::int64_t> normalised(std::size_t count) {
  std::vector<std::int64_t> dims;
  for (std::size_t i = 1; i <= count; ++i) dims.push_back(-static_cast<std::int64_t>(i));
  return dims;
}

/// The gradients of a norm by PyTorch's own differentiable operations, in float.
struct Composed {
  Tensor dx, dweight, dbias;
};
Composed composed(const Tensor& dy, const Tensor& x, const Tensor& weight, bool has_bias,
                  const Settings& of) {
  const auto dims = normalised(of.shape.size());
  const Tensor dy_float = dy.to(at::kFloat);
  Tensor centred = x.to(at::kFloat);
  if (!of.rms) centred = centred - centred.mean(dims, true);
  const Tensor rstd = (centred.square().mean(dims, true) + of.eps).rsqrt();
  const Tensor xhat = centred * rstd;
  Tensor g = dy_float;
  if (weight.defined()) {
    const Tensor float_weight = weight.to(at::kFloat);
    g = g * (of.zero_centred ? float_weight + 1.0 : float_weight);
  }
  Tensor dx = g - xhat * (g * xhat).mean(dims, true);
  if (!of.rms) dx = dx - g.mean(dims, true);
  const auto over_rows = [&](const Tensor& terms) {
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i + static_cast<std::int64_t>(dims.size()) < x.dim(); ++i)
      rows.push_back(i);
    return rows.empty() ? terms : terms.sum(rows);
  };
  Composed gradients{(dx * rstd).to(x.scalar_type()), {}, {}};
  if (weight.defined()) gradients.dweight = over_rows(dy_float * xhat).to(weight.scalar_type());
  if (has_bias) gradients.dbias = over_rows(dy_float);
  return gradients;
}

// --- The plain pass ---

struct NormBackward : Node {
  SavedVariable saved, weight, bias, statistics;
  Settings settings;
  bool memory_efficient = false;
  std::mutex releasing;

  std::string name() const override { return "NormBackward"; }

  void release_variables() override {
    const std::lock_guard lock(releasing);
    for (SavedVariable* variable : {&saved, &weight, &bias, &statistics}) variable->reset_data();
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard lock(releasing);
    const Tensor& dy = gradients[0];
    if (!dy.defined()) return {Tensor(), Tensor(), Tensor()};
    const Tensor s = saved.unpack(memory_efficient ? getptr() : nullptr);
    const Tensor w = weight.unpack();
    const Tensor b = bias.unpack();
    const bool wants_dx = task_should_compute_output(0);
    const bool wants_dweight = w.defined() && task_should_compute_output(1);
    const bool wants_dbias = b.defined() && task_should_compute_output(2);
    if (at::GradMode::is_enabled()) {
      TORCH_CHECK_NOT_IMPLEMENTED(!memory_efficient,
                                  "memory_efficient keeps y and not x, and has no gradients of "
                                  "gradients, which torch.func.grad asks for, too: call without "
                                  "it where you need them");
      const Composed found = composed(dy, s, w, b.defined(), settings);
      return {wanted(wants_dx, found.dx), wanted(wants_dweight, found.dweight),
              wants_dbias ? found.dbias.to(b.scalar_type()) : Tensor()};
    }
    static const auto& backward = find<NormBackwardSignature>("layernorm_chapters::norm_backward");
    const auto [dx, dweight, dbias] = backward.call(
        dy, s, settings.shape, maybe(w), maybe(b), statistics.unpack(getptr()), settings.eps,
        settings.rms, memory_efficient, settings.zero_centred, wants_dweight, wants_dbias,
        name_of(settings.chapter), settings.batch_invariant);
    return {wanted(wants_dx, dx), wanted(wants_dweight, dweight), wanted(wants_dbias, dbias)};
  }
};

Two norm_autograd(c10::DispatchKeySet keys, const Tensor& x, c10::SymIntArrayRef shape,
                  const MaybeTensor& weight, const MaybeTensor& bias, double eps, bool rms,
                  bool memory_efficient, bool zero_centred, MaybeName chapter,
                  MaybeName backward_chapter, bool batch_invariant) {
  static const auto& forward = find<NormSignature>("layernorm_chapters::norm");
  const Tensor w = value(weight);
  const Tensor b = value(bias);
  check_no_tangents({&x, &w, &b});
  const auto run = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return forward.redispatch(keys & c10::after_autograd_keyset, x, shape, weight, bias, eps, rms,
                              memory_efficient, zero_centred, chapter, backward_chapter,
                              batch_invariant);
  };
  if (!torch::autograd::compute_requires_grad(x, w, b)) return run();
  auto node = new_node<NormBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(x, w, b));
  node->settings = {shape.vec(), eps, rms, zero_centred, text(backward_chapter), batch_invariant};
  node->memory_efficient = memory_efficient;
  auto [y, statistics] = run();
  torch::autograd::set_history(y, node);
  torch::autograd::set_history(statistics, node);
  node->saved = SavedVariable(memory_efficient ? y : x, memory_efficient);
  node->weight = SavedVariable(w, false);
  node->bias = SavedVariable(b, false);
  node->statistics = SavedVariable(statistics, true);
  return {y, statistics};
}

// --- The fused pass ---

struct AddNormBackward : Node {
  SavedVariable sum, weight, bias, weight1, bias1, statistics, rowscale, rowscale1, seeds, seeds1;
  Settings settings;
  double dropout = 0.0;
  bool has_residual = false;
  bool has_x1 = false;
  bool has_y1 = false;
  at::ScalarType row_type = at::kFloat;
  at::ScalarType residual_type = at::kFloat;
  std::mutex releasing;

  std::string name() const override { return "AddNormBackward"; }

  void release_variables() override {
    const std::lock_guard lock(releasing);
    for (SavedVariable* variable : {&sum, &weight, &bias, &weight1, &bias1, &statistics, &rowscale,
                                    &rowscale1, &seeds, &seeds1})
      variable->reset_data();
  }

  /// Returns the gradients of x, residual, x1, weight, bias, weight1 and bias1.
  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard lock(releasing);
    Tensor dy = gradients[0];
    Tensor dsum = gradients[1];
    Tensor dy1 = gradients[3];
    variable_list none(7);
    if (!dy.defined() && !dsum.defined() && !dy1.defined()) return none;
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "the fused passes have no gradients of gradients, which "
                                "torch.func.grad asks for, too: add and normalise one by one "
                                "where you need them");
    const Tensor z = sum.unpack(getptr());
    if (!dy.defined()) dy = at::zeros_like(z, z.options().dtype(row_type));
    if (has_y1 && !dy1.defined()) dy1 = at::zeros_like(dy);
    if (!has_y1) dy1 = Tensor();
    static const auto& backward =
        find<AddNormBackwardSignature>("layernorm_chapters::add_norm_backward");
    const Tensor w = weight.unpack();
    const Tensor b = bias.unpack();
    const Tensor w1 = weight1.unpack();
    const Tensor b1 = bias1.unpack();
    bool trains = false;  // whether any gradient of a parameter is wanted
    for (const int input : {3, 4, 5, 6}) trains = trains || task_should_compute_output(input);
    const auto [dx, dx1, dresidual, dweight, dbias, dweight1, dbias1] =
        backward.call(dy, maybe(dsum), maybe(dy1), z, settings.shape, maybe(w), maybe(b), maybe(w1),
                      maybe(b1), statistics.unpack(getptr()), maybe(rowscale.unpack()),
                      maybe(rowscale1.unpack()), maybe(seeds.unpack()), maybe(seeds1.unpack()),
                      dropout, settings.eps, settings.rms, settings.zero_centred, has_residual,
                      has_x1, name_of(settings.chapter), trains, settings.batch_invariant);
    const auto own = [&](const Tensor& gradient) {
      return gradient.sym_numel() > 0 ? gradient : dx;
    };
    const auto if_asked = [&](int input, bool there, const Tensor& gradient) {
      return there && task_should_compute_output(input) ? gradient : Tensor();
    };
    return {if_asked(0, true, dx),
            if_asked(1, has_residual, own(dresidual).to(residual_type)),
            if_asked(2, has_x1, own(dx1)),
            if_asked(3, w.defined(), dweight),
            if_asked(4, b.defined(), dbias),
            if_asked(5, w1.defined(), dweight1),
            if_asked(6, b1.defined(), dbias1)};
  }
};

Four add_norm_autograd(c10::DispatchKeySet keys, const Tensor& x, const MaybeTensor& residual,
                       c10::SymIntArrayRef shape, const MaybeTensor& weight,
                       const MaybeTensor& bias, const MaybeTensor& x1, const MaybeTensor& weight1,
                       const MaybeTensor& bias1, const MaybeTensor& rowscale,
                       const MaybeTensor& rowscale1, const MaybeTensor& seeds,
                       const MaybeTensor& seeds1, double dropout, double eps, bool rms,
                       bool zero_centred, bool float_sum, MaybeName chapter,
                       MaybeName backward_chapter, bool batch_invariant) {
  static const auto& forward = find<AddNormSignature>("layernorm_chapters::add_norm");
  const auto run = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return forward.redispatch(keys & c10::after_autograd_keyset, x, residual, shape, weight, bias,
                              x1, weight1, bias1, rowscale, rowscale1, seeds, seeds1, dropout, eps,
                              rms, zero_centred, float_sum, chapter, backward_chapter,
                              batch_invariant);
  };
  const Tensor r = value(residual);
  const Tensor second = value(x1);
  const Tensor w = value(weight);
  const Tensor b = value(bias);
  const Tensor w1 = value(weight1);
  const Tensor b1 = value(bias1);
  const Tensor scale = value(rowscale);
  const Tensor scale1 = value(rowscale1);
  check_no_tangents({&x, &r, &second, &w, &b, &w1, &b1, &scale, &scale1});
  check_no_gradient("rowscale", scale);
  check_no_gradient("rowscale1", scale1);
  if (!torch::autograd::compute_requires_grad(x, r, second, w, b, w1, b1)) return run();
  auto node = new_node<AddNormBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(x, r, second, w, b, w1, b1));
  node->settings = {shape.vec(), eps, rms, zero_centred, text(backward_chapter), batch_invariant};
  node->dropout = dropout;
  node->has_residual = r.defined();
  node->has_x1 = second.defined();
  node->has_y1 = w1.defined() || b1.defined();
  node->row_type = x.scalar_type();
  node->residual_type = r.defined() ? r.scalar_type() : x.scalar_type();
  auto [y, sum, statistics, y1] = run();
  for (Tensor* output : {&y, &sum, &statistics, &y1}) torch::autograd::set_history(*output, node);
  node->sum = SavedVariable(sum, true);
  node->weight = SavedVariable(w, false);
  node->bias = SavedVariable(b, false);
  node->weight1 = SavedVariable(w1, false);
  node->bias1 = SavedVariable(b1, false);
  node->statistics = SavedVariable(statistics, true);
  node->rowscale = SavedVariable(scale, false);
  node->rowscale1 = SavedVariable(scale1, false);
  node->seeds = SavedVariable(value(seeds), false);
  node->seeds1 = SavedVariable(value(seeds1), false);
  return {y, sum, statistics, y1};
}

// --- In place ---

void add_norm_in_place_autograd(c10::DispatchKeySet keys, const Tensor& x, const Tensor& residual,
                                c10::SymIntArrayRef shape, const MaybeTensor& weight,
                                const MaybeTensor& bias, double eps, bool rms, bool zero_centred,
                                MaybeName chapter, bool batch_invariant) {
  const Tensor w = value(weight);
  const Tensor b = value(bias);
  check_no_tangents({&x, &residual, &w, &b});
  TORCH_CHECK(!torch::autograd::compute_requires_grad(x, residual, w, b),
              "inplace=True is for inference, and a gradient is asked for: leave it out, or call "
              "under torch.no_grad()");
  static const auto& forward = find<AddNormInPlaceSignature>("layernorm_chapters::add_norm_");
  const at::AutoDispatchBelowAutograd below;
  forward.redispatch(keys & c10::after_autograd_keyset, x, residual, shape, weight, bias, eps, rms,
                     zero_centred, chapter, batch_invariant);
}

/// Tells PyTorch that both tensors change. In inference mode this runs without the function above.
void add_norm_in_place_versions(c10::DispatchKeySet keys, const Tensor& x, const Tensor& residual,
                                c10::SymIntArrayRef shape, const MaybeTensor& weight,
                                const MaybeTensor& bias, double eps, bool rms, bool zero_centred,
                                MaybeName chapter, bool batch_invariant) {
  torch::autograd::increment_version(x);  // before anything is written: this may refuse
  torch::autograd::increment_version(residual);
  static const auto& forward = find<AddNormInPlaceSignature>("layernorm_chapters::add_norm_");
  const at::AutoDispatchBelowADInplaceOrView below;
  forward.redispatch(keys & c10::after_ADInplaceOrView_keyset, x, residual, shape, weight, bias,
                     eps, rms, zero_centred, chapter, batch_invariant);
}

/// For lazily negated tensors. PyTorch's own fallback expects an operator that writes a tensor to
/// return it, and reads beyond the end of the stack if the operator returns nothing.
void add_norm_in_place_negated(c10::DispatchKeySet keys, const Tensor& x, const Tensor& residual,
                               c10::SymIntArrayRef shape, const MaybeTensor& weight,
                               const MaybeTensor& bias, double eps, bool rms, bool zero_centred,
                               MaybeName chapter, bool batch_invariant) {
  for (const auto& [name, written] : {std::pair{"x", &x}, std::pair{"residual", &residual}}) {
    TORCH_CHECK_VALUE(!written->is_neg(), name,
                      " is negated lazily, as the imaginary part of a conjugate is, and "
                      "inplace=True writes it: give it as ",
                      name, ".resolve_neg()");
  }
  const auto resolved = [](const MaybeTensor& parameter) {
    return is_there(parameter) ? MaybeTensor(parameter->resolve_neg()) : parameter;
  };
  static const auto& forward = find<AddNormInPlaceSignature>("layernorm_chapters::add_norm_");
  constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Negative);
  forward.redispatch(keys & kBelow, x, residual, shape, resolved(weight), resolved(bias), eps, rms,
                     zero_centred, chapter, batch_invariant);
}

}  // namespace

TORCH_LIBRARY_IMPL(layernorm_chapters, Negative, m) {
  m.impl("add_norm_", add_norm_in_place_negated);
}

TORCH_LIBRARY_IMPL(layernorm_chapters, ADInplaceOrView, m) {
  m.impl("add_norm_", add_norm_in_place_versions);
}

TORCH_LIBRARY_IMPL(layernorm_chapters, Autograd, m) {
  m.impl("norm", norm_autograd);
  m.impl("add_norm", add_norm_autograd);
  m.impl("add_norm_", add_norm_in_place_autograd);
  m.impl("norm_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("add_norm_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace layernorm_chapters
