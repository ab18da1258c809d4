"""`make new`: what it takes from a chapter, what it refuses, and that what it makes compiles and fails its check."""

import re
import shlex
import shutil
import subprocess

import new_chapter
import pytest
from find_chapter import CHAPTERS, is_own, known_chapters
from new_chapter import declarations, make_chapter, primitives, remarks

KERNEL = """\
// fwd07 · Braces "everywhere"
//
// fwd06 wastes a {.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"

namespace fwd07 {
using namespace lnc;

constexpr int kFew = 4;    // [1] a }
                           // and a {
constexpr int kMany = 1'000;
constexpr char kBrace = '{';

/* struct Gone { */
struct Plan {
  int rows = {};
};

struct Columns {  // fwd07 needs it
  __device__ bool has(int i) const { return i < kFew; }
};

__device__ float twice(float x) { return 2.0f * x; }

template <typename T>
__device__ inline float thrice(T x) {  // [2]
  return x + twice(x);
}

__device__ __host__ int rows_of(const Plan& plan) { return plan.rows; }
__device__ __host__ Plan operator+(Plan a, Plan b) { return {std::max(a.rows, b.rows)}; }

/// Writes y.
template <typename T, int kRows = (1 + 1)>
__global__ void __launch_bounds__(kFew* kRows, 1)
    norm(const T* x, T* y, int64_t count) {
  if (count > 0) {
    y[0] = thrice(warp_sum(x[0]));  // [3] "}"
  }
}

__global__ void last(float* sums) { *sums = Columns{}.has(1); }  // [4]

void run(const Plan& plan) {
  launch(norm<float>, {fwd07::rows_of(plan), kFew, 0, nullptr}, nullptr, nullptr, 1);
}

const Registration registration{{
    .id = "fwd07",
    .title = "Braces",
    .teaches = "what fwd07 teaches",
    .source = "llm.c",
    .parent = "fwd06",
    .run = ForwardLaunchers{run},
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
    """A directory of chapters, with fwd07 above."""
    (tmp_path / "fwd07_braces").mkdir()
    (tmp_path / "fwd07_braces/kernel.cu").write_text(KERNEL)
    (tmp_path / "fwd07_braces/notes.md").write_text(NOTES)
    return tmp_path


@pytest.fixture
def made(chapters):
    directory, origin = make_chapter("my01", "fwd07", chapters)
    assert (directory.name, origin) == ("my01_from_fwd07", "fwd07")
    return (directory / "kernel.cu").read_text()


def test_a_kernel_is_empty_and_says_what_to_write(made):
    assert """
/// Writes y.
template <typename T, int kRows = (1 + 1)>
__global__ void __launch_bounds__(kFew* kRows, 1)
    norm(const T* x, T* y, int64_t count) {
  // Write this kernel. chapters/fwd07_braces/notes.md says:
  // [2] Which sum? The one of `x`, as in fwd01, and of xhat.
  // [3] One lane writes the whole result of the row, and stays.
  // fwd07 has device code of its own for it: twice, thrice.
  // Of common/kernel it uses warp_sum (reduce.h).
}

__global__ void last(float* sums) {
  // Write this kernel. chapters/fwd07_braces/notes.md says how.
  // fwd07 has device code of its own for it: Columns.
}  // [4]

void run(const Plan& plan) {
  launch(norm<float>, {my01::rows_of(plan), kFew, 0, nullptr}, nullptr, nullptr, 1);
}
""" in made


def test_what_the_host_uses_stays_and_device_code_of_the_kernels_alone_goes(made):
    assert """
constexpr int kFew = 4;    // [1] a }
                           // and a {
constexpr int kMany = 1'000;
constexpr char kBrace = '{';

/* struct Gone { */
struct Plan {
  int rows = {};
};

__device__ __host__ int rows_of(const Plan& plan) { return plan.rows; }
__device__ __host__ Plan operator+(Plan a, Plan b) { return {std::max(a.rows, b.rows)}; }

/// Writes y.
""" in made


def test_the_idea_stays_and_the_names_are_new(made):
    assert made.startswith("""\
// my01 · Braces "everywhere"
//
// fwd06 wastes a {.
//
// The kernels are yours to write. They write y, mean and rstd of every row. """)
    assert "// `make run CH=my01` checks what you wrote; chapters/fwd07_braces/kernel.cu is a solution." in made
    assert made.endswith("""
const Registration registration{{
    .id = "my01",
    .title = "Braces",
    .teaches = "what fwd07 teaches",
    .source = "fwd07",
    .parent = "fwd07",
    .run = ForwardLaunchers{run},
}};

}  // namespace my01
""")
    assert "namespace my01 {" in made and "namespace fwd07" not in made


def test_a_kernel_that_is_no_norm_and_no_template(chapters):
    kernel = ("// copy00 · The machine\n#include \"common/kernel/chapter.h\"\n\nnamespace copy00 {\nusing namespace lnc;\n\n"
              "__global__ void copy(const float* x, float* y, int64_t count) { y[0] = x[count - 1]; }\n\n}\n")
    (chapters / "copy00_machine").mkdir()
    (chapters / "copy00_machine/kernel.cu").write_text(kernel)  # without a lesson
    directory, _ = make_chapter("my02", "copy00", chapters)
    made = (directory / "kernel.cu").read_text()
    assert "// The kernel is yours to write. What `a` holds" in made
    assert made.endswith("namespace my02 {\nusing namespace lnc;\n\n"
                         "__global__ void copy(const float* x, float* y, int64_t count) {\n"
                         "  // Write this kernel. chapters/copy00_machine/notes.md says how.\n}\n\n}\n")


@pytest.mark.parametrize("asked, origin, words", [
    ("", "fwd07", "CH is missing: make new CH=my01"),
    ("my1", "fwd07", "CH=my1 is no name"),
    ("MY01", "fwd07", "CH=MY01 is no name"),
    ("../my01", "fwd07", "CH=../my01 is no name"),
    ("fwd10", "fwd07", "CH=fwd10 is no name"),
    ("fwd07", "fwd07", "CH=fwd07 is a chapter already"),
    ("chapters/fwd07_braces", "fwd07", "is a chapter already"),
    ("my05", "fwd07", "chapters/my05_mine is there already: delete it"),
    ("my01", "", "FROM is missing"),
    ("my01", "fwd7", "FROM=fwd7 is not a chapter (did you mean FROM=fwd07?)"),
    ("my01", "my05", "FROM=my05 is a chapter of your own"),
])
def test_a_refusal_is_one_sentence_and_writes_nothing(chapters, capsys, monkeypatch, asked, origin, words):
    (chapters / "my05_mine").mkdir()
    (chapters / "my05_mine/kernel.cu").write_text("// of the reader")
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


def test_the_declarations_are_the_text():
    for name in known_chapters().values():
        kernel = (CHAPTERS / name / "kernel.cu").read_text(encoding="utf-8")
        assert "".join(declarations(kernel)) == kernel


def test_a_remark_is_its_first_sentence():
    assert remarks(NOTES) == {1: "A constant.", 2: "Which sum? The one of `x`, as in fwd01, and of xhat.",
                              3: "One lane writes the whole result of the row, and stays."}


def test_primitives_are_those_of_the_headers_that_a_kernel_reaches():
    found = primitives('#include "common/kernel/reduce.h"\n')
    assert found["warp_sum"] == found["block_sum"] == "reduce.h"
    assert "Ring" not in found and "Ring" in primitives('#include "common/kernel/ring.h"\n')


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
        kernels = [part for part in declarations(path.read_text(encoding="utf-8").partition("using namespace lnc;")[2])
                   if new_chapter.is_kernel(part)]
        assert kernels, origin
        for kernel in kernels:
            begin, end = new_chapter.body_of(kernel)
            assert not new_chapter.code_of(kernel[begin:end]).strip(), origin


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


QUIET = ["-Wno-unused", "-Wno-unused-parameter"]  # as CMakeLists.txt has it for a reader's own


def test_what_is_made_of_every_chapter_compiles(commands, build, of_every_chapter, tmp_path):
    together = tmp_path / "together.cu"  # each has its namespace
    together.write_text("".join(f'#include "{path}"\n' for path in of_every_chapter.values()), encoding="utf-8")
    compiling = commands[0][:commands[0].index("-MD")]  # without the names of its files
    done = subprocess.run([*compiling, *QUIET, "-fsyntax-only", together], cwd=build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_made_runs_and_fails_its_check(commands, build, of_every_chapter, tmp_path):
    compiling, linking = commands
    kernel = of_every_chapter["fwd02"]
    theirs = compiling[compiling.index("-o") + 1]
    names = {compiling[-1]: str(kernel), theirs: str(tmp_path / "kernel.o"), f"{theirs}.d": str(tmp_path / "kernel.d"),
             "bin/fwd02": str(tmp_path / "mine")}
    directory = {words: words.replace("fwd02_warp_per_row", kernel.parent.name)
                 for words in compiling if words.startswith("-DLNC_KERNEL_FILE")}
    for words in ([*compiling[:-2], *QUIET, *compiling[-2:]], linking):
        subprocess.run([(names | directory).get(word, word) for word in words], cwd=build, check=True)
    done = subprocess.run([tmp_path / "mine", "--rows", "5", "--cols", "33", "--samples", "0"], capture_output=True,
                          text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert len(re.findall(r"^  (?:y|mean|rstd) .* FAIL\n *no number at row 0.*: was it written\?$", done.stdout,
                          re.MULTILINE)) == 3, done.stdout
