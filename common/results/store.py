"""Committed measurements as tables that diff well: NAME.csv, a record a row, and what many records share beside it.

A row's first columns are rows of runs.csv, which has what the records of a run share: device, driver, commit, …, and of
problems.csv, which has their problem, and the bytes that depend on nothing else. A cell is a word or a JSON value; an
empty one is a field that the record does not have. Nothing is rounded.
"""

import csv
import io
import json

# The column that names a row of a shared table, and the fields that are there.
SHARED = {
    "of_run": ("runs.csv", ("schema", "clock", "host", "device", "driver", "cuda", "backend", "date", "commit", "run",
                            "packages", "l2", "passed")),
    "of_problem": ("problems.csv", ("problem", "direction", "set", "operator_bytes", "roof_bytes"))}
NAMES = tuple(name for name, _ in SHARED.values())
NESTED = ("problem", "metrics", "totals")  # fields whose own fields are columns: problem.rows


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


def flat(fields):
    """The columns of some fields of a record. A problem without options does not say so."""
    columns = {}
    for name, value in fields.items():
        own = {f"{name}.{key}": each for key, each in value.items()} if name in NESTED else {name: value}
        columns |= {column: each for column, each in own.items() if (column, each) != ("problem.options", {})}
    return columns


def nested(columns):
    """What flat() was given."""
    fields = {}
    for column, value in columns.items():
        name, dot, key = column.partition(".")
        if dot and name in NESTED:
            fields.setdefault(name, {})[key] = value
        else:
            fields[column] = value
    if "problem" in fields:
        fields["problem"].setdefault("options", {})
    return fields


def read_table(path):
    """Rows of a CSV file: {column: value}, without the empty cells."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{column: unpack(cell) for column, cell in row.items() if cell} for row in csv.DictReader(file)]


def read_shared(path):
    """{column: the rows of the shared table that it names} beside a table; no rows where there is none yet."""
    files = {column: path.with_name(name) for column, (name, _) in SHARED.items()}
    return {column: read_table(file) if file.exists() else [] for column, file in files.items()}


def write_table(path, rows):
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(column for row in rows for column in row)), lineterminator="\n")
    table.writeheader()
    table.writerows({column: pack(value) for column, value in row.items()} for row in rows)
    path.write_text(text.getvalue(), encoding="utf-8")


def read(path):
    """The records of NAME.csv as the programs wrote them, in its order.

    Raises OSError where a table cannot be read, and ValueError, a sentence, where a row names no row of a shared one.
    """
    shared, records = read_shared(path), []
    for line, row in enumerate(read_table(path), 2):
        columns = {}
        for column, rows in shared.items():
            number = row.pop(column, None)
            if isinstance(number, int) and 0 <= number < len(rows):
                columns |= rows[number]
            elif number is not None or column == "of_run":
                raise ValueError(f"{path}, row {line}: no row {number} in {SHARED[column][0]}")
        records.append(nested(columns | row))
    return records


def write(path, records):
    """Writes NAME.csv, and adds to the shared tables beside it the rows that they do not have yet."""
    shared = read_shared(path)
    numbers = {column: {key_of(row): number for number, row in enumerate(rows)} for column, rows in shared.items()}
    written = []
    for record in records:
        row, own = {}, dict(record)
        for column, (_, names) in SHARED.items():
            if column == "of_problem" and "problem" not in record:
                continue
            part = flat({name: own.pop(name) for name in names if name in own})
            row[column] = numbers[column].setdefault(key_of(part), len(shared[column]))
            if row[column] == len(shared[column]):
                shared[column].append(part)
        written.append(row | flat(own))
    for column, (name, _) in SHARED.items():
        if shared[column]:
            write_table(path.with_name(name), shared[column])
    write_table(path, written)


def key_of(row):
    return json.dumps(row, sort_keys=True)
