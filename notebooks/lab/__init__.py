"""What the notebooks about proofs, numbers and the SIMT machine share.

Kernels on the CPU backend, built by the project's own commands:

    run("bwd05", "--rows", 64, schedule="reverse")["dweight"]         a chapter's inputs and outputs
    run_kernel(compile_kernel("mine", source), schedule="random:1")   a kernel of your own

Sums and quotients as a narrow type has them: running_sums, xhat_from_y. One look for all figures:
use_style, STYLES, draw_matrix, draw_guide, draw_ring.
"""

import functools
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from . import variance

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/bench"))
from style import STYLE  # noqa: E402

BUILD = ROOT / "build" / "cpu"
TEMPLATE = "fwd01"  # the chapter with whose commands a kernel of your own is built


class LabError(Exception):
    """A command failed; the message has what it said."""


def command(*words, **options):
    """Runs a command and returns what it printed. Raises LabError, with its output, if it fails."""
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                            check=False, **options)
    if result.returncode:
        raise LabError(f"{' '.join(map(str, words))}\n{result.stdout}{result.stderr}".strip())
    return result.stdout


# --- Kernels on the CPU backend ---


@functools.cache
def program(chapter):
    """The path of a chapter's program, built if it is not up to date."""
    command("bash", ROOT / "common/setup/setup.sh", "cpu")
    command("bash", ROOT / "common/setup/build.sh", "cpu", chapter)
    return BUILD / "bin" / chapter


def environment(schedule):
    """`schedule`: forward, reverse or random:SEED. On one core the blocks, too, run in its order."""
    return {**os.environ, "SIMT_SCHEDULE": schedule, "OMP_NUM_THREADS": "1"}


def run(chapter, *options, schedule="forward"):
    """Runs a chapter once and returns its inputs and outputs by name, as arrays.

    bfloat16 comes as float32, which has all of its numbers. Raises LabError where the chapter's
    check fails, too.
    """
    with tempfile.TemporaryDirectory() as folder:
        command(program(chapter), "--samples", 0, "--dump", folder, *options,
                env=environment(schedule))
        return {path.stem: as_numbers(np.load(path)) for path in sorted(Path(folder).glob("*.npy"))}


def as_numbers(array):
    if array.dtype == np.uint16:  # a bfloat16 is the upper half of a float
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array


def compile_kernel(name, source):
    """Compiles CUDA C++ with a main() of its own, as the chapters are compiled for the CPU backend.

    Returns the program's path. Raises LabError with the compiler's words.
    """
    program(TEMPLATE)
    folder = ROOT / "build" / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.cu"
    file.write_text(source, encoding="utf-8")
    lines = command("ninja", "-C", BUILD, "-t", "commands", TEMPLATE).splitlines()
    compiling = next(words for line in lines if (words := shlex.split(line))[-1].endswith("kernel.cu"))
    linking = [word for word in shlex.split(lines[-1])  # : && c++ … kernel.cu.o main.cpp.o … && :
               if word not in (":", "&&") and not word.endswith("main.cpp.o")]
    theirs = compiling[compiling.index("-o") + 1]
    names = {compiling[-1]: file, theirs: file.with_suffix(".o"), f"{theirs}.d": file.with_suffix(".d"),
             f"bin/{TEMPLATE}": file.with_suffix("")}
    for words in (compiling, linking):
        command(*(names.get(word, word) for word in words), cwd=BUILD)
    return file.with_suffix("")


def run_kernel(path, schedule="forward"):
    """Runs a program of compile_kernel and returns what it printed."""
    return command(path, env=environment(schedule))


# --- Numbers of a narrow type ---


def running_sums(dtype, terms):
    """[M, columns] -> [M, columns]: the sum down to each row, rounded to `dtype` after each addition.

    As a kernel does it that keeps its sum in memory as f32, f16 or bf16: it loads the sum, adds in
    float, and stores.
    """
    sums = np.empty(terms.shape, np.float32)
    total = np.zeros(terms.shape[1], np.float32)
    for row, term in enumerate(terms.astype(np.float32)):
        total = variance.round_to(dtype, total + term)
        sums[row] = total
    return sums


def xhat_from_y(y, weight, bias, eps):
    """xhat as a memory-efficient backward pass has it: (y − bias) / weight, in float.

    The weight's magnitude is at least eps, as in reference_cpu's clamp_by_magnitude.
    """
    weight, eps = np.float32(weight), np.float32(eps)
    clamped = np.where(np.abs(weight) < eps, np.copysign(eps, weight), weight)
    return (y - np.float32(bias)) / clamped


# --- Figures ---

# Okabe and Ito's colours, from dark to light, each with a marker and a dash of its own.
STYLES = [
    {"color": "black", "marker": "o", "linestyle": "-"},
    {"color": "#0072B2", "marker": "s", "linestyle": "--"},
    {"color": "#D55E00", "marker": "^", "linestyle": "-."},
    {"color": "#E69F00", "marker": "D", "linestyle": ":"},
    {"color": "#56B4E9", "marker": "v", "linestyle": (0, (5, 1, 1, 1, 1, 1))},
]
MAP = "cividis"  # dark to bright, so that greys keep its order


def use_style():
    """The look of every figure from here on: that of the measurements' figures, and what these lack."""
    import matplotlib

    matplotlib.rcParams.update({
        **STYLE, "figure.dpi": 110, "figure.facecolor": "white", "figure.constrained_layout.use": True,
        "axes.grid": True, "lines.markersize": 4.5, "lines.linewidth": 1.4, "legend.frameon": False,
        "image.cmap": MAP})


def draw_matrix(axes, matrix, low, high, texts=None):
    """A heat map of [rows, columns], the first row on top. `texts`: what to write in each cell."""
    matrix = np.asarray(matrix, float)
    rows, cols = matrix.shape
    mesh = axes.pcolormesh(np.arange(cols + 1) - 0.5, np.arange(rows + 1) - 0.5, matrix, vmin=low,
                           vmax=high, edgecolors="white", linewidth=0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if texts is not None:
        for (row, col), text in np.ndenumerate(np.asarray(texts)):
            bright = matrix[row, col] > low + 0.45 * (high - low)
            axes.text(col, row, text, ha="center", va="center", fontsize=7,
                      color="black" if bright else "white")
    return mesh


def draw_guide(axes, xs, ys, name, at, shift):
    """A thin grey line to compare a curve with, named beside its point `at`, shifted in points."""
    axes.plot(xs, ys, color="#888888", linewidth=1)
    axes.annotate(name, (xs[at], ys[at]), shift, textcoords="offset points", color="#555555")


def draw_ring(axes, xs, ys):
    """Rings about points: what a kernel returned, beside a computed curve."""
    axes.plot(xs, ys, "o", color="black", fillstyle="none", markersize=11)
