#!/usr/bin/env python3
"""Turns CH=… or LIB=… into the name of a program: `find_chapter.py bwd02` prints bwd02, `find_chapter.py '' fwd_ring`
prints lib_fwd_ring.

CH is a chapter's id, its directory's name or its path; without CH and LIB the program is that of all chapters. LIB is a
library kernel's name, its id or its path; LIB=all is the program of all of them. An unknown name gets one sentence on
stderr, with the nearest known one, and exit status 2; so does a retired chapter, with the kernel that took its place.
"""

import difflib
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = ROOT / "chapters"
KERNELS = ROOT / "common/library/kernels"
FORMER_IDS = ROOT / "common/library/former_ids.json"
OWN = "my"  # what the ids of a reader's own chapters begin with; .gitignore and CMakeLists.txt know it too


def known_chapters(directory=CHAPTERS):
    """The chapters by id: {'fwd01': 'fwd01_thread_per_row', …}, in reading order."""
    names = [path.parent.name for path in directory.glob("*/kernel.cu")]
    names = [name for name in names if re.fullmatch(r"[a-z]+\d+_\w+", name)]
    return {name.split("_")[0]: name for name in sorted(names, key=reading_order)}


def library_kernels(directory=KERNELS):
    """The library's kernels by id: {'lib_bwd_any': 'common/library/kernels/bwd_any.cu', …}."""
    return {f"lib_{path.stem}": path.relative_to(ROOT).as_posix() for path in sorted(directory.glob("*.cu"))}


def kernel_sources():
    """The source of every kernel by id, the library's last: {'fwd01': 'chapters/fwd01_thread_per_row/kernel.cu', …}."""
    chapters = {identifier: f"chapters/{name}/kernel.cu" for identifier, name in known_chapters().items()}
    return chapters | library_kernels()


def retired():
    """{'fwd13': 'lib_fwd_cluster', …}: chapters that are gone, and the library's kernel for each."""
    kernels = json.loads(FORMER_IDS.read_text(encoding="utf-8"))["kernels"]
    return {each["id"]: each["retired_for"] for each in kernels if "retired_for" in each}


def is_own(name):
    """Whether an id or a directory is that of a chapter that `make new` made."""
    return name.startswith(OWN)


def reading_order(name):
    """The machine, forward, backward, and whatever else there is."""
    known = ("copy", "fwd", "bwd")
    return (next((i for i, start in enumerate(known) if name.startswith(start)), len(known)), name)


def find_chapter(asked, chapters, option="CH"):
    """The id that `asked` names. Raises LookupError, with a sentence, where it names none."""
    name = Path(asked).name
    for identifier, directory in chapters.items():
        if name in (identifier, directory):
            return identifier
    if took_its_place := retired().get(name.partition("_")[0]):
        raise LookupError(f"{option}={asked} is no longer a chapter; its kernel is LIB={short(took_its_place)}.")
    raise LookupError(
        f"{option}={asked} is not a chapter{suggestion(name, chapters, option)}: the chapters are "
        f"{' '.join(chapters) or 'none yet'}."
    )


def short(identifier):
    """'fwd_ring' of 'lib_fwd_ring'"""
    return identifier.removeprefix("lib_")


def find_library_kernel(asked):
    """The program that LIB=… names. Raises LookupError, with a sentence, where it names none."""
    known = library_kernels()
    if asked == "all":
        return "library_kernels"
    identifier = f"lib_{short(Path(asked).name.removesuffix('.cu'))}"
    if identifier in known:
        return identifier
    near = suggestion(short(identifier), {short(each): each for each in known}, "LIB")
    raise LookupError(
        f"LIB={asked} is not a kernel of the library{near}: the kernels are "
        f"{' '.join(map(short, known))}; LIB=all selects all of them.")


def find_program(chapter, library):
    """The program for CH and LIB, one of which is empty. Raises LookupError, with a sentence."""
    if chapter and library:
        raise LookupError(f"CH={chapter} and LIB={library}: name a chapter or a kernel of the library, not both.")
    if library:
        return find_library_kernel(library)
    return find_chapter(chapter, known_chapters()) if chapter else "chapters"


def suggestion(name, chapters, option):
    # 'bwd2', 'fwd01_thread_per_rows' and 'welford' are all near something.
    spellings = {}
    for identifier, directory in chapters.items():
        for spelling in (identifier, directory, directory.partition("_")[2]):
            spellings.setdefault(spelling, identifier)
    written_out = re.sub(r"^([a-z]+)(\d)$", r"\g<1>0\2", name.lower())  # 'fwd2' is nearer to fwd02 than to fwd12
    nearest = difflib.get_close_matches(written_out, spellings, n=1, cutoff=0.5)
    return f" (did you mean {option}={spellings[nearest[0]]}?)" if nearest else ""


def main(chapter="", library=""):
    try:
        print(find_program(chapter.strip(), library.strip()))
    except LookupError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
