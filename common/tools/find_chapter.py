#!/usr/bin/env python3
"""Turns CH=… into the name of a program: `find_chapter.py bwd02` prints bwd02.

Accepts an id, a directory's name or its path; nothing stands for all chapters. An unknown name
gets one sentence on stderr, with the nearest known one, and exit status 2.
"""

import difflib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = ROOT / "chapters"
OWN = "my"  # what the ids of a reader's own chapters begin with; .gitignore and CMakeLists.txt know it too


def known_chapters(directory=CHAPTERS):
    """The chapters by id: {'fwd01': 'fwd01_thread_per_row', …}, in reading order."""
    names = [path.parent.name for path in directory.glob("*/kernel.cu")]
    names = [name for name in names if re.fullmatch(r"[a-z]+\d+_\w+", name)]
    return {name.split("_")[0]: name for name in sorted(names, key=reading_order)}


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
    raise LookupError(
        f"{option}={asked} is not a chapter{suggestion(name, chapters, option)}: the chapters are "
        f"{' '.join(chapters) or 'none yet'}."
    )


def suggestion(name, chapters, option):
    # 'bwd2', 'fwd01_thread_per_rows' and 'welford' are all near something.
    spellings = {}
    for identifier, directory in chapters.items():
        for spelling in (identifier, directory, directory.partition("_")[2]):
            spellings.setdefault(spelling, identifier)
    written_out = re.sub(r"^([a-z]+)(\d)$", r"\g<1>0\2", name.lower())  # 'fwd2' is nearer to fwd02 than to fwd12
    nearest = difflib.get_close_matches(written_out, spellings, n=1, cutoff=0.5)
    return f" (did you mean {option}={spellings[nearest[0]]}?)" if nearest else ""


def main(asked):
    if not asked:
        print("chapters")
        return 0
    try:
        print(find_chapter(asked, known_chapters()))
    except LookupError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:]).strip()))
