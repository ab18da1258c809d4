"""Committed measurements: what the programs write with --json, stored as two tables that diff well.

    python3 common/bench/archive.py add notebooks/data/h100.csv local.jsonl   # the newer records win
    python3 common/bench/archive.py show notebooks/data/h100.csv              # as JSON lines again

A row of NAME.csv is a record, and its first column is a row of runs.csv beside it, which has what all
records of a run share: device, driver, commit, date, packages, … A cell is a word or a JSON value; an
empty one is a field that the record does not have. Nothing is rounded, so `show` gives back what `add`
was given.
"""

import argparse
import csv
import io
import json
import sys
from pathlib import Path

RUNS = "runs.csv"
SHARED = ("schema", "clock", "host", "device", "driver", "cuda", "backend", "date", "commit", "run", "packages")
PROBLEM = "problem."  # before the names of a problem's fields


def pack(value):
    """A cell: a word as it is, whatever could be taken for something else as JSON."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            if value and value[0] not in "\"[{":
                return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def unpack(cell):
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def read_table(path):
    """Rows of a CSV file: {column: value}, without the empty cells."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{column: unpack(cell) for column, cell in row.items() if cell} for row in csv.DictReader(file)]


def write_table(path, rows):
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows({column: pack(value) for column, value in row.items()} for row in rows)
    path.write_text(text.getvalue(), encoding="utf-8")


def read(path):
    """The records of NAME.csv as the programs wrote them, in its order.

    Raises OSError where it or runs.csv cannot be read, and ValueError, a sentence, where a row names no run.
    """
    path = Path(path)
    runs = read_table(path.with_name(RUNS))
    records = []
    for line, row in enumerate(read_table(path), 2):
        number = row.pop("of_run", None)
        if not isinstance(number, int) or not 0 <= number < len(runs):
            raise ValueError(f"{path}, row {line}: no run {number} in {path.with_name(RUNS).name}")
        record = {**runs[number], **row}
        fields = [name for name in record if name.startswith(PROBLEM)]
        if fields:
            record["problem"] = {name.removeprefix(PROBLEM): record.pop(name) for name in fields}
            record["problem"].setdefault("options", {})
        records.append(record)
    return records


def write(path, records):
    """Writes NAME.csv, and adds to the runs.csv beside it the runs that it does not have yet."""
    path = Path(path)
    known = path.with_name(RUNS)
    runs = read_table(known) if known.exists() else []
    numbers = {json.dumps(run, sort_keys=True): number for number, run in enumerate(runs)}
    rows = []
    for record in records:
        run = {name: record[name] for name in SHARED if name in record}
        number = numbers.setdefault(json.dumps(run, sort_keys=True), len(runs))
        if number == len(runs):
            runs.append(run)
        own = {name: value for name, value in record.items() if name not in SHARED and name != "problem"}
        problem = {PROBLEM + name: value for name, value in record.get("problem", {}).items()
                   if (name, value) != ("options", {})}
        rows.append({"of_run": number, **problem, **own})
    write_table(known, runs)
    write_table(path, rows)


def add(path, files):
    """Adds the records of --json files to NAME.csv, each in place of the one that it is a newer measurement of.

    Says how many. Raises DataError where a file cannot be read.
    """
    from measurements import DataError, identity, parse, read_objects  # which reads by this module

    records = read(path) if path.exists() else []

    def key(number, record):
        flat = parse(record) if "schema" in record else None
        return identity(flat) if flat else number

    places = {key(number, record): number for number, record in enumerate(records)}
    before = len(records)
    replaced = skipped = 0
    for file in files:
        for line, record in read_objects(file):
            if record is None:
                print(f"{file}, line {line}: not a record, skipped", file=sys.stderr)
                skipped += 1
                continue
            place = places.setdefault(key(len(records), record), len(records))
            replaced += place < len(records)
            records[place:place + 1] = [record]
    if not records:
        raise DataError(f"no record in {', '.join(map(str, files))}; `make bench JSON=mine.jsonl` measures some")
    write(path, records)
    skips = f", {skipped} skipped" if skipped else ""
    print(f"{path}: {len(records) - before} records added, {replaced} replaced{skips}")


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    adds = actions.add_parser("add", help="records of --json files, into a table")
    adds.add_argument("table", type=Path, metavar="NAME.csv")
    adds.add_argument("files", type=Path, nargs="+", metavar="FILE.jsonl")
    actions.add_parser("show", help="a table as JSON lines").add_argument("table", type=Path, metavar="NAME.csv")
    options = parser.parse_args(argv)
    if options.table.suffix != ".csv" or options.table.name == RUNS:
        parser.error(f"{options.table}: a table's name ends in .csv, and is not {RUNS}")
    try:
        if options.action == "add":
            add(options.table, options.files)
        else:
            print("\n".join(json.dumps(record, ensure_ascii=False) for record in read(options.table)))
    except (OSError, ValueError) as error:
        sys.exit(f"archive: {error}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
