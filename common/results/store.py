"""Committed measurements as two tables that diff well: NAME.csv, a record a row, and the runs.csv beside it.

A row's first column is a row of runs.csv, which has what all records of a run share: device, driver, commit, … A cell
is a word or a JSON value; an empty one is a field that the record does not have. Nothing is rounded.
"""

import csv
import io
import json

RUNS = "runs.csv"
SHARED = ("schema", "clock", "host", "device", "driver", "cuda", "backend", "date", "commit", "run", "packages")
PROBLEM = "problem."  # before the names of a problem's fields


def unpack(cell):
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def pack(value):
    """A cell: a word as it is, unless unpack() would take it for something else."""
    if isinstance(value, str) and value[:1] not in ('"', "[", "{", "") and unpack(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read_table(path):
    """Rows of a CSV file: {column: value}, without the empty cells."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{column: unpack(cell) for column, cell in row.items() if cell} for row in csv.DictReader(file)]


def write_table(path, rows):
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(column for row in rows for column in row)), lineterminator="\n")
    table.writeheader()
    table.writerows({column: pack(value) for column, value in row.items()} for row in rows)
    path.write_text(text.getvalue(), encoding="utf-8")


def read(path):
    """The records of NAME.csv as the programs wrote them, in its order.

    Raises OSError where it or runs.csv cannot be read, and ValueError, a sentence, where a row names no run.
    """
    runs = read_table(path.with_name(RUNS))
    records = []
    for line, row in enumerate(read_table(path), 2):
        number = row.pop("of_run", None)
        if not isinstance(number, int) or not 0 <= number < len(runs):
            raise ValueError(f"{path}, row {line}: no run {number} in {RUNS}")
        record = {**runs[number], **row}
        if fields := [name for name in record if name.startswith(PROBLEM)]:
            record["problem"] = {name.removeprefix(PROBLEM): record.pop(name) for name in fields}
            record["problem"].setdefault("options", {})
        records.append(record)
    return records


def write(path, records):
    """Writes NAME.csv, and adds to the runs.csv beside it the runs that it does not have yet."""
    known = path.with_name(RUNS)
    runs, rows = read_table(known) if known.exists() else [], []
    for record in records:
        run = {name: record[name] for name in SHARED if name in record}
        if run not in runs:
            runs.append(run)
        problem = {PROBLEM + name: value for name, value in record.get("problem", {}).items()
                   if (name, value) != ("options", {})}
        own = {name: value for name, value in record.items() if name not in SHARED and name != "problem"}
        rows.append({"of_run": runs.index(run), **problem, **own})
    write_table(known, runs)
    write_table(path, rows)
