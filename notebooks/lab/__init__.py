"""What the notebooks about proofs, numbers and the SIMT machine share.

Kernels on the CPU backend, built by the project's own commands:

    run("bwd05", "--rows", 64, schedule="reverse")["dweight"]   a chapter's inputs and outputs
    %load_ext lab                                               in a notebook: a cell may be C++
    %%kernel mine                                               such a cell's first line
    run_kernel("mine", schedule="random:1")                     what its main() printed
    trace("fwd02", "--rows", 4, "--cols", 64)                   the turns of a chapter's block, event by event

Sums and quotients as a narrow type has them: running_sums, xhat_from_y. One look for all figures:
use_style, STYLES, draw_matrix, draw_exchange, draw_guide, draw_ring, and lab.traces for those of a trace;
show displays one, with words for those who do not see it.
"""

import functools
import html
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from pathlib import Path

import numpy as np

from . import variance

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # a notebook runs in its own directory

from common.results.drawing import readable_on  # noqa: E402
from common.results.records import read_objects  # noqa: E402
from common.tools import check_file  # noqa: E402

BUILD = ROOT / "build" / "cpu"
WATCHING = ROOT / "build" / "cpu-watch"  # a build whose machine sees each load and store
KERNELS = ROOT / "build" / "notebooks"  # those of the reader's own
PROGRAMS = ROOT / "build" / "foreign" / BUILD.name  # which check_file.py makes of them
MERE_CHECK = 2  # ninja's steps where there is nothing to build


class LabError(Exception):
    """A command failed; the message has what it said."""

    def _render_traceback_(self):  # all that a notebook shows of it
        return str(self).splitlines()


def command(*words, **options):
    """Runs a command and returns what it printed. Raises LabError, with its output, if it fails."""
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                            check=False, **options)
    if result.returncode:
        raise LabError(f"{' '.join(map(str, words))}\n{result.stdout}{result.stderr}".strip())
    return result.stdout


# --- Kernels on the CPU backend ---


@functools.cache
def program(chapter, build=BUILD, product="bin/{}"):
    """The path of a chapter's program, or of another target's product, built if it is not up to date: this alone.

    Says beforehand how long the first build takes, and which of its steps is done.
    """
    path = build / product.format(chapter)
    command("bash", ROOT / "common/setup/setup.sh", "cpu")
    if not path.exists():
        machine = (build / "libsimt.a").exists()
        print(f"{chapter} is compiled first, for the CPU: {'some 20 seconds' if machine else 'one to two minutes'}, "
              "once.", flush=True)
    start = time.monotonic()
    steps = follow("bash", ROOT / "common/setup/build.sh", build.name, chapter)
    if steps > MERE_CHECK:
        print(f"\r{chapter}: {steps} steps in {time.monotonic() - start:.0f} s", flush=True)
    return path


def follow(*words):
    """Runs a command that prints ninja's '[8/28] …', and shows the last such step. Returns how many there were.

    Raises LabError, with all that the command printed, if it fails.
    """
    said, steps = [], 0
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True) as running:
        for line in running.stdout:
            said.append(line)
            if step := re.match(r"\[(\d+)/(\d+)\]", line):
                steps = int(step[2])
                if steps > MERE_CHECK:
                    print(f"\rstep {step[1]} of {steps} ", end="", flush=True)
    if running.returncode:
        raise LabError(f"{' '.join(map(str, words))}\n{''.join(said)}".strip())
    return steps


def digits_data():
    """The records of common/campaign/digits.py: the reader's own, or else the committed ones, if there are any."""
    for name in ("local_digits.jsonl", "digits_h100.csv"):
        file = ROOT / "notebooks/data" / name
        if file.exists():
            return [record for _, record in read_objects(file) if record]
    return []


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


def trace(chapter, *options, block=0, schedule="forward"):
    """The turns of one block of a chapter, as `make trace` writes them: common/watch/README.md says how.

    Raises LabError where there is no such block.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        command(sys.executable, "-m", "common.watch.trace", program(chapter, WATCHING), "--block", block,
                "--json", file, *options, env=environment(schedule), cwd=ROOT)
        return json.loads(file.read_text(encoding="utf-8"))


def races_without(line, file, chapter, *options):
    """What `make race` says of a chapter when a line is missing in a file of the repository."""
    watched = program(chapter, WATCHING)
    return command(sys.executable, "-m", "common.watch.plant", line, file, watched, *options,
                   env=environment("forward"), cwd=ROOT)


def as_numbers(array):
    if array.dtype == np.uint16:  # a bfloat16 is the upper half of a float
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array


def compile_kernel(name, source):
    """Compiles CUDA C++ with a main() of its own for the CPU backend, as `make check FILE=…` does, without sanitizers.

    Returns the program's path. Raises LabError with the compiler's words.
    """
    program("foreign", product="lib{}.a")
    KERNELS.mkdir(parents=True, exist_ok=True)
    (PROGRAMS / name).unlink(missing_ok=True)  # where this one fails, none of before runs in its place
    file = KERNELS / f"{name}.cu"
    file.write_text(source, encoding="utf-8")
    try:
        return check_file.compiled(file, check_file.Build(BUILD, (), (), check_file.PLAIN.libraries))
    except check_file.RequestError as error:
        raise LabError(str(error)) from None


def run_kernel(name, schedule="forward"):
    """Runs a kernel that was compiled under this name and returns what its main() printed."""
    path = PROGRAMS / name
    if not path.exists():
        raise LabError(f"no kernel '{name}' is compiled; run the cell that begins with %%kernel {name}")
    return command(path, env=environment(schedule))


def load_ipython_extension(shell):
    """`%load_ext lab`: from there on a cell that begins with `%%kernel NAME` is C++, and is compiled."""
    shell.register_magic_function(kernel_cell, "cell", "kernel")


def kernel_cell(name, source):
    start = time.monotonic()
    compile_kernel(name.strip(), source)
    print(f"{name.strip()} is compiled, in {time.monotonic() - start:.1f} s")


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
SIGNED = ("#542788", "#998ec3", "white", "#f1a340", "#b35806")  # violet below a white 0, orange above


def use_style():
    """The look of every figure from here on: that of the measurements' figures, and what these lack."""
    import matplotlib.style

    matplotlib.style.use(str(ROOT / "common/results/progression.mplstyle"))
    matplotlib.rcParams.update({"axes.grid": True, "lines.markersize": 4.5, "lines.linewidth": 1.4, "image.cmap": MAP})


def show(figure, alt):
    """Displays a figure; `alt` says in words what it shows, and the figure's own title joins it.

    Where there is no figure, nothing is shown: whoever should have drawn it has said why.
    """
    if figure is None:
        return
    from IPython.display import display

    data = in_words_too(figure, alt)
    display(data, metadata={"image/png": {"alt": data["text/plain"]}}, raw=True)


def in_words_too(figure, alt):
    """A figure as Jupyter displays it, {MIME type: data}, with its words in each; closes the figure."""
    import matplotlib.pyplot

    title = figure._suptitle.get_text() if figure._suptitle else ""
    words = ". ".join(filter(None, ["; ".join(title.splitlines()), alt]))
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    matplotlib.pyplot.close(figure)  # else it would be shown again at the cell's end
    width = int.from_bytes(file.getvalue()[16:20], "big")  # in PNG's header
    picture = b64encode(file.getvalue()).decode()
    markup = f'<img alt="{html.escape(words)}" width="{width}" src="data:image/png;base64,{picture}">'
    return {"text/html": markup, "image/png": picture, "text/plain": words}


def draw_matrix(axes, matrix, low, high, texts=None):
    """A heat map of [rows, columns], the first row on top. `texts`: what to write in each cell.

    From -high to high it is signed: 0 is white.
    """
    from matplotlib.colors import LinearSegmentedColormap

    matrix = np.asarray(matrix, float)
    rows, cols = matrix.shape
    mesh = axes.pcolormesh(np.arange(cols + 1) - 0.5, np.arange(rows + 1) - 0.5, matrix, vmin=low,
                           vmax=high, edgecolors="#dddddd" if low == -high else "white", linewidth=0.5,
                           cmap=LinearSegmentedColormap.from_list("signed", SIGNED) if low == -high else MAP)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if texts is not None:
        for (row, col), text in np.ndenumerate(np.asarray(texts)):
            axes.text(col, row, text, ha="center", va="center", fontsize=7,
                      color=readable_on(mesh.cmap(mesh.norm(matrix[row, col]))))
    return mesh


def draw_exchange(axes, held, read, high):
    """What the lanes hold after each step, and between the steps who reads whom.

    held: [steps + 1, lanes]; read: [steps, lanes], the lane that each lane reads. An arc goes from the
    lane that is read down to the one that reads it: dark where the value ends in lane 0, orange where a
    lane reads itself. The cells' shade is logarithmic, up to `high`.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    steps, lanes = read.shape
    shade = ScalarMappable(LogNorm(1, high), MAP)
    needed = [{0}]  # the lanes whose values reach lane 0, from the last step back
    for sources in read[::-1]:
        needed.insert(0, needed[0] | {int(sources[lane]) for lane in needed[0]})
    for step in range(steps + 1):
        top = 2 * step
        for lane in range(lanes):
            colour = shade.to_rgba(held[step, lane])
            axes.add_patch(Rectangle((lane - 0.5, top - 0.4), 1, 0.8, facecolor=colour, edgecolor="white"))
            axes.text(lane, top, f"{held[step, lane]:g}", ha="center", va="center", fontsize=7,
                      color=readable_on(colour))
    for step in range(steps):
        for lane in range(lanes):
            source = int(read[step, lane])
            look = ({"color": "#D55E00", "linewidth": 1.6, "zorder": 3} if source == lane else
                    {"color": "black", "linewidth": 1.2, "zorder": 2} if lane in needed[step + 1] else
                    {"color": "#bbbbbb", "linewidth": 0.7, "zorder": 1})
            down = np.linspace(0, 1, 24)
            sideways = source + (lane - source) * (3 * down**2 - 2 * down**3)  # level at both ends
            axes.plot(sideways, 2 * step + 0.4 + 1.2 * down, **look)
    axes.set(xlim=(-0.6, lanes - 0.4), ylim=(2 * steps + 0.5, -0.5), yticks=range(0, 2 * steps + 1, 2))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def draw_guide(axes, xs, ys, name, at, shift):
    """A thin grey line to compare a curve with, named beside its point `at`, shifted in points."""
    axes.plot(xs, ys, color="#888888", linewidth=1)
    axes.annotate(name, (xs[at], ys[at]), shift, textcoords="offset points", color="#555555")


def draw_ring(axes, xs, ys):
    """Rings about points: what a kernel returned, beside a computed curve."""
    axes.plot(xs, ys, "o", color="black", fillstyle="none", markersize=11)
