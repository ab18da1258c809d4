"""make count on the chapters: what their lessons derive by hand, the committed counts, and what it refuses."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.results import store
from common.tools import rewrite_cuda
from common.tools.find_chapter import kernel_sources
from common.watch import count as watch
from common.watch import plant

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "common.watch.count", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True,
                          check=False, timeout=300)


@pytest.fixture
def count(programs, tmp_path):
    """count(chapter or program, arguments…): its launches, as --json has them."""
    def count(chapter, *arguments):
        file = tmp_path / "counts.jsonl"
        file.unlink(missing_ok=True)
        program = programs[chapter] if isinstance(chapter, str) else chapter
        done = run(program, "--json", file, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(file.read_text(encoding="utf-8"))["launches"]
    return count


def lines_of(launch, what, tensor=None):
    found = [line for line in launch["lines"] if line["what"] == what and tensor in (None, line.get("tensor"))]
    assert found
    return found


def per_request(line):
    return line["sectors"] / line["times"]


def text_of(line):
    return (ROOT / line["file"]).read_text(encoding="utf-8").splitlines()[line["line"] - 1]


def test_a_thread_a_row_makes_32_sectors_of_each_request_and_a_warp_a_row_4(count):
    for chapter, sectors in (("fwd01", 32), ("fwd02", 4)):
        launch, = count(chapter, "--rows", 64, "--cols", 256)
        for line in lines_of(launch, "load", "x"):
            assert per_request(line) == sectors
            assert "x[col]" in text_of(line)


def test_a_line_of_the_source_has_the_costs_that_it_makes(count):
    launch, = count("fwd02", "--rows", 64, "--cols", 256)
    sums, = {line["line"] for line in lines_of(launch, "load", "x") if "sum +=" in text_of(line)}
    shuffles = lines_of(launch, "shuffle")
    assert [line["times"] for line in shuffles] == [64 * 5, 64 * 5]  # five a warp, in each of two sums
    assert shuffles[0]["line"] > sums
    assert "warp_sum(sum)" in text_of(shuffles[0])
    assert shuffles[0]["helper"].startswith("common/kernel/reduce.h:")


def test_a_kernel_that_chapters_share_has_the_lines_of_its_own_file(count):
    zero, kernel, last = count("bwd01", "--rows", 8, "--cols", 64, "--dtype", "bf16")
    assert {line["file"] for line in zero["lines"] + last["lines"]} == {"common/kernel/gradient_sums.h"}
    assert {line["file"] for line in kernel["lines"]} == {"chapters/bwd01_thread_per_row/kernel.cu"}


@pytest.mark.parametrize(("source", "lines", "shown"), [
    ("// of k\nvoid k() {\n\n  f();\n}\nvoid l() {\n}\n", [4], [(1, 5)]),
    ("int n;\n\nnamespace a {\n\n  void k()\n  {\n    f();  // }\n  }\n  void l() { f(); }\n}\n", [7], [(5, 8)]),
    ("void k(A a = {}) {\n  f();\n  }\nint main() { f(); }", [2, 4], [(1, 3), (4, 4)]),
    ('extern "C" {\n\nvoid k() {\n  f(); }\n\nvoid l() {} }', [4], [(3, 4)]),
    ("#define K \\\n  f()\nvoid k() {\n#if 1\n  if (a) {\n#else\n  if (b) {\n#endif\n  f(); }\n}\n", [9], [(9, 9)]),
])
def test_what_is_shown_around_a_line_is_its_function(source, lines, shown):
    assert watch.items(source.splitlines(), dict.fromkeys(lines)) == shown


def test_a_line_that_writes_two_tensors_has_both(count):
    last = count("bwd08", "--rows", 8, "--cols", 512)[-1]
    assert {line["tensor"]: line["times"] for line in lines_of(last, "store") if line["space"] == "device"} == {
        "dweight": 4, "dbias": 4}  # 128 columns of a block each


def test_33_columns_cost_a_warp_a_second_request_with_one_lane(count):
    launch, = count("fwd02", "--rows", 64, "--cols", 33)
    line = lines_of(launch, "load", "x")[0]
    assert line["times"] == 64 * 2
    assert line["lanes"] == 64 * 33
    assert line["sectors"] == sum(sectors_of_row(row, 33) for row in range(64))


def sectors_of_row(row, cols):
    """Of floats, in the two requests that 32 lanes make."""
    first = row * cols
    parts = ((first, first + 32), (first + 32, first + cols))
    return sum((end * 4 - 1) // 32 - begin * 4 // 32 + 1 for begin, end in parts)


def test_the_atomics_of_bwd01_meet_at_one_address_and_those_of_bwd02_do_not(count):
    for chapter, meeting in (("bwd01", 32), ("bwd02", 1)):
        launch = count(chapter, "--rows", 64, "--cols", 256)[-1]
        for line in lines_of(launch, "atomic"):
            assert line["meeting"] == meeting * line["times"]
            assert line["times"] == 64 * 256 / 32


def test_without_its_padding_bwd06_stores_in_four_passes_as_its_lesson_derives(count, programs, build, tmp_path):
    programs["bwd06"]  # it is built
    bare = plant.program_with("bwd06", "kTileStride = kWarpSize + 1", "kTileStride = kWarpSize", build, tmp_path)
    for program, passes in ((programs["bwd06"], 1), (bare, 4)):
        launch = count(program)[1]
        stores = [line for line in lines_of(launch, "store") if line["space"] == "shared"]
        assert sum(line["times"] for line in stores) == 8 * 4 * 1024
        assert sum(line["passes"] for line in stores) == passes * 8 * 4 * 1024
    assert launch["totals"]["shared conflicts"] == 98304


def test_two_bytes_an_element_are_two_sectors_and_vectors_are_one_access(count):
    assert per_request(lines_of(count("fwd02", "--dtype", "bf16")[0], "load", "x")[0]) == 2
    line = lines_of(count("fwd06")[0], "load", "x")[0]
    assert (line["access_bytes"], per_request(line)) == (16, 16)


def test_the_totals_include_the_passes_of_atomics_in_shared_memory():
    line = {**dict.fromkeys(watch.COUNTS, 0), "what": "atomic", "space": "shared", "times": 8, "passes": 20, "passes_needed": 8}
    totals = watch.totals({"sectors_read_once": 0, "sectors_written_once": 0}, [line])
    assert (totals["shared atomic passes"], totals["shared conflicts"], totals["atomic requests"]) == (20, 12, 0)


def test_a_chapter_of_the_readers_own_has_its_lines(count, programs, build, tmp_path, monkeypatch):
    programs["fwd02"]  # it is built
    kernel = Path(kernel_sources()["fwd02"])
    text = plant.without_other_types((ROOT / kernel).read_text(encoding="utf-8"))
    (tmp_path / kernel).parent.mkdir(parents=True)
    (tmp_path / kernel).write_text(re.sub(r"launch\((layer_norm_forward<T>),\s*\{(.*?), (.*?), 0, a.stream\}, a\)",
                                          r"\1<<<\2, \3, 0, a.stream>>>(a)", text, flags=re.DOTALL), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert rewrite_cuda.main([kernel, "kernel.cpp"]) == 0
    rewritten = Path("kernel.cpp").read_text(encoding="utf-8")
    assert "RewrittenLaunch" in rewritten
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(ROOT / "common/simt/include"))
    launch, = count(plant.program_with("fwd02", text, rewritten, build, tmp_path))
    assert {"x[col]" in text_of(line) for line in lines_of(launch, "load", "x")} == {True}


def test_bulk_copies_are_counted_in_bytes(count):
    launch, = count("fwd08", "--rows", 128, "--cols", 1024)
    assert sum(line["bytes"] for line in lines_of(launch, "bulk load")) == 128 * 1024 * 4


def test_the_committed_counts_are_those_of_this_code(count):
    committed = store.read(ROOT / "notebooks/data/counts.csv")
    for chapter in ("fwd03", "bwd05"):
        records = [record for record in committed if record["chapter"] == chapter and record["problem"]["dtype"] == "f32"
                   and record["problem"]["cols"] == 2048]
        launches = count(chapter)
        assert [launch["kernel"] for launch in launches] == [record["kernel"] for record in records]
        for launch, record in zip(launches, records):
            # Which of two blocks on two cores is first to read what both read is luck.
            lucky = {"sectors held by L1", "sectors held by L2"}
            for name, total in launch["totals"].items():
                assert name in lucky or record["totals"][name] == total, name


def test_of_a_large_problem_a_few_blocks_are_counted_and_it_says_so(count, programs):
    arguments = ("--rows", 8192, "--cols", 2048)
    launch, = count("fwd02", *arguments)
    assert launch["blocks_counted"] < launch["blocks"] == 2048
    line = lines_of(launch, "load", "x")[0]
    assert line["sectors"] == 8192 * 2048 * 4 / 32
    said = run(programs["fwd02"], *arguments).stdout
    assert f"{launch['blocks_counted']} of the 2 048 blocks were counted, all alike" in said
    assert launch["sectors_read_once"] == 8192 * 2048 * 4 // 32 + 2 * 2048 * 4 // 32  # of all blocks


def test_the_page_shows_the_source_and_what_each_line_costs(programs):
    said = run(programs["fwd01"], "--rows", 64, "--cols", 256).stdout
    source = (ROOT / "chapters/fwd01_thread_per_row/kernel.cu").read_text(encoding="utf-8")
    assert "__global__ void layer_norm_forward" in source and "__global__ void layer_norm_forward" in said
    assert "load x" in said and "32 sectors each" in said
    assert "const Registration" not in said  # nothing counted there


def test_all_chapters_are_a_table(programs):
    done = run(programs["chapters"], "--rows", 8, "--cols", 64)
    assert done.returncode == 0, done.stderr
    chapters = {line.split()[0] for line in done.stdout.splitlines()[2:]}
    assert {"copy00", "fwd01", "bwd13"} <= chapters


def test_what_crosses_links_is_said_a_row_and_the_source_of_several_gpus_once():
    file = "chapters/fwd01_thread_per_row/kernel.cu"
    number = next(i for i, text in enumerate((ROOT / file).read_text(encoding="utf-8").splitlines(), 1) if "y[" in text)
    line = {"file": file, "line": number, "what": "store", "space": "device",
            "access_bytes": 16, "tensor": "window", **dict.fromkeys(watch.COUNTS, 0),
            "times": 8, "bytes": 128, "sectors": 8, "link_bytes": 128}
    launch = {"kernel": "k", "grid": [2, 1, 1], "block": [32, 1, 1], "cluster": 0, "blocks": 2, "blocks_counted": 2,
              "sectors_read_once": 0, "sectors_written_once": 8, "lines": [line]}
    launches = [{**launch, "gpu": gpu, "totals": watch.totals({**launch, "gpu": gpu}, [line])} for gpu in (0, 1)]
    assert launches[0]["totals"]["link bytes"] == 128 and launches[0]["totals"]["link requests"] == 8
    assert "link bytes" not in watch.totals(launch, [line])
    said = watch.page({"chapter": "fwd17", "words": "", "problem": {"rows": 8}, "launches": launches,
                              "fault": "", "passed": True})
    assert said.count("  across links           128 bytes   16 bytes a row, in 8 requests") == 2
    assert "GPU 0: k, 2 blocks" in said and "GPU 1: k, 2 blocks" in said
    assert said.count("store window") == 1 and ", 128 bytes across links" in said


@pytest.mark.parametrize("arguments, words", [
    (["--cols", "0"], ["--cols", "at least 1"]),
    (["--set", "progression"], ["one problem", "--rows"]),
    (["--rows", "40000000", "--cols", "4096"], ["GB", "--rows", "fits"]),
    (["--kind", "rms"], ["fwd01", "--kind"]),
    (["--wrong"], ["--wrong"]),
    (["--json", "/nowhere/counts.jsonl"], ["cannot write", "/nowhere/counts.jsonl"]),
])
def test_a_wrong_request_gets_a_sentence(programs, tmp_path, arguments, words):
    file = tmp_path / "counts.jsonl"
    done = run(programs["fwd01"], "--json", file, *arguments)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr
    assert not file.exists()


def test_make_refuses_a_gpu_and_another_compiler(tmp_path):
    make = subprocess.run(["make", "-C", ROOT, "count", "CH=fwd01", "BACKEND=cuda"], capture_output=True, text=True,
                          check=False)
    assert make.returncode == 2
    assert "runs on the CPU" in make.stderr
    clang = shutil.which("clang++")
    if clang is None:
        pytest.skip("no clang++ here, which would be refused")
    done = subprocess.run(["cmake", "-S", ROOT, "-B", tmp_path, "-DWATCH=ON"], capture_output=True, text=True,
                          env={**os.environ, "CXX": clang}, check=False)
    assert done.returncode != 0
    assert "only GCC" in " ".join(done.stderr.split()) and "CXX=g++" in done.stderr
