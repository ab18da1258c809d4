"""Compiled and exported programs: every shape that they are called with, and programs without the kernels."""

import contextlib

import pytest

from common.python.tests.norms import EPS, LIMITS, error, lnc, random, torch


# --- Compiled ---


@pytest.mark.parametrize("seed", (None, 7))
@pytest.mark.parametrize("second", (False, True))
def test_dropout_in_a_compiled_block_of_any_size(device, seed, second):
    def block(x, residual, x1):
        return lnc.fused_add_layer_norm(x, residual, 64, dropout=0.5, seed=seed, x1=x1)

    torch.compiler.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    for rows in (5, 17, 6):
        x, residual, x1 = (random(rows, 64, device=device) for _ in range(3))
        torch.manual_seed(1)
        y, total = compiled(x, residual, x1 if second else None)
        torch.manual_seed(1)
        right = block(x, residual, x1 if second else None)
        if seed is None and not second:
            dropped = (total == residual).double().mean()
            assert 0.3 < float(dropped) < 0.7
        if seed is not None:
            assert torch.equal(total, right[1]) and torch.equal(y, right[0])
        dx, = torch.autograd.grad(total.sum(), x)
        assert torch.equal(dx != 0.0, dx == 2.0)


def test_a_seed_draws_other_numbers_for_each_row_and_seed(device):
    x, zeros = torch.ones(64, 256, device=device), torch.zeros(64, 256, device=device)
    drawn = [lnc.fused_add_layer_norm(x, zeros, 256, dropout=0.5, seed=seed, prenorm=True)[1] for seed in (0, 1, 2, -5, 2 ** 40)]
    rows = torch.cat(drawn)
    agree = (rows[:, None] == rows[None]).double().mean(-1)  # of any two rows
    agree.fill_diagonal_(0.5)
    assert float(agree.max()) < 0.75 and float(agree.min()) > 0.25 and abs(float(rows.mean()) - 1.0) < 0.02
    parts = lnc.fused_add_layer_norm(x.view(4, 16, 256), zeros.view(4, 16, 256), 256, dropout=0.5, seed=0)[1]
    assert torch.equal(parts.view(64, 256), drawn[0])
    both = lnc.fused_add_layer_norm(x, zeros, 256, dropout=0.5, seed=0, x1=x)[1] - drawn[0]  # the second input's
    assert abs(float(both.mean()) - 1.0) < 0.05 and not torch.equal(both, drawn[0])


def test_batch_invariance_is_seen_by_compiled_code(device):
    seen = []

    def keep(graph, inputs):
        def run(*inputs):
            seen.append([len(node.args) > 10 and node.args[10] for node in graph.graph.nodes
                         if node.target is torch.ops.layernorm_chapters.norm.default])
            return graph.forward(*inputs)
        return run

    torch.compiler.reset()
    model = torch.nn.Sequential(lnc.LayerNorm(16), lnc.RMSNorm(16, batch_invariant=True)).to(device)
    compiled, x = torch.compile(model, fullgraph=True, backend=keep), torch.randn(3, 16, device=device)
    for within in (False, True, False):
        with lnc.batch_invariant() if within else contextlib.nullcontext():
            compiled(x)
    assert seen == [[False, True], [True, True], [False, True]]


def test_a_block_within_compiled_code_is_entered_and_left_in_each_run(device):
    enabled = torch.ops.layernorm_chapters.is_enabled
    seen = []

    @torch.compile(backend="eager")
    def run(x):
        with lnc.enabled(), lnc.batch_invariant():
            y = torch.nn.functional.layer_norm(x, (16,))
            seen.append(enabled())  # and a break in the graph
        return y * lnc.layer_norm(x, 16)

    x = torch.randn(3, 16, device=device)
    torch.compiler.reset()
    for _ in range(3):
        run(x)
        assert not enabled()
    assert seen == [True] * 3

    @torch.compile(backend="eager")
    def switch(x):
        lnc.disable()
        return torch.nn.functional.layer_norm(x, (16,))

    for _ in range(2):
        lnc.enable()
        switch(x)
        assert not enabled()


# --- Exported ---


class Block(torch.nn.Module):
    """Every operator of the package that a forward pass has."""

    def __init__(self, dropout, inplace):
        super().__init__()
        self.norm, self.rms = lnc.LayerNorm(24), lnc.RMSNorm(24, zero_centred=True)
        self.fused = lnc.FusedAddLayerNorm(24)
        self.dropout, self.inplace = dropout, inplace
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, 1.0, 0.3)

    def forward(self, x, residual, rowscale):
        y, total = self.fused(self.norm(x), residual)
        y, total = lnc.fused_add_rms_norm(y, total, 24, self.rms.weight, dropout=self.dropout, seed=5, rowscale=rowscale, x1=x,
                                          rowscale1=rowscale, weight1=self.norm.weight, residual_in_fp32=True)[::2]
        y = self.rms(y)
        if self.inplace:
            y, total = y.clone(), total.to(y.dtype)
            lnc.fused_add_layer_norm(y, total, 24, self.norm.weight, self.norm.bias, inplace=True)
        return y, total


def exported(block, device, rows):
    batch = torch.export.Dim("batch", min=2, max=64)
    inputs = block_inputs(device, rows)
    return torch.export.export(block, inputs, dynamic_shapes=({0: batch}, {0: batch}, {0: batch}))


def block_inputs(device, rows):
    return (torch.randn(rows, 3, 24, device=device), torch.randn(rows, 3, 24, device=device), torch.rand(rows, 3, device=device) + 0.5)


@pytest.mark.parametrize("dropout", (0.0, 0.4))
@pytest.mark.parametrize("inplace", (False, True))
def test_a_program_without_the_kernels(device, dropout, inplace):
    with torch.no_grad():
        block = Block(dropout, inplace).to(device)
        program = exported(block, device, 4)
        assert "layernorm_chapters" in str(program.graph)
        plain = program.run_decompositions(lnc.decompositions())
        assert "layernorm_chapters" not in str(plain.graph)
        for rows in (4, 7):
            inputs = block_inputs(device, rows)
            for of in (program, plain):
                for found, right in zip(of.module()(*inputs), block(*inputs)):
                    assert found.dtype == right.dtype and error(found, right) < 1e-5


def test_every_operator_has_a_decomposition(device):
    named = {operator.name().split("::")[1].split(".")[0] for operator in lnc.decompositions()}
    tensors = {name for name in dir(torch.ops.layernorm_chapters) if "norm" in name}
    assert named == tensors >= {"norm", "norm_backward", "add_norm", "add_norm_backward", "add_norm_"}


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("rms", (False, True))
@pytest.mark.parametrize("memory_efficient", (False, True))
@pytest.mark.parametrize("zero_centred", (False, True))
def test_the_decomposition_of_a_backward_pass(device, dtype, rms, memory_efficient, zero_centred):
    ops, plain = torch.ops.layernorm_chapters, lnc.decompositions()
    x, dy = random(4, 3, 24, device=device, dtype=dtype, grad=False), random(4, 3, 24, device=device, dtype=dtype, grad=False)
    weight = random(24, device=device, dtype=dtype, mean=2.0, grad=False)
    bias = None if rms else random(24, device=device, dtype=dtype, grad=False)
    forward = (x, [24], weight, bias, EPS, rms, memory_efficient, zero_centred)
    y, statistics = ops.norm.default(*forward)
    for found, right in zip(plain[ops.norm.default](*forward), (y, statistics)):
        assert found.dtype == right.dtype and found.shape == right.shape and error(found, right) < LIMITS[dtype]
    for wants in ((True, True), (False, False)):
        backward = (dy, y if memory_efficient else x, [24], weight, bias, statistics, EPS, rms, memory_efficient, zero_centred,
                    wants[0], wants[1] and not rms, None)
        for found, right in zip(plain[ops.norm_backward.default](*backward), ops.norm_backward.default(*backward)):
            assert found.dtype == right.dtype and found.shape == right.shape and error(found, right) < 2 * LIMITS[dtype]


@pytest.mark.parametrize("rms", (False, True))
@pytest.mark.parametrize("options", ({}, {"residual": None, "rowscale": True}, {"x1": True, "rowscale": True, "dropout": 0.4},
                                     {"second": True, "dropout": 0.4}, {"float_sum": True, "x1": True, "second": True}), ids=str)
def test_the_decomposition_of_a_fused_pass(device, rms, options):
    ops, plain = torch.ops.layernorm_chapters, lnc.decompositions()
    dtype, dropout, float_sum = torch.bfloat16, options.get("dropout", 0.0), options.get("float_sum", False)
    x, dy, dsum, dy1, other = (random(5, 24, device=device, dtype=dtype, grad=False) for _ in range(5))
    weight, bias, weight1, bias1 = (random(24, device=device, dtype=dtype, mean=2.0, grad=False) for _ in range(4))
    residual = random(5, 24, device=device, grad=False).to(torch.float32 if float_sum else dtype)
    residual = None if "residual" in options else residual
    x1 = other if options.get("x1") else None
    scales = [torch.rand(5, device=device) + 0.5 if options.get("rowscale") and there else None for there in (True, x1 is not None)]
    seeds = [torch.randint(-2 ** 31, 2 ** 31, (5,), dtype=torch.int32, device=device) if dropout and there else None
             for there in (True, x1 is not None)]
    second = (weight1, None if rms else bias1) if options.get("second") else (None, None)
    forward = (x, residual, [24], weight, None if rms else bias, x1, *second, *scales, *seeds, dropout, EPS, rms, False, float_sum)
    results = ops.add_norm.default(*forward)
    for found, right in zip(plain[ops.add_norm.default](*forward), results):
        assert found.dtype == right.dtype and found.shape == right.shape and error(found, right) < 2 * LIMITS[dtype]
    _, total, statistics, y1 = results
    for trains in (True, False):
        backward = (dy, dsum.to(total.dtype), dy1 if options.get("second") else None, total, [24], weight, None if rms else bias,
                    *second, statistics, *scales, *seeds, dropout, EPS, rms, False, residual is not None, x1 is not None, None, trains)
        for found, right in zip(plain[ops.add_norm_backward.default](*backward), ops.add_norm_backward.default(*backward)):
            assert found.dtype == right.dtype and found.shape == right.shape and error(found, right) < 3 * LIMITS[dtype]


def test_a_compiled_training_step_without_the_kernels(device):
    """Backward passes are in a compiled graph, too: there their decompositions are what it is lowered to."""
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    block = Block(0.4, False).to(device)
    inputs = tuple(t.requires_grad_() for t in block_inputs(device, 4)[:2]) + (torch.rand(4, 3, device=device),)
    torch.compiler.reset()
    compiled = torch.compile(block, backend=aot_autograd(fw_compiler=keep, decompositions=lnc.decompositions()), fullgraph=True)
    leaves = [*inputs[:2], *block.parameters()]
    found, right = compiled(*inputs), block(*inputs)
    for ours, theirs in zip(torch.autograd.grad([y.square().sum() for y in found], leaves),
                            torch.autograd.grad([y.square().sum() for y in right], leaves)):
        assert error(ours, theirs) < 1e-4
    assert len(graphs) == 2 and not any("layernorm_chapters" in str(graph.graph) for graph in graphs)
