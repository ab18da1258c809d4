"""replace_norms: what it replaces, what it leaves alone and why, and what other tools make of a replaced model."""

import copy
import io
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_fixtures import import_torch

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's threads and the CPU library's
torch = import_torch()
import layernorm_chapters as lnc  # noqa: E402
from layernorm_chapters import operators  # noqa: E402

nn = torch.nn
COLS = 16
PACKAGE = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module", autouse=True)
def device(torch_device):
    torch.manual_seed(3)
    operators.load()
    return torch_device


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


REPLACED = {
    "LayerNorm": lambda: nn.LayerNorm(COLS), "RMSNorm": lambda: nn.RMSNorm(COLS), "a large eps": lambda: nn.RMSNorm(COLS, eps=0.5),
    "no parameters": lambda: nn.LayerNorm(COLS, elementwise_affine=False), "no bias": lambda: nn.LayerNorm(COLS, bias=False),
    "two dimensions": lambda: nn.LayerNorm((4, COLS)), "a Llama's": LlamaNorm, "with a residual": ResidualNorm,
    "with a gate": GatedNorm, "1 + weight": ZeroCentredNorm, "mean and deviation": OwnLayerNorm,
    "an eps of another name": lambda: norm_of(lambda m, x: m.weight * rms_of(x, m.tiny), tiny=1e-3),
}


@pytest.mark.parametrize("name", REPLACED)
def test_what_is_replaced_gives_what_it_gave(device, name):
    module = REPLACED[name]().to(device)
    shape = tuple(module.normalized_shape) if hasattr(module, "normalized_shape") else (COLS,)
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
    "another module inside": (lambda: nested(), "has modules"),
    "a weight for each head": (lambda: headed(), "its weight is of shape [2, 16]"),
    "a batch norm": (lambda: nn.SyncBatchNorm(COLS), "has buffers"),
    "one of ours": (lambda: lnc.LayerNorm(COLS), "of this package"),
}


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
            return super().forward(x)

    norm = CountingNorm().to(device)
    hooked = []
    norm.register_forward_hook(lambda *_: hooked.append(1))
    generator = torch.get_rng_state()
    assert lnc.replace_norms(norm).names == [""]
    assert (norm.calls, norm.seen, hooked) == (0, (), []) and torch.equal(torch.get_rng_state(), generator)


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


@pytest.fixture
def one_process(device):
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this PyTorch was built without torch.distributed, or without gloo")
    distributed.init_process_group("nccl" if device == "cuda" else "gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield distributed.device_mesh.init_device_mesh(device, (1,))
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("order", ("replaced first", "sharded first"))
def test_fsdp2(device, one_process, order):
    from torch.distributed.fsdp import FSDPModule, fully_shard

    model = nn.Sequential(nn.Linear(COLS, COLS), LlamaNorm(), nn.LayerNorm(COLS)).to(device)
    x = torch.randn(3, COLS, device=device)
    right = model(x)
    replaced = lnc.replace_norms(model) if order == "replaced first" else None
    for part in (model[1], model[2], model):
        fully_shard(part, mesh=one_process)
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


def test_the_example_of_a_module_that_python_imports_alone(tmp_path):
    """A pickle names the module's own class: no other process needs a class that was made here."""
    (tmp_path / "own_norms.py").write_text("import torch\n\n\nclass OwnNorm(torch.nn.LayerNorm):\n    pass\n")
    code = ("import pickle, sys, torch, layernorm_chapters as lnc, own_norms\n"
            "norm = own_norms.OwnNorm(16)\nlnc.replace_norms(norm)\nprint(norm)\n"
            "sys.stdout.flush(); pickle.dump(norm, open('norm.pickle', 'wb'))")
    again = "import pickle\nnorm = pickle.load(open('norm.pickle', 'rb'))\nprint(norm, norm._by_layernorm_chapters.kind)"
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{tmp_path}", "CUDA_VISIBLE_DEVICES": ""}
    if "cuda" in str(operators.library().path):
        pytest.skip("without a GPU the GPU's library does not load")
    first, second = (subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True)
                     for text in (code, again))
    assert first.returncode == 0 and second.returncode == 0, first.stderr + second.stderr
    assert second.stdout.strip() == first.stdout.strip() + " layer"
