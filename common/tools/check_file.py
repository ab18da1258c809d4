#!/usr/bin/env python3
"""Runs a .cu file from elsewhere, with its own main, on the SIMT machine: `make check FILE=other.cu`.

    python3 -m common.tools.check_file other.cu [ARGUMENT…]           the arguments go to its main
    python3 -m common.tools.check_file --count other.cu [ARGUMENT…]   its requests, line by line: `make count FILE=…`
    python3 -m common.tools.check_file --race other.cu [ARGUMENT…]    its races: `make race FILE=…`
    python3 -m common.tools.check_file --trace other.cu [--block N] [ARGUMENT…]
                                        what the warps of a block of each launch do, turn by turn: `make trace FILE=…`

The file, and the headers that it includes from its own folder, are compiled as rewrite_cuda.py makes them C++, with an
include of common/simt/foreign.h in front. The address sanitizer watches every access to device memory. Exit status:
that of the program; 1 where the machine or the sanitizer found a fault; 2 where the file cannot be run here, with one
sentence that names the line.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from common.tools.compile_errors import in_a_sentence
from common.tools.cpp_text import blanked
from common.tools.inline_ptx import RequestError
from common.tools.rewrite_cuda import rewritten
from common.watch import count, race, trace
from common.watch.front import places_in
from common.watch.lines import Lines, WatchError

ROOT = Path(__file__).resolve().parents[2]
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize=null,pointer-overflow,object-size",
             "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
WATCHED = ("-gdwarf-4", "-fsanitize=thread", "-fsanitize-coverage=trace-pc", "-fno-tree-sra", "-fno-tree-vectorize",
           "-fno-semantic-interposition", "-Wno-tsan", "-DSIMT_WATCH")  # as CMakeLists.txt has them
OF_MACHINE = r"^(\S.*:\d+: )?kernel "  # a fault's text begins so
INCLUDE = r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"'


class EndedEarly(Exception):
    """One sentence about a program that ended before anything was seen."""


class Unit:
    """A file, with the headers from its own folder that it includes, as C++ in a folder of builds."""

    def __init__(self, path, folder):
        self._written = {}  # the place of each file
        self._folder = folder
        self._has_kernel = False
        self.file = self._write(path)
        code = blanked(path.read_text(encoding="utf-8"))
        if not self._has_kernel:
            raise RequestError(f"{path} has no kernel: no function in it is __global__")
        if not re.search(r"\bmain\s*\(", code):
            raise RequestError(f"{path} has no main; `make new` makes a chapter for a kernel on its own")

    def _write(self, path):
        """Writes a file and what it includes; returns the place. Raises RequestError."""
        if path.resolve() in self._written:
            return self._written[path.resolve()]
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"{path} cannot be read: {error}") from None
        is_first = not self._written
        place = self._folder / (f"{path.stem}.cpp" if is_first else f"{path.stem}.{len(self._written)}{path.suffix}")
        self._written[path.resolve()] = place
        self._has_kernel |= bool(re.search(r"\b__global__\b", blanked(source)))

        def include(match):
            header = path.parent / match[1]
            return match[0].replace(match[1], str(self._write(header))) if header.is_file() else match[0]

        text = re.sub(INCLUDE, include, rewritten(path, source, "::simt::ForeignLaunch"), flags=re.MULTILINE)
        first = '#include "common/simt/foreign.h"\n' if is_first else "#pragma once\n"
        place.write_text(f'{first}#line 1 "{path}"\n{text}', encoding="utf-8")
        return place


# --- Compiling and running ---


class Build(NamedTuple):
    """A build of the machine, and how it compiles and links a program."""

    folder: Path
    flags: tuple
    link: tuple
    libraries: tuple  # the last first

    def cached(self, name):
        """A variable of its CMake cache."""
        match = re.search(rf"^{name}:\w+=(.*)$", (self.folder / "CMakeCache.txt").read_text("utf-8"), re.MULTILINE)
        return match[1] if match else ""


PLAIN = Build(ROOT / "build/cpu-asan", SANITIZED, SANITIZED, ("foreign", "simt"))
WATCHING = Build(ROOT / "build/cpu-watch", WATCHED, (),
                 ("foreign_watch", "watch", "harness", "registry", "reference_cpu", "foreign", "simt"))


def compiled(path, build=PLAIN):
    """The program of a .cu file. Raises RequestError."""
    folder = ROOT / "build/foreign" / build.folder.name
    folder.mkdir(parents=True, exist_ok=True)
    unit, program = folder / f"{path.stem}.o", folder / path.stem
    text = Unit(path, folder).file
    compiler = build.cached("CMAKE_CXX_COMPILER") or "g++"
    run(compiler, "-c", "-std=c++20", "-O1", "-g", "-Wall", "-Wno-sign-compare", "-Wno-unknown-pragmas",
        "-Wno-volatile", *build.flags,
        f"-I{ROOT}", f"-I{path.resolve().parent}", f"-isystem{ROOT / 'common/simt/include'}",
        f"-isystem{build.cached('CUDA_HEADERS')}", text, "-o", unit)
    run(compiler, unit, *build.link, "-o", program, *(build.folder / f"lib{name}.a" for name in build.libraries),
        build.cached("BOOST_CONTEXT"), "-fopenmp", "-ldl", "-rdynamic")
    return program


def run(*command):
    """Runs the compiler; its warnings are shown. Raises RequestError."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise RequestError(f"{in_a_sentence(done.stderr)}\n\n{done.stderr.rstrip()}")
    if done.stderr:
        print(done.stderr.rstrip(), file=sys.stderr)


def seen_of(path, mode, arguments, block="0"):
    """Runs a file's program while it is watched: (exit status, what was seen, the program). Raises RequestError."""
    program = compiled(path, WATCHING)
    record = program.with_suffix(f".{mode}.json")
    record.unlink(missing_ok=True)
    start = time.monotonic()
    settings = {"SIMT_WATCH_MODE": mode, "SIMT_WATCH_FILE": str(record), "SIMT_WATCH_BLOCK": block}
    done = subprocess.run([program, *arguments], env={**os.environ, **settings})
    ended = how_it_ended(done.returncode)
    if not record.is_file():
        if ended:
            raise EndedEarly(f"{path} ended {ended} before anything was recorded")
        raise RequestError(f"{path} launched no kernel")
    source = str(path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path.resolve())
    seen = json.loads(record.read_text(encoding="utf-8"))
    launches = {"race": "kernels", "trace": "launches"}.get(mode)
    if ended and not (seen["seen"][launches] if launches else seen["seen"]):
        raise EndedEarly(f"{path} ended {ended} before a kernel ran")
    result = {**seen, "source": source, "chapter": path.name, "ended": ended,
              "words": " ".join(["its main,", *arguments]) if arguments else "its main", "fault": "", "passed": True,
              "arguments": " ".join(arguments), "seconds": time.monotonic() - start}
    return done.returncode, result, program


def how_it_ended(status):
    """'with status 1'; nothing for 0."""
    return f"by signal {-status}" if status < 0 else f"with status {status}" if status else ""


def counted(path, arguments=()):
    """(exit status, the record of a file's requests) as `make count` has it. Raises RequestError, WatchError."""
    status, result, program = seen_of(path, "count", arguments)
    return status, count.resolve(result, lines_of(result, program))


def lines_of(result, program):
    return Lines(program, result["load_address"], set(places_in(result["seen"])))


def watched(path, mode, arguments):
    """Runs a file's program while it is watched, and shows its requests or its races. Returns the exit status."""
    if mode == "count":
        status, record = counted(path, arguments)
        print(count.page(record), count.MODEL, sep="\n\n")
        return status
    block = "0"
    if mode == "trace" and arguments[:1] == ["--block"]:
        block, arguments = "".join(arguments[1:2]), arguments[2:]
        if not block.isdecimal():
            raise RequestError(f"--block takes the number of a block, from 0 on, not '{block}'")
    status, result, program = seen_of(path, mode, arguments, block)
    if mode == "race":
        runs = race.Runs(path.name, program, [result])
        race.show_one(runs)
        return status if runs.is_clean else 1
    if why := trace.refusal_of_block(result):
        raise RequestError(why)
    trace.show(trace.trace_of(result, lines_of(result, program), trace.Shared(program)))
    return status


def of_sanitizer(path, said):
    """One sentence for a sanitizer's report; nothing where there is none."""
    if undefined := re.search(r"^(.*):(\d+):\d+: runtime error: (.*)$", said, re.MULTILINE):
        return f"{undefined[1]}:{undefined[2]}: {undefined[3]}"
    frames = re.findall(r"#\d+ \S+ in (.*?) (\S+:\d+)", said)
    own = next((frame for frame in frames if Path(path).name in frame[1]), ("", str(path)))
    function = re.split(r"[(\[]", own[0])[0]
    if crash := re.search(r"AddressSanitizer: SEGV on unknown address (\w+)", said):
        access = "writes" if "caused by a WRITE" in said else "reads"
        where = "through a null pointer" if int(crash[1], 16) < 4096 else f"at {crash[1]}, where there is no buffer"
        return f"{own[1]}: {function} {access} {where}"
    if "AddressSanitizer: attempting double-free" in said:
        return f"{own[1]}: {function} frees a buffer that is free"
    match = re.search(r"AddressSanitizer: ([\w-]+).*?\n(READ|WRITE) of size (\d+)(.*)", said, re.DOTALL)
    if not match:
        return ""
    kind, access, size, rest = match.groups()
    frames = re.findall(r"#\d+ \S+ in (.*?) (\S+:\d+)", rest)
    place = next((frame for frame in frames if Path(path).name in frame[1]), None)
    where = re.search(r"is located (\d+) bytes (after|before|inside of|to the \w+ of) (\d+)-byte region", rest)
    sentence = f"{access.lower()}s {size} bytes out of bounds ({kind})"
    if where:
        side = {"to the right of": "after", "to the left of": "before", "inside of": "into"}.get(where[2], where[2])
        region, bytes_of_it = "a buffer", where[3]
        if "simt::SharedMemory::SharedMemory(" in rest:  # without bytes it has one
            region, bytes_of_it = "the launch's dynamic shared memory", "0" if where[3] == "1" else where[3]
        sentence = f"{access.lower()}s {size} bytes, {where[1]} bytes {side} {region} of {bytes_of_it} bytes"
        sentence += " (its third argument)" * (bytes_of_it == "0")
        sentence += ", which is free" * (kind == "heap-use-after-free")
    if kind == "use-after-poison":
        sentence = (f"{access.lower()}s {size} bytes of the host's memory; a kernel needs memory from cudaMalloc, "
                    "cudaMallocManaged or cudaMallocHost")
    if not place:
        return sentence
    name = re.split(r"[(\[]", place[0])[0]
    return f"{place[1]}: {name} {sentence}"


def checked(path, arguments):
    """Runs a file's program under the sanitizers. Returns the exit status."""
    program = compiled(path)
    done = subprocess.run([program, *arguments], stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
    sentence = of_sanitizer(path, done.stderr)
    if sentence:
        log = program.with_suffix(".sanitizer")
        log.write_text(done.stderr, encoding="utf-8")
        print(f"{sentence}\n(the whole report: {log.relative_to(ROOT)})", file=sys.stderr)
        return 1
    print(done.stderr, end="", file=sys.stderr)
    if done.returncode < 0:
        print(f"{path} ended {how_it_ended(done.returncode)}", file=sys.stderr)
    elif done.returncode > 0 and not re.search(OF_MACHINE, done.stderr, re.MULTILINE):
        print(f"No fault found by the machine; the program ended {how_it_ended(done.returncode)}. "
              f"make race FILE={path} looks for races.", file=sys.stderr)
    return 1 if done.returncode < 0 else done.returncode


def main(argv):
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if argv else 2
    mode = argv[0].removeprefix("--") if argv[0] in ("--count", "--race", "--trace") else None
    path, *arguments = argv[bool(mode):] or [""]
    try:
        return watched(Path(path), mode, arguments) if mode else checked(Path(path), arguments)
    except (RequestError, WatchError) as error:
        print(error, file=sys.stderr)
        return 2
    except EndedEarly as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
