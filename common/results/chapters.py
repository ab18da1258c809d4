"""The chapters: what the programs say of themselves, and the map of the main line and the side roads.

notebooks/data/chapters.json is what `chapters --list --json` and `library_kernels --list --json` printed; `make tables`
writes it anew. The map is a tree: each chapter names its parent, the chapter that it improves on, and its road.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

from common.results.problems import CATALOGUE, ROOT, DataError
from common.results.records import MissingData

REMEDY = "`make tables` writes it anew"
MAIN = "main line"
OWN = "my"  # what the ids of the reader's own chapters begin with; `make new` makes them, and no table shows them
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
SHORT = {name: short for short, name in DIRECTIONS.items()}
KINDS = {"layer": "layer norm", "rms": "RMS norm"}


class Chapter(NamedTuple):
    """A chapter, or a kernel of the library."""

    id: str  # "bwd02", "lib_bwd_ring"
    file: Path  # chapters/bwd02_warp_per_row/kernel.cu, common/library/kernels/bwd_ring.cu
    title: str  # "One warp per row"
    group: str  # what the option group counts, "rows a block"; empty where it has none
    teaches: str = ""  # the one idea, in a line
    parent: str = ""  # id of the chapter that it improves on; empty for the first
    road: str = ""  # "main line", or a side road's name; empty for a chapter that chapters.json lacks
    before: str = ""  # the later chapter of the main line before which a learner reads it; empty: after its parent

    @property
    def directory(self):
        return self.file.parent

    @property
    def in_library(self):
        return self.id.startswith("lib_")

    @property
    def direction(self):
        """"fwd", "bwd", or "copy" of chapter zero."""
        return direction_of(self.id)


def direction_of(identifier):
    """'fwd' of "fwd02" and "lib_fwd_ring", 'copy' of "copy00"."""
    return identifier.removeprefix("lib_").partition("_")[0].rstrip("0123456789")


def load_catalogue(root=ROOT):
    """{"version", "chapters": [{"id", "file", "title", …}], "library": […], "types": […], "dispatch": […]}.

    Raises MissingData, or DataError where the file is not such a list.
    """
    path = root / CATALOGUE
    try:
        catalogue = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingData(f"{path} is not there yet; {REMEDY}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path} ({error}); {REMEDY}") from error
    for key in ("chapters", "library", "types", "dispatch"):
        if not isinstance(catalogue, dict) or not isinstance(catalogue.get(key), list):
            raise DataError(f"{path} has no list of {key}; {REMEDY}")
    return catalogue


def dispatched(catalogue):
    """The ids of the kernels that the dispatch chooses from, each once."""
    return list(dict.fromkeys(choice["chapter"] for choice in catalogue["dispatch"]))


def find_chapters(root):
    """{id: Chapter}, in reading order. A chapter that chapters.json lacks comes last, with its id as its title; that is
    said on stderr."""
    files = [kernel.relative_to(root) for kernel in sorted(root.glob("chapters/*/kernel.cu"))]
    ids = {file.parent.name.split("_")[0]: file for file in files if not file.parent.name.startswith(OWN)}
    listed = listed_in(root, "chapters")
    new = {name: Chapter(name, file, name, "") for name, file in ids.items() if name not in listed}
    if new:
        print(f"{CATALOGUE} lacks {', '.join(new)}; {REMEDY}", file=sys.stderr)
    return listed | new


def find_library(root):
    """{id: Chapter} of the library's kernels."""
    return listed_in(root, "library")


def listed_in(root, part):
    """{id: Chapter} of those that a list of chapters.json has and that have a file."""
    entries = load_catalogue(root)[part] if (root / CATALOGUE).exists() else ()
    return {entry["id"]: Chapter(entry["id"], Path(entry["file"]), *(entry[key] for key in Chapter._fields[2:]))
            for entry in entries if (root / entry["file"]).exists()}


class ChapterMap:
    """`chapters`: {id: Chapter}. One that chapters.json does not have yet is on no road."""

    def __init__(self, chapters):
        self.chapters = {identifier: chapter for identifier, chapter in chapters.items() if chapter.road}

    def parent(self, chapter):
        return self.chapters.get(chapter.parent)

    def children(self, chapter):
        return [child for child in self.chapters.values() if child.parent == chapter.id]

    def main_line(self):
        """In reading order: from the first chapter to a line's end, then from where another line begins."""
        firsts = [chapter for chapter in self.chapters.values() if chapter.road == MAIN and not self.parent(chapter)]
        line = [chapter for first in firsts for chapter in self.along(first)]
        later = [chapter for chapter in line if chapter.before in self.chapters]
        return [one for chapter in line if chapter not in later
                for one in (*(early for early in later if early.before == chapter.id), chapter)]

    def after(self, chapter):
        """The next chapter of the main line; None after the last, and of a chapter that is not on it."""
        line = self.main_line()
        return dict(zip((one.id for one in line), line[1:])).get(chapter.id)

    def side_roads(self, chapter):
        """The chapters that leave a road at this one, or continue its own side road."""
        return [child for child in self.children(chapter) if child.road != MAIN]

    def along(self, chapter):
        """A chapter and what follows it on its own road."""
        return [chapter, *(later for child in self.children(chapter) if child.road == chapter.road
                           for later in self.along(child))]

    def leaves_at(self, chapter):
        """The last chapter of the main line before this one of a side road; None where there is none."""
        while chapter and chapter.road != MAIN:
            chapter = self.parent(chapter)
        return chapter

    def roads(self):
        """{side road: its chapters}, in reading order."""
        roads = {}
        for chapter in self.chapters.values():
            if chapter.road != MAIN:
                roads.setdefault(chapter.road, []).append(chapter)
        return roads
