"""Tests of the faults that mutants.py makes, on small snippets and on the kernels as they are."""

import json

import pytest

from common.campaign import mutants


@pytest.mark.parametrize("kind, statements, expected", [
    ("barrier", "  __syncthreads();", ["  ;"]),
    ("barrier", "  if (wide) __syncwarp();", ["  if (wide) ;"]),
    ("barrier", "  full[stage].wait(parity);", ["  ;"]),
    ("barrier", "  const auto* slot = ring.wait();", []),
    ("barrier", "  __syncthreads();  // why\n  int i = 1;\n  m = partial[0];",
     ["  ;  // why\n  int i = 1;\n  m = partial[0];", "  int i = 1;\n  m = partial[0];\n  __syncthreads();"]),
    ("barrier", "  __syncthreads();\n  if (last) return;\n  m = partial[0];", ["  ;\n  if (last) return;\n  m = partial[0];"]),
    ("bound", "  if (row >= a.rows) return;", ["  if (row > a.rows) return;"]),
    ("bound", "  if (i < n && p <= q) g<int>();", ["  if (i <= n && p <= q) g<int>();", "  if (i < n && p < q) g<int>();"]),
    ("bound", "  at->x = y << 2;", []),
    ("stride", "  for (int i = lane; i < n; i += 32) {}",
     ["  for (int i = lane + 1; i < n; i += 32) {}", "  for (int i = lane; i < n; i += 1 + 32) {}"]),
    ("stride", "  for (int i = 0; i < n; ++i) {}",
     ["  for (int i = 0 + 1; i < n; ++i) {}", "  for (int i = 0; i < n; i += 2) {}"]),
    ("stride", "  for (float v : x) {}", []),
    ("index", "  p = x + row * a.cols;", ["  p = x - row * a.cols;", "  p = x + row + a.cols;"]),
    ("index", "  y[2 * i] = 3.0f * b;", ["  y[2 + i] = 3.0f * b;"]),
    ("index", "  lane = threadIdx.x % 32;", ["  lane = threadIdx.x / 32;"]),
    ("index", "  mean = sum * inverse_cols;", []),
    ("int64", "  const std::int64_t col = int64_t{x};",
     ["  const int col = int64_t{x};", "  const std::int64_t col = int{x};"]),
    ("kind", "  if (a.kind == Kind::Layer) g();", ["  if (true) g();", "  if (false) g();"]),
    ("kind", "  c2 = layer ? c : d;", ["  c2 = true ? c : d;", "  c2 = false ? c : d;"]),
    ("kind", "  if (kLayer) f(c);", ["  if (true) f(c);", "  if (false) f(c);"]),
    ("kind", "  const bool layer = b;", []),
    ("null", "  if (a.bias != nullptr) g();", ["  if (true) g();", "  if (false) g();"]),
    ("null", "  if (!in.seeds.empty()) g();", ["  if (!true) g();", "  if (!false) g();"]),
    ("zero", "  float sum = 0.0f;", ["  float sum = 1.0f;"]),
    ("zero", "  int stage = 0;", ["  int stage = 1;"]),
    ("zero", "  float sums[4] = {};", ["  float sums[4] = {1};"]),
    ("zero", "  for (int i = 0; i < n; ++i) g();", []),
    ("rounding", "  r = rsqrtf(v + a.eps);", ["  r = 1.001f * rsqrtf(v + a.eps);", "  r = rsqrtf(v);"]),
    ("rounding", "  y = from_float<T>(x - b);", ["  y = from_float<T>(1.01f * (x - b));"]),
    ("rounding", "  return __float2half_rn(v);", ["  return __float2half_rz(v);"]),
    ("atomic", "  atomicAdd(&sums[i], v);", ["  ;", "  sums[i] += v;"]),
    ("atomic", "  atomicExch(lock, kFree);", ["  ;", "  atomicExch(lock, kFree ^ 1);"]),
    ("atomic", "  do {\n  } while (held);", ["  do {\n  } while (false);"])])
def test_each_kind_changes_what_it_says(kind, statements, expected):
    text = f"void f(Args a) {{\n{statements}\n}}\n"
    made = [one for one in mutants.mutants_of(text, "kernel.cu") if one.kind == kind]
    without_frame = [mutants.mutated(text, one).partition("\n")[2].rpartition("\n}")[0] for one in made]
    assert sorted(without_frame) == sorted(expected)


@pytest.mark.parametrize("text", [
    "// for (int i = 0; i < n; i += 2) x[i + row] = 0.0f;\n", "/* __syncthreads();\n a < b */\n",
    "#if A < 0 || B \\\n  > 1\n#endif\n", "template <int kA, bool kB = (kA < 3)>\n",
    "static_assert(kA < 3 && kB == Kind::Rms);\n", 'const char* s = "a < b";\n',
    "const Registration registration{{\n    .bytes = [](P p) { return p.cols < 3 ? 0 : p.rows * 2; },\n}};\n",
    'void f() {\n  throw E("at" + name(row + 1));\n}\n'])
def test_what_is_not_code_is_left_alone(text):
    assert mutants.mutants_of(text, "kernel.cu") == []


def test_a_change_needs_its_source_as_it_was():
    mutant = mutants.mutants_of("void f() {\n  if (a < b) g();\n}\n", "x.h")[0]
    with pytest.raises(mutants.UserError, match="has changed"):
        mutants.mutated("void f() {\n  if (aa < b) g();\n}\n", mutant)


# --- The sample ---


@pytest.fixture(scope="module")
def everything():
    return mutants.all_mutants()


def test_every_source_and_every_kind_has_some(everything):
    assert {one.kind for one in everything} == set(mutants.KINDS)
    declarations = {"common/kernel/chapter.h"}
    assert {one.file for one in everything} == set(mutants.sources()) - declarations
    assert len(set(everything)) == len(everything)


def test_a_sample_has_each_file_each_kind_and_each_pair(everything):
    for count in (100, 600):
        chosen = mutants.sample(everything, count, 3)
        assert len(set(chosen)) == count
        assert {one.kind for one in chosen} == set(mutants.KINDS)
        assert {one.file for one in chosen} == {one.file for one in everything}
    pairs = {(one.file, one.kind) for one in everything}
    assert len(pairs) < 600 and {(one.file, one.kind) for one in chosen} == pairs


def test_a_seed_gives_the_same_sample_and_another_seed_another(everything):
    assert mutants.sample(everything, 50, 1) == mutants.sample(everything, 50, 1) != mutants.sample(everything, 50, 2)
    assert len(mutants.sample(everything[:5], 50, 1)) == 5


def test_every_mutant_has_a_program_to_run_in(everything):
    for file, mutant in {one.file: one for one in reversed(everything)}.items():
        assert 1 <= len(mutants.quick_programs(mutant)) <= mutants.MOST_PROGRAMS, file


def test_a_header_runs_in_kernels_that_name_what_was_changed(everything):
    block_sum = next(one for one in everything if one.file == "common/kernel/reduce.h" and one.kind == "barrier")
    assert mutants.enclosing(block_sum) == "block_sum"
    for program in mutants.quick_programs(block_sum):
        assert "block_sum" in (mutants.ROOT / program.sources[0]).read_text(encoding="utf-8")


# --- The commands ---


def test_list(capsys):
    assert mutants.main(["list", "--only", "common/kernel/reduce.h", "--count", "9"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 9 and "9 of " in err


@pytest.mark.parametrize("arguments, why", [
    (["list", "--only", "chapters/none"], "--only chapters/none"), (["table", "OUT"], "is not there"),
    (["run", "--build", "FOLDER", "--out", "OUT"], "make test BACKEND=cpu")])
def test_bad_input_is_a_sentence(arguments, why, tmp_path, capsys):
    places = {"FOLDER": tmp_path, "OUT": tmp_path / "out.jsonl"}
    assert mutants.main([str(places.get(word, word)) for word in arguments]) == 2
    said = capsys.readouterr().err
    assert why in said and len(said.splitlines()) == 1


def test_a_build_for_a_gpu_is_refused(tmp_path):
    (tmp_path / "CMakeCache.txt").write_text("BACKEND:STRING=cuda\n")
    (tmp_path / "compile_commands.json").write_text("[]")
    with pytest.raises(mutants.UserError, match="not a build of the CPU backend: run `make test"):
        mutants.Build(tmp_path)


@pytest.mark.parametrize("directory, part", [
    ("copy00_machine", "chapter zero"), ("fwd02_warp_per_row", "forward chapters"),
    ("bwd01_thread_per_row", "backward chapters"), ("my01_idea", "other chapters")])
def test_a_chapter_is_counted_with_those_of_its_direction(directory, part):
    assert mutants.part(f"chapters/{directory}/kernel.cu") == part


def test_table(tmp_path, capsys):
    mutant = mutants.Mutant("chapters/fwd01_thread_per_row/kernel.cu", 3, 5, "bound", "<", "<=", "if (a < b)")
    records = [{**mutant._asdict(), "column": i, "verdict": verdict} for i, verdict in enumerate(mutants.VERDICTS)]
    path, listed = tmp_path / "results.jsonl", tmp_path / "survivors.md"
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"cut')
    mutants.main(["table", str(path)])
    out = capsys.readouterr().out
    assert "| bound | 5 | 1 | 1 | 1 (33 %) | 1 (33 %) | 1 (33 %) |\n" in out
    assert "| forward chapters | 5 |" in out
    assert "kernel.cu:3:4 bound: `<` -> `<=` in `if (a < b)`" in out
    mutants.main(["table", str(path), "--survivors", str(listed)])
    assert "kernel.cu:3" not in capsys.readouterr().out
    assert "kernel.cu:3" in listed.read_text(encoding="utf-8")
