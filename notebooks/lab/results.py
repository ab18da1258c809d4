"""What the notebooks about measurements share: one device's data over another's.

    data = open_data()                       the committed measurements; the reader's own over them
    print(data.about())
    rows = data.rows("fwd", [PROBLEM])       of all devices; a row's "of" says which one's it is, its
                                             "ancestors" whose idea the chapter improves on

The reader's own are notebooks/data/local.jsonl where that holds a GPU's times, or the file that
`make notebooks DATA=…` names. Emulated times stand alone. Where a device lacks what is asked for,
one sentence says so and names the command that measures it.
"""

from common.results.peers import RequestError, is_of_widths, parse_shapes
from common.results import device, figures, peer_figures
from common.results.chapters import DIRECTIONS, KINDS
from common.results.problems import LARGE, SETS, SWEEP, DataError, problem_of
from common.results.records import load

from . import ROOT

__all__ = ["LARGE", "SWEEP", "Data", "figures", "open_data", "peer_figures", "problem"]


def problem(text):
    """'f32:1024x2048' -> the Problem. Raises DataError, in a sentence, where it is none."""
    try:
        one, = parse_shapes(text)
    except (RequestError, ValueError) as error:
        raise DataError(f"'{text}' is no problem ({error})") from None
    return one


def open_data(root=ROOT):
    """The data that a notebook shows: the committed book, and over it the reader's own."""
    own = device.choose_results(root)
    if own.emulated or own.measured.path == root / device.DATA:
        return Data([own])
    return Data([device.make_results(root, load(root / device.DATA), local=False), own])


def names_of(shown):
    """What each book is called in a legend: its device, with its file where two are alike."""
    devices = [book.device or "an unknown device" for book in shown]
    return [f"{device} ({book.measured.path.name})" if devices.count(device) > 1 else device
            for device, book in zip(devices, shown)]


class Data:
    """Books of one device each, the reader's own last."""

    def __init__(self, shown):
        self.books = dict(zip(names_of(shown), shown))

    @property
    def own(self):
        """The reader's own book, or the committed one where that is all there is."""
        return list(self.books.values())[-1]

    def about(self):
        return "\n\n".join(book.about() for book in self.books.values())

    def about_peers(self, kind):
        """A sentence for each device that has peers."""
        return "\n".join(book.about_peers(kind) for book in self.books.values() if book.peers.records)

    def problems(self):
        """Every plain problem that any of the data hold."""
        return list(dict.fromkeys(problem for book in self.books.values() for problem in book.problems()))

    def rows(self, direction, problems):
        """The rows of a direction's chapters on some problems."""
        asked = " or ".join(map(str, problems)) if len(problems) < 3 else "the problems of this figure"
        return self.collect(lambda book: book.rows(direction, problems), f"no {DIRECTIONS[direction]} time on {asked}",
                            command_for(problems))

    def group_rows(self, direction):
        """The rows of problems with a group option; without a roof there are none."""
        return self.collect(lambda book: [row for row in book.variant_rows(direction)
                                          if problem_of(row).group is not None and row["of_roof"]],
                            "no times with a group option", "make bench")

    def fused_rows(self, direction):
        """The rows of fused chapters beside what they fuse, on the problems of one set."""
        return self.collect(lambda book: [row for row in book.variant_rows(direction)
                                          if row["parts_us"] and problem_of(row) in SETS["fused"]],
                            "no time of a fused chapter beside its parts", "make bench")

    def profile_rows(self, direction):
        """What Nsight Compute counted on the progression's problem."""
        return self.collect(lambda book: book.profile_rows(direction), "no profile", "make profile")

    def contenders(self, direction, kind, peers="all"):
        """(our rows, the named peers' rows) of one run: as Book.contenders(), without the sets of widths."""
        ours, theirs = (self.collect(lambda book, at=at: alone(book.contenders(direction, kind)[at])) for at in (0, 1))
        return ours, [row for row in theirs if peers == "all" or row["provider"] in peers]

    def against_peers(self, direction, kind, peers="all"):
        """Book.against_peers() of each device beside the named peers, without the sets of widths."""
        named = None if peers == "all" else peers
        return self.collect(lambda book: alone(book.against_peers(direction, kind, named)),
                            f"no {DIRECTIONS[direction]} run of peers and ours with {KINDS[kind]}", "make peers")

    def fastest(self, ratios):
        """On the problems of these rows the fastest chapter of each device without peers."""
        problems = dict.fromkeys((row["direction"], problem_of(row)) for row in ratios)
        return [{**min(rows, key=lambda row: row["median_us"]), "of": name} for name, book in self.books.items()
                if name not in {row["of"] for row in ratios} for direction, problem in problems
                if (rows := book.rows(direction, [problem]))]

    def width_rows(self, dtype):
        """Ours beside the fastest peer at every width: Book.width_rows(). Says so where it is another device's."""
        own = self.own
        if own.emulated:
            print("A peer's time is a GPU's; none stands beside emulated times.")
            return []
        found = own.with_widths()
        rows = [row for row in found.width_rows() if row["dtype"] == dtype]
        if rows and found is own:
            return rows
        instead = f" What follows is {found.device}'s." if rows else ""
        print(f'{own.device or "an unknown device"} has no width beside peers; `make peers ARGS="--set widths"` '
              f"measures them.{instead}")
        return rows

    def training_rows(self):
        """A model's training with each norm. Says so where it is another device's than the reader's."""
        own = self.own
        if own.emulated:
            print("A model trains on a GPU; none stands beside emulated times.")
            return []
        rows = own.training_rows("layer") or own.training_rows("rms")
        if not rows:
            print("These data hold no training; `make library && python3 -m common.campaign.gpt_training` "
                  "measures one.")
        elif own.device and rows[0]["device"] != own.device:
            print(f"{own.device} has no training with each norm; `make library && python3 "
                  f"common/campaign/gpt_training.py` measures one. What follows is {rows[0]['device']}'s.")
        return rows

    def collect(self, rows_of, lacking="", command=""):
        """The rows of each book, each with its device's name; a sentence on what a book is `lacking`."""
        found = {name: [{**row, "of": name, "ancestors": ancestors(book.chapters, row.get("chapter"))}
                        for row in rows_of(book)] for name, book in self.books.items()}
        others = " and ".join(name for name, rows in found.items() if rows)
        for name, book in self.books.items():
            if lacking and not found[name]:
                remedy = "" if book.emulated else f"; `{into(command, book)}` measures it"
                instead = f" What follows is {others}'s." if others else ""
                print(f"{name} has {lacking}{remedy}.{instead}")
        return [row for rows in found.values() for row in rows]


def alone(rows):
    """The rows without the sets of widths, which have a picture of their own."""
    return [row for row in rows if not is_of_widths(problem_of(row))]


def ancestors(chapters, identifier):
    """The ids of a chapter's parent, its parent's parent and so on."""
    found = []
    while identifier in chapters and (parent := chapters[identifier].parent) and parent not in found:
        found.append(parent)
        identifier = parent
    return found


def into(command, book):
    """The command, writing into the file that the reader named."""
    own = book.measured.path in (book.root / device.LOCAL, book.root / device.DATA)
    return command if own or command != "make bench" else f"{command} JSON={book.name_of(book.measured)}"


def command_for(problems):
    """What measures these problems: the sets, or one problem of the reader's choice."""
    known = {problem for problems in SETS.values() for problem in problems}
    if len(problems) == 1 and problems[0] not in known:
        one = problems[0]
        return (f"make run ARGS='--dtype {one.dtype} --rows {one.rows} --cols {one.cols} "
                "--json notebooks/data/local.jsonl'")
    return "make bench"
