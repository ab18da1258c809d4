"""The chapters and the library's kernels against PyTorch and Triton, on a GPU.

1. The reference's Philox words equal Triton's for 2048 x 2048 (seed, offset) pairs.
2. lib_fwd_fused_any's dropout masks equal Triton's, and its outputs those of PyTorch's operations one by one.
3. The plain forward kernels agree with torch.nn.functional.layer_norm.
4. The backward kernels' gradients equal those of PyTorch's autograd in double, lib_bwd_fused_any's those of the
   fused operator with Triton's masks.
"""

import concurrent.futures
import json
import pathlib
import subprocess
import tempfile

import pytest

from common.tools.pytest_fixtures import import_torch

torch = import_torch()
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)
import numpy  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

SIDE, STRIDE, ROUNDS = 2048, 2097143, 7
SHAPES = [["--rows", str(rows), "--cols", str(cols)] for rows, cols in
          ((1031, 1500), (1024, 2048), (257, 33), (70, 12288), (9, 50257))]


@triton.jit
def words_kernel(out, cols, stride, rounds: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, block)
    word = tl.randint((row * stride).to(tl.uint32), col, n_rounds=rounds)
    tl.store(out + row * cols + col, word.to(tl.int32, bitcast=True), mask=col < cols)


@triton.jit
def mask_kernel(seeds, out, cols, p, rounds: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, block)
    keep = tl.rand(tl.load(seeds + row).to(tl.uint32), col, n_rounds=rounds) > p
    tl.store(out + row * cols + col, keep.to(tl.uint8), mask=col < cols)


def test_philox_words_are_triton_s(programs):
    ours = subprocess.run([programs["philox_words"], str(SIDE), str(STRIDE)], check=True,
                          capture_output=True).stdout
    ours = torch.frombuffer(bytearray(ours), dtype=torch.int32).reshape(SIDE, SIDE)
    theirs = torch.empty(SIDE, SIDE, dtype=torch.int32, device="cuda")
    words_kernel[(SIDE,)](theirs, SIDE, STRIDE, ROUNDS, SIDE)
    assert int((theirs.cpu() == ours).sum()) == SIDE * SIDE


def load(directory, name, bfloat16):
    path = pathlib.Path(directory, name + ".npy")
    if not path.exists():
        return None
    array = numpy.load(path)
    if array.dtype == numpy.uint16 and bfloat16:
        return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16).cuda()
    if array.dtype == numpy.uint32:
        return torch.from_numpy(array.view(numpy.int32)).cuda()
    return torch.from_numpy(array).cuda()


def relative(ours, reference):
    return float((ours.double() - reference.double()).norm() / reference.double().norm())


class Refused(Exception):
    """A chapter does not take a problem; its sentence says why."""


def run_and_load(programs, chapter, dtype, options, dropout):
    """Every tensor of one run of a chapter, by its name. Raises Refused."""
    with tempfile.TemporaryDirectory() as directory:
        arguments = ["--dtype", dtype, "--samples", "0", "--dump", directory, *options]
        if dropout:
            arguments += ["--dropout", str(dropout)]
        done = subprocess.run([programs[chapter], *arguments], check=False, capture_output=True, text=True)
        if done.returncode == 2:
            raise Refused(done.stderr.strip())
        done.check_returncode()
        return {path.stem: load(directory, path.stem, dtype == "bf16")
                for path in pathlib.Path(directory).glob("*.npy")}


def norm(x, weight, bias, rms):
    if not rms:
        return torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias, 1e-5)
    y = x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5)
    return y if weight is None else y * weight


def triton_mask(seeds, shape, dropout):
    mask = torch.empty(shape, dtype=torch.uint8, device="cuda")
    block = triton.next_power_of_2(shape[1])
    mask_kernel[(shape[0],)](seeds, mask, shape[1], dropout, ROUNDS, block)
    return mask


def keep_scale(dropout):
    return 1.0 / (1.0 - float(numpy.float32(dropout)))


def compare_chapter(programs, chapter, dtype, options, dropout=0.0):
    """One run of a chapter, its dumped inputs put through PyTorch's operations in double."""
    t = run_and_load(programs, chapter, dtype, options, dropout)
    passed, details = True, []

    def branch(x, rowscale, seeds, mask):
        nonlocal passed
        total = t[x].double()
        if rowscale in t:
            total = total * t[rowscale].double()[:, None]
        if seeds in t:
            theirs = triton_mask(t[seeds], t[mask].shape, dropout)
            wrong = int((theirs != t[mask]).sum())
            passed = passed and wrong == 0
            details.append(f"{mask}: {wrong} of {theirs.numel()} differ from Triton's")
            total = torch.where(theirs.bool(), total * keep_scale(dropout), 0.0)
        return total

    total = branch("x", "rowscale", "seeds", "mask")
    if "x1" in t:
        total = total + branch("x1", "rowscale1", "seeds1", "mask1")
    if "residual" in t:
        total = total + t["residual"].double()

    def output(weight, bias):
        parameters = [t[name].double() if name in t else None for name in (weight, bias)]
        return norm(total, *parameters, "rms" in options)

    expected = {"y": output("weight", "bias")}
    if "y1" in t:
        expected["y1"] = output("weight1", "bias1")
    if "residual_out" in t:
        expected["residual_out"] = total
    return compare(chapter, dtype, options, t, expected, passed, details)


def compare(chapter, dtype, options, ours, expected, passed=True, details=()):
    limit = {"f32": 1e-5, "f16": 6e-4, "bf16": 4e-3}[dtype]
    errors = {name: relative(ours[name], reference) for name, reference in expected.items()}
    details = [*details, *(f"{name}: {error:.1e}" for name, error in errors.items())]
    passed = passed and all(error < limit for error in errors.values())
    what = f"{'pass' if passed else 'FAIL'}  {chapter} {dtype} {' '.join(options)}  {', '.join(details)}"
    print(what)
    return "" if passed else what


def compare_gradients(programs, chapter, dtype, options, dropout=0.0):
    """One run of a backward chapter, its dumped inputs put through PyTorch's autograd in double."""
    t = run_and_load(programs, chapter, dtype, options, dropout)
    parameters = {name: t[name].double().requires_grad_() for name in
                  ("weight", "bias", "weight1", "bias1") if name in t}
    if "residual_out" in t:
        x = t["residual_out"].double()
    elif "x" in t:
        x = t["x"].double()
    else:  # memory-efficient: x, but for the mean, from y
        bias = parameters["bias"].detach() if "bias" in parameters else 0.0
        x = (t["y"].double() - bias) / parameters["weight"].detach() / t["rstd"].double()[:, None]
    x.requires_grad_()
    loss = 0.0
    for dy, weight, bias in (("dy", "weight", "bias"), ("dy1", "weight1", "bias1")):
        if dy in t:
            y = norm(x, parameters.get(weight), parameters.get(bias), "rms" in options)
            loss = loss + (y * t[dy].double()).sum()
    if "dresidual_out" in t:
        loss = loss + (x * t["dresidual_out"].double()).sum()
    loss.backward()
    expected = {"d" + name: leaf.grad for name, leaf in parameters.items() if "d" + name in t}
    expected["dresidual"] = x.grad
    for dx, rowscale, seeds in (("dx", "rowscale", "seeds"), ("dx1", "rowscale1", "seeds1")):
        expected[dx] = x.grad
        if rowscale in t:
            expected[dx] = expected[dx] * t[rowscale].double()[:, None]
        if seeds in t:
            mask = triton_mask(t[seeds], x.shape, dropout)
            expected[dx] = torch.where(mask.bool(), expected[dx] * keep_scale(dropout), 0.0)
    expected = {name: gradient for name, gradient in expected.items() if name in t}
    return compare(chapter, dtype, options, t, expected)


def comparisons(programs):
    """Each comparison, as a function and its arguments."""
    def listed(program, room):
        listing = subprocess.run([programs[program], "--list", "--json"], check=True, capture_output=True, text=True).stdout
        return json.loads(listing)[room]

    compare = {"forward": compare_chapter, "backward": compare_gradients}
    for described in listed("chapters", "chapters") + listed("library_kernels", "library"):
        chapter = described["id"]
        compare_one = compare.get(described["direction"])
        if compare_one is None:
            continue  # a copy has no counterpart to compare with
        for kind in described["kinds"]:
            for dtype in ("f32", "f16", "bf16"):
                for shape in SHAPES if dtype == "f32" else SHAPES[:2]:
                    yield compare_one, programs, chapter, dtype, [*shape, "--kind", kind]
    everything = ["--rowscale", "--parallel", "--prenorm"]
    for dtype in ("f32", "f16", "bf16"):
        for parts in (["--residual", "same", "--prenorm"], [*everything, "--residual", "f32"],
                      [*everything, "--residual", "same", "--kind", "rms"]):
            for dropout in (0.0, 0.1, 0.5):
                options = [*SHAPES[0], *parts]
                yield compare_chapter, programs, "lib_fwd_fused_any", dtype, options, dropout
                yield compare_gradients, programs, "lib_bwd_fused_any", dtype, options, dropout


def outcome(compare_one, *arguments):
    """What is wrong in a comparison, or nothing; also where the chapter does not take its problem."""
    try:
        return compare_one(*arguments)
    except Refused as refused:
        print("refused:", refused)
        return None


def test_every_chapter_agrees_with_pytorch(programs):
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        jobs = [pool.submit(outcome, *comparison) for comparison in comparisons(programs)]
        wrong = [what for what in (job.result() for job in jobs) if what]
    assert jobs and not wrong, "\n".join([f"{len(wrong)} of {len(jobs)} comparisons failed", *wrong])
