#!/usr/bin/env python3
"""A chapter with a fault in it: for the tests, and for readers who want to see one found.

    plant.py 'partial[lane] … __syncthreads();' common/kernel/reduce.h build/cpu-watch/bin/fwd03 [OPTION…]

takes the first such barrier after partial[lane] out of the file, and says which races the chapter has then. A copy of
the source with the fault is compiled with the build's own command, for float alone, and linked in place of the
chapter's kernel.
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from common.tools.find_chapter import kernel_sources
from common.watch import race

ROOT = Path(__file__).resolve().parents[2]


def without_other_types(kernel):
    """A chapter for float alone, which compiles faster."""
    return re.sub(r"Launchers(\{run<float>,[^}]*\}|::every\(.*\))", "Launchers{run<float>}", kernel)


def with_fault(text, place, new):
    """The text with `new` in place of one line's code. `place` is that code, which must be in the text once; or
    'anchor … code', the first such code after an anchor that is in the text once."""
    anchor, _, code = place.rpartition(" … ")
    once = anchor or code
    if text.count(once) != 1:
        raise LookupError(f"the source has changed: '{once}' is in there {text.count(once)} times, not once")
    at = text.find(code, text.index(once) + len(anchor))
    if at < 0:
        raise LookupError(f"the source has changed: after '{anchor}' comes no '{code}'")
    return text[:at] + new + text[at + len(code) :]


def program_with(chapter, place, new, build, folder, file="kernel.cu"):
    """The path of a program in `folder`: a chapter of a build that watches, with `new` at `place` in its kernel or in
    another file of the repository. The chapter's own program must have been built."""
    kernel = Path(kernel_sources()[chapter])
    changed = {kernel: without_other_types((ROOT / kernel).read_text(encoding="utf-8"))}
    target = kernel if file == "kernel.cu" else Path(file)
    changed[target] = with_fault(changed.get(target) or (ROOT / target).read_text(encoding="utf-8"), place, new)
    for path, text in changed.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")

    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    compiling = next(shlex.split(each["command"]) for each in commands if each["file"] == str(ROOT / kernel))
    own, result = folder / "kernel.o", folder / chapter
    object_file = compiling[compiling.index("-o") + 1]
    swapped = {str(ROOT / kernel): str(folder / kernel), object_file: str(own)}
    compiling = [swapped.get(word, word) for word in compiling]
    at = compiling.index(f"-I{ROOT}")
    compiling[at:at] = [f"-I{folder}", f"-fdebug-prefix-map={folder}={ROOT}"]
    subprocess.run(compiling, cwd=build, check=True)

    listed = subprocess.run(["ninja", "-t", "commands", f"bin/{chapter}"], cwd=build, check=True, capture_output=True,
                            encoding="utf-8")
    linking = listed.stdout.splitlines()[-1]
    linking = linking.replace(object_file, str(own)).replace(f"-o bin/{chapter} ", f"-o {result} ")
    subprocess.run(linking, cwd=build, check=True, shell=True)
    return result


def main(place, file, program, *options):
    program = Path(program).resolve()
    with tempfile.TemporaryDirectory() as folder:
        try:
            faulty = program_with(program.name, place, "", program.parents[1], Path(folder), file)
        except (LookupError, OSError) as error:
            sys.exit(f"plant: {error}")
        race.show_one(race.Runs(program.name, faulty, race.watch_all(faulty, [list(options)], False)))


if __name__ == "__main__":
    main(*sys.argv[1:])
