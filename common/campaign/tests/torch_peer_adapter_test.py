"""run_peer_tests.py and what it puts in place of a peer's package, on made-up checkouts of two small tests each."""

import subprocess
import sys
from pathlib import Path

import pytest

from common.tools.pytest_fixtures import import_torch

torch = import_torch()

ROOT = Path(__file__).resolve().parents[3]

LIGER = """
import pytest
import torch
from liger_kernel.ops import LigerRMSNormFunction
from liger_kernel.transformers.functional import liger_rms_norm
from liger_kernel.transformers.rms_norm import LigerRMSNorm
from liger_kernel.utils import infer_device
from test.utils import supports_bfloat16

@pytest.mark.skipif(not supports_bfloat16(), reason="no bfloat16")
def test_correctness():
    x = torch.randn(3, 8, device=infer_device())
    own = LigerRMSNorm(8, offset=1.0).to(infer_device())(x)
    assert torch.allclose(own, 2.0 * torch.nn.functional.rms_norm(x, (8,), eps=1e-6), atol=1e-5)
    assert torch.equal(own, liger_rms_norm(x, torch.ones_like(x[0]), 1e-6, 1.0))
    assert torch.equal(own, LigerRMSNormFunction.apply(x, torch.ones_like(x[0]), 1e-6, 1.0))

@pytest.mark.parametrize("world_size", [4, 8])
def test_dtensor_rms_norm(world_size):
    raise AssertionError
"""

QUACK = """
import pytest
import torch
from quack.rmsnorm import layernorm_bwd, layernorm_fwd, rmsnorm, rmsnorm_fwd_tuned, rmsnorm_ref

@pytest.mark.parametrize("M", [2, 1 << 30])
@pytest.mark.parametrize("N", [8])
def test_of_heads(M, N):
    if M > 2:
        pytest.skip("large")
    x, residual = torch.randn(2, M, 3, N, device="cuda", dtype=torch.float16)
    weight, bias = torch.randn(2, 3, N, device="cuda")
    out, total = rmsnorm(x, weight, bias, residual, prenorm=True, weight_offset=1.0)
    expected = rmsnorm_ref(x.float() + residual.float(), weight + 1.0) + bias
    torch.testing.assert_close(out.float(), expected, atol=1e-2, rtol=1e-2)
    assert torch.equal(total, x + residual)

def test_the_passes_apart():
    x = torch.randn(4, N := 16, device="cuda", requires_grad=True)
    weight = torch.ones(N, device="cuda", requires_grad=True)
    bias = torch.zeros(N, device="cuda", requires_grad=True)
    y, rstd, mean = layernorm_fwd(x.detach(), weight, return_rstd=True, return_mean=True)
    expected = torch.nn.functional.layer_norm(x, (N,), weight, bias, 1e-6)
    torch.testing.assert_close(y, expected)
    gradients = layernorm_bwd(x.detach(), weight.detach(), torch.ones_like(y), rstd, mean)
    for gradient, right in zip(gradients, torch.autograd.grad(expected.sum(), (x, weight, bias))):
        torch.testing.assert_close(gradient, right, atol=1e-4, rtol=1e-4)

def test_rmsnorm_fwd_tuned_requires_config():
    raise AssertionError
"""

QUACK_SOURCE = """
import cutlass

def rmsnorm_ref(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w
"""


def checkout(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def liger(tmp_path):
    others = dict.fromkeys(("layer_norm", "fused_add_rms_norm"), "")
    return checkout(tmp_path / "liger", {
        "test/__init__.py": "", "test/utils.py": "import torch\nsupports_bfloat16 = torch.cuda.is_available\n",
        "test/transformers/test_rms_norm.py": LIGER, "test/transformers/test_cutile_rms_norm.py": "",
        **{f"test/transformers/test_{name}.py": text for name, text in others.items()}})


@pytest.fixture
def quack(tmp_path):
    return checkout(tmp_path / "quack", {"quack/rmsnorm.py": QUACK_SOURCE, "tests/test_layernorm.py": "",
                                         "tests/test_rmsnorm.py": QUACK, "tests/conftest.py": "import cutlass\n"})


def run(*arguments):
    return subprocess.run([sys.executable, "-B", "-m", "common.campaign.peer_tests.run_peer_tests", *map(str, arguments)],
                          cwd=ROOT, capture_output=True, text=True)


def test_tests_of_theirs_call_ours(library, torch_device, liger, quack):
    result = run("--liger", liger, "--quack", quack)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"Tests of linkedin/Liger-Kernel and Dao-AILab/quack on the {torch_device} backend"
    assert "linkedin/Liger-Kernel: 1 passed, 0 failed" in lines
    assert "  left out: test_dtensor_rms_norm (2): gathers a DTensor over several GPUs, which ours does not" in lines
    assert "  left out: test/transformers/test_cutile_rms_norm.py: compares two of Liger's own implementations" in lines
    assert "Dao-AILab/quack: 2 passed, 0 failed" in lines
    large = "too large for the CPU backend" if torch_device == "cpu" else "it skips itself: large"
    assert f"  left out: test_of_heads (1): {large}" in lines
    assert "  left out: test_rmsnorm_fwd_tuned_requires_config (1): sets QuACK's launch parameters" in lines


def test_a_test_that_fails_or_wants_what_is_not_there_shows(library, torch_device, quack):
    file = quack / "tests/test_rmsnorm.py"
    file.write_text(QUACK + "\ndef test_new():\n    rmsnorm_fwd_tuned.fn(1)\n")
    result = run("--quack", quack)
    assert result.returncode == 1
    assert "Dao-AILab/quack: 2 passed, 1 failed" in result.stdout
    assert "quack.rmsnorm.rmsnorm_fwd_tuned.fn has no counterpart in layernorm_chapters" in result.stdout


def test_where_nothing_passes_nothing_is_well(library, torch_device, quack):
    assert run("--quack", quack, "-k", "no_such_test").returncode == 1


@pytest.mark.parametrize("arguments, sentence", [
    ((), "name a checkout: --liger DIR, --quack DIR, or both"),
    (("--quack", "/nowhere"), "/nowhere is no checkout of Dao-AILab/quack that has the tests known here: "
                              "there is no /nowhere/tests/test_layernorm.py"),
])
def test_a_checkout_that_is_none_is_refused_in_a_sentence(arguments, sentence):
    result = run(*arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"run_peer_tests.py: {sentence}\n")
