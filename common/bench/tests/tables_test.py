"""Tests of the loader, the tables, and the profiler's reader. They need no GPU and no matplotlib."""

import contextlib
import io
import json
import os
import shutil
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import book
import catalogue as catalogues
import measurements
import peers
import figures as plots
import profile_chapter
import tables
from chapter_map import MAIN, ChapterMap
from made_up import DEVICE, catalogue, jsonl, peer, record, training
from measurements import PROGRESSION

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MEASURED = HERE / "measured.jsonl"  # two runs of seven chapters
NCU = HERE / "ncu.csv"  # fwd01 and bwd02, cut to the columns that are read


def silently(function, *arguments, **options):
    """(what the function returns, its stdout, its stderr)"""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        result = function(*arguments, **options)
    return result, out.getvalue(), err.getvalue()


class InDirectory(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


class TheMachine(InDirectory):
    FIGURES = {"SM clock": 2.0, "latency: shared memory": 30.2, "latency: L1": 40, "latency: L2": 280,
               "latency: device memory": 700, "bandwidth: L1, read": 31.2, "bandwidth: L2, read": 7.44,
               "bandwidth: copy of 1024 MiB": 3.01}

    def rows(self):
        made = mock.Mock(root=self.root)
        return [line.split(" | ") for line in tables.machine(made) if line.startswith("| ")]

    def test_its_table_has_cycles_nanoseconds_and_bandwidths(self):
        self.write(str(tables.MACHINE), jsonl(*({"figure": name, "value": value, "device": "A GPU"}
                                                for name, value in self.FIGURES.items())))
        rows = {row[0].strip("| "): row[-3:] for row in self.rows()}
        self.assertEqual(rows["device memory"], ["700", "350", "3.0 |"])
        self.assertEqual(rows["shared memory"], ["30", "15", "– |"])

    def test_it_says_so_where_nothing_was_measured(self):
        self.assertEqual(tables.machine(mock.Mock(root=self.root)), ["Not measured yet."])


class Loader(InDirectory):
    def load(self, text, **options):
        return silently(measurements.load, self.write("data.jsonl", text), **options)

    def test_a_later_run_replaces_an_earlier_one(self):
        results = measurements.load(MEASURED)
        self.assertEqual((len(results.records), results.skipped), (7, 0))
        found = results.find("fwd01", PROGRESSION)
        self.assertEqual((found["median_us"], found["date"]), (1332.19, "2026-11-21"))
        for other in (PROGRESSION._replace(dtype="f16"), PROGRESSION._replace(kind="rms")):
            self.assertIsNone(results.find("fwd01", other))

    def test_skips_and_counts_what_is_no_record(self):
        whole = record("fwd01", 1.0)
        broken = ['{"schema":2,"chapter":"fwd01","problem":', "[1, 2]", '{"schema":2,"chapter":"fwd01"}',
                  *(json.dumps({**whole, **wrong}) for wrong in (
                      {"median_us": "fast"}, {"l2": "tepid"}, {"problem": {**whole["problem"], "rows": "10"}},
                      {"problem": {**whole["problem"], "options": {"dropout": []}}})),
                  jsonl({key: value for key, value in whole.items() if key != "operator_bytes"})]
        results, _, err = self.load(jsonl(whole) + "\n".join(broken))
        self.assertEqual((len(results.records), results.skipped), (1, 8))
        self.assertRegex(err, r"data.jsonl: skipped 8 lines that could not be read as a record \(cut short\?\): lines [\d, ]+ and 3 more\n")

    def test_a_record_of_another_schema_is_named_skipped_and_counted(self):
        header = {"device": "GPU", "date": "2026-01-01"}
        results, _, err = self.load(jsonl(header, *({**record("fwd01", 1.0), "schema": schema} for schema in (1, 1, 3)),
                                          record("fwd02", 2.0)))
        self.assertEqual(([r["chapter"] for r in results.records], results.skipped), (["fwd02"], 4))
        self.assertIn("data.jsonl: skipped 1 record of no schema (line 1) and 2 records of schema 1 (lines 2 and 3) and "
                      "1 record of schema 3 (line 4): this reads schema 2\n", err)

    def test_a_warm_record_and_one_with_the_host_s_time_replace_and_stand_in_for_no_other(self):
        cold, warm = record("fwd01", 9.0), record("fwd01", 1.0, l2="warm")
        counted = record("torch", 30.0, "forward", host="counted")
        for entries in ((cold, warm), (warm, cold)):
            results, _, _ = self.load(jsonl(*entries, counted))
            self.assertEqual(results.find("fwd01", PROGRESSION)["median_us"], 9.0)
            self.assertEqual(results.find("fwd01", PROGRESSION, l2="warm")["median_us"], 1.0)
            self.assertIsNone(results.find("torch", PROGRESSION, "forward"))
            self.assertEqual([r["median_us"] for r in results.only().records], [9.0])
        self.assertIsNone(self.load(jsonl(warm))[0].find("fwd01", PROGRESSION))

    def test_the_newest_clock_counts(self):
        results, _, _ = self.load(jsonl(record("fwd01", 9.0, clock=2), record("fwd01", 8.0, clock=1)))
        self.assertEqual([(r["median_us"], r["clock"]) for r in results.records], [(8.0, 1)])

    def test_options_are_part_of_the_problem(self):
        options = {"dropout": 0.10000000149011612, "residual": "f32", "second_input": True, "second_affine": True,
                   "group": 0, "later": 3}
        results, _, _ = self.load(jsonl(record("fwd07", 9.0, options=options), record("fwd07", 8.0)))
        asked = PROGRESSION.with_options(dropout=0.1, residual="f32", second_input=True, second_affine=True, later=3)
        self.assertEqual(results.find("fwd07", asked)["median_us"], 9.0)
        self.assertEqual(asked.words, "dropout 0.1, parallel, residual f32, later 3")
        self.assertEqual(results.find("fwd07", PROGRESSION)["median_us"], 8.0)

    def test_a_missing_file_has_its_own_error(self):
        with self.assertRaisesRegex(measurements.MissingData, "nowhere.jsonl is not there yet"):
            measurements.load(self.root / "nowhere.jsonl")
        with self.assertRaisesRegex(measurements.DataError, "cannot read"):
            measurements.load(self.root)

    def test_does_not_mix_emulated_times_with_a_gpus(self):
        text = jsonl(record("fwd01", 1.0), record("fwd02", 1.0, backend="cpu"))
        with self.assertRaisesRegex(measurements.MixedBackends, "emulated"):
            self.load(text)
        results, _, _ = self.load(text, backend="cpu")
        self.assertEqual([r["chapter"] for r in results.records], ["fwd02"])


class Sets(InDirectory):
    def sets(self, text):
        return measurements.load_sets(self.write("problem_sets.json", text))

    def test_a_list_stands_for_each_of_its_values(self):
        found = self.sets('{"two": {"about": "x", "problems": [{"dtype": "f16", "rows": 4, "cols": [1, 2], '
                          '"dropout": [0.0, 0.1]}, {"kind": "rms", "dtype": "f32", "rows": 1, "cols": 1}]}}')
        self.assertEqual([(problem.cols, problem.kind, problem.words) for problem in found["two"]],
                         [(1, "layer", ""), (1, "layer", "dropout 0.1"), (2, "layer", ""), (2, "layer", "dropout 0.1"),
                          (1, "rms", "")])

    def test_an_unknown_field_is_named_with_its_set_and_its_file(self):
        with self.assertRaisesRegex(measurements.DataError,
                                    r"problem_sets.json: the set 'odd' has an unknown field 'colour'; the fields are"):
            self.sets('{"odd": {"about": "x", "problems": [{"dtype": "f32", "rows": 1, "cols": 1, "colour": 2}]}}')

    def test_what_is_no_set_is_a_sentence(self):
        for text in ("", '{"a": {}}', '{"a": {"problems": [{"rows": 1}]}}'):
            with self.assertRaisesRegex(measurements.DataError, "problem_sets.json holds no problem sets"):
                self.sets(text)

    def test_the_sweep_has_its_widths_and_the_wide_set_its_one_size(self):
        self.assertEqual([problem.cols for problem in measurements.SWEEP], [512 * i for i in range(2, 32)])
        for problem in measurements.WIDE[1:]:
            self.assertEqual(problem.rows * problem.cols, {"f32": 1 << 27, "bf16": 1 << 28}[problem.dtype])

    def test_the_sets_of_widths_hold_as_many_whole_rows_as_fit_each_of_both_types_and_kinds(self):
        for name, sizes in (("widths", {128}), ("smaller", {64, 8})):
            problems, mib = measurements.SETS[name], 1 << 20
            self.assertEqual(len(set(problems)), len(problems))
            of_width = {}
            for problem in problems:
                row = problem.cols * {"f32": 4, "bf16": 2}[problem.dtype]
                fits = [size for size in sizes if size * mib - row < problem.rows * row <= size * mib]
                self.assertEqual(len(fits), 1, problem)
                of_width.setdefault((problem.cols, *fits), []).append((problem.dtype, problem.kind))
            for found in of_width.values():
                self.assertEqual(sorted(found), [(dtype, kind) for dtype in ("bf16", "f32") for kind in ("layer", "rms")])


class Map(unittest.TestCase):
    def test_a_chapter_may_be_read_before_a_later_one_in_place_of_after_its_parent(self):
        def chapter(identifier, parent, before=""):
            return book.Chapter(identifier, Path(f"chapters/{identifier}_x/kernel.cu"), "", "", parent=parent, road=MAIN, before=before)

        chapters = [chapter("fwd01", ""), chapter("fwd02", "fwd01", "bwd02"), chapter("fwd03", "fwd02", "bwd02"),
                    chapter("bwd01", "fwd01"), chapter("bwd02", "bwd01"), chapter("bwd03", "bwd02")]
        line = ChapterMap({one.id: one for one in chapters})
        self.assertEqual([one.id for one in line.main_line()], ["fwd01", "bwd01", "fwd02", "fwd03", "bwd02", "bwd03"])
        self.assertEqual(line.after(chapters[3]).id, "fwd02")


class Sources(InDirectory):
    def test_a_function_is_shown_from_its_comment_to_its_end_and_a_member_without_its_indent(self):
        self.write(Path("common/x.h"), "struct S {\n  /// Waits.\n  __device__ void wait() {\n    a();\n  }\n};\n\n"
                   "// Not of it.\n\n/// Adds.\ntemplate <int k>\n__device__ inline int add(int i) {\n  return i + k;\n}\n")
        book = SimpleNamespace(root=self.root)
        self.assertEqual(tables.source(book, "common/x.h wait", "here")[:5],
                         ["```cpp", "/// Waits.", "__device__ void wait() {", "  a();", "}"])
        self.assertEqual(tables.source(book, "common/x.h add", "here")[1:6],
                         ["/// Adds.", "template <int k>", "__device__ inline int add(int i) {", "  return i + k;", "}"])
        for words, why in (("common/x.h sub", "does not declare sub"), ("common/y.h add", "cannot read common/y.h")):
            with self.assertRaisesRegex(tables.MarkerError, why):
                tables.source(book, words, "here")


class Dispatch(InDirectory):
    def test_a_rule_says_what_it_takes(self):
        rule = {"kernel": "lib_fwd_ring", "direction": "forward", "kind": "rms", "types": "16-bit", "starts": "aligned",
                "cols_from": 8, "cols_to": 16, "rows_from": 4, "mib_to": 2, "gpu": "H200", "batch_invariant": False, "because": "x"}
        book = SimpleNamespace(root=self.root, kernels={})
        self.assertEqual(tables.dispatch_row(book, Path("x"), rule),
                         ["forward rms 16-bit", "aligned", "8 to 16", "from 4 rows, to 2 MiB", "H200", "no", "lib_fwd_ring", "x"])
        plain = {"kernel": "lib_fwd_ring", "direction": "forward", "because": "x"}
        self.assertEqual(tables.dispatch_row(book, Path("x"), plain), ["forward", "any", "", "", "any", "yes", "lib_fwd_ring", "x"])


class Catalogue(InDirectory):
    def test_what_is_no_list_is_a_sentence(self):
        with self.assertRaisesRegex(measurements.MissingData, "chapters.json is not there yet; `make tables`"):
            catalogues.load_catalogue(self.root)
        for text, why in (("{", "cannot read"), ("[]", "no list of chapters"), ('{"chapters": []}', "no list of library")):
            self.write(catalogues.CATALOGUE, text)
            with self.assertRaisesRegex(measurements.DataError, why):
                catalogues.load_catalogue(self.root)

    def test_each_chapter_of_this_repository_s_has_its_directory_and_the_dispatch_names_no_other(self):
        found = catalogues.load_catalogue()
        for chapter in found["chapters"] + found["library"]:  # a newer directory may wait for `make tables`
            self.assertTrue((ROOT / chapter["file"]).exists(), chapter["file"])
        self.assertLessEqual(set(catalogues.dispatched(found)), {kernel["id"] for kernel in found["chapters"] + found["library"]})


class Numbers(unittest.TestCase):
    def test_significant_digits_and_groups(self):
        written = [measurements.number(value).replace("\u202f", "_") for value in
                   (1330.69, 34.11, 44.8, 9.216, 0, 0.196, 74824.24, None)]
        self.assertEqual(written, ["1_331", "34.11", "44.80", "9.216", "0", "0.196", "74_824", "–"])
        self.assertEqual(measurements.count(7482424).replace("\u202f", "_"), "7_482_424")


class Tables(InDirectory):
    """A small repository: three chapters, one of them not measured."""

    NOTES = "chapters/bwd02_warp_per_row/notes.md"

    def setUp(self):
        super().setUp()
        for name in ("fwd01_thread_per_row", "bwd01_thread_per_row", "bwd02_warp_per_row", "fwd99_future"):
            self.write(f"chapters/{name}/kernel.cu", "")
        self.list_chapters()
        self.write("README.md", "# Title\n\n<!-- table: progression -->\n<!-- end table -->\n\nEnd.\n")
        self.write(self.NOTES, "<!-- table: measured bwd02 -->\n<!-- end table -->\n"
                               "<!-- table: profile bwd02 -->\n<!-- end table -->\n")
        self.data = self.write("notebooks/data/h100.csv", MEASURED.read_text(encoding="utf-8"))
        shutil.copy(ROOT / "notebooks/data/source_a100.jsonl", self.root / "notebooks/data")
        write_figure = mock.patch.object(
            plots, "write_figure", lambda draw, rows, path: self.write(path, f"data {plots.digest(rows)}"))
        write_figure.start()
        self.addCleanup(write_figure.stop)

    def list_chapters(self, group="", **roads):
        """The four; `roads`: (parent, road) of those that stand elsewhere than here."""
        roads = {"bwd01": ("fwd01", MAIN), "bwd02": ("bwd01", MAIN), "fwd99": ("fwd01", "numerics"), **roads}
        self.write(catalogues.CATALOGUE, catalogue(
            roads, fwd01=("fwd01_thread_per_row", "One thread per row"), fwd99=("fwd99_future", "Not measured"),
            bwd01=("bwd01_thread_per_row", "Atomics"), bwd02=("bwd02_warp_per_row", "One warp per row", group)))

    def add_records(self, *records):
        """Appends records to the data, which are of their device."""
        self.data.write_text(self.data.read_text(encoding="utf-8") + jsonl(*records), encoding="utf-8")

    def run_tables(self, *arguments):
        return silently(tables.main, list(arguments), self.root)

    def text(self, name="README.md"):
        return (self.root / name).read_text(encoding="utf-8").replace("\u202f", " ")

    def row(self, *cells, name="README.md"):
        """{head: cell} of the one row in a file's tables that has these cells."""
        found, heads = [], None
        for line in self.text(name).splitlines():
            values = [value.strip() for value in line.strip("|").split("|")] if line.startswith("|") else None
            if heads and values and set(cells) <= set(values):
                found.append(dict(zip(heads, values)))
            heads = values and (heads or values)
        self.assertEqual(len(found), 1, f"rows with {cells}: {found}")
        return found[0]

    def assert_row(self, expected, *cells, name=NOTES):
        self.assertEqual(self.row(*cells, name=name), self.row(*cells, name=name) | expected)

    def test_the_progression_has_each_measured_chapter_and_leaves_the_text_around_it(self):
        self.assertEqual(self.run_tables()[0], 0)
        text = self.text()
        self.assertTrue(text.startswith("# Title\n\n<!-- table: progression -->\n\n|"))
        self.assertTrue(text.endswith("\n\n<!-- end table -->\n\nEnd.\n"))
        self.assert_row({"backward chapter": "[bwd02](chapters/bwd02_warp_per_row/notes.md)", "median µs": "45.28",
                         "speed-up": "× 56.7", "SM cycles": "82 675", "GB/s": "556", "% of roof": "30.2",
                         "predicted MB": "25.19", "A100 cycles (source)": "251 740"}, "One warp per row", name="README.md")
        self.assertNotIn("fwd99", text)  # newer than the data: it joins with the next run
        self.assertIn("580.159.04", text)
        self.assertIn("Speed-up is over the parent", text)

    def test_a_speed_up_is_over_the_parent_and_not_over_the_neighbour(self):
        self.write("chapters/bwd03_new/kernel.cu", "")
        self.write(catalogues.CATALOGUE, catalogue(
            {"bwd02": ("bwd01", MAIN), "bwd03": ("bwd01", "sums")}, bwd01=("bwd01_thread_per_row", "Atomics"),
            bwd02=("bwd02_warp_per_row", "Warps"), bwd03=("bwd03_new", "Threes")))
        self.data.write_text(jsonl(record("bwd01", 100.0), record("bwd02", 50.0), record("bwd03", 40.0)))
        self.run_tables()
        self.assert_row({"parent": "bwd01", "speed-up": "× 2.50"}, "Threes", name="README.md")

    def head(self, chapter, file="README.md"):
        """A lesson's first line, as it stands in a file."""
        self.write(file, f"<!-- table: head {chapter} -->\n<!-- end table -->\n")
        self.assertEqual(self.run_tables()[0], 0)
        return self.text(file).split("\n")[2]

    def test_a_head_names_the_road_and_what_comes_before_and_after(self):
        self.list_chapters(bwd02=("bwd01", "sums"))
        self.assertEqual(
            self.head("fwd01"), "*Main line. After: [bwd01 · Atomics](chapters/bwd01_thread_per_row/notes.md). "
            "Side road from here: numerics, [fwd99 · Not measured](chapters/fwd99_future/notes.md).*")
        self.assertEqual(
            self.head("fwd99"), "*Side road: numerics. Before: [fwd01 · One thread per row]"
            "(chapters/fwd01_thread_per_row/notes.md). Back to the main line: [bwd01 · Atomics]"
            "(chapters/bwd01_thread_per_row/notes.md).*")
        self.assertEqual(self.head("bwd02", self.NOTES),  # of a lesson, links start there; behind the last comes nothing
                         "*Side road: sums. Before: [bwd01 · Atomics](../bwd01_thread_per_row/notes.md).*")

    def test_a_side_road_may_go_on_and_more_than_one_may_leave_at_a_chapter(self):
        self.list_chapters(bwd01=("fwd01", "sums"), bwd02=("bwd01", "sums"))
        self.assertIn("Further on this road: [bwd02 · One warp per row]", self.head("bwd01"))
        self.assertIn("Side roads from here: numerics, [fwd99 · Not measured](chapters/fwd99_future/notes.md); sums, "
                      "[bwd01 ·", self.head("fwd01"))

    def test_a_chapter_that_the_list_lacks_is_not_on_the_map_yet(self):
        self.write("chapters/fwd50_new/kernel.cu", "")
        self.assertEqual(self.head("fwd50"), "*Not on the map yet.*")

    def test_steps_are_the_parent_the_chapter_in_bold_and_the_roof(self):
        self.write(self.NOTES, "<!-- table: steps bwd02 -->\n<!-- end table -->\n")
        large = {"dtype": "bf16", "rows": 131072, "cols": 4096}
        self.data.write_text(jsonl(record("bwd01", 100.0), record("bwd02", 25.0),
                                   record("bwd02", 4000.0, problem=large)))
        self.run_tables()
        small, wide = "f32, 1024 × 2048: µs", "bf16, 131072 × 4096: µs"
        self.assert_row({small: "100.0", wide: "–", "% of the roof": "–"}, "[bwd01](../bwd01_thread_per_row/notes.md)")
        self.assert_row({small: "25.00", wide: "4 000", "% of the roof": "40.3"}, "**bwd02**")
        self.assert_row({small: "× 4.00", wide: "–"}, "speed-up over bwd01")
        self.assert_row({small: "12.58", wide: "1 611", "% of the roof": "100.0"}, "a triad")
        self.assertIn("Median of launches with a cold L2. NVIDIA H100", self.text(self.NOTES))
        self.assertEqual(self.text(self.NOTES).count("\n|"), 6)
        self.write(self.NOTES, "<!-- table: steps fwd01 -->\n<!-- end table -->\n")
        self.add_records(record("fwd01", 16.777216))
        self.run_tables()
        self.assert_row({small: "16.78"}, "**fwd01**")
        self.assert_row({small: "8.389", wide: "–"}, "a copy")

    def test_steps_of_a_direction_s_first_have_no_parent_and_those_of_what_is_not_measured_no_times(self):
        self.write(self.NOTES, "<!-- table: steps bwd01 -->\n<!-- end table -->\n")
        self.data.write_text(jsonl(record("fwd01", 100.0), record("bwd02", 50.0), record("bwd01", 50.0, passed=False)))
        self.run_tables()
        self.assertEqual(self.text(self.NOTES).count("\n|"), 4)
        self.assert_row({"f32, 1024 × 2048: µs": "–", "% of the roof": "–"}, "**bwd01**")
        self.assert_row({"f32, 1024 × 2048: µs": "–", "% of the roof": "–"}, "a triad")
        self.assertIn("Not measured yet.", self.text(self.NOTES))

    def test_a_chapter_of_narrow_rows_is_shown_on_these(self):
        self.list_chapters(bwd02=("bwd01", tables.NARROW_ROAD))
        self.write(self.NOTES, "<!-- table: steps bwd02 -->\n<!-- end table -->\n")
        narrow = {"dtype": "bf16", "rows": 1048576, "cols": 64}
        self.data.write_text(jsonl(record("bwd01", 400.0, problem=narrow), record("bwd02", 200.0, problem=narrow)))
        self.run_tables()
        self.assert_row({"bf16, 1048576 × 64: µs": "200.0", "bf16, 524288 × 128: µs": "–"},
                        "**bwd02**")
        self.write(self.NOTES, "<!-- table: measured bwd02 -->\n<!-- end table -->\n")
        self.run_tables()
        self.assert_row({"median µs": "200.0"}, "bf16, 1048576 × 64")
        self.assertEqual(self.text(self.NOTES).count("\n|"), 2 + len(measurements.NARROW))

    def test_the_chapters_of_fusion_stand_side_by_side_with_its_steps_one_by_one(self):
        self.list_chapters(bwd01=("fwd01", tables.FUSION_ROAD), bwd02=("bwd01", tables.FUSION_ROAD))
        self.write(self.NOTES, "<!-- table: steps bwd02 -->\n<!-- end table -->\n")
        large = {"dtype": "bf16", "rows": 131072, "cols": 4096}
        options = {"residual": "same", "prenorm": True}
        self.data.write_text(jsonl(record("bwd01", 400.0, problem=large, options=options),
                                   record("bwd02", 200.0, problem=large, options=options, parts_us=300.0, parts_bytes=9)))
        self.run_tables()
        self.assert_row({"with": "residual, prenorm", "one by one: µs": "300.0", "bwd01: µs": "400.0",
                         "bwd02: µs": "**200.0**"}, "131072 × 4096", "residual, prenorm")
        self.assertEqual(self.text(self.NOTES).count("\n|"), 2 + len(tables.FUSION_STEPS))
        self.data.write_text(jsonl(record("bwd01", 400.0, problem=large, options=options)))
        self.write(self.NOTES, "<!-- table: steps bwd01 -->\n<!-- end table -->\n")
        self.run_tables()
        self.assertNotIn("one by one", self.text(self.NOTES))
        self.assert_row({"bwd01: µs": "**400.0**", "bwd02: µs": "–"}, "131072 × 4096", "residual, prenorm")

    def test_a_chapter_of_unaligned_rows_is_shown_on_these_too(self):
        self.list_chapters(bwd02=("bwd01", tables.UNALIGNED_ROAD))
        self.write(self.NOTES, "<!-- table: steps bwd02 -->\n<!-- end table -->\n")
        odd = {"dtype": "bf16", "rows": 16384, "cols": 4097}
        self.data.write_text(jsonl(record("bwd02", 200.0, problem=odd)))
        self.run_tables()
        self.assert_row({"bf16, 16384 × 4104: µs": "–", "bf16, 16384 × 4097: µs": "200.0"}, "**bwd02**")
        self.write(self.NOTES, "<!-- table: measured bwd02 -->\n<!-- end table -->\n")
        self.run_tables()
        self.assert_row({"median µs": "200.0"}, "bf16, 16384 × 4097")
        self.assert_row({"median µs": "–"}, "f32, 1024 × 2048")

    def test_the_map_is_a_drawing_the_main_line_and_the_side_roads(self):
        self.list_chapters(bwd02=("bwd01", "sums"))
        self.write("chapters/README.md", "<!-- table: map -->\n<!-- end table -->\n")
        self.data.write_text(jsonl(record("fwd01", 80.0), record("bwd01", 100.0), record("bwd02", 125.0)))
        self.run_tables()
        text = self.text("chapters/README.md")
        self.assertIn("```text\nfwd01 ── fwd99  numerics\nbwd01 ── bwd02  sums\n```\n", text)
        self.assert_row({"main line, forward": "[fwd01](fwd01_thread_per_row/notes.md)"}, "what fwd01 teaches",
                        name="chapters/README.md")
        self.assert_row({"main line, backward": "[bwd01](bwd01_thread_per_row/notes.md)"}, "what bwd01 teaches",
                        name="chapters/README.md")
        self.assert_row({"chapter": "[bwd02](bwd02_warp_per_row/notes.md)"}, "sums", name="chapters/README.md")
        folded = text[text.index("<details>"):text.index("</details>")]
        self.assertIn("| fwd01 | 80.00 | – | – |\n", folded)
        self.assertIn("| bwd02 | 125.0 | × 0.80 | bwd01 |\n", folded)
        self.assertNotIn("80.00", text[: text.index("<details>")])

    def test_a_drawing_goes_from_parent_to_child_and_says_where_a_line_begins_anew(self):
        places = {"copy00": ("", MAIN), "fwd01": ("copy00", MAIN), "fwd02": ("fwd01", MAIN), "bwd01": ("fwd01", MAIN),
                  "fwd03": ("fwd02", "sums"), "fwd04": ("fwd03", "sums"), "fwd05": ("fwd02", "fusion")}
        tree = ChapterMap({name: book.Chapter(name, Path(), "", "", "", *place) for name, place in places.items()})
        self.assertEqual(tables.drawing(tree), ["copy00", "fwd01", "fwd02 ── fwd03 ── fwd04  sums",
                                                "      └─ fwd05  fusion", "", "bwd01  after fwd01"])

    def test_measured_shows_what_is_missing_and_what_was_cut_short(self):
        cut, failed = ({"dtype": "f16", "rows": 4096, "cols": cols} for cols in (8192, 4096))
        self.add_records(record("bwd02", 200.0, problem=cut, cut_short=True),
                         record("bwd02", 20.0, problem=failed, passed=False))
        self.run_tables()
        self.assert_row({"median µs": "45.28", "p10–p90": "43.84–46.59", "samples": "31"}, "f32, 1024 × 2048")
        self.assert_row({"median µs": "200.0", "samples": "31 †"}, "f16, 4096 × 8192")
        self.assert_row({"median µs": "–", "predicted MB": "100.7"}, "f16, 4096 × 4096")
        self.assert_row({"median µs": "–", "predicted MB": "–"}, "bf16, 131072 × 8192")
        self.assertIn("the check failed: bwd02 on f16, 4096 × 4096.", self.text(self.NOTES))

    def test_a_variant_stands_beside_its_parts(self):
        self.write(self.NOTES, "<!-- table: variants bwd02 -->\n<!-- end table -->\n")
        options = {"dropout": 0.1, "residual": "same"}
        self.data.write_text(jsonl(record("bwd02", 20.0, options=options, parts_us=35.0, parts_bytes=50364416)))
        self.run_tables()
        self.assert_row({"median µs": "20.00", "% of roof": "62.9", "parts µs": "35.00", "parts / fused": "× 1.75",
                         "predicted": "× 2.00"}, "dropout 0.1, residual")

    def test_groups_are_rows_and_their_problems_columns(self):
        self.list_chapters(group="rows a block")
        self.write(self.NOTES, "<!-- table: groups bwd02 -->\n<!-- end table -->\n")
        large = {"dtype": "bf16", "rows": 16384, "cols": 4096}
        self.add_records(*(record(chapter, median, problem=problem, options=options, **fields)
                           for chapter, median, problem, options, fields in (
                               ("bwd02", 20.0, {}, {"group": 16}, {}), ("bwd02", 40.0, {}, {"group": 2}, {}),
                               ("bwd02", 300.0, large, {"group": 2}, {}), ("bwd01", 20.0, {}, {"group": 4}, {}),
                               ("bwd02", 20.0, {}, {"group": 128}, {"passed": False}),
                               ("bwd02", 20.0, {}, {"group": 2}, {"l2": "warm"}),
                               ("bwd02", 20.0, large, {"group": 8, "mixed": True}, {}))))
        self.run_tables()
        small, wide = "f32, 1024 × 2048: median µs", "bf16, 16384 × 4096: median µs"
        self.assert_row({"rows a block": "2", small: "40.00", wide: "300.0"}, "2")
        self.assert_row({"rows a block": "16", small: "20.00", wide: "–"}, "16")
        self.assertEqual(self.text(self.NOTES).count("\n|"), 4)
        self.assertIn("check failed: bwd02 on f32, 1024 × 2048, group 128.", self.text(self.NOTES))

    def test_profile_stands_beside_the_prediction(self):
        self.run_tables()
        self.assertIn("Not profiled yet.", self.text(self.NOTES))
        silently(profile_chapter.main, ["--csv", str(NCU), "--json", str(self.root / "notebooks/data/h100_profile.jsonl")])
        self.run_tables()
        for what, value in (("device memory read", "16.82 MB"), ("device memory, predicted", "25.19 MB"),
                            ("L2 sectors reduced", "786 432")):
            self.assertIn(value, self.row(what, name=self.NOTES).values())

    def test_check_finds_a_changed_digit_and_a_plot_of_other_data_and_writes_nothing(self):
        self.run_tables()
        self.assertEqual(self.run_tables("--check"), (0, "", ""))
        changed = {"README.md": self.text().replace("45.28", "45.27"), tables.FIGURES / "progression.svg": "data 0123456789abcdef"}
        for name, text in changed.items():
            self.write(name, text)
        status, out, _ = self.run_tables("--check")
        self.assertEqual(status, 1)
        for words in ("README.md:3: the table 'progression'", "45.27", "45.28", "progression.svg was not drawn from these data"):
            self.assertIn(words, out)
        self.assertNotIn("notes.md:", out)
        self.assertEqual({name: self.text(name) for name in changed}, changed)

    def test_without_matplotlib_the_plot_stays(self):
        with mock.patch.object(plots, "write_figure", lambda *_: False):
            status, out, _ = self.run_tables()
        self.assertEqual(status, 0)
        self.assertIn("matplotlib is not installed", out)

    def test_without_data_every_time_is_missing(self):
        self.data.unlink()
        status, _, err = self.run_tables()
        self.assertEqual(status, 0)
        self.assertIn("h100.csv is not there yet", err)
        self.assert_row({"median µs": "–", "A100 cycles (source)": "7 482 424"}, "Atomics", name="README.md")
        self.assertIn("Not measured yet.", self.text(self.NOTES))
        self.assertFalse((self.root / tables.FIGURES / "progression.svg").exists())
        self.assertEqual(self.run_tables("--check")[0], 0)

    def test_emulated_times_and_two_devices_are_no_table(self):
        for entries, why in (((record("fwd01", 1.0, backend="cpu"),), "emulated"),
                             ((record("fwd01", 1.0, device="A"), record("fwd02", 1.0, device="B")), "one device")):
            self.data.write_text(jsonl(*entries), encoding="utf-8")
            status, _, err = self.run_tables()
            self.assertEqual(status, 2)
            self.assertIn(why, err)

    def peers(self, *entries):
        """The tables of peers, where these are the peers' file."""
        self.write("notebooks/data/peers_h100.csv", jsonl(*entries))
        self.write("README.md", "<!-- table: peers -->\n<!-- end table -->\n<!-- table: against layer -->\n"
                                "<!-- end table -->\n")
        self.assertEqual(self.run_tables()[0], 0)
        return self.text()

    def test_results_are_the_dispatch_s_beside_the_fastest_peer_on_a_few_problems(self):
        other = {"dtype": "f16", "rows": 4096, "cols": 8192}
        self.peers(peer("torch", "forward", 30.0), peer("liger", "forward", 20.0), peer("fwd01", "forward", 15.0),
                   peer("dispatch", "forward", 16.0, chosen="fwd01"),
                   peer("dispatch", "forward", 9.0, chosen="fwd01", problem=other),
                   peer("torch", "forward", 9.0, problem=other),
                   peer("dispatch", "backward", 33.0, chosen="bwd01"), peer("torch", "backward", 30.0))
        self.write("README.md", "<!-- table: results -->\n<!-- end table -->\n")
        self.run_tables()
        self.assert_row({"M × N": "f32, 1024 × 2048", "ours, µs": "16.00", "fastest peer, µs": "20.00",
                         "which": "liger", "ours / peer": "0.80"}, "forward", name="README.md")
        self.assert_row({"ours, µs": "33.00", "which": "torch", "ours / peer": "1.10"}, "backward", name="README.md")
        self.write("notebooks/data/peers_h100.csv", "")
        self.run_tables()
        self.assertIn("Not measured yet.", self.text())

    def test_results_have_eight_rows_at_most_and_each_problem_is_one_that_make_peers_measures(self):
        self.assertLessEqual(2 * len(tables.RESULTS), 8)
        self.assertLessEqual(set(tables.RESULTS), set(peers.SHAPES))
        self.assertLessEqual(set(tables.STEPS), {measurements.PROGRESSION, *measurements.LARGE})
        self.assertLessEqual(set(tables.NARROW_STEPS), set(measurements.NARROW))
        self.assertLessEqual(set(tables.FUSION_STEPS), {*measurements.SETS["fused"], *measurements.SETS["residual"]})
        self.assertLessEqual(set(tables.UNALIGNED_STEPS), set(measurements.ODD))

    def test_peers_stand_beside_ours_and_the_fastest_is_bold(self):
        text = self.peers(peer("torch", "forward", 30.0), peer("liger", "forward", 20.0), peer("fwd01", "forward", 15.0),
                          peer("dispatch", "forward", 16.0, chosen="fwd01", roof=1000.0),
                          peer("dispatch", "backward", 16.0, chosen="bwd01"))
        self.assert_row({"roof": "16.78", "ours": "**16.00**", "by": "fwd01", "torch": "30.00", "liger": "20.00",
                         "ours / best peer": "0.80"}, "f32, 1024 × 2048", name="README.md")
        self.assertIn("fastest at 1 of 1 problems. Our time over the best peer's is 0.80 to 0.80, 0.80 in", text)
        self.assertIn("the roof's own would be 0.84.\n", text)
        self.assertNotIn("ackward, ", text)  # which no peer was measured on

    def test_every_width_is_said_tabled_and_drawn_by_one_rule_and_nothing_without_records(self):
        marks = "".join(f"<!-- table: {name} -->\n<!-- end table -->\n"
                        for name in ("widths", "widths sum", "picture widths"))
        problems = [problem for problem in (*measurements.WIDTHS, *measurements.SETS["smaller"])
                    if problem.cols in (768, 1024)]
        made = [peer(name, direction, us, problem=problem._asdict() | {"options": {}})
                for problem in problems for direction in ("forward", "backward")
                for name, us in (("dispatch", 150.0), ("torch", 200.0), ("liger", 170.0 + problem.cols / 100))]
        made += [peer(name, "forward", 9.0, problem={"dtype": "bf16", "rows": 1032444, "cols": 65})
                 for name in ("dispatch", "torch")]  # nobody's width
        path = self.root / tables.FIGURES / "widths.svg"
        for entries, drawn in (([], False), (made, True)):
            self.write("notebooks/data/peers_h100.csv", jsonl(*entries))
            self.write("README.md", marks)
            status, out, err = self.run_tables()
            self.assertEqual((status, path.exists()), (0, drawn), out + err)
            text = (self.root / "README.md").read_text()
            self.assertEqual(text.count("Not measured yet."), 0 if drawn else 3)
        self.assertIn("- Forward, RMS norm: our time is 0.84 of the fastest peer's in the geometric mean of 2 widths. "
                      "Ahead at 2, behind at 0; at worst 0.84 of liger's, at 768 columns.", text)
        for size in (128, 64, 8):
            self.assert_row({"MiB a tensor": str(size), "widths": "2", "ours / fastest peer: mean": "0.84",
                             "most": "0.84", "there": "768, liger", "ahead": "2", "behind": "0"}, "forward, RMS norm, f32",
                            str(size), name="README.md")
        self.assertEqual(text.count("| 768 | 89.5 | 0.84 | liger | 89.5 | 0.84 | liger |"), 2)
        self.assertNotIn("| 65 |", text)
        self.assert_row({"widths": "1 that no model has", "ours / fastest peer: mean": "1.00", "there": "65, torch"},
                        "forward, layer norm, bf16", "1 that no model has", name="README.md")
        self.assertIn("](notebooks/figures/widths.svg)", text)
        self.assertIn(plots.digest(tables.picture_rows(book.open_book(self.root))), path.read_text())
        drawn = path.read_bytes()
        path.unlink()
        self.run_tables()
        self.assertEqual(path.read_bytes(), drawn)

    def test_widths_of_another_gpu_are_shown_by_its_name_with_what_is_behind_and_who_is_not_everywhere(self):
        def widths(device, us):
            return [peer(name, "forward", time, problem=problem._asdict() | {"options": {}}, device=device)
                    for problem in measurements.WIDTHS if problem.cols in (768, 1024, 1152) and problem.dtype == "bf16"
                    for name, time in (("dispatch", us), ("torch", 200.0), ("liger", 150.0))
                    if (name, problem.cols) != ("liger", 1024)]

        self.write("notebooks/data/peers_other.csv", jsonl(*widths("Another GPU", 165.0)))
        self.write("README.md", "<!-- table: widths sum -->\n<!-- end table -->\n"
                                "<!-- table: peers -->\n<!-- end table -->\n")
        self.assertEqual(self.run_tables()[0], 0)
        self.assertIn("Ahead at 1, behind at 2; at worst 1.10 of liger's, at 768 columns.", self.text())
        self.assertIn("The peers are torch, liger (at 4 of 6). Another GPU, driver", self.text())
        self.assertEqual(self.text().count("Not measured yet."), 1)  # the peers' table is of the book's own GPU
        self.write("notebooks/data/peers_h100.csv", jsonl(*widths(DEVICE, 150.5)))
        self.run_tables()
        self.assertIn("level within 1 % at 2; at worst 1.00 of liger's", self.text())
        self.assertNotIn("Another GPU", self.text())

    def test_the_picture_of_the_peers_says_in_words_what_its_rows_are(self):
        self.write("notebooks/data/peers_h100.csv", jsonl(
            peer("torch", "forward", 20.0), peer("dispatch", "forward", 16.0, chosen="fwd01")))
        self.write("README.md", "<!-- table: picture peers -->\n<!-- end table -->\n")
        self.run_tables()
        self.assertRegex(self.text(), r"!\[Our time over that of torch, .*forward 0\.80 to 0\.80\.\]"
                                      r"\(notebooks/figures/peers\.svg\)")

    def test_a_peer_of_another_gpu_s_state_or_problem_than_ours_is_not_shown(self):
        own = peer("dispatch", "forward", 8.0, chosen="fwd01")
        for other in (peer("torch", "forward", 30.0, run="later", roof=1900.0), peer("torch", "forward", 30.0, problem={"rows": 7})):
            text = self.peers(own, other)
            self.assertEqual(text.count("Not measured yet."), 2)
            self.assertNotIn("30.00", text)

    def train(self, *entries):
        """The table of training, where these are the records of its file."""
        self.write("notebooks/data/training_h100.jsonl", jsonl(*entries))
        self.write("README.md", "<!-- table: training -->\n<!-- end table -->\n")
        self.assertEqual(self.run_tables()[0], 0)
        return self.text()

    def test_training_has_a_row_for_each_norm_and_names_who_does_not_agree(self):
        runs = training("bf16")
        away = {"torch.compile": (0.0, 0.0, 0.0), "chapters": (0.03, 0.05, 0.07), "chapters-memory-efficient": (0, 0, None),
                "enable()": (-0.01, 0.033, -0.05)}
        torch = {run["seed"]: run["last"] for run in runs if (run["training"], run["order"]) == ("torch", "as it is")}
        for run in runs:
            more = 0.01 * (run["order"] == "reversed") if run["training"] == "torch" else away[run["training"]][run["seed"] - 1]
            run["last"] = None if more is None else round(torch[run["seed"]] + more, 6)
        text = self.train(*runs, *training("f32", seeds=2, kind="rms", norms=["chapters"]))
        self.assert_row({"less torch's, 95 %": "–", "seeds": "3", "last loss": "2.6000", "step, ms": "41.23",
                         "in a graph, ms": "40.12", "peak, MB": "6 543"}, "bf16", "torch", name="README.md")
        self.assert_row({"less torch's, 95 %": "+1.0e-2 ± 0.0e0", "most of a seed": "1.0e-2", "step, ms": "–"},
                        "bf16", "torch, reordered", name="README.md")
        self.assert_row({"less torch's, 95 %": "+5.0e-2 ± 5.0e-2", "most of a seed": "7.0e-2", "last loss": "2.6500"},
                        "bf16", "ours", name="README.md")
        self.assert_row({"less torch's, 95 %": "−9.0e-3 ± 1.0e-1"}, "bf16", "enable()", name="README.md")
        self.assert_row({"last loss": "–", "less torch's, 95 %": "–"}, "ours, memory-efficient", name="README.md")
        self.assertEqual(self.row("f32, RMS norm", "ours")["seeds"], "2")
        self.assertIn("These do not: ours, bf16; ours, memory-efficient, bf16. A step", text)
        self.assertRegex(text, r"!\[The last loss of a model with torch, reordered; .* with bf16\. .*Farther than that: ours "
                               r"\(bf16\)\. Losses that are no numbers: ours, memory-efficient \(bf16\)\.\]\(")
        self.assertTrue((self.root / tables.FIGURES / "training.svg").exists())
        self.assertIn("All do. A step", self.train(*training("f32")))
        self.assertIn("Not measured yet.", self.train(*({**run, "backend": "cpu"} for run in runs)))

    def test_a_training_with_one_seed_makes_no_table_and_no_figure(self):
        one = training("bf16", seeds=1)
        before = [{key: value for key, value in run.items() if key not in ("seed", "steps", "last")} for run in one]
        for entries in (one, before):
            self.assertIn("Not measured yet.", self.train(*entries))
        self.assertFalse((self.root / tables.FIGURES / "training.svg").exists())

    def test_a_block_s_step_has_its_peak_memory_where_the_record_has_it(self):
        one = {"schema": 2, "host": "block", "model": "gpt", "dtype": "bfloat16", "batch": 1, "length": 512, "width": 768}
        self.write("notebooks/data/host_h100.jsonl", jsonl(
            one | {"contender": "torch", "step_us": 2000.0, "graph_us": 200.0},
            one | {"contender": "liger", "step_us": 1000.0, "graph_us": 150.0, "peak_bytes": 123_400_000},
            one | {"contender": "quack", "step_us": 1500.0, "peak_bytes": 5_000_000}))
        rows = tables.host_blocks(mock.Mock(root=self.root))
        cells = [[cell.strip() for cell in row.split("|")[3:-1]] for row in rows if row.startswith("| ") and "--" not in row]
        self.assertEqual(cells, [
            ["norms", "eager step, µs", "/ torch", "in a CUDA graph, µs", "/ torch", "peak, MB"],
            ["torch", "2\u202f000", "1.00", "200.0", "1.00", "–"],
            ["liger", "1\u202f000", "0.50", "150.0", "0.75", "123.4"],
            ["quack", "1\u202f500", "0.75", "–", "–", "5.000"]])

    def test_a_marker_that_means_nothing_is_a_sentence_and_changes_no_file(self):
        for text, why in (
            ("\n<!-- table: progresion -->\n<!-- end table -->", "README.md:2: there is no table 'progresion'"),
            ("<!-- table: measured bwd77 -->\n<!-- end table -->", "README.md:1: the table 'measured bwd77' names no"),
            ("<!-- table: progression -->\n", "README.md:1: the table 'progression' is not closed"),
            ("<!-- table: progression -->\n<!-- table: progression -->\n<!-- end table -->", "README.md:1: the table"),
            ("a\n\n<!-- end table -->\n", "README.md:3: <!-- end table --> ends no table"),
        ):
            readme = self.write("README.md", text)
            status, _, err = self.run_tables()
            self.assertEqual(status, 2)
            self.assertIn(why, err)
            if "there is no table" in why:
                for one in ("map, ", "progression, ", "results, ", "training, ", "peers rms, ", "against rms, ",
                            "head <chapter>, ", "steps <chapter>, ", "measured <chapter>, ", "groups <chapter>"):
                    self.assertIn(one, err)
            self.assertEqual(readme.read_text(encoding="utf-8"), text)
        self.assertNotIn("Not profiled", self.text(self.NOTES), "an error in one file leaves the others as they are")

    def test_a_table_may_stand_in_any_readme_and_in_a_chapter_s_two_texts_and_nowhere_else(self):
        here = ["chapters/README.md", "chapters/bwd02_warp_per_row/lab.md", "common/bench/README.md",
                "common/simt/tests/README.md", "reference_cpu/README.md", "notebooks/README.md"]
        for name in (*here, "NEWS.md"):
            self.write(name, "<!-- table: head bwd02 -->\n<!-- end table -->\n")
        self.run_tables()
        self.assertEqual([name for name in here if "*Main line." not in self.text(name)], [])
        self.assertNotIn("*Main line.", self.text("NEWS.md"))

    def test_a_marker_in_a_code_block_is_an_example(self):
        text = "```\n<!-- table: whatever -->\n```\n"
        self.write("README.md", text)
        self.assertEqual(self.run_tables()[0], 0)
        self.assertEqual(self.text(), text)


def csv_of(*names):
    lines = ['"ID","Kernel Name","Grid Size","Block Size","gpu__time_duration.sum"', '"","","","","ns"']
    lines += [f'"{i}","{name}","(1, 1, 1)","(32, 1, 1)","1,0{i}0"' for i, name in enumerate(names)]
    return "==PROF== Connected\nwhat the program says\n" + "\n".join(lines) + "\n"


class Profile(InDirectory):
    def test_reads_nsight_computes_csv(self):
        first, second = profile_chapter.parse_csv(NCU.read_text(encoding="utf-8"))
        self.assertEqual((first.namespace, first.name), ("fwd01", "layer_norm_forward<float>"))
        self.assertEqual(first.metrics["gpu__time_duration.sum"], 1324672)
        self.assertEqual(second.metrics["l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"], 3.98)
        self.assertEqual((second.grid, second.block), ("(256, 1, 1)", "(128, 1, 1)"))
        self.assertEqual(second.device, "NVIDIA H100 80GB HBM3")

    def test_names_of_kernels(self):
        for text, names in (
            ("void fwd02::layer_norm_forward<float>(ForwardArgs<T1>)", ("fwd02", "layer_norm_forward<float>")),
            ("lnc::zero_gradients_kernel(lnc::GradientSums, long)", ("lnc", "zero_gradients_kernel")),
            ("void fwd06::(anonymous namespace)::walk<fwd06::Tile<4>>(int)", ("fwd06", "walk<fwd06::Tile<4>>")),
            ("void fwd06::walk<(fwd06::Mode)1, (int)4>(int)", ("fwd06", "walk<(fwd06::Mode)1, (int)4>")),
            ("plain(int)", ("", "plain")),
        ):
            self.assertEqual(profile_chapter.split_name(text), names)
        self.assertEqual([(k.namespace, k.name) for k in profile_chapter.parse_csv(csv_of("_ZN5bwd114walkIfLb0EEEvi"))],
                         [("bwd11", "walk<float, false>")])

    def test_shared_kernels_belong_to_the_chapter_that_launched_them(self):
        zero, done = "lnc::zero_gradients_kernel(int)", "void lnc::round_gradients_kernel<__half>(int)"
        kernels = profile_chapter.parse_csv(csv_of(
            "void fwd03::run<int>(int)", zero, "void bwd01::run<int>(int)", done,
            zero, "void bwd02::run<int>(int)", "void bwd02::sum<int>(int)", done))
        self.assertEqual([chapter for chapter, _ in profile_chapter.by_chapter(kernels)],
                         ["fwd03", "bwd01", "bwd01", "bwd01", "bwd02", "bwd02", "bwd02", "bwd02"])

    def test_a_chapter_of_the_reader_s_own_has_its_direction_from_the_program_s_record(self):
        kernels = profile_chapter.parse_csv(csv_of("void my01::run<int>(int)", "void lnc::round_gradients_kernel<__half>(int)"))
        results = [{"chapter": "my01", "direction": "backward", "problem": {}}]
        self.assertEqual([(record["chapter"], record["direction"]) for record in
                          profile_chapter.make_records(kernels, results)], 2 * [("my01", "backward")])

    def test_a_kernel_of_the_library_is_profiled_with_the_shared_ones_that_it_launches(self):
        kernels = profile_chapter.parse_csv(csv_of(
            "void lib_bwd_ring::layer_norm_backward<lib_bwd_ring::PlainStreams<float, DenseRows>, 1>(BackwardArgs<T1>, int)",
            "void add_partial_sums_kernel<EarlyStart, SumOfColumns, float>(PartialSums, int, T3 *)",
            "_ZN17lib_fwd_registers12norm_forwardIfEEvi"))
        self.assertEqual([(record["chapter"], record["direction"], record["kernel"].partition("<")[0]) for record in
                          profile_chapter.make_records(kernels, [{"chapter": None}])],
                         [("lib_bwd_ring", "backward", "layer_norm_backward"),
                          ("lib_bwd_ring", "backward", "add_partial_sums_kernel"),
                          ("lib_fwd_registers", "forward", "norm_forward")])

    def test_records_are_appended_and_the_newest_run_counts(self):
        path = self.root / "profile.jsonl"
        for names in (("void bwd01::a<int>(int)", "void bwd01::b<int>(int)", "void fwd01::c<int>(int)"),
                      ("void bwd01::d<int>(int)",)):
            source = self.write("ncu.csv", csv_of(*names))
            status, out, _ = silently(profile_chapter.main, ["--csv", str(source), "--json", str(path),
                                                             "--problem", "rms f16 8x16"])
            self.assertEqual(status, 0)
            self.assertIn("· rms f16, 8 × 16", out)
        with path.open("a", encoding="utf-8") as file:
            file.write('{"schema":1,"chapter":"bwd01"}\n{"chapter":"bwd01","ker')
        profiles, _, err = silently(profile_chapter.load_profiles, path)
        self.assertEqual({key[0]: [r["kernel"] for r in launches] for key, launches in profiles.items()},
                         {"bwd01": ["d<int>"], "fwd01": ["c<int>"]})
        self.assertIn("skipped 1 line", err)
        self.assertRegex(err, r"skipped 1 record of schema 1 \(line \d\): this reads schema 2")

    def sentence(self, *arguments):
        status, _, err = silently(profile_chapter.main, [*arguments, "--json", str(self.root / "x.jsonl")])
        self.assertEqual(status, 2)
        self.assertNotIn("Traceback", err)
        self.assertFalse((self.root / "x.jsonl").exists())
        return err

    def test_says_what_is_missing(self):
        for output, why in (
            ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "NVreg_RestrictProfilingToAdminUsers=0"),
            ("==WARNING== No kernels were profiled.", "BACKEND=cuda"),
            ("bwd02: something else", "something else"),
        ):
            self.assertIn(why, self.sentence("--csv", str(self.write("out", output))))
        self.assertIn("'f64 8x8' is no problem", self.sentence("--csv", str(NCU), "--problem", "f64 8x8"))
        self.assertIn("nowhere is no program", self.sentence(str(self.root / "nowhere")))
        with mock.patch.object(shutil, "which", lambda *_, **__: None):
            self.assertIn("nsight-compute", self.sentence("--ready"))

    def program(self, name, script):
        path = self.write(f"bin/{name}", "#!/bin/sh\n" + script)
        path.chmod(0o755)
        return str(path)

    def test_runs_the_program_under_ncu(self):
        # A pretended ncu: runs the program that follows its options, then prints a table.
        self.write("table", csv_of("void bwd02::layer_norm_backward<__half>(int)"))
        problem = {"dtype": "f16", "rows": 4, "cols": 8}
        self.write("own", jsonl(record("bwd02", 20.0, problem=problem, predicted_bytes=200)))
        program = self.program("bwd02", f'echo "$@" > {self.root}/arguments\ncat {self.root}/own > "$4"\n')
        self.program("ncu", 'while [ "${1##*/}" != bwd02 ]; do shift; done\n"$@" || exit\n'
                            f"cat {self.root}/table\n")
        path = self.root / "profile.jsonl"
        with_ncu = mock.patch.dict(os.environ, {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"})
        with_ncu.start()
        self.addCleanup(with_ncu.stop)
        status, out, err = silently(profile_chapter.main, [program, "--json", str(path), "--", "--dtype", "f16"])
        self.assertEqual((status, err), (0, ""))
        self.assertRegex((self.root / "arguments").read_text(), r"^--samples 0 --json \S+ --dtype f16\n$")
        self.assertIn("layer_norm_backward<__half>", out)
        line, = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        self.assertEqual((line["schema"], line["commit"], line["direction"], line["l2"], line["predicted_bytes"]),
                         (2, "c", "backward", "cold", 200))
        self.assertEqual(line["problem"], {"kind": "layer", **problem, "eps": 1e-5, "seed": 1, "options": {}})
        self.assertEqual(silently(profile_chapter.load_profiles, path)[2], "")

        self.program("bwd02", "echo bwd02 takes no f16 >&2; exit 2\n")
        self.assertIn("bwd02 takes no f16", self.sentence(program))


class ThisRepository(unittest.TestCase):
    def test_its_tables_agree_with_its_data(self):
        if not (book.ROOT / book.DATA).exists():
            self.skipTest(f"{book.DATA} is not there yet, so no table can disagree with it")
        status, out, err = silently(tables.main, ["--check"])
        self.assertEqual(status, 0, out + err)
