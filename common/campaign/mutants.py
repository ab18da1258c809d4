#!/usr/bin/env python3
"""Puts small faults into the kernels and asks which of them the tests see. Run by hand.

    mutants.py list [--only PATH…] [--count N] [--seed N]          the faults, a line each
    mutants.py run [--build DIR] [--jobs N] [--suite …] [--out F]  the verdict on each, a JSON line each
    mutants.py table RESULTS.jsonl [--survivors FILE]              the verdicts counted, in Markdown

A mutant is one fault in one place, made by a rule of KINDS; nobody picks it. Where there are more
than --count, a sample is taken: from the pairs of a file and a kind in turns, so that each file, each
kind and, where --count suffices, each pair is in it. Rare kinds weigh more in it than their number.

Sources are the chapters' kernels, the library's, common/kernel and reference_cpu. Nothing is changed
in comments, strings, preprocessor lines, `template <…>`, static_assert, throw, fail(…) and a kernel's
Registration, with the bytes it predicts. contract.h, description.h and element_types.h are left out:
the harness is compiled with them, and it is not compiled anew here.

A mutant is compiled with the build's own command and -O1, from a folder that hides the source, and
linked in place of the object that it changes. A kernel's runs in its own test program; a header's
in those of up to MOST_PROGRAMS kernels, those first that name what was changed; the reference's in
its own tests, and in the complete suite in the quick tests of REFERENCE_READERS. The verdicts:

    killed-by-quick, killed-by-complete   a test failed, crashed or did not end
    survives                              none did, in the suites that ran
    same-code                             the compiler makes the same object of it
    does-not-compile

The complete suite has the sanitizers too: --build build/cpu-asan --suite quick asks them, after
`make sanitize BACKEND=cpu`.

Not every survivor is a hole in the tests. An int64_t that became int shows in tensors of 2^31 elements
and more, which the CPU's tests do not have; a lost atomic shows where two blocks meet, by chance; and
some faults change only the time, or write where nobody reads.
"""

import argparse
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from common.bench.compare_peers import positive
from common.results.records import read_objects
from common.results.rendering import markdown
from common.tools.cpp_text import blanked, line_of
from common.tools.find_chapter import is_own, kernel_sources

ROOT = Path(__file__).resolve().parents[2]
SHARED_WITH_HARNESS = {"contract.h", "description.h", "element_types.h", "gpu.h", "registry.h", "split.h"}
MOST_PROGRAMS = 6  # that a header's mutant runs in
REFERENCE_SOURCES = ("reference_cpu/layer_norm.cpp", "reference_cpu/fused_layer_norm.cpp")
REFERENCE_TESTS = ("layer_norm_test", "fused_layer_norm_test")
REFERENCE_READERS = ("fwd02", "bwd02", "lib_fwd_fused_any", "lib_bwd_fused_any")
SECONDS = {"quick": 60, "complete": 300}  # that a suite has to end in
PATIENCE = 5  # times what it takes without a mutant, where that is more
COMPILE_SECONDS = 300
MEMORY_KIB = 12 << 20  # that a compiler or a test may map
VERDICTS = ("does-not-compile", "same-code", "killed-by-quick", "killed-by-complete", "survives")


class UserError(Exception):
    """A sentence for whoever called."""


class Mutant(NamedTuple):
    file: str  # from the repository's root
    line: int
    column: int
    kind: str
    old: str
    new: str
    source: str  # the line as it was

    def __str__(self):
        return f"{self.file}:{self.line}:{self.column}: {self.kind}: {self.change()}   | {self.source}"

    def change(self):
        return f"`{one_line(self.old)}` -> `{one_line(self.new)}`"


class Edit(NamedTuple):
    """text[begin:end] becomes `new`."""

    begin: int
    end: int
    new: str


def one_line(text):
    return " ".join(text.split())


# ---------------------------------------------------------------------------------------------------
# Where faults may be: the text with the rest blanked, character for character.

DIRECTIVE = re.compile(r"^[ \t]*\#(?:\\\n|[^\n])*", re.MULTILINE)
PROSE = re.compile(r"\bstatic_assert\s*\(|\bfail\(|\bthrow\b|\btemplate <|\bconst Registration \w+\{")
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


def blank(text, begin, end):
    return text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]


def code_of(text):
    """`text` with blanks, as many, for all that is not to be changed."""
    code = blanked(text)
    for match in DIRECTIVE.finditer(code):
        code = blank(code, match.start(), match.end())
    for match in PROSE.finditer(code):
        end = code.find(";", match.end()) if match[0] == "throw" else matching(code, match.end() - 1)
        code = blank(code, match.start(), end)
    return code


def matching(code, at):
    """The place behind the bracket that closes the one at `at`."""
    opening, closing, depth = code[at], CLOSING[code[at]], 0
    for i in range(at, len(code)):
        if code[i] == opening:
            depth += 1
        elif code[i] == closing and not (closing == ">" and code[i - 1] in "-="):
            depth -= 1
            if depth == 0:
                return i + 1
    return len(code)


def bodies(code):
    """The (begin, end) of each function's body: of an outermost brace behind a parameter list."""
    found, end = [], 0
    for match in re.finditer(r"(?:\)|\bconst|\bnoexcept)\s*\{", code):
        if match.start() >= end:
            end = matching(code, match.end() - 1)
            found.append((match.start(), end))
    return found


def subscripts(code):
    """The (begin, end) of what stands between the brackets of each a[…]."""
    return [(match.end(), matching(code, match.end() - 1) - 1) for match in re.finditer(r"(?<=[\w\])])\[", code)]


def within(spans, at):
    return any(begin <= at < end for begin, end in spans)


def in_bodies(code, pattern):
    """The matches of `pattern` in functions' bodies."""
    spans = bodies(code)
    return [match for match in re.finditer(pattern, code) if within(spans, match.start())]


# ---------------------------------------------------------------------------------------------------
# The kinds of fault. Each rule takes the code and gives its Edits.

BARRIER = re.compile(
    r"(?:__syncthreads|__syncwarp|__threadfence\w*|cluster_(?:sync|arrive|wait)|fence_\w+|"
    r"grid_dependency_wait|launch_dependents|wait_bulk_stores\w*(?:<\w+>)?|commit_bulk_stores|__pipeline_\w+|"
    r"(?:un)?lock|release|(?:Start::|[\w\[\]]+(?:\.|->))(?:wait|arrive)\w*)\(")
STATEMENT = re.compile(r"\s*\n(?P<indent> *)(?!\S.*\b(?:return|break|continue)\b|(?:else|do|for|while|asm)\b)"
                       r"(?P<text>[^{};\n]+;)")


def barrier(code) -> Iterator[Edit]:
    """Each statement that waits, fences or lets go: left out; and moved behind the next statement that
    has to do with memory, where only simple ones are between."""
    for match in BARRIER.finditer(code):
        end = matching(code, match.end() - 1)
        before = code[:match.start()].rstrip(" \n")
        if code[end:end + 1] != ";" or before[-1:] not in tuple(";{})") or match[0].startswith("__pipeline_memcpy"):
            continue
        yield Edit(match.start(), end + 1, ";")
        indent = match.start() - (code.rfind("\n", 0, match.start()) + 1)
        following = statements(code, end + 1, indent)
        alone = not code[match.start() - indent:match.start()].strip() and before[-1:] != ")"
        if alone and following:
            moved = [code[at:to] for at, to in [*following, (match.start(), end + 1)]]
            yield Edit(match.start(), following[-1][1], f"\n{' ' * indent}".join(moved))


def statements(code, at, indent):
    """The (begin, end) of the simple statements from `at` on, up to the first that reads or writes
    memory; none where no such one comes."""
    found = []
    while (match := STATEMENT.match(code, at)) and len(match["indent"]) == indent:
        found.append(match.span("text"))
        at = match.end()
        if re.search(r"[\w\])]\[|\*reinterpret_cast|\b(?!make_|min\b|max\b)\w+\(", match["text"]):
            return found
    return []


def bound(code) -> Iterator[Edit]:
    """Each comparison: with or without its own limit."""
    other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
    for match in re.finditer(r"(?<=\s)(?:<=?|>=?)(?=\s)", code):
        yield Edit(match.start(), match.end(), other[match[0]])


def loop_heads(code):
    """The two ends of the head of each `for (…; …; …)`, and its two semicolons."""
    for match in re.finditer(r"\bfor \(", code):
        end = matching(code, match.end() - 1) - 1
        semicolons = [i for i in range(match.end(), end) if code[i] == ";"]
        if len(semicolons) == 2:
            yield match.end(), semicolons[0], semicolons[1], end


def stride(code) -> Iterator[Edit]:
    """Each loop: begins one later; takes steps that are one longer, or twice as long."""
    for begin, first, second, end in loop_heads(code):
        start = re.search(r" = ([^=].*)$", code[begin:first], re.DOTALL)
        if start:
            yield Edit(first, first, " + 1")
        step = code[second + 1:end].strip()
        longer = re.sub(r"^(\w+ [-+]=) (.*)$", r"\1 1 + \2", step, flags=re.DOTALL)
        longer = re.sub(r"^\+\+(\w+)$", r"\1 += 2", longer)
        longer = re.sub(r"^(\w+ [*/]=) (.*)$", r"\1 2 * (\2)", longer, flags=re.DOTALL)
        if longer != step:
            yield Edit(second + 2, end, longer)


INDEX = (r"(?<![\w.])(?:(?:threadIdx|blockIdx|blockDim|gridDim)\.[xyz]|(?:\w+\.)*(?!inverse)(?:\w+_)?(?:row|col|column|"
         r"start|first|lane|warp|tile|stage|piece|group|stride|slot|at|thread|team|vector|index|offset|slice|count|"
         r"part|block|buffer)s?)\b(?![(\[<])")


def index(code) -> Iterator[Edit]:
    """Each operator beside a row, a column, a thread …, and each in a subscript: + and -, * and +,
    / and *, % and / stand for each other."""
    other = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/"}
    inside = subscripts(code)
    for match in in_bodies(code, r"(?<=[\w)\]}] )[-+*/%](?=\s)"):
        left = re.search(INDEX + r" $", code[:match.start()][-60:])
        right = re.match(r"\s+" + INDEX, code[match.end():][:60])
        if left or right or within(inside, match.start()):
            yield Edit(match.start(), match.end(), other[match[0]])


def int64(code) -> Iterator[Edit]:
    """Each int64_t in a function's body: int."""
    for match in in_bodies(code, r"(?<!-> )\b(?:std::)?int64_t\b"):
        yield Edit(match.start(), match.end(), "int")


def kind(code) -> Iterator[Edit]:
    """Each question whether the norm is Layer or Rms: yes; no."""
    question = (r"[\w.]+ [!=]= (?:Kind|Norm)::\w+|"
                r"(?<!bool )(?<![\w.&] )\b(?:layer|kLayer|has_mean)\b(?=\s*(?:\?|&&|\|\||\)))")
    for match in in_bodies(code, question):
        for answer in ("true", "false"):
            yield Edit(match.start(), match.end(), answer)


def null(code) -> Iterator[Edit]:
    """Each question whether a tensor is there: yes; no."""
    for match in in_bodies(code, r"[\w.]+(?:->\w+)* [!=]= nullptr|(?<![\w.])[\w.]+\.empty\(\)"):
        for answer in ("true", "false"):
            yield Edit(match.start(), match.end(), answer)


def zero(code) -> Iterator[Edit]:
    """Each 0 that a variable begins with, or that stands in for what is not there: 1."""
    heads = [(begin, end) for begin, _, _, end in loop_heads(code)]
    for match in re.finditer(r"\b0\.0f|(?<= = )0(?=;)|(?<=[?:] )0(?=[;)])", code):
        if within(heads, match.start()):
            continue
        yield Edit(match.start(), match.end(), "1.0f" if "f" in match[0] else "1")
    for match in re.finditer(r"(?<![)])\{\}(?=;)", code):
        if "span<" in code[code.rfind("\n", 0, match.start()):match.start()]:
            continue  # which is empty, and nothing to add to
        yield Edit(match.start(), match.end(), "{1}")


def rounding(code) -> Iterator[Edit]:
    """Each rstd, and each conversion between an element and a float: off by 0.1 % and by 1 %; rounded
    toward zero; and eps left out."""
    for match in in_bodies(code, r"\b(?:rsqrtf|std::sqrt)\("):
        yield Edit(match.start(), match.start(), "1.001f * ")
    for match in in_bodies(code, r"\bto_float\((?!float|__half|__nv)"):
        yield Edit(match.start(), match.start(), "1.01f * ")
    for match in in_bodies(code, r"\bfrom_float<\w+>\("):
        end = matching(code, match.end() - 1) - 1
        yield Edit(match.end(), end, f"1.01f * ({code[match.end():end]})")
    for match in in_bodies(code, r"\b__float2(?:half|bfloat16)_rn\("):
        yield Edit(match.start(), match.end(), match[0].replace("_rn", "_rz"))
    for match in in_bodies(code, r" \+ (?:a\.)?eps\b"):
        yield Edit(match.start(), match.end(), "")


def atomic(code) -> Iterator[Edit]:
    """Each atomic: left out, made a plain load and store, or given another value; a loop that waits
    for one: run once."""
    for match in in_bodies(code, r"\batomic(\w+)\("):
        end = matching(code, match.end() - 1)
        address, comma, value = code[match.end():end - 1].rpartition(", ")
        before = code[:match.start()].rstrip(" \n")[-1:]
        if code[end] == ";" and before in tuple(";{})"):
            yield Edit(match.start(), end + 1, ";")
        if match[1] == "Add" and address.startswith("&"):
            yield Edit(match.start(), end, f"{address[1:]} += {value}")
        elif comma:
            yield Edit(end - 1 - len(value), end - 1, f"{value} ^ 1")
    for match in in_bodies(code, r"(?<=\} while )\("):
        yield Edit(match.start(), matching(code, match.start()), "(false)")


KINDS = {rule.__name__: rule
         for rule in (barrier, bound, stride, index, int64, kind, null, zero, rounding, atomic)}


def mutants_of(text, file):
    """The Mutants of one source, by place."""
    code = code_of(text)
    found = {}
    for name, rule in KINDS.items():
        for edit in rule(code):
            start = text.rfind("\n", 0, edit.begin) + 1
            source = text[start:].partition("\n")[0].strip()
            # An index's operator may be a loop's stride too: the first rule that makes a change has it.
            made = Mutant(file, line_of(text, edit.begin), edit.begin - start + 1, name, text[edit.begin:edit.end],
                          edit.new, source)
            found.setdefault((edit, made.old), made)
    return sorted(found.values())


def mutated(text, mutant):
    """`text` with the mutant in it."""
    begin = sum(len(line) + 1 for line in text.split("\n")[:mutant.line - 1]) + mutant.column - 1
    end = begin + len(mutant.old)
    if text[begin:end] != mutant.old:
        raise UserError(f"{mutant.file} has changed since its mutants were made.")
    return text[:begin] + mutant.new + text[end:]


def kernels():
    """The path of each kernel, by id, without the reader's own."""
    return {identifier: path for identifier, path in kernel_sources().items() if not is_own(identifier)}


def sources(only=()):
    """The paths of the sources, from the root; with `only`, those that begin with one of these."""
    headers = [*ROOT.glob("common/kernel/*.h"), *ROOT.glob("reference_cpu/*.h"), *ROOT.glob("reference_cpu/*.cpp")]
    names = sorted([*kernels().values(), *(path.relative_to(ROOT).as_posix() for path in headers
                                           if path.name not in SHARED_WITH_HARNESS)])
    chosen = [name for name in names if not only or name.startswith(tuple(only))]
    for prefix in only:
        if not any(name.startswith(prefix) for name in names):
            raise UserError(f"--only {prefix} is the beginning of no source; the sources are chapters/*/kernel.cu, "
                            "common/library/kernels/*.cu, common/kernel/*.h and reference_cpu/*: `mutants.py list` "
                            "prints their faults.")
    return chosen


def all_mutants(only=()):
    return [m for name in sources(only) for m in mutants_of((ROOT / name).read_text(encoding="utf-8"), name)]


def sample(mutants, count, seed):
    """At most `count` of them, in an order that chance gives, the same for the same seed."""
    chance = random.Random(seed)
    pairs = {}
    for mutant in chance.sample(mutants, len(mutants)):
        pairs.setdefault((mutant.file, mutant.kind), []).append(mutant)
    waiting, files, kinds = sorted(pairs), Counter(), Counter()
    chance.shuffle(waiting)
    order = []
    while waiting:  # what is new first, in both; then the rarest
        pair = min(waiting, key=lambda p: ((files[p[0]] > 0) + (kinds[p[1]] > 0), files[p[0]] + kinds[p[1]]))
        waiting.remove(pair)
        order.append(pair)
        files[pair[0]] += 1
        kinds[pair[1]] += 1
    chosen = []
    while len(chosen) < min(count, len(mutants)):
        chosen += [pairs[pair].pop() for pair in order if pairs[pair]]
    return chosen[:count]


# ---------------------------------------------------------------------------------------------------
# Which programs a mutant runs in.

class Program(NamedTuple):
    """A test program, and what of it is compiled anew."""

    name: str
    sources: tuple[str, ...]


def included(name):
    """The headers of common/kernel that a source includes itself."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return set(re.findall(r'^#include "(common/kernel/[^"]+)"', text, re.MULTILINE))


def reached(name):
    """Those and the ones that they include."""
    found, left = set(), [name]
    while left:
        new = included(left.pop()) - found
        found |= new
        left += new
    return found


def enclosing(mutant):
    """The name of the function or struct at the left margin that the mutant is in, or ''."""
    lines = (ROOT / mutant.file).read_text(encoding="utf-8").splitlines()[:mutant.line]
    for line in reversed(lines):
        head = re.match(r"(?:struct|class) (?:alignas\S* )?(\w+)|(?!//|#|template|namespace|using|\}).*?(\w+)\(", line)
        if head and not line.startswith(" "):
            return head[1] or head[2]
    return ""


def spread(things, count):
    """`count` of them, over the whole range."""
    if len(things) <= count:
        return things
    return [things[i * (len(things) - 1) // (count - 1)] for i in range(count)]


def header_readers(mutant):
    """The ids of the kernels that a header's mutant runs in: who names what was changed, then who
    includes the header, then who has it through others; small kernels before large ones."""
    name = enclosing(mutant)
    ranked = {}
    for identifier, path in kernels().items():
        if mutant.file not in reached(path):
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        names = bool(name) and re.search(rf"\b{name}\b", text) is not None
        ranked.setdefault((not names, mutant.file not in included(path)), []).append((len(text), identifier))
    chosen = []
    for rank in sorted(ranked):
        room = MOST_PROGRAMS - len(chosen)
        chosen += spread(sorted(ranked[rank]), room) if room > 1 else sorted(ranked[rank])[:room]
    return [identifier for _, identifier in chosen]


def quick_programs(mutant):
    """The Programs that the quick suite runs for it, in this order."""
    own = [identifier for identifier, path in kernels().items() if path == mutant.file]
    if own:
        return [Program(f"{own[0]}_test", (mutant.file,))]
    if mutant.file.startswith("common/"):
        return [Program(f"{i}_test", (kernels()[i],)) for i in header_readers(mutant)]
    if mutant.file.endswith(".cpp"):
        tests = REFERENCE_TESTS if mutant.file == REFERENCE_SOURCES[0] else REFERENCE_TESTS[1:]
        return [Program(test, (mutant.file,)) for test in tests]
    return [Program(test, (f"reference_cpu/tests/{test}.cpp", *REFERENCE_SOURCES)) for test in REFERENCE_TESTS]


def complete_programs(mutant):
    """(Program, suite) pairs of the complete suite."""
    if not mutant.file.startswith("reference_cpu/"):
        return [(program, "complete") for program in quick_programs(mutant)]
    changed = (mutant.file,) if mutant.file.endswith(".cpp") else REFERENCE_SOURCES
    return [(Program(f"{i}_test", changed), "quick") for i in REFERENCE_READERS if i in kernels()]


# ---------------------------------------------------------------------------------------------------
# Compiling, linking and running.

class Ran(NamedTuple):
    code: int | None  # None: it did not end in time
    output: str


def execute(command, directory, seconds, memory=MEMORY_KIB, **environment):
    """Runs a command with limits of memory and time, and no core file."""
    limited = ["bash", "-c", 'ulimit -c 0 -v "$0" && exec "$@"', str(memory), *command]
    try:
        ran = subprocess.run(limited, cwd=directory, timeout=seconds, env={**os.environ, **environment},
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired as late:
        return Ran(None, (late.stdout or b"").decode(errors="replace"))
    return Ran(ran.returncode, ran.stdout.decode(errors="replace"))


class Build:
    """A build folder of the CPU backend, whose commands and objects are used, and nothing is written."""

    def __init__(self, directory):
        self.directory = Path(directory).resolve()
        advice = f"run `make test BACKEND=cpu` in {ROOT} first"
        cache = self.directory / "CMakeCache.txt"
        commands = self.directory / "compile_commands.json"
        if not cache.is_file() or not commands.is_file():
            raise UserError(f"{directory} is not a build folder: {advice}.")
        if not re.search(r"^BACKEND:\w+=cpu$", cache.read_text(encoding="utf-8"), re.MULTILINE):
            raise UserError(f"{directory} is not a build of the CPU backend: {advice}.")
        # The address sanitizer maps far more than it uses.
        self.test_memory = "unlimited" if "SANITIZE:BOOL=ON" in cache.read_text(encoding="utf-8") else MEMORY_KIB
        if not shutil.which("ninja"):
            raise UserError(f"ninja is not there: install it, then {advice}.")
        self.advice = advice
        self.compilations = self._compilations(json.loads(commands.read_text(encoding="utf-8")))
        self.links = {}

    def _compilations(self, entries):
        """{(source, its object): command}, of what is compiled here."""
        found = {}
        for entry in entries:
            path = Path(entry["file"])
            if path.is_relative_to(ROOT):
                command = shlex.split(entry["command"])
                found[path.relative_to(ROOT).as_posix()] = (command, command[command.index("-o") + 1])
        return found

    def prepare(self, programs):
        """Reads how each program is linked."""
        for name in sorted({program.name for program in programs} - set(self.links)):
            if not (self.directory / "bin" / name).is_file():
                raise UserError(f"{self.directory} has no bin/{name}: {self.advice}.")
            asked = subprocess.run(["ninja", "-t", "commands", f"bin/{name}"], cwd=self.directory,
                                   capture_output=True, text=True)
            if asked.returncode != 0:
                raise UserError(f"ninja does not know bin/{name}: {self.advice}.")
            tokens = shlex.split(asked.stdout.splitlines()[-1])
            self.links[name] = [token for token in tokens if token not in (":", "&&")]

    def compile(self, source, overlay, to):
        """Compiles a source, with what the overlay has in place of the tree's. A Ran."""
        command, _ = self.compilations[source]
        command = list(command)
        command[command.index("-o") + 1] = str(to)
        if (overlay / source).is_file():
            command[command.index("-c") + 1] = str(overlay / source)
        command[1:1] = [f"-I{overlay}"]
        command += ["-O1", "-w", "-Wno-narrowing", "-frandom-seed=mutant", f"-ffile-prefix-map={overlay}={ROOT}"]
        return execute(command, self.directory, COMPILE_SECONDS)

    def link(self, program, objects, to):
        """Links a program with {source: object} in place of the build's, and first. A Ran."""
        link = list(self.links[program])
        link[link.index("-o") + 1] = str(to)
        replaced = {self.compilations[source][1] for source in objects}
        link = [token for token in link if token not in replaced]
        link[1:1] = [str(path) for path in objects.values()]
        return execute(link, self.directory, COMPILE_SECONDS)

    def test(self, binary, suite, seconds):
        arguments = ["--abort-after=1"]
        if suite and not binary.name.startswith(REFERENCE_TESTS):
            arguments.append(f"--test-suite={suite}")
        # Passive: with more threads than cores, one that spins takes the time of one that works.
        return execute([str(binary), *arguments], self.directory, seconds, self.test_memory,
                       OMP_NUM_THREADS="2", OMP_WAIT_POLICY="passive")


class Attempt:
    """One mutant, or none, in a folder of its own."""

    def __init__(self, build, folder, mutant=None, unmutated=None):
        self.build, self.folder, self.mutant = build, Path(folder), mutant
        self.unmutated = unmutated or {}  # what the compiler makes of each source without the mutant
        self.objects, self.binaries = {}, {}
        self.overlay = self.folder / "overlay"
        self.overlay.mkdir()
        if mutant:
            path = self.overlay / mutant.file
            path.parent.mkdir(parents=True)
            path.write_text(mutated((ROOT / mutant.file).read_text(encoding="utf-8"), mutant), encoding="utf-8")

    def compile(self, program):
        """Whether all of a program's sources compile."""
        for source in program.sources:
            if source not in self.objects:
                to = self.folder / (source.replace("/", "_") + ".o")
                ran = self.build.compile(source, self.overlay, to)
                self.objects[source] = to if ran.code == 0 else None
            if self.objects[source] is None:
                return False
        return True

    def is_same(self, program):
        """Whether the mutant has changed none of the program's objects."""
        return all(self.unmutated.get(source) == self.objects[source].read_bytes() for source in program.sources)

    def run(self, program, suite, seconds):
        """None if the program's tests pass, else how they failed, and the test case."""
        if program.name not in self.binaries:
            binary = self.folder / program.name
            objects = {source: self.objects[source] for source in program.sources}
            linked = self.build.link(program.name, objects, binary)
            if linked.code != 0:
                return {"program": program.name, "how": "link", "case": linked.output.strip()[-300:]}
            self.binaries[program.name] = binary
        ran = self.build.test(self.binaries[program.name], suite, seconds)
        if ran.code == 0:
            return None
        case = re.search(r"^TEST CASE: +(.*)", ran.output, re.MULTILINE)
        crashed = ran.code is not None and (ran.code < 0 or ran.code > 128 or "CRASHED" in ran.output)
        how = "timeout" if ran.code is None else "crash" if crashed else "check"
        return {"program": program.name, "how": how, "case": case[1].strip() if case else ""}


def verdict_of(failure, verdict):
    return "does-not-compile" if failure["how"] == "link" else verdict


class Judge:
    """Decides on mutants, several at a time."""

    def __init__(self, build, suite):
        self.build, self.suite = build, suite
        self.unmutated = {}  # the object of each source
        self.taken = {}  # the seconds of each (program, suite)

    def check_unmutated(self, program, suites):
        """Compiles a program without a mutant, and runs it: what is wrong with it, or None."""
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            attempt = Attempt(self.build, folder)
            if not attempt.compile(program):
                return f"{program.name} does not compile as it is"
            self.unmutated.update({source: path.read_bytes() for source, path in attempt.objects.items()})
            for suite in suites:
                began = time.monotonic()
                failure = attempt.run(program, suite, 10 * SECONDS["complete"])
                self.taken[program.name, suite] = time.monotonic() - began
                if failure:
                    return f"{program.name} fails without a mutant ({failure['how']}, {failure['case'] or suite})"
        return None

    def limit(self, program, suite):
        return max(SECONDS[suite], PATIENCE * self.taken[program.name, suite])

    def decide(self, mutant):
        """The record of one mutant."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            attempt = Attempt(self.build, folder, mutant, self.unmutated)
            verdict, killer = self._verdict(attempt)
        seconds = round(time.monotonic() - began, 1)
        return {**mutant._asdict(), "verdict": verdict, "suite": self.suite, **killer, "seconds": seconds}

    def _verdict(self, attempt):
        different = False
        for program in quick_programs(attempt.mutant):
            if not attempt.compile(program):
                return self._broken(attempt, program)
            if attempt.is_same(program):
                continue
            different = True
            if self.suite != "complete":
                failure = attempt.run(program, "quick", self.limit(program, "quick"))
                if failure:
                    return verdict_of(failure, "killed-by-quick"), failure
        if not different:
            return "same-code", {}
        if self.suite != "quick":
            for program, suite in complete_programs(attempt.mutant):
                if not attempt.compile(program) or attempt.is_same(program):
                    continue
                failure = attempt.run(program, suite, self.limit(program, suite))
                if failure:
                    return verdict_of(failure, "killed-by-complete"), failure
        return "survives", {}

    def _broken(self, attempt, program):
        """A test that static_asserts is a test too."""
        test = program.sources[0]
        if "/tests/" in test and all(attempt.build.compile(source, attempt.overlay, attempt.folder / "x.o").code == 0
                                     for source in program.sources[1:]):
            return "killed-by-quick", {"program": program.name, "how": "static_assert", "case": ""}
        return "does-not-compile", {"program": program.name}


# ---------------------------------------------------------------------------------------------------
# The commands.

def recorded(path):
    """The records of a file of results; a last line that was cut off is none."""
    return [record for _, record in read_objects(path) if record]


def identity(record):
    return tuple(record[field] for field in Mutant._fields)


def choose(arguments):
    return sample(all_mutants(arguments.only), arguments.count, arguments.seed)


def list_mutants(arguments):
    chosen = sorted(choose(arguments))
    for mutant in chosen:
        print(mutant)
    counts = Counter(mutant.kind for mutant in chosen)
    print(f"{len(chosen)} of {len(all_mutants(arguments.only))} mutants: "
          + ", ".join(f"{counts[name]} {name}" for name in KINDS), file=sys.stderr)
    return 0


def show_progress(counts, number, of, began, before):
    seconds = time.monotonic() - began
    left = seconds / max(number - before, 1) * (of - number) / 60
    others = counts["does-not-compile"] + counts["same-code"]
    print(f"{number}/{of} killed {counts['killed-by-quick'] + counts['killed-by-complete']}, "
          f"survived {counts['survives']}, no mutant {others}; about {left:.0f} min left", file=sys.stderr, flush=True)


def check_all_unmutated(judge, mutants, pool):
    """Raises UserError where a test program that is needed does not pass as it is."""
    quick = {program for mutant in mutants for program in quick_programs(mutant)}
    readers = {program for mutant in mutants if judge.suite != "quick" for program, _ in complete_programs(mutant)}
    judge.build.prepare(quick | readers)
    suites = {"quick": ["quick"], "complete": ["complete"], "both": ["quick", "complete"]}[judge.suite]
    asked = {program: suites if program in quick else ["quick"] for program in quick | readers}
    print(f"{len(asked)} test programs without a mutant first", file=sys.stderr, flush=True)
    found = [pool.submit(judge.check_unmutated, program, asked[program]) for program in sorted(asked)]
    for number, future in enumerate(as_completed(found), 1):
        if future.result():
            for other in found:
                other.cancel()
            raise UserError(f"{future.result()}: run `make test BACKEND=cpu` first.")
        print(f"{number}/{len(found)} pass", file=sys.stderr, flush=True)


def run(arguments):
    build = Build(arguments.build)
    out = Path(arguments.out)
    if out.exists() and not arguments.resume:
        raise UserError(f"{out} is there already: --resume goes on with it, --out names another.")
    chosen = choose(arguments)
    done = {identity(record): record["verdict"] for record in (recorded(out) if out.exists() else ())}
    left = [mutant for mutant in chosen if tuple(mutant) not in done]
    counts = Counter(done[tuple(mutant)] for mutant in chosen if tuple(mutant) in done)
    before = number = len(chosen) - len(left)
    judge = Judge(build, arguments.suite)
    out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.jobs) as pool, out.open("a", encoding="utf-8") as file:
        try:
            check_all_unmutated(judge, left, pool)
            began = time.monotonic()
            for future in as_completed([pool.submit(judge.decide, mutant) for mutant in left]):
                record = future.result()
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                file.flush()
                number += 1
                counts[record["verdict"]] += 1
                show_progress(counts, number, len(chosen), began, before)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    print(f"{out}: `mutants.py table {out}` counts them.", file=sys.stderr)
    return 0


def part(file):
    """The part of the repository that a file belongs to, as a line of the table names it."""
    if file.startswith("chapters/"):
        parts = {"copy": "chapter zero", "fwd": "forward chapters", "bwd": "backward chapters"}
        return parts.get(re.match(r"[a-z]*", Path(file).parent.name)[0], "other chapters")
    return Path(file).parent.as_posix()


HEAD = ["made", "did not compile", "same code", "killed by quick", "only by complete", "survived"]


def table_row(name, records):
    counts = Counter(record["verdict"] for record in records)
    faults = len(records) - counts["does-not-compile"] - counts["same-code"]
    shares = [f" ({100 * counts[verdict] / faults:.0f} %)" if faults else "" for verdict in VERDICTS[2:]]
    return [name, len(records), counts["does-not-compile"], counts["same-code"],
            *(f"{counts[verdict]}{share}" for verdict, share in zip(VERDICTS[2:], shares))]


def tables(records):
    """The Markdown of what `run` found. Percentages are of the mutants that changed the program."""
    groups = [("kind", lambda record: record["kind"], list(KINDS)),
              ("part", lambda record: part(record["file"]), sorted({part(record["file"]) for record in records}))]
    lines = []
    for title, key, names in groups:
        rows = [table_row(name, [r for r in records if key(r) == name]) for name in names]
        lines += [markdown([title, *HEAD], [*rows, table_row("all", records)]), ""]
    return "\n".join(lines)


def survivors(records):
    """The survivors as a Markdown list."""
    lines = []
    for record in sorted((r for r in records if r["verdict"] == "survives"), key=identity):
        mutant = Mutant(*identity(record))
        place = f"{mutant.file}:{mutant.line}:{mutant.column}"
        lines.append(f"- {place} {mutant.kind}: {mutant.change()} in `{mutant.source}`")
    return "\n".join(lines) or "None survived."


def table(arguments):
    path = Path(arguments.results)
    if not path.is_file():
        raise UserError(f"{path} is not there: `mutants.py run --out {path}` writes it.")
    records = recorded(path)
    print(tables(records))
    if arguments.survivors:
        Path(arguments.survivors).write_text(survivors(records) + "\n", encoding="utf-8")
    else:
        print(survivors(records))
    return 0


def parse(argv):
    parser = argparse.ArgumentParser(prog="mutants.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="list | run | table")
    choice = argparse.ArgumentParser(add_help=False)
    choice.add_argument("--only", nargs="+", default=[], metavar="PATH", help="sources that begin with this")
    choice.add_argument("--seed", type=int, default=1, help="of the sample")
    choice.add_argument("--count", type=positive(int), default=400, help="of mutants, at most")
    lists = commands.add_parser("list", parents=[choice], help="print the faults")
    lists.set_defaults(command=list_mutants)
    runs = commands.add_parser("run", parents=[choice], help="decide on them")
    runs.add_argument("--build", default=ROOT / "build/cpu", help="a build of the CPU backend")
    runs.add_argument("--jobs", type=positive(int), default=2, help="mutants at a time")
    runs.add_argument("--suite", choices=["quick", "complete", "both"], default="both")
    runs.add_argument("--out", default=ROOT / "build/mutants.jsonl", help="where the verdicts go")
    runs.add_argument("--resume", action="store_true", help="go on with --out")
    runs.set_defaults(command=run)
    shows = commands.add_parser("table", help="count the verdicts")
    shows.add_argument("results", metavar="RESULTS.jsonl")
    shows.add_argument("--survivors", metavar="FILE", help="write the survivors there")
    shows.set_defaults(command=table)
    return parser.parse_args(argv)


def main(argv):
    arguments = parse(argv)
    try:
        return arguments.command(arguments)
    except UserError as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
