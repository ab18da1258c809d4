"""Lines of the source for places in a program, which are return addresses of calls in its kernels."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class WatchError(Exception):
    """One sentence for whoever asked."""


class Frame(NamedTuple):
    function: str
    file: str  # from the repository's root, where it is in there
    line: int


class Lines:
    """Asks addr2line once for all places of a program."""

    def __init__(self, program, load_address, places):
        addresses = sorted({int(place) for place in places})
        self._frames = {place: () for place in addresses}
        if not addresses:
            return
        if shutil.which("addr2line") is None:
            raise WatchError("addr2line is missing, which turns places of a program into lines: it comes with "
                             "g++, in the package binutils")
        # A return address belongs to the instruction behind the call, perhaps to another line.
        asked = "\n".join(hex(place - load_address - 1) for place in addresses)
        done = subprocess.run(["addr2line", "-e", str(program), "-a", "-i", "-f", "-C"], input=asked, check=True,
                              capture_output=True, encoding="utf-8")
        answers = done.stdout.split("\n0x")
        for place, answer in zip(addresses, answers):
            words = answer.splitlines()[1:]  # behind the address: a function, a place, a function, …
            self._frames[place] = tuple(frame(*pair) for pair in zip(words[0::2], words[1::2]))

    def frames(self, place):
        """The place's frames, the innermost first: helpers are inlined."""
        return self._frames.get(int(place), ())

    def line_in(self, source, place):
        """The number of the innermost line of a file that leads to the place; 0 where none does."""
        return next((each.line for each in self.frames(place) if each.file == source), 0)


def frame(function, place):
    file, _, rest = place.partition(":")
    number = rest.split(" ")[0]  # "12 (discriminator 3)"
    path = Path(file)
    try:
        file = str(path.resolve().relative_to(ROOT))
    except ValueError:
        file = str(path)
    return Frame(function, file, int(number) if number.isdigit() else 0)
