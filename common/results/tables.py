"""Writes the tables in the READMEs and the chapters' texts from the committed measurements.

    python3 -m common.results.tables            # rewrites the tables in place, and draws the figures
    python3 -m common.results.tables --check    # writes nothing; exit status 1 where something disagrees

A table stands between two markers, each alone on its line; only what is between them is rewritten:

    <!-- table: measured bwd02 -->
    <!-- end table -->

--help lists the tables. Their numbers are those of notebooks/data/: h100.csv (`make bench`, archive.py),
h100_profile.csv (`make profile`), peers_h100.csv (`make peers`, archive.py), training_h100.jsonl (gpt_training.py),
host_*.csv (host_time.py), source_a100.jsonl. The widths are the H100's where its peers' file has them, else those of
the first other peers_*.csv that has. What is not measured yet is shown as '–', or names the command that measures it.
Exit status 2, with a sentence: an unknown table, a marker that is not closed, data that cannot be used.
"""

import argparse
import difflib
import re
import sys

from common.results import chapter_tables, drawing, figures, machine_tables, peer_figures  # noqa: F401  some register tables
from common.results.chapters import DIRECTIONS
from common.results.device import open_results
from common.results.other_tables import MarkerError
from common.results.peer_tables import bf16_width_rows, pairs_of_layer_norm
from common.results.pictures import PictureError, pictures_of
from common.results.problems import PROGRESSION, ROOT, SWEEP, DataError
from common.results.rendering import FIGURES, TABLES, render

TEXTS = ("README.md", "chapters/README.md", "chapters/*/notes.md", "chapters/*/lab.md", "common/*/*.md",
         "common/*/*/README.md", "reference_cpu/README.md", "notebooks/README.md")
OWN_TABLES = "common/campaign/*.md"  # which target_tables.py there writes
BEGIN = re.compile(r"<!--\s*table:\s*(.*?)\s*-->")
END = re.compile(r"<!--\s*end table\s*-->")


def find_tables(text, name):
    """[(line, request, begin, end)] of a text: what is asked for and which lines it may replace."""
    tables, opened, fenced = [], None, False
    for at, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        fenced ^= line.startswith("```")
        begin, end = BEGIN.fullmatch(line), END.fullmatch(line)
        if fenced or not (begin or end):
            continue
        if end and not opened:
            raise MarkerError(f"{name}:{at}: <!-- end table --> ends no table")
        if begin and opened:
            break  # the table before it is not closed
        if end:
            tables.append((*opened, opened[0], at - 1))
        opened = begin and (at, begin[1])
    if opened:
        raise MarkerError(f"{name}:{opened[0]}: the table '{opened[1]}' is not closed; "
                          "put <!-- end table --> below it")
    return tables


def make_table(results, file, request):
    """The lines of the table that a marker asks for."""
    if request in TABLES:
        return render(results, file, TABLES[request])
    name, _, argument = request.partition(" ")
    asked = next((one for one in TABLES if one.startswith(f"{name} <")), None)
    if asked is None:
        raise MarkerError(f"there is no table '{request}'; choose from {', '.join(TABLES)}")
    if asked == f"{name} <chapter>":
        if argument not in results.kernels:
            raise MarkerError(f"the table '{request}' names no kernel; the kernels are "
                              f"{' '.join(results.kernels) or 'none yet'}")
        argument = results.kernels[argument]
    return render(results, file, TABLES[asked], argument)


def rewrite(results, file):
    """A file's text with its tables made anew, and [(line, request, old, new)] where they differ."""
    text, name = file.read_text(encoding="utf-8"), file.relative_to(results.root).as_posix()
    lines, changes = text.split("\n"), []
    for line, request, begin, end in reversed(find_tables(text, name)):
        try:
            new = ["", *make_table(results, file, request), ""]  # without empty lines GitHub takes it for the comment's
        except MarkerError as error:
            raise MarkerError(f"{name}:{line}: {error}") from error
        chapter = results.kernels.get(request.partition(" ")[2])
        waits = (chapter and not results.has_data_for(chapter) and not request.startswith(("head ", "picture "))
                 and chapter.road != chapter_tables.GPUS_ROAD)  # whose data are of another device
        if waits and not any(line.strip() for line in lines[begin:end]):
            continue  # a new chapter's tables wait for its first measurement
        if lines[begin:end] != new:
            changes.insert(0, (line, request, lines[begin:end], new))
            lines[begin:end] = new
    return "\n".join(lines), changes


def show_change(name, line, request, old, new, most=8):
    print(f"{name}:{line}: the table '{request}' disagrees with the data; `make tables` rewrites it")
    difference = [text for text in list(difflib.unified_diff(old, new, lineterm="", n=0))[2:] if text[:2] != "@@"]
    print(*(f"    {text}" for text in difference[:most]), sep="\n")
    if len(difference) > most:
        print(f"    … and {len(difference) - most} lines more")


def figures_of(results):
    """[(path, what it shows, how it is drawn)]: plain rows, so that a check need not draw them; or the SVG itself, of a
    lesson's picture."""
    both = [[row for direction in DIRECTIONS for row in results.rows(direction, problems)]
            for problems in ([PROGRESSION], SWEEP)]
    return [(FIGURES / "progression.svg", both[0], figures.progression),
            (FIGURES / "sweep.svg", both[1], figures.sweep),
            (FIGURES / "peers.svg", pairs_of_layer_norm(results), peer_figures.peers_map),
            (FIGURES / "widths.svg", bf16_width_rows(results), peer_figures.widths),
            (FIGURES / "training.svg", results.training_rows(), peer_figures.training),
            *((chapter.directory / f"{name}.svg", svg, None) for chapter in results.chapters.values()
              for name, (_, svg) in pictures_of(results.root / chapter.directory).items())]


def refresh(path, rows, draw, root, check):
    """Draws a figure whose data changed. True unless it should only be checked and disagrees."""
    there = root / path
    if not rows or (drawing.drawn_from(there) == drawing.digest(rows) if draw else
                    there.exists() and there.read_text(encoding="utf-8") == rows):
        return True
    if check:
        print(f"{path} was not drawn from these data; `make tables` draws it")
    elif not draw:
        there.write_text(rows, encoding="utf-8")
        print(f"{path}: drawn")
    elif drawing.write_figure(draw, rows, there):
        print(f"{path}: drawn")
    else:
        print(f"matplotlib is not installed, so {path} stays as it is; "
              "`bash common/setup/setup.sh --with-tables` installs it")
    return not check


def texts_of(root):
    """The files whose tables are written here."""
    return {file for pattern in TEXTS for file in root.glob(pattern)} - set(root.glob(OWN_TABLES))


def main(argv, root=ROOT, texts_of=texts_of, figures_of=figures_of):
    tables = "\n".join(f"  {request:24}{one.values_for.__doc__}" for request, one in TABLES.items())
    parser = argparse.ArgumentParser(description=__doc__, epilog=f"The tables:\n{tables}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; say what disagrees")
    check, agrees = parser.parse_args(argv).check, True
    try:
        results = open_results(root)
        rewritten = [(file, *rewrite(results, file)) for file in sorted(texts_of(root))]
        drawn = figures_of(results)
    except (MarkerError, DataError, PictureError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for file, text, changes in rewritten:
        name = file.relative_to(root).as_posix()
        agrees &= not changes
        if check:
            for change in changes:
                show_change(name, *change)
        elif changes:
            file.write_text(text, encoding="utf-8")
            print(f"{name}: wrote {', '.join(request for _, request, _, _ in changes)}")
    for figure in drawn:
        agrees &= refresh(*figure, root, check)
    return int(check and not agrees)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
