"""Batch invariance: with it a row's bits depend on that row alone, on both sides of every boundary that the dispatch has.

The boundaries are found in the dispatch's table, as `library_kernels --list --json` prints it: wherever a line asks for a number
of rows, for a size of the tensor, or for where tensors start.
"""

import ctypes
import itertools
import json
import subprocess
import threading
from typing import NamedTuple

import pytest

from common.python.tests.norms import EPS, F, lnc, torch
from layernorm_chapters import operators  # noqa: E402
from layernorm_chapters.library import (  # noqa: E402
    DTYPES,
    KINDS,
    BackwardArgs,
    ForwardArgs,
    FusedBackward,
    FusedForward,
    Problem,
    Rows,
)

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
MOST_ELEMENTS = {"cpu": 1 << 14, "cuda": 1 << 28}  # of x, that a device normalises in a moment


class Case(NamedTuple):
    """A problem, as far as the dispatch can tell it from others."""
    direction: str
    kind: str
    dtype: str
    cols: int
    rows: int
    from_y: bool = False
    fused: bool = False
    misalign: int = 0  # elements by which x starts past a 16-byte boundary
    stagger: int = 0  # by which the other tensors start further
    gap: int = 0  # between its rows


class Boundary(NamedTuple):
    line: int  # of the table
    of: str
    one: Case
    other: Case


@pytest.fixture(scope="module")
def table(programs):
    listed = subprocess.run([programs["library_kernels"], "--list", "--json"], capture_output=True, text=True,
                            check=True)
    return json.loads(listed.stdout)["dispatch"]


def widths_of(line, element_bytes):
    """Some widths that a line takes: its least and its largest, of whole vectors or not as it wants."""
    vector = 16 // element_bytes
    least = line.get("min_cols", 1)
    most = min(line.get("max_cols", 20_000), line.get("max_row_bytes", 1 << 20) // element_bytes, 20_000)

    def fits(cols):
        whole = cols % vector == 0
        return least <= cols <= most and not (line.get("needs_aligned") and not whole) and not (line.get("needs_unaligned_row_bytes") and whole)

    for start, step in ((least, 1), (most, -1)):
        yield from itertools.islice((start + step * i for i in range(2 * vector) if fits(start + step * i)), 1)


def cases_of(line):
    for dtype in (line["dtype"],) if "dtype" in line else ("f16", "bf16") if line.get("needs_16_bit") else TYPES:
        for kind in (line["kind"],) if "kind" in line else KINDS:
            for cols in sorted(set(widths_of(line, TYPES[dtype].itemsize))):
                yield Case(line["direction"], kind, dtype, cols, 3, line.get("from_y", False), line.get("fused", False))


def boundaries(table):
    """Each limit that a line has on something other than direction, kind, types, columns and GPU."""
    found, seen = [], set()

    def add(number, of, one, other):
        if (one, other) not in seen:
            seen.add((one, other))
            found.append(Boundary(number, of, one, other))

    for number, line in enumerate(table):
        for case in cases_of(line):
            row_bytes = case.cols * TYPES[case.dtype].itemsize
            edges = {"rows": line.get("min_rows", 0),
                     "bytes": line["max_tensor_bytes"] // row_bytes + 1 if "max_tensor_bytes" in line else 0}
            for of, rows in edges.items():
                if rows > 1:
                    add(number, of, case._replace(rows=rows - 1), case._replace(rows=rows))
            add(number, "a tensor's start", case, case._replace(misalign=1))
            add(number, "tensors that start differently", case, case._replace(stagger=1))
            if not line.get("fused") and not line.get("from_y"):
                for gap in (1, 16 // TYPES[case.dtype].itemsize):
                    add(number, "rows apart", case, case._replace(gap=gap))
    return found


# --- What is chosen ---


def plan(case, batch_invariant):
    """The plan for tensors at addresses that nothing reads or writes."""
    dtype = DTYPES[str(TYPES[case.dtype]).removeprefix("torch.")]
    problem = Problem(KINDS[case.kind], dtype, dtype, EPS, case.rows, case.cols, batch_invariant)
    bytes_of = TYPES[case.dtype].itemsize
    places = itertools.count(1)

    def tensor():
        place = next(places)
        return (place << 48) + (case.misalign + place * case.stagger) * bytes_of

    x, y, weight = tensor(), tensor(), tensor()
    bias = tensor() if case.kind == "layer" else None
    if case.direction == "forward":
        args = ForwardArgs(problem=problem, x=x, weight=weight, bias=bias, y=y, mean=1 << 20, rstd=1 << 20)
        if case.fused:
            args.fused = ctypes.pointer(FusedForward(residual=tensor(), sum=tensor()))
    else:
        args = BackwardArgs(problem=problem, dy=tensor(), x=None if case.from_y or case.fused else x,
                            y=y if case.from_y else None, weight=weight, bias=bias, mean=1 << 20, rstd=1 << 20, dx=tensor(),
                            dweight=1 << 20, dbias=(1 << 20) if bias else None)
        if case.fused:
            args.fused = ctypes.pointer(FusedBackward(sum=x, dsum=tensor(), has_residual=1))
    if case.gap:
        args.x_rows = ctypes.pointer(Rows(case.cols + case.gap, 0, 0))
    return operators.library().plan(args).chapter.decode()


def test_a_batch_invariant_choice_is_the_same_on_both_sides_of_every_boundary(device, table):
    found = boundaries(table)
    differ = [boundary for boundary in found if plan(boundary.one, 0) != plan(boundary.other, 0)]
    assert len(differ) > 100, "without batch invariance these are boundaries"
    wrong = [boundary for boundary in found if plan(boundary.one, 1) != plan(boundary.other, 1)]
    assert not wrong, f"{len(wrong)} of {len(found)}, such as {wrong[0]}"
    print(f"{len(found)} boundaries, {len(differ)} of them between two kernels")


# --- What comes of it ---


def placed(values, misalign, gap=0):
    """The same values, `misalign` elements past a 16-byte boundary, with `gap` elements between rows."""
    rows, cols = (1, values.numel()) if values.dim() == 1 else values.shape
    memory = torch.empty(misalign + rows * (cols + gap) + 16, dtype=values.dtype, device=values.device)
    assert memory.data_ptr() % 16 == 0
    part = memory[misalign:misalign + rows * (cols + gap)].view(rows, cols + gap)[:, :cols]
    part = part[0] if values.dim() == 1 else part
    return part.copy_(values)


def results(case, x, dy, weight, bias, batch_invariant=True):
    """y and statistics of a forward pass, dx of a backward one, of x and dy where the case has them."""
    ops = torch.ops.layernorm_chapters
    rms = case.kind == "rms"
    places = itertools.count(case.misalign, case.stagger)
    x, dy = placed(x, next(places), case.gap), placed(dy, next(places), case.gap)
    weight, bias = placed(weight, next(places)), None if rms else placed(bias, next(places))
    nothing = [None] * 7
    if case.direction == "forward" and case.fused:
        return ops.add_norm(x, dy, [case.cols], weight, bias, *nothing, 0.0, EPS, rms, batch_invariant=batch_invariant)[:3]
    if case.direction == "forward":
        return ops.norm(x, [case.cols], weight, bias, EPS, rms, batch_invariant=batch_invariant)
    y, statistics = ops.norm(x, [case.cols], weight, bias, EPS, rms, batch_invariant=True)  # whose rows are their own
    if case.fused:
        return ops.add_norm_backward(dy, x, None, x, [case.cols], weight, bias, None, None, statistics, *nothing[:4], 0.0, EPS, rms,
                                     False, True, False, None, batch_invariant=batch_invariant)[:1]
    saved = placed(y, case.misalign) if case.from_y else x
    return ops.norm_backward(dy, saved, [case.cols], weight, bias, statistics, EPS, rms, case.from_y, False, True, not rms, None,
                             batch_invariant)[:1]


def compare(boundary, device, batch_invariant=True):
    """Whether the rows that both cases have get the same bits."""
    one, other = boundary.one, boundary.other
    dtype = TYPES[one.dtype]
    x, dy = (torch.randn(other.rows, one.cols, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(one.cols, device=device).add(2.0).to(dtype) for _ in range(2))
    of_one = results(one, x[:one.rows], dy[:one.rows], weight, bias, batch_invariant)
    of_other = results(other, x, dy, weight, bias, batch_invariant)
    same = []
    for few, many in zip(of_one, of_other):
        rows_last = few.shape[-1] == one.rows and few.dim() == 2 and few.shape[0] in (1, 2) and few.shape[0] != one.rows
        same.append(torch.equal(few, many[:, :one.rows] if rows_last else many[:one.rows]))
    return all(same)


def test_a_row_has_the_same_bits_on_both_sides_of_every_boundary(table, device):
    found = boundaries(table)
    within = [boundary for boundary in found if boundary.other.rows * boundary.other.cols <= MOST_ELEMENTS[device]]
    wrong = [boundary for boundary in within if not compare(boundary, device)]
    assert not wrong, f"{len(wrong)} of {len(within)}, such as {wrong[0]}"
    sample = within[::4]
    differ = sum(not compare(boundary, device, False) for boundary in sample)
    print(f"{len(within)} of {len(found)} boundaries crossed; without batch invariance {differ} of {len(sample)} have other bits")
    assert differ > 5
    if len(within) < len(found):
        print(f"skipped: {len(found) - len(within)} of {len(found)} boundaries: their tensors are for a GPU")


def test_which_row_it_is_does_not_matter(device):
    """Rows of no whole vectors start elsewhere in each row, and all rows of a tensor that does; the widths cross those of
    the kernels."""
    widths = (1, 33, 65, 127, 255, 257, 1001, 2049, 4097, 8191, 8192, 9217, 12288, 12289, 16385, 20000, 20001)
    for kind, dtype, cols in itertools.product(KINDS, TYPES, widths):
        for direction, fused in (("forward", False), ("backward", False), ("forward", True), ("backward", True)):
            case = Case(direction, kind, dtype, cols, 9, fused=fused, misalign=cols % 2 == 0)
            if device == "cpu" and cols > 5000 and (dtype == "f16" or fused):
                continue
            x, dy = (torch.randn(1, cols, device=device).to(TYPES[dtype]).expand(9, cols) for _ in range(2))
            weight, bias = (torch.randn(cols, device=device).to(TYPES[dtype]) for _ in range(2))
            for result in results(case, x, dy, weight, bias):
                rows = result if result.shape[0] == 9 else result.t()
                assert torch.equal(rows, rows[:1].expand_as(rows)), case


# --- How it is asked for ---


def differing_rows(device):
    """Rows that get other bits alone than in company, where nothing is asked for. On every device: rows of no whole
    vectors, which the dispatch's choice shares out by where they start."""
    x = torch.randn(9, 1001, device=device)
    assert not torch.equal(lnc.layer_norm(x, 1001)[1:2], lnc.layer_norm(x[1:2].clone(), 1001))
    return x


def test_a_context_a_function_s_argument_a_module_s_and_enable(device):
    x = differing_rows(device)
    right = lnc.layer_norm(x, 1001, batch_invariant=True)
    module = lnc.LayerNorm(1001, device=device, batch_invariant=True)
    assert "batch_invariant=True" in repr(module)

    def alone(norm):
        return torch.equal(norm(x[1:2].clone()), norm(x)[1:2])

    assert alone(lambda x: lnc.layer_norm(x, 1001, batch_invariant=True)) and alone(module)
    assert not alone(lambda x: lnc.layer_norm(x, 1001)) and not alone(lnc.LayerNorm(1001, device=device))
    with lnc.batch_invariant():
        assert alone(lambda x: lnc.layer_norm(x, 1001)) and alone(lnc.LayerNorm(1001, device=device))
        assert alone(lambda x: lnc.fused_add_layer_norm(x, x, 1001)[0])
        assert not alone(lambda x: lnc.layer_norm(x, 1001, batch_invariant=False))
        with lnc.batch_invariant(), lnc.enabled():
            assert torch.equal(F.layer_norm(x, (1001,)), right) and alone(lambda x: F.layer_norm(x, (1001,)))
        assert alone(lambda x: lnc.layer_norm(x, 1001))
    assert not alone(lambda x: lnc.layer_norm(x, 1001))


def test_a_context_is_for_its_own_thread_and_its_backward_pass(device):
    x, dy = differing_rows(device), torch.randn(9, 1001, device=device)

    def dx_of(rows, norm, backward_in_a_thread):
        z, found = x[rows].clone().requires_grad_(), []
        y = norm(z)
        run = lambda: found.extend(torch.autograd.grad(y, z, dy[rows].clone()))  # noqa: E731
        if backward_in_a_thread:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        else:
            run()
        return found[0]

    whole, part = slice(0, 9), slice(1, 2)
    norms = {"own": lambda x: lnc.layer_norm(x, 1001), "PyTorch's": lambda x: F.layer_norm(x, (1001,))}
    for norm in norms.values():
        for in_a_thread in (False, True):
            with lnc.batch_invariant(), lnc.enabled():
                both = [dx_of(rows, norm, in_a_thread) for rows in (whole, part)]
            assert torch.equal(both[0][1:2], both[1])
    seen = []
    with lnc.batch_invariant():
        thread = threading.Thread(target=lambda: seen.append(torch.equal(lnc.layer_norm(x, 1001)[1:2], lnc.layer_norm(x[1:2].clone(), 1001))))
        thread.start()
        thread.join()
    assert seen == [False]


def test_in_place_and_any_layout(device):
    with torch.no_grad(), lnc.batch_invariant():
        for cols in (64, 1001):
            x, residual = torch.randn(7, 5, cols, device=device), torch.randn(7, 5, cols, device=device)
            right = lnc.fused_add_rms_norm(x, residual, cols)
            for order in ((0, 1, 2), (1, 0, 2)):
                inverse = [order.index(i) for i in range(3)]
                other = [t.permute(order).contiguous().permute(inverse).clone(memory_format=torch.preserve_format) for t in (x, residual)]
                found = lnc.fused_add_rms_norm(*other, cols, inplace=True)
                for ours, theirs in zip(found, right):
                    assert torch.equal(ours, theirs)


# --- Sums over rows ---


def test_what_the_order_of_the_sums_over_rows_depends_on(device):
    """On the number of rows, columns, types and the GPU: not on the run, nor, if it is asked for, on where tensors start."""
    for kind, dtype, cols in itertools.product(KINDS, TYPES, (64, 1000, 1001)):
        rms = kind == "rms"
        x, dy = (torch.randn(130, cols, device=device).to(TYPES[dtype]) for _ in range(2))
        weight = torch.randn(cols, device=device).to(TYPES[dtype])
        _, statistics = torch.ops.layernorm_chapters.norm(x, [cols], weight, None, EPS, rms, batch_invariant=True)
        first = None
        for misalign in (0, 0, 1, 3):
            _, dweight, dbias = torch.ops.layernorm_chapters.norm_backward(
                placed(dy, misalign), placed(x, misalign), [cols], placed(weight, misalign), None, statistics, EPS, rms, False, False, True,
                not rms, None, True)
            first = first or (dweight, dbias)
            assert torch.equal(dweight, first[0]) and torch.equal(dbias, first[1]), (kind, dtype, cols, misalign)
