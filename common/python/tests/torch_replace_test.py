"""replace_norms: what it replaces, what it leaves alone and why, and what other tools make of a replaced model."""

import collections
import contextlib
import copy
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from common.python.tests.norms import lnc, torch

nn = torch.nn
COLS = 16
PACKAGE = Path(__file__).resolve().parents[1]


class LlamaNorm(nn.Module):
    """As transformers have it: rounded to x's type before the weight."""

    def __init__(self, cols=COLS, eps=1e-6):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.rand(cols) + 0.5), eps

    def forward(self, hidden_states):
        z = hidden_states.float()
        z = z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * z.to(hidden_states.dtype)


class ResidualNorm(LlamaNorm):
    def forward(self, x, residual=None):
        return super().forward(x if residual is None else x + residual)


class GatedNorm(LlamaNorm):
    def forward(self, x, gate=None):
        return super().forward(x) if gate is None else super().forward(x) * torch.sigmoid(gate)


class ZeroCentredNorm(LlamaNorm):
    def forward(self, x):
        z = x.float()
        return ((1.0 + self.weight.float()) * z * torch.rsqrt(z.square().mean(-1, keepdim=True) + self.variance_epsilon)).to(x.dtype)


class OwnLayerNorm(LlamaNorm):
    def __init__(self, cols=COLS):
        super().__init__(cols)
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = (x - mean).square().mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(var + self.variance_epsilon) * self.weight + self.bias


def norm_of(formula, **attributes):
    """A module whose class has forward(self, x) = formula."""
    class SomeNorm(LlamaNorm):
        def forward(self, x):
            return formula(self, x)

    norm = SomeNorm()
    for name, value in attributes.items():
        setattr(norm, name, value)
    return norm


def rms_of(x, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def llama_of(m, x):
    return m.weight * rms_of(x, m.variance_epsilon)


class Config:
    def __init__(self, **settings):
        vars(self).update(settings)


class FamilyNorm(LlamaNorm):
    def __init_subclass__(cls, key):
        pass


class MemberNorm(FamilyNorm, key="a"):
    pass


REPLACED = {
    "LayerNorm": lambda: nn.LayerNorm(COLS), "RMSNorm": lambda: nn.RMSNorm(COLS), "a large eps": lambda: nn.RMSNorm(COLS, eps=0.5),
    "no parameters": lambda: nn.LayerNorm(COLS, elementwise_affine=False), "no bias": lambda: nn.LayerNorm(COLS, bias=False),
    "two dimensions": lambda: nn.LayerNorm((4, COLS)), "a Llama's": LlamaNorm, "with a residual": ResidualNorm,
    "with a gate": GatedNorm, "1 + weight": ZeroCentredNorm, "mean and deviation": OwnLayerNorm,
    "an eps of another name": lambda: norm_of(lambda m, x: m.weight * rms_of(x, m.tiny), tiny=1e-3),
    "a shape that is an integer": lambda: norm_of(llama_of, normalized_shape=COLS),
    "a class whose subclasses have a key": MemberNorm,
    "a configuration and functions": lambda: norm_of(lambda m, x: m.call(m.config.scale * llama_of(m, x)), call=lambda x: x,
                                                     config=Config(scale=1.0, size=[COLS]), other=torch.rsqrt),
    "a method of its own as an attribute": lambda: with_its_own_method(),
}


def with_its_own_method():
    norm = norm_of(lambda m, x: m.weight * m.scaled(x))
    type(norm)._scaled = lambda m, x: rms_of(x, m.variance_epsilon)
    norm.scaled = norm._scaled
    return norm


@pytest.mark.parametrize("name", REPLACED)
def test_what_is_replaced_gives_what_it_gave(device, name):
    module = REPLACED[name]().to(device)
    shape = tuple(module.normalized_shape) if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) else (COLS,)
    for parameter in module.parameters():
        nn.init.normal_(parameter, 1.0, 0.5)
    original = copy.deepcopy(module)
    replaced = lnc.replace_norms(module)
    assert replaced.names == [""] and replaced.left_alone == {} and type(module).__name__ == type(original).__name__
    for magnitude in (1e-6, 1e-3, 1.0, 1e3):
        for leading in ((), (3,), (2, 3), (2, 3, 5), (0,)):
            rows = (magnitude * (torch.randn(*leading, *shape) + 1.0)).to(device)
            x, z = rows.clone().requires_grad_(), rows.clone().requires_grad_()
            y, right = module(x), original(z)
            assert y.dtype == right.dtype and torch.allclose(y, right, rtol=1e-4, atol=1e-5 * float(right.detach().abs().max()) if right.numel() else 0.0)
            dy = torch.randn_like(y)
            for found, expected in zip(torch.autograd.grad(y, [x, *module.parameters()], dy),
                                       torch.autograd.grad(right, [z, *original.parameters()], dy)):
                assert float((found - expected).norm()) <= 1e-4 * float(expected.norm()) + 1e-12
    calls = count_of_kernel_calls(lambda: module(torch.randn(3, *shape, device=device)))
    assert calls == 1  # and it is the kernels that give it


def with_offset(name):
    """A norm that goes by an attribute of this name, beside one of the same class that does not."""
    class OffsetNorm(LlamaNorm):
        def __init__(self, offset):
            super().__init__()
            setattr(self, name, offset)

        def forward(self, x):
            return rms_of(x, self.variance_epsilon) * (self.weight + 1.0 if getattr(self, name) is True else self.weight)

    return nn.ModuleList([OffsetNorm(offset) for offset in (False, True, None)])


@pytest.mark.parametrize("name", ("offset", "_offset", "_version", "type"))
def test_norms_of_one_class_that_differ_in_an_attribute(device, name):
    norms = with_offset(name).to(device)
    x = torch.randn(3, COLS, device=device)
    right = [norm(x) for norm in norms]
    assert lnc.replace_norms(norms).names == ["0", "1", "2"]
    for norm, y in zip(norms, right):
        assert torch.allclose(norm(x), y, atol=1e-5) and count_of_kernel_calls(lambda: norm(x)) == 1


def count_of_kernel_calls(call):
    with torch.profiler.profile() as profile:
        call()
    return sum(event.name == "layernorm_chapters::norm" for event in profile.events())


LEFT_ALONE = {
    "over the channels": (lambda: nn.GroupNorm(1, COLS), "fails on rows"),
    "over channels that come first": (lambda: norm_of(lambda m, x: nn.functional.layer_norm(
        x.transpose(1, -1), (COLS,), m.weight, None, m.variance_epsilon).transpose(1, -1)), "fails on rows"),
    "an eps that no attribute holds": (lambda: norm_of(lambda m, x: m.weight * rms_of(x, 1e-5)), "neither layer norm nor RMS norm"),
    "an eps that is a tensor": (lambda: norm_of(lambda m, x: m.weight * rms_of(x, m.tiny), tiny=torch.tensor(1e-5)), "has tensors"),
    "an eps in a buffer": (lambda: buffered(), "has buffers"),
    "an eps outside of the root": (lambda: norm_of(lambda m, x: m.weight * x / (x.square().mean(-1, keepdim=True).sqrt()
                                                                                + m.variance_epsilon)), "neither"),
    "a variance that is clamped": (lambda: norm_of(lambda m, x: m.weight * x * torch.rsqrt(
        x.square().mean(-1, keepdim=True).clamp_min(m.variance_epsilon))), "neither"),
    "an unbiased deviation": (lambda: norm_of(lambda m, x: m.weight * (x - x.mean(-1, keepdim=True)) * torch.rsqrt(
        x.var(-1, keepdim=True) + m.variance_epsilon)), "neither"),
    "the largest in place of the mean": (lambda: norm_of(lambda m, x: m.weight * x / x.abs().amax(-1, keepdim=True).clamp_min(1e-9)),
                                         "neither"),
    "over all rows": (lambda: norm_of(lambda m, x: m.weight * x * torch.rsqrt(x.square().mean() + m.variance_epsilon)), "neither"),
    "a dropout while it trains": (lambda: norm_of(lambda m, x: nn.functional.dropout(
        m.weight * rms_of(x, m.variance_epsilon), 0.5, m.training)), "in training it computes something else"),
    "a part that is not differentiated": (lambda: norm_of(lambda m, x: m.weight * x * torch.rsqrt(
        x.square().mean(-1, keepdim=True) + m.variance_epsilon).detach()), "gradients"),
    "a second result": (lambda: norm_of(lambda m, x: (m.weight * rms_of(x, m.variance_epsilon), x)), "returns tuple"),
    "a second argument that must be there": (lambda: twofold(), "fails on rows"),
    "a double's range": (lambda: norm_of(lambda m, x: llama_of(m, x.double()).to(x.dtype)), "neither"),
    "a scale that no square is too large for": (lambda: norm_of(lambda m, x: m.weight * scaled_rms_of(x, m.variance_epsilon)), "neither"),
    "numbers in place of infinities": (lambda: norm_of(lambda m, x: llama_of(m, torch.nan_to_num(x))), "neither"),
    "numbers in place of NaN": (lambda: norm_of(lambda m, x: llama_of(m, torch.where(x.isnan(), 0.0, x))), "neither"),
    "0 in place of a result that is NaN": (lambda: norm_of(lambda m, x: torch.nan_to_num(llama_of(m, x))), "neither"),
    "rows within half's range": (lambda: norm_of(lambda m, x: llama_of(m, x.clamp(-65504, 65504))), "neither"),
    "rows within float's range": (lambda: norm_of(lambda m, x: llama_of(m, x.clamp(-3e38, 3e38))), "neither"),
    "the weight's size alone": (lambda: norm_of(lambda m, x: m.weight.abs() * rms_of(x, m.variance_epsilon)), "neither"),
    "a result within 3.9": (lambda: norm_of(lambda m, x: m.weight * rms_of(x, m.variance_epsilon).clamp(-3.9, 3.9)), "neither"),
    "rounded without gradients": (lambda: norm_of(lambda m, x: rounded(llama_of(m, x), not torch.is_grad_enabled())), "under no_grad()"),
    "rounded in inference_mode": (lambda: norm_of(lambda m, x: rounded(llama_of(m, x), torch.is_inference_mode_enabled())),
                                  "in inference_mode()"),
    "rounded for rows with a gradient": (lambda: norm_of(lambda m, x: rounded(llama_of(m, x), x.requires_grad)), "requires a gradient"),
    "the last rows in an attribute": (lambda: norm_of(lambda m, x: (setattr(m, "last", x), llama_of(m, x))[1]), "attribute 'last'"),
    "the last rows in place of None": (lambda: norm_of(lambda m, x: (setattr(m, "last", x), llama_of(m, x))[1], last=None),
                                       "attribute 'last'"),
    "rows in a deque": (lambda: norm_of(lambda m, x: (m.log.append(x), llama_of(m, x))[1], log=collections.deque()), "attribute 'log'"),
    "a count": (lambda: norm_of(lambda m, x: (m.stats["seen"].append(1), llama_of(m, x))[1], stats={"seen": []}), "attribute 'stats'"),
    "a count in an object": (lambda: norm_of(lambda m, x: (setattr(m.config, "seen", m.config.seen + 1), llama_of(m, x))[1],
                                             config=Config(seen=0)), "attribute 'config'"),
    "a count while it trains": (lambda: norm_of(lambda m, x: (setattr(m, "seen", m.seen + m.training), llama_of(m, x))[1], seen=0),
                                "attribute 'seen'"),
    "a count in a tensor": (lambda: norm_of(lambda m, x: (m.stats["seen"].add_(1), llama_of(m, x))[1], stats={"seen": torch.zeros(1)}),
                            "attribute 'stats' cannot be copied: TypeError: it holds a Tensor"),
    "a buffer that comes later": (lambda: norm_of(lambda m, x: (m.register_buffer("seen", x), llama_of(m, x))[1]), "attribute '_buffers'"),
    "a weight that decays": (lambda: norm_of(lambda m, x: (m.weight.data.mul_(0.999), llama_of(m, x))[1]), "or its parameters"),
    "rows that it writes into": (lambda: norm_of(lambda m, x: (llama_of(m, x), x.add_(1.0))[0]), "writes into its argument"),
    "a generator": (lambda: norm_of(lambda m, x: (torch.rand(1, generator=m.random), llama_of(m, x))[1], random=torch.Generator()),
                    "it holds a Generator"),
    "a file": (lambda: norm_of(llama_of, file=open(os.devnull)), "attribute 'file' cannot be copied"),  # noqa: SIM115
    "its parent in a list": (lambda: norm_of(llama_of, parent=[nn.Linear(2, 2)]), "it holds a Linear"),
    "another module inside": (lambda: nested(), "has modules"),
    "a weight for each head": (lambda: headed(), "its weight is of shape [2, 16]"),
    "a batch norm": (lambda: nn.SyncBatchNorm(COLS), "has buffers"),
    "one of ours": (lambda: lnc.LayerNorm(COLS), "of this package"),
}


def scaled_rms_of(x, eps):
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1.0)
    z = x / scale
    return z * torch.rsqrt(z.square().mean(-1, keepdim=True) + eps / scale.square())


def rounded(y, whether):
    return y.half().to(y.dtype) if whether else y


def buffered():
    norm = LlamaNorm()
    del norm.variance_epsilon
    norm.register_buffer("variance_epsilon", torch.tensor(1e-6))
    return norm


def twofold():
    class TwofoldNorm(LlamaNorm):
        def forward(self, x, scale):
            return super().forward(x) * scale

    return TwofoldNorm()


def nested():
    norm = LlamaNorm()
    norm.dropout = nn.Dropout(0.1)
    return norm


def headed():
    class HeadNorm(nn.LayerNorm):
        def forward(self, x):
            return nn.functional.layer_norm(x, (COLS,), None, None, self.eps) * self.weight + self.bias

    norm = HeadNorm((2, COLS))
    norm.normalized_shape = (COLS,)
    return norm


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_left_alone_is_said(device, name):
    make, why = LEFT_ALONE[name]
    model = nn.Sequential(nn.Linear(COLS, COLS), make()).to(device)
    before, state = type(model[1]), {key: value.clone() for key, value in model.state_dict().items()}
    replaced = lnc.replace_norms(model)
    assert replaced.names == [] and list(replaced.left_alone) == ["1"] and why in replaced.left_alone["1"]
    assert type(model[1]) is before
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key])


def test_a_probe_touches_nothing_of_the_model(device):
    class CountingNorm(LlamaNorm):
        calls, seen = 0, ()

        def forward(self, x):
            self.calls += 1
            self.seen = (*self.seen, x.device.type)
            self.log.append(x)
            self.stats["seen"]["rows"] += x.numel()
            return super().forward(x)

    counting, plain = CountingNorm().to(device), LlamaNorm().to(device)
    counting.log, counting.stats = collections.deque(), {"seen": {"rows": 0}}
    hooked = []
    for norm in (counting, plain):
        norm.register_forward_hook(lambda *_: hooked.append(1))
    generator = torch.get_rng_state()
    assert lnc.replace_norms(nn.ModuleList([counting, plain])).names == ["1"]
    assert (counting.calls, counting.seen, hooked) == (0, (), []) and torch.equal(torch.get_rng_state(), generator)
    assert not counting.log and counting.stats == {"seen": {"rows": 0}}
    counting(torch.randn(3, COLS, device=device))
    assert (counting.calls, len(counting.log), counting.stats["seen"]["rows"]) == (1, 1, 3 * COLS)


def broken(**attributes):
    norm = nn.LayerNorm(COLS)
    for name, value in attributes.items():
        setattr(norm, name, value)
    return norm


class OddModule(nn.Module):
    """It refuses a change of its class."""
    __slots__ = ()

    def __setattr__(self, name, value):
        if name == "__class__":
            raise TypeError("it keeps its class")
        super().__setattr__(name, value)


class OddNorm(OddModule, LlamaNorm):
    pass


class DisagreeableNorm(LlamaNorm):
    @property
    def normalized_shape(self):
        raise ValueError("not now")


BROKEN = {
    "an uninitialized weight": (lambda: broken(weight=nn.UninitializedParameter()), "uninitialized"),
    "a shape that is text": (lambda: broken(normalized_shape="sixteen"), "it cannot be replaced: "),
    "a shape that cannot be had": (DisagreeableNorm, "not now"),
    "a class that stays": (OddNorm, "it keeps its class"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_whatever_one_norm_is_the_others_are_replaced(device, name):
    make, why = BROKEN[name]
    model = nn.Sequential(nn.LayerNorm(COLS), make(), LlamaNorm())
    of = type(model[1])
    replaced = lnc.replace_norms(model)
    assert replaced.names == ["0", "2"] and why in replaced.left_alone["1"]
    assert type(model[1]) is of and not hasattr(model[1], "_by_layernorm_chapters")


@contextlib.contextmanager
def fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


@pytest.mark.parametrize("surroundings", (torch.inference_mode, torch.no_grad, fake_tensors), ids=lambda mode: mode.__name__)
def test_in_whatever_mode_it_is_called(device, surroundings):
    outside = nn.Sequential(nn.LayerNorm(COLS), LlamaNorm())
    with surroundings():
        inside = nn.Sequential(nn.LayerNorm(COLS), LlamaNorm())
        for model in (inside, outside):
            replaced = lnc.replace_norms(model)
            assert replaced.names == ["0", "1"], replaced.left_alone


# --- Calls that the kernels do not take ---


def test_further_arguments_go_to_its_own_forward(device):
    x, other = torch.randn(3, COLS, device=device), torch.randn(3, COLS, device=device)
    for module, name in ((ResidualNorm(), "residual"), (GatedNorm(), "gate")):
        module = module.to(device)
        right = module(x, other)
        lnc.replace_norms(module)
        assert torch.equal(module(x, other), right) and torch.equal(module(x, **{name: other}), right)
        assert torch.allclose(module(x=x), module(x)) and torch.allclose(module(x, **{name: None}), module(x))
    norm = nn.LayerNorm(COLS).to(device)
    right = norm(x)
    lnc.replace_norms(norm)
    assert torch.allclose(norm(input=x), right, atol=1e-6) and count_of_kernel_calls(lambda: norm(input=x)) == 1
    with pytest.raises(TypeError):
        norm(x, other)
    assert torch.equal(lnc.LayerNorm(COLS, device=device)(input=x), lnc.layer_norm(x, COLS, norm.weight, norm.bias))


def test_types_for_which_it_makes_another_go_to_its_own_forward(device):
    norm = LlamaNorm().to(device)  # of a float weight and bfloat16 rows it makes float
    x = torch.randn(3, COLS, device=device)
    right = {dtype: norm(x.to(dtype)) for dtype in (torch.float32, torch.bfloat16, torch.float64)}
    lnc.replace_norms(norm)
    for dtype, y in right.items():
        assert norm(x.to(dtype)).dtype == y.dtype and torch.allclose(norm(x.to(dtype)), y, atol=1e-6)
    assert count_of_kernel_calls(lambda: norm(x.bfloat16())) == 0
    assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16 and count_of_kernel_calls(lambda: norm(x.bfloat16())) == 1


def test_a_replaced_model_of_double_works(device):
    model = nn.Sequential(nn.LayerNorm(COLS), LlamaNorm(), nn.RMSNorm(COLS)).to(device)
    x = torch.randn(3, COLS, device=device, dtype=torch.float64)
    right = copy.deepcopy(model).double()(x)
    lnc.replace_norms(model)
    assert torch.equal(model.double()(x), right)


def test_an_error_is_its_own(device):
    norm = nn.LayerNorm(COLS).to(device)
    lnc.replace_norms(norm)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        norm(torch.randn(3, COLS + 1, device=device))


def test_under_autocast_a_result_has_the_type_that_it_had(device):
    norms = nn.LayerNorm(COLS).to(device), LlamaNorm().to(device).bfloat16()
    for norm in norms:
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(3, COLS, device=device, dtype=dtype)
            with torch.autocast(device, torch.bfloat16):
                right = norm(x).dtype
                replaced = lnc.replace_norms(norm)
                assert norm(x).dtype == right
            replaced.undo()


def differentiated_forward(norm, x):
    with torch.autograd.forward_ad.dual_level():
        y = norm(torch.autograd.forward_ad.make_dual(x, x))
        return torch.autograd.forward_ad.unpack_dual(y).tangent


def with_weight(norm, x):
    return lambda weight: torch.func.functional_call(norm, {"weight": weight}, (x,))


TRANSFORMED = {
    "jvp": lambda norm, x: torch.func.jvp(norm, (x,), (x,))[1],
    "jvp by the weight": lambda norm, x: torch.func.jvp(with_weight(norm, x), (norm.weight.detach(),), (torch.ones_like(norm.weight),))[1],
    "jacfwd": lambda norm, x: torch.func.jacfwd(norm)(x),
    "hessian": lambda norm, x: torch.func.hessian(lambda x: norm(x).pow(3).sum())(x),
    "linearize": lambda norm, x: torch.func.linearize(norm, x)[1](x),
    "a dual level": differentiated_forward,
    "vmap over nothing": lambda norm, x: torch.func.vmap(norm)(x[:0]),
    "vmap over nothing within": lambda norm, x: torch.func.vmap(torch.func.vmap(norm))(x.expand(2, *x.shape)[:, :0]),
    "gradients of nothing": lambda norm, x: torch.func.vmap(torch.func.grad(lambda x: norm(x).sum()))(x[:0]),
    "vmap over no weights": lambda norm, x: torch.func.vmap(with_weight(norm, x))(norm.weight.detach().expand(0, COLS)),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_that_the_kernels_have_no_rule_for(device, name):
    for norm in (nn.LayerNorm(COLS).to(device), LlamaNorm().to(device)):
        x = torch.randn(3, COLS, device=device)
        right = TRANSFORMED[name](norm, x)
        lnc.replace_norms(norm)
        assert torch.equal(TRANSFORMED[name](norm, x), right)


CHANGED = {
    "a negative eps": lambda m: setattr(m, "variance_epsilon", -1e-3),
    "another eps": lambda m: setattr(m, "variance_epsilon", 0.5),
    "a number": lambda m: setattr(m, "scale", 2.0),
    "a number of its class": lambda m: setattr(next(of for of in type(m).__mro__ if "factor" in vars(of)), "factor", 2.0),
    "a number that its class had": lambda m: setattr(m, "factor", 2.0),
    "an item of a list": lambda m: m.factors.append(2.0),
    "a tensor in place of a number": lambda m: setattr(m, "scale", torch.full((COLS,), 2.0, device=m.weight.device)),
    "a parameter in place of a number": lambda m: (delattr(m, "scale"), setattr(m, "scale", nn.Parameter(m.weight.detach() + 1.0))),
    "no attribute any more": lambda m: delattr(m, "scale"),
}


def changeable():
    class ChangeableNorm(LlamaNorm):
        factor = 1.0

        def __init__(self):
            super().__init__()
            self.scale, self.factors = 1.0, [1.0]

        def forward(self, x):
            y = super().forward(x) * getattr(self, "scale", 2.0)
            return y * self.factor * self.factors[-1]

    return ChangeableNorm()


@pytest.mark.parametrize("compiled", (False, True), ids=("eager", "compiled"))
@pytest.mark.parametrize("name", CHANGED)
def test_a_change_of_what_its_forward_goes_by(device, name, compiled):
    norm, own = changeable().to(device), changeable().to(device)
    own.load_state_dict(norm.state_dict())
    lnc.replace_norms(norm)
    torch.compiler.reset()
    call = torch.compile(norm, backend="eager") if compiled else norm
    x = torch.randn(3, COLS, device=device)
    assert torch.allclose(call(x), own(x), atol=1e-5) and count_of_kernel_calls(lambda: call(x)) == 1
    for module in (norm, own):
        CHANGED[name](module)
    assert torch.allclose(call(x), own(x), equal_nan=True) and count_of_kernel_calls(lambda: call(x)) == 0


# --- What others make of it ---


def test_a_model_on_the_meta_device(device):
    with torch.device("meta"):
        model = nn.Sequential(nn.LayerNorm(COLS, bias=False), LlamaNorm())
        replaced = lnc.replace_norms(model)
    assert replaced.names == ["0", "1"] and all(p.is_meta for p in model.parameters())
    assert model(torch.randn(3, COLS, device="meta")).is_meta
    model = model.to_empty(device=device)
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    x = torch.randn(3, COLS, device=device)
    assert torch.allclose(model(x), nn.functional.rms_norm(nn.functional.layer_norm(x, (COLS,)), (COLS,), None, 1e-6), atol=1e-5)
    assert count_of_kernel_calls(lambda: model(x)) == 2
    torch.set_default_device("meta")
    try:
        assert lnc.replace_norms(nn.Sequential(nn.LayerNorm(COLS))).names == ["0"]
    finally:
        torch.set_default_device(None)


def test_pickle_and_deepcopy_of_a_replaced_model(device):
    model = nn.Sequential(nn.Linear(COLS, COLS), LlamaNorm(), nn.LayerNorm(COLS)).to(device)
    lnc.replace_norms(model)
    x = torch.randn(3, COLS, device=device)
    right = model(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(model), copy.copy(model)):
        assert torch.equal(other(x), right) and count_of_kernel_calls(lambda: other(x)) == 2
        assert [type(part).__name__ for part in other] == ["Linear", "LlamaNorm", "LayerNorm"]
    with torch.no_grad():
        other[1].weight.fill_(0.0)  # that of the shallow copy, which is the model's
    assert not torch.equal(model(x), right)


def made_again(cols):
    return FactoryNorm(cols)


class FactoryNorm(LlamaNorm):
    def __reduce__(self):
        return made_again, (self.weight.numel(),)


class CallingNorm(LlamaNorm):
    def __reduce__(self):
        return type(self), (self.weight.numel(),), vars(self)


class VersionNorm(LlamaNorm):
    def __reduce_ex__(self, protocol):
        return super().__reduce_ex__(0)


class ArgumentNorm(LlamaNorm):
    def __new__(cls, *arguments, key="a"):
        return super().__new__(cls)

    def __getnewargs_ex__(self):
        return (), {"key": "b"}


class CopyingNorm(LlamaNorm):
    def __deepcopy__(self, memo):
        other = type(self)(self.weight.numel())
        other.load_state_dict(self.state_dict())
        return other


class StateNorm(LlamaNorm):
    def __getstate__(self):
        return {"state": super().__getstate__()}

    def __setstate__(self, state):
        super().__setstate__(state["state"])


@pytest.mark.parametrize("of", (FactoryNorm, CallingNorm, VersionNorm, ArgumentNorm, CopyingNorm, StateNorm))
def test_copies_of_a_class_that_says_itself_how_to_copy_it(device, of):
    norm = of(COLS).to(device)
    nn.init.ones_(norm.weight)
    replaced = lnc.replace_norms(norm)
    assert replaced.names == [""]
    x = torch.randn(3, COLS, device=device)
    for copied in (copy.deepcopy, copy.copy, lambda norm: pickle.loads(pickle.dumps(norm))):
        other = copied(norm).to(device)
        assert type(other).__name__ == of.__name__ and isinstance(other, of)
        nn.init.ones_(other.weight)
        assert torch.allclose(other(x), norm(x), atol=1e-6)
        again = lnc.replace_norms(other)
        assert again.names == [""] or "replaced already" in again.left_alone[""]
        assert count_of_kernel_calls(lambda: other(x)) == 1
    replaced.undo()
    assert type(norm) is of and type(copy.deepcopy(norm)) is of


def run_model(model, x, results):
    results.put(model(x).detach().numpy())


def test_a_replaced_model_in_a_spawned_process(device):
    if device != "cpu":
        pytest.skip("a spawned process would need the GPU for itself")
    model = nn.Sequential(LlamaNorm(), nn.LayerNorm(COLS))
    lnc.replace_norms(model)
    x = torch.randn(3, COLS)
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    process = spawn.Process(target=run_model, args=(model, x, results))
    process.start()
    assert torch.equal(torch.from_numpy(results.get(timeout=120)), model(x).detach())
    process.join()


def test_undoing_twice_and_in_order(device):
    model = nn.Sequential(nn.LayerNorm(COLS), nn.Sequential(LlamaNorm())).to(device)
    inner = lnc.replace_norms(model[1])
    outer = lnc.replace_norms(model)
    assert (inner.names, outer.names) == (["0"], ["0"]) and "replaced already" in outer.left_alone["1.0"]
    inner.undo()
    assert type(model[1][0]) is LlamaNorm and type(model[0]) is not nn.LayerNorm
    outer.undo()
    outer.undo()
    assert type(model[0]) is nn.LayerNorm and outer.names == []
    assert lnc.replace_norms(model).names == ["0", "1.0"]


@contextlib.contextmanager
def parametrised(norm, mesh):
    nn.utils.parametrizations.weight_norm(norm, dim=None)
    yield
    nn.utils.parametrize.remove_parametrizations(norm, "weight")


@contextlib.contextmanager
def sharded(norm, mesh):
    from torch.distributed.fsdp import fully_shard

    fully_shard(norm, mesh=mesh)
    yield


@contextlib.contextmanager
def hooked(norm, mesh):
    own = norm.forward
    norm.forward = lambda x: own(x)
    yield
    del norm.forward


@contextlib.contextmanager
def subclassed(norm, mesh):
    own = type(norm)
    norm.__class__ = type("Further" + own.__name__, (own,), {})
    yield
    norm.__class__ = own


@pytest.mark.parametrize("wrapped", (parametrised, sharded, hooked, subclassed))
def test_replacing_again_what_was_undone_while_it_was_wrapped(device, mesh, wrapped):
    for norm in (nn.LayerNorm(COLS).to(device), LlamaNorm().to(device)):
        x, own = torch.randn(3, COLS, device=device), type(norm)
        right = norm(x)
        first = lnc.replace_norms(norm)
        with wrapped(norm, mesh):
            first.undo()
            assert count_of_kernel_calls(lambda: norm(x)) == 0
        for _ in range(2):
            again = lnc.replace_norms(norm)
            assert again.names == [""], again.left_alone
            assert torch.allclose(norm(x), right, atol=1e-5) and count_of_kernel_calls(lambda: norm(x)) == 1
            again.undo()
            assert count_of_kernel_calls(lambda: norm(x)) == 0 and isinstance(norm, own)
        assert type(norm) is own or wrapped is sharded


def test_a_further_class_with_a_forward_of_its_own(device):
    """The kernels would stand in for a part of that forward, of which the probe has shown nothing."""
    norm = LlamaNorm().to(device)
    replaced, by_kernels = lnc.replace_norms(norm), type(norm)
    norm.__class__ = type("FurtherNorm", (by_kernels,), {"forward": lambda self, x: by_kernels.forward(self, x)})
    replaced.undo()
    again = lnc.replace_norms(norm)
    assert again.names == [] and "it cannot be replaced" in again.left_alone[""]


@pytest.mark.parametrize("order", ("replaced first", "parametrised first"))
def test_weight_norm(device, order):
    norm = nn.LayerNorm(COLS).to(device)
    x = torch.randn(3, COLS, device=device)
    if order == "parametrised first":
        nn.utils.parametrizations.weight_norm(norm, dim=None)
        assert "parametrised" in lnc.replace_norms(norm).left_alone[""]
        return
    replaced = lnc.replace_norms(norm)
    nn.utils.parametrizations.weight_norm(norm, dim=None)
    assert count_of_kernel_calls(lambda: norm(x)) == 1
    with torch.no_grad():
        norm.parametrizations.weight.original0.mul_(2.0)
    assert torch.allclose(norm(x), nn.functional.layer_norm(x, (COLS,), norm.weight, norm.bias), atol=1e-6)
    replaced.undo()
    assert count_of_kernel_calls(lambda: norm(x)) == 0 and hasattr(norm, "parametrizations")
    nn.utils.parametrize.remove_parametrizations(norm, "weight")
    assert torch.allclose(norm(x), nn.functional.layer_norm(x, (COLS,), norm.weight, norm.bias), atol=1e-6)


@pytest.mark.parametrize("order", ("replaced first", "sharded first"))
def test_fsdp2(device, mesh, order):
    from torch.distributed.fsdp import FSDPModule, fully_shard

    model = nn.Sequential(nn.Linear(COLS, COLS), LlamaNorm(), nn.LayerNorm(COLS)).to(device)
    x = torch.randn(3, COLS, device=device)
    right = model(x)
    replaced = lnc.replace_norms(model) if order == "replaced first" else None
    for part in (model[1], model[2], model):
        fully_shard(part, mesh=mesh)
    replaced = replaced or lnc.replace_norms(model)
    assert replaced.names == ["1", "2"], replaced.left_alone
    y = model(x)
    assert torch.allclose(y, right, atol=1e-5)
    y.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert count_of_kernel_calls(lambda: model(x)) == 2
    replaced.undo()
    assert isinstance(model[1], FSDPModule) and count_of_kernel_calls(lambda: model(x)) == 0
    assert torch.allclose(model(x), right, atol=1e-5)


def test_a_forward_of_the_instance_stays(device):
    """As accelerate sets it."""
    norm = LlamaNorm().to(device)
    norm._old_forward = norm.forward
    norm.forward = lambda x: 2.0 * norm._old_forward(x)
    replaced = lnc.replace_norms(norm)
    assert "accelerate" in replaced.left_alone[""]
    norm = LlamaNorm().to(device)
    replaced = lnc.replace_norms(norm)
    norm._old_forward = norm.forward
    norm.forward = lambda x: 2.0 * norm._old_forward(x)  # afterwards: what it wraps is the kernels'
    x = torch.randn(3, COLS, device=device)
    assert count_of_kernel_calls(lambda: norm(x)) == 1
    replaced.undo()
    assert count_of_kernel_calls(lambda: norm(x)) == 0 and norm(x).shape == x.shape


def test_a_replaced_model_compiles_whole(device):
    model = nn.Sequential(nn.Linear(COLS, COLS), LlamaNorm(), nn.LayerNorm(COLS), ResidualNorm()).to(device)
    lnc.replace_norms(model)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for rows in (3, 7):
        x = torch.randn(rows, COLS, device=device)
        assert torch.allclose(compiled(x), model(x), atol=1e-5)
    assert count_of_kernel_calls(lambda: compiled(x)) == 3


def test_functional_calls_and_data_parallel_copies_use_their_own_weights(device):
    norm = LlamaNorm().to(device)
    lnc.replace_norms(norm)
    x, weight = torch.randn(3, COLS, device=device), torch.full((COLS,), 3.0, device=device)
    right = lnc.rms_norm(x, COLS, weight, 1e-6)
    assert torch.equal(torch.func.functional_call(norm, {"weight": weight}, (x,)), right)
    replica = norm._replicate_for_data_parallel()
    replica.weight = weight
    assert torch.equal(replica(x), right)


def test_the_example_of_a_module_that_python_imports_alone(device, tmp_path):
    """A pickle names the module's own class: no other process needs a class that was made here."""
    (tmp_path / "own_norms.py").write_text("import torch\n\n\nclass OwnNorm(torch.nn.LayerNorm):\n    pass\n")
    code = ("import pickle, sys, torch, layernorm_chapters as lnc, own_norms\n"
            "norm = own_norms.OwnNorm(16)\nlnc.replace_norms(norm)\nprint(norm)\n"
            "sys.stdout.flush(); pickle.dump(norm, open('norm.pickle', 'wb'))")
    again = "import pickle\nnorm = pickle.load(open('norm.pickle', 'rb'))\nprint(norm, norm._by_layernorm_chapters.kind)"
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{tmp_path}", "CUDA_VISIBLE_DEVICES": ""}
    if device == "cuda":
        pytest.skip("without a GPU the GPU's library does not load")
    first, second = (subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True)
                     for text in (code, again))
    assert first.returncode == 0 and second.returncode == 0, first.stderr + second.stderr
    assert second.stdout.strip() == first.stdout.strip() + " layer"
