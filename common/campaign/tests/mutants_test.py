"""Tests of the faults that mutants.py makes, on small snippets and on the kernels as they are."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

from common.campaign import mutants


def changed(kind, statements):
    """What each mutant of one kind makes of some lines of a function's body, without the frame."""
    text = f"void f(Args a) {{\n{statements}\n}}\n"
    made = [m for m in mutants.mutants_of(text, "kernel.cu") if m.kind == kind]
    return [mutants.mutated(text, m).partition("\n")[2].rpartition("\n}")[0] for m in made]


class Kinds(unittest.TestCase):
    def check(self, kind, statements, *expected):
        self.assertEqual(sorted(changed(kind, statements)), sorted(expected))

    def test_barrier(self):
        self.check("barrier", "  __syncthreads();", "  ;")
        self.check("barrier", "  if (wide) __syncwarp();", "  if (wide) ;")
        self.check("barrier", "  full[stage].wait(parity);", "  ;")
        self.check("barrier", "  const auto* slot = ring.wait();")
        self.check("barrier", "  __syncthreads();  // why\n  int i = 1;\n  m = partial[0];",
                   "  ;  // why\n  int i = 1;\n  m = partial[0];", "  int i = 1;\n  m = partial[0];\n  __syncthreads();")
        self.check("barrier", "  __syncthreads();\n  if (last) return;\n  m = partial[0];",
                   "  ;\n  if (last) return;\n  m = partial[0];")

    def test_bound(self):
        self.check("bound", "  if (row >= a.rows) return;", "  if (row > a.rows) return;")
        self.check("bound", "  if (i < n && p <= q) g<int>();", "  if (i <= n && p <= q) g<int>();",
                   "  if (i < n && p < q) g<int>();")
        self.check("bound", "  at->x = y << 2;")

    def test_stride(self):
        self.check("stride", "  for (int i = lane; i < n; i += 32) {}", "  for (int i = lane + 1; i < n; i += 32) {}",
                   "  for (int i = lane; i < n; i += 1 + 32) {}")
        self.check("stride", "  for (int i = 0; i < n; ++i) {}", "  for (int i = 0 + 1; i < n; ++i) {}",
                   "  for (int i = 0; i < n; i += 2) {}")
        self.check("stride", "  for (float v : x) {}")

    def test_index(self):
        self.check("index", "  p = x + row * a.cols;", "  p = x - row * a.cols;", "  p = x + row + a.cols;")
        self.check("index", "  y[2 * i] = 3.0f * b;", "  y[2 + i] = 3.0f * b;")
        self.check("index", "  lane = threadIdx.x % 32;", "  lane = threadIdx.x / 32;")
        self.check("index", "  mean = sum * inverse_cols;")

    def test_int64(self):
        self.check("int64", "  const std::int64_t col = int64_t{x};", "  const int col = int64_t{x};",
                   "  const std::int64_t col = int{x};")

    def test_kind(self):
        self.check("kind", "  if (a.kind == Kind::Layer) g();", "  if (true) g();", "  if (false) g();")
        self.check("kind", "  c2 = layer ? c : d;", "  c2 = true ? c : d;", "  c2 = false ? c : d;")
        self.check("kind", "  if (kLayer) f(c);", "  if (true) f(c);", "  if (false) f(c);")
        self.check("kind", "  const bool layer = b;")

    def test_null(self):
        self.check("null", "  if (a.bias != nullptr) g();", "  if (true) g();", "  if (false) g();")
        self.check("null", "  if (!in.seeds.empty()) g();", "  if (!true) g();", "  if (!false) g();")

    def test_zero(self):
        self.check("zero", "  float sum = 0.0f;", "  float sum = 1.0f;")
        self.check("zero", "  int stage = 0;", "  int stage = 1;")
        self.check("zero", "  float sums[4] = {};", "  float sums[4] = {1};")
        self.check("zero", "  for (int i = 0; i < n; ++i) g();")

    def test_rounding(self):
        self.check("rounding", "  r = rsqrtf(v + a.eps);", "  r = 1.001f * rsqrtf(v + a.eps);", "  r = rsqrtf(v);")
        self.check("rounding", "  y = from_float<T>(x - b);", "  y = from_float<T>(1.01f * (x - b));")
        self.check("rounding", "  return __float2half_rn(v);", "  return __float2half_rz(v);")

    def test_atomic(self):
        self.check("atomic", "  atomicAdd(&sums[i], v);", "  ;", "  sums[i] += v;")
        self.check("atomic", "  atomicExch(lock, kFree);", "  ;", "  atomicExch(lock, kFree ^ 1);")
        self.check("atomic", "  do {\n  } while (held);", "  do {\n  } while (false);")

    def test_what_is_not_code_is_left_alone(self):
        for text in ("// for (int i = 0; i < n; i += 2) x[i + row] = 0.0f;\n",
                     "/* __syncthreads();\n a < b */\n",
                     "#if A < 0 || B \\\n  > 1\n#endif\n",
                     "template <int kA, bool kB = (kA < 3)>\n",
                     "static_assert(kA < 3 && kB == Kind::Rms);\n",
                     'const char* s = "a < b";\n',
                     "const Registration registration{{\n    .bytes = [](P p) { return p.cols < 3 ? 0 : p.rows * 2; },\n}};\n",
                     "void f() {\n  throw E(\"at\" + name(row + 1));\n}\n"):
            self.assertEqual(mutants.mutants_of(text, "kernel.cu"), [], text)

    def test_a_change_needs_its_source_as_it_was(self):
        mutant = mutants.mutants_of("void f() {\n  if (a < b) g();\n}\n", "x.h")[0]
        with self.assertRaisesRegex(mutants.UserError, "has changed"):
            mutants.mutated("void f() {\n  if (aa < b) g();\n}\n", mutant)


class Sample(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.all = mutants.all_mutants()

    def test_every_source_and_every_kind_has_some(self):
        self.assertEqual({m.kind for m in self.all}, set(mutants.KINDS))
        declarations = {"common/kernel/chapter.h", "reference_cpu/layer_norm.h"}
        self.assertEqual({m.file for m in self.all}, set(mutants.sources()) - declarations)
        self.assertEqual(len(set(self.all)), len(self.all))

    def test_a_sample_has_each_file_each_kind_and_each_pair(self):
        for count in (100, 600):
            chosen = mutants.sample(self.all, count, 3)
            self.assertEqual(len(set(chosen)), count)
            self.assertEqual({m.kind for m in chosen}, set(mutants.KINDS))
            self.assertEqual({m.file for m in chosen}, {m.file for m in self.all})
        pairs = {(m.file, m.kind) for m in self.all}
        self.assertLess(len(pairs), 600)
        self.assertEqual({(m.file, m.kind) for m in chosen}, pairs)

    def test_a_seed_gives_the_same_sample_and_another_seed_another(self):
        self.assertEqual(mutants.sample(self.all, 50, 1), mutants.sample(self.all, 50, 1))
        self.assertNotEqual(mutants.sample(self.all, 50, 1), mutants.sample(self.all, 50, 2))
        self.assertEqual(len(mutants.sample(self.all[:5], 50, 1)), 5)

    def test_every_mutant_has_a_program_to_run_in(self):
        for file in mutants.sources():
            mutant = next((m for m in self.all if m.file == file), None)
            if mutant:
                programs = mutants.quick_programs(mutant)
                self.assertTrue(1 <= len(programs) <= mutants.MOST_PROGRAMS, file)

    def test_a_header_runs_in_kernels_that_name_what_was_changed(self):
        block_sum = next(m for m in self.all if m.file == "common/kernel/reduce.h" and m.kind == "barrier")
        self.assertEqual(mutants.enclosing(block_sum), "block_sum")
        for program in mutants.quick_programs(block_sum):
            self.assertIn("block_sum", (mutants.ROOT / program.sources[0]).read_text(encoding="utf-8"))


class Commands(unittest.TestCase):
    def call(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = mutants.main(list(arguments))
        return code, out.getvalue(), err.getvalue()

    def test_list(self):
        code, out, err = self.call("list", "--only", "common/kernel/reduce.h", "--count", "9")
        self.assertEqual((code, len(out.splitlines())), (0, 9))
        self.assertIn("9 of ", err)

    def test_bad_input_is_a_sentence(self):
        with tempfile.TemporaryDirectory() as folder:
            out = str(Path(folder) / "out.jsonl")
            for arguments, part in ((["list", "--only", "chapters/none"], "--only chapters/none"),
                                    (["run", "--build", folder, "--out", out], "make test BACKEND=cpu"),
                                    (["table", out], "is not there")):
                code, _, err = self.call(*arguments)
                self.assertEqual(code, 2)
                self.assertIn(part, err)
                self.assertEqual(len(err.splitlines()), 1)

    def test_a_build_for_a_gpu_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "CMakeCache.txt").write_text("BACKEND:STRING=cuda\n")
            (Path(folder) / "compile_commands.json").write_text("[]")
            with self.assertRaisesRegex(mutants.UserError, "not a build of the CPU backend: run `make test"):
                mutants.Build(folder)

    def test_a_chapter_is_counted_with_those_of_its_direction(self):
        parts = {"copy00_machine": "chapter zero", "fwd02_warp_per_row": "forward chapters",
                 "bwd01_thread_per_row": "backward chapters", "my01_idea": "other chapters"}
        self.assertEqual({name: mutants.part(f"chapters/{name}/kernel.cu") for name in parts}, parts)

    def test_table(self):
        mutant = mutants.Mutant("chapters/fwd01_thread_per_row/kernel.cu", 3, 5, "bound", "<", "<=", "if (a < b)")
        records = [{**mutant._asdict(), "column": i, "verdict": verdict}
                   for i, verdict in enumerate(mutants.VERDICTS)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.jsonl"
            path.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"cut')
            _, out, _ = self.call("table", str(path))
            self.assertIn("| bound | 5 | 1 | 1 | 1 (33 %) | 1 (33 %) | 1 (33 %) |", out)
            self.assertIn("| forward chapters | 5 |", out)
            self.assertIn("kernel.cu:3:4 bound: `<` -> `<=` in `if (a < b)`", out)
            listed = Path(folder) / "survivors.md"
            _, out, _ = self.call("table", str(path), "--survivors", str(listed))
            self.assertNotIn("kernel.cu:3", out)
            self.assertIn("kernel.cu:3", listed.read_text(encoding="utf-8"))
