"""`make new`: what it takes from a chapter, what it refuses, and that what it makes compiles and fails its check."""

import re
import shlex
import shutil
import subprocess

import pytest

from common.tools import new_chapter, rewrite_cuda
from common.tools.find_chapter import CHAPTERS, is_own, known_chapters
from common.tools.new_chapter import make_chapter, remarks

KERNEL = """\
// fwd07 · Braces "everywhere"
//
// fwd06 wastes a {.
#include "common/kernel/chapter.h"

namespace fwd07 {
using namespace lnc;

constexpr int kFew = 4;  // [1] a }

// exercise
struct Columns {  // [2] fwd07 needs it
  __device__ bool has(int i) const { return i < kFew; }
};
// end of exercise

/// Writes y.
template <typename T>
__global__ void norm(const T* x, T* y, int64_t count) {
  // exercise
  if (count > 0) {
    y[0] = x[0];  // [3] "}"
  }
}

__global__ void last(float* sums) {
  // exercise
  *sums = Columns{}.has(1);
}

void run(const Plan& plan) { launch(norm<float>, {fwd07::rows_of(plan), kFew}, nullptr, nullptr, 1); }

const Registration registration{{
    .id = "fwd07",
    .title = "Braces",
    .teaches = "what fwd07 teaches",
    .source = "llm.c",
    .parent = "fwd06",
}};

}  // namespace fwd07
"""

NOTES = """\
# fwd07

## Reading the kernel

**[1]** A constant.

- **[2]** Which sum? The one of `x`, as in
  [fwd01](../fwd01/notes.md), and of $\\hat{x}$. No more.
- **[3]** One lane writes the whole result of the row, and stays.

## Cost
"""


@pytest.fixture
def chapters(tmp_path):
    """A directory of chapters, with the fwd07 above."""
    (tmp_path / "fwd07_braces").mkdir()
    (tmp_path / "fwd07_braces/kernel.cu").write_text(KERNEL)
    (tmp_path / "fwd07_braces/notes.md").write_text(NOTES)
    return tmp_path


@pytest.fixture
def made(chapters):
    directory, origin = make_chapter("my01", "fwd07", chapters)
    assert (directory.name, origin) == ("my01_from_fwd07", "fwd07")
    return (directory / "kernel.cu").read_text()


def test_an_exercise_is_empty_and_says_what_to_write(made):
    assert """
constexpr int kFew = 4;  // [1] a }

// fwd07 has device code of its own here. chapters/fwd07_braces/notes.md says:
// [2] Which sum? The one of `x`, as in fwd01, and of xhat.

/// Writes y.
template <typename T>
__global__ void norm(const T* x, T* y, int64_t count) {
  // Write this kernel. chapters/fwd07_braces/notes.md says:
  // [3] One lane writes the whole result of the row, and stays.
}

__global__ void last(float* sums) {
  // Write this kernel. chapters/fwd07_braces/notes.md says how.
}

void run(const Plan& plan) { launch(norm<float>, {my01::rows_of(plan), kFew}, nullptr, nullptr, 1); }
""" in made


def test_the_idea_stays_and_the_names_are_new(made):
    assert made.startswith("""\
// my01 · Braces "everywhere"
//
// fwd06 wastes a {.
//
// The kernels below are empty, for you to write. The outputs are y, mean and rstd of every row.
""")
    assert "`make run CH=my01`" in made and "chapters/fwd07_braces/kernel.cu is a solution." in made.replace("\n// ", " ")
    assert made.endswith("""
const Registration registration{{
    .id = "my01",
    .title = "Braces",
    .teaches = "what fwd07 teaches",
    .source = "fwd07",
    .parent = "fwd07",
}};

}  // namespace my01
""")
    assert "namespace my01 {" in made and "namespace fwd07" not in made


@pytest.mark.parametrize("asked, origin, words", [
    ("", "fwd07", "CH is missing: make new CH=my01"),
    ("my1", "fwd07", "CH=my1 is not an id"),
    ("MY01", "fwd07", "CH=MY01 is not an id"),
    ("../my01", "fwd07", "CH=../my01 is not an id"),
    ("fwd10", "fwd07", "CH=fwd10 is not an id"),
    ("fwd07", "fwd07", "CH=fwd07 is already a chapter"),
    ("chapters/fwd07_braces", "fwd07", "is already a chapter"),
    ("my05", "fwd07", "chapters/my05_mine already exists: delete it"),
    ("my01", "", "FROM, the chapter whose idea you want to try, is missing"),
    ("my01", "fwd7", "FROM=fwd7 is not a chapter (did you mean FROM=fwd07?)"),
    ("my01", "my05", "FROM=my05 is a chapter of your own"),
    ("my01", "fwd08", "chapters/fwd08_whole/kernel.cu has no top comment, or no line '// exercise'"),
    ("my01", "fwd09", "chapters/fwd09_open/kernel.cu has a '// exercise' without its '// end of exercise'"),
])
def test_a_refusal_is_one_sentence_and_writes_nothing(chapters, capsys, monkeypatch, asked, origin, words):
    for name, kernel in {"my05_mine": "// of the reader", "fwd08_whole": "// fwd08 · Whole\n",
                         "fwd09_open": "// fwd09 · Open\n\n// exercise\nint i;\n"}.items():
        (chapters / name).mkdir()
        (chapters / name / "kernel.cu").write_text(kernel)
    monkeypatch.setattr(new_chapter.make_chapter, "__defaults__", (chapters,))
    before = sorted(chapters.rglob("*"))
    assert new_chapter.main(asked, origin) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err and err.count("\n") == 1
    assert sorted(chapters.rglob("*")) == before
    assert (chapters / "my05_mine/kernel.cu").read_text() == "// of the reader"


def test_it_ends_with_what_to_do_next(chapters, capsys, monkeypatch):
    monkeypatch.setattr(new_chapter.make_chapter, "__defaults__", (chapters,))
    assert new_chapter.main("my01", "fwd07") == 0
    lines = capsys.readouterr().out.splitlines()
    for line, words in zip(lines, ("chapters/my01_from_fwd07/kernel.cu", "make run CH=my01", "make run CH=fwd07"),
                           strict=True):
        assert words in line


def test_a_remark_is_its_first_sentence():
    assert remarks(NOTES) == {1: "A constant.", 2: "Which sum? The one of `x`, as in fwd01, and of xhat.",
                              3: "One lane writes the whole result of the row, and stays."}


# --- The repository's chapters ---


@pytest.fixture(scope="module")
def of_every_chapter(tmp_path_factory):
    """{"fwd01": the kernel.cu made from it}, in a directory of their own."""
    chapters = tmp_path_factory.mktemp("chapters")
    made = {}
    for identifier, name in known_chapters().items():
        if not is_own(name):
            shutil.copytree(CHAPTERS / name, chapters / name)
            made[identifier] = make_chapter(f"my{len(made):02}", identifier, chapters)[0] / "kernel.cu"
    return made


def test_every_chapter_s_kernels_are_empty(of_every_chapter):
    for origin, path in of_every_chapter.items():
        kernel = path.read_text(encoding="utf-8")
        empty = re.findall(r"^__global__ [^{]*\{.*\n(?:  //.*\n)+\}$", kernel, re.MULTILINE)
        assert len(empty) == kernel.count("__global__") > 0, origin


@pytest.fixture(scope="module")
def commands(build, programs):
    """How the build compiles fwd02's kernel, and links its program."""
    if "BACKEND:STRING=cpu" not in (build / "CMakeCache.txt").read_text(encoding="utf-8"):
        pytest.skip("the CPU backend's compiler is quick; `make compile-cuda` is for nvcc")
    assert programs["fwd02"]
    lines = subprocess.run(["ninja", "-C", build, "-t", "commands", "fwd02"], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    compiling = next(words for line in lines if (words := shlex.split(line))[-1].endswith("/kernel.cu"))
    linking = shlex.split(lines[-1].removeprefix(": && ").removesuffix(" && :"))
    return compiling, linking


ROOT = CHAPTERS.parent
QUIET = ["-Wno-unused", "-Wno-unused-parameter"]  # as CMakeLists.txt has it for a reader's own


def test_what_is_made_of_every_chapter_compiles(commands, build, of_every_chapter, tmp_path):
    together = tmp_path / "together.cu"  # each has its namespace
    together.write_text("".join(f'#include "{path}"\n' for path in of_every_chapter.values()), encoding="utf-8")
    compiling = commands[0][:commands[0].index("-MD")]  # without the names of its files
    done = subprocess.run([*compiling, *QUIET, "-fsyntax-only", together], cwd=build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run_of(kernel, commands, build, folder):
    """Compiles a kernel as the build does fwd02's, and runs it."""
    compiling, linking = commands
    theirs = compiling[compiling.index("-o") + 1]
    names = {compiling[-1]: str(kernel), theirs: str(folder / "kernel.o"), f"{theirs}.d": str(folder / "kernel.d"),
             "bin/fwd02": str(folder / "mine")}
    directory = {words: words.replace("fwd02_warp_per_row", kernel.parent.name)
                 for words in compiling if words.startswith("-DLNC_KERNEL_FILE")}
    for words in ([*compiling[:-2], *QUIET, f"-isystem{ROOT}/common/simt/include", *compiling[-2:]], linking):
        subprocess.run([(names | directory).get(word, word) for word in words], cwd=build, check=True)
    return subprocess.run([folder / "mine", "--rows", "5", "--cols", "33", "--samples", "0"], capture_output=True,
                          text=True)


def test_a_kernel_in_plain_cuda_runs(commands, build, tmp_path):
    source = (CHAPTERS / known_chapters()["fwd02"] / "kernel.cu").read_text(encoding="utf-8")
    launch = re.search(r"launch\(layer_norm_forward<T>,.*?\);", source, re.DOTALL)[0]
    source = source.replace(
        launch, "layer_norm_forward<T><<<blocks_for(a.rows, kWarpsPerBlock), kWarpsPerBlock * kWarpSize>>>(a);").replace(
        "const int lane = threadIdx.x % kWarpSize;", 'int lane;\n  asm("mov.u32 %0, %%laneid;" : "=r"(lane));')
    folder = tmp_path / "fwd02_plain"
    folder.mkdir()
    plain, kernel = folder / "kernel.cu", folder / "kernel.cpp"
    plain.write_text(source, encoding="utf-8")
    assert "<<<" in source and "asm(" in source and rewrite_cuda.main([plain, kernel]) == 0
    done = run_of(kernel, commands, build, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_made_runs_and_fails_its_check(commands, build, of_every_chapter, tmp_path):
    done = run_of(of_every_chapter["fwd02"], commands, build, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert len(re.findall(r"^  (?:y|mean|rstd) .* FAIL\n *no number at row 0.*: was it written\?$", done.stdout,
                          re.MULTILINE)) == 3, done.stdout
