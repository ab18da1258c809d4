"""host_time.py on the CPU and on the GPU: who contends, who is refused, what is recorded. Small blocks, few turns."""

import json
import sys
from types import SimpleNamespace

import pytest

from common.tools.pytest_fixtures import import_torch

torch = import_torch()
from common.campaign import host_time  # noqa: E402

SMALL = {"gpt": ("layer", 32, 16), "llama": ("rms", 32, 16)}
DTYPE = torch.bfloat16


@pytest.fixture(autouse=True)
def small_blocks(library, torch_device, monkeypatch):
    monkeypatch.setattr(host_time, "MODELS", SMALL)
    monkeypatch.setattr(host_time, "GPU", torch_device == "cuda")
    monkeypatch.setattr(host_time, "DEVICE", torch_device)
    monkeypatch.setattr(host_time, "OTHERS", {})
    torch.manual_seed(1)
    yield
    host_time.lnc.disable()


def some_input(batch=2, length=8, width=32):
    x, dy = torch.randn(2, batch, length, width, device=host_time.DEVICE, dtype=DTYPE)
    return x.requires_grad_(), dy


class Biased(torch.nn.LayerNorm):
    """A layer norm that forgets to centre."""

    def forward(self, x):
        return torch.nn.functional.rms_norm(x, self.normalized_shape, self.weight, self.eps) + self.bias


class Detached(torch.nn.LayerNorm):
    """The right output, without the gradient of the weight."""

    def forward(self, x):
        return torch.nn.functional.layer_norm(x, self.normalized_shape, self.weight.detach(), self.bias, self.eps) \
            + 0.0 * self.weight


class Unfinished(torch.nn.LayerNorm):
    def forward(self, x):
        raise RuntimeError("no kernel for this\nand more")


class UnfinishedRMS(torch.nn.RMSNorm):
    forward = Unfinished.forward


@pytest.mark.parametrize("model", SMALL)
def test_ours_agree_with_torch_s_in_float(model):
    contenders = host_time.blocks(model, DTYPE)
    assert list(contenders) == ["torch", "enable()", "ours", "fused"]
    assert list(host_time.right_ones(contenders, *some_input(), DTYPE)) == list(contenders)
    assert not host_time.lnc.operators.load().is_enabled()


@pytest.mark.parametrize("norm, why", [
    (Biased, "its output is "),
    (Detached, "its gradient of norm1.weight is "),
    (Unfinished, "RuntimeError: no kernel for this\n"),
])
def test_a_contender_that_disagrees_is_refused_in_a_sentence(norm, why, monkeypatch, capsys):
    monkeypatch.setattr(host_time, "OTHERS", {"theirs": lambda kind: norm})
    contenders = host_time.blocks("gpt", DTYPE)
    x, dy = some_input()
    with torch.no_grad():
        x += 1.0
    assert list(host_time.right_ones(contenders, x, dy, DTYPE)) == ["torch", "enable()", "ours", "fused"]
    said = capsys.readouterr().out
    assert said.startswith(f"theirs is refused: {why}") and said.count("\n") == 1


def test_numbers_that_are_none_disagree():
    noise = {"its output": 1e-3}
    assert host_time.disagreement({"its output": float("nan")}, noise, DTYPE)
    assert host_time.disagreement({"its output": 1.7e-2}, noise, DTYPE)  # bf16's rounding is 7.8e-3
    assert host_time.disagreement({"its output": 1.5e-2}, noise, DTYPE) is None
    assert host_time.disagreement({"its output": 5e-2}, {"its output": 3e-2}, DTYPE) is None


def test_who_is_not_installed_or_cannot_is_left_out_in_a_line(monkeypatch, capsys):
    monkeypatch.setattr(host_time, "OTHERS", {"torch.compile": host_time.compiled_norm, "liger": host_time.liger_norm,
                                              "quack": host_time.quack_norm})
    monkeypatch.setattr(host_time, "GPU", False)
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.setitem(sys.modules, "quack", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "quack.rmsnorm", SimpleNamespace(QuackRMSNorm=torch.nn.RMSNorm))
    assert host_time.other_norms("rms") == {}
    compiled, liger, quack = capsys.readouterr().out.splitlines()
    assert compiled == "torch.compile is left out, rms norm: it needs a GPU"
    assert liger.startswith("liger is left out: ") and liger.endswith("; pip install liger-kernel")
    assert quack == "quack is left out, rms norm: it needs a GPU"
    monkeypatch.setattr(host_time, "needs_gpu", lambda: None)
    assert list(host_time.other_norms("layer")) == ["torch.compile"]
    assert capsys.readouterr().out.splitlines()[-1] == (
        "quack is left out, layer norm: its layer norm has no gradients for PyTorch")
    assert list(host_time.other_norms("rms")) == ["torch.compile", "quack"]


@pytest.mark.parametrize("only, parts", [(None, ["layer", "rms", "gpt", "llama"]), ("calls", ["layer", "rms"]),
                                         ("blocks", ["gpt", "llama"])])
def test_only_one_of_the_parts(only, parts, monkeypatch, tmp_path):
    ran = []
    for name in ("compare_calls", "compare_blocks"):
        monkeypatch.setattr(host_time, name, lambda part, *more: ran.append(part))
    host_time.main(["--json", str(tmp_path / "host.jsonl"), *(["--only", only] if only else [])])
    assert ran == parts


def test_a_block_s_records(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(host_time, "OTHERS", {"theirs": host_time.torch_norm,
                                              "wrong": {"layer": Unfinished, "rms": UnfinishedRMS}.get})
    file = tmp_path / "host.jsonl"
    host_time.main(["--only", "blocks", "--turns", "1", "--steps", "1", "--json", str(file)])
    records = [json.loads(line) for line in file.read_text().splitlines()]
    sizes = 2 if host_time.GPU else 1
    assert [record["contender"] for record in records] == 2 * sizes * ["torch", "theirs", "enable()", "ours", "fused"]
    assert capsys.readouterr().out.count("wrong is refused: RuntimeError: no kernel for this") == 2 * sizes
    for record in records:
        assert record["host"] == "block" and record["width"] == 32 and record["step_us"] > 0
        assert ("graph_us" in record) == ("peak_bytes" in record) == host_time.GPU
        assert record.get("peak_bytes", 1) > 0
