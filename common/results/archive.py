"""Committed measurements: what the programs write with --json, stored as tables that diff well (store.py).

    python3 -m common.results.archive add notebooks/data/h100.csv local.jsonl   # the newer records win
    python3 -m common.results.archive show notebooks/data/h100.csv              # as JSON lines again
    python3 -m common.results.archive prune notebooks/data/peers_h100.csv       # drops what nothing reads any more

`show` gives back what `add` was given. `prune` drops times beside peers that a newer run has replaced in every table,
figure and test (peers.in_use).
"""

import argparse
import json
import sys
from pathlib import Path

from common.results import peers
from common.results import store
from common.results.chapters import load_catalogue
from common.results.problems import problem_of
from common.results.records import DataError, condition, identity, is_right, parse, read_objects


def key_of(record):
    """What a newer record must share with this one to replace it; unique where it is none of this schema, and of a
    profile, which has a record for each launch."""
    flat = parse(record) if "schema" in record and "metrics" not in record else None
    return identity(flat) if flat else object()


def add(path, files):
    """Adds the records of --json files to NAME.csv, each in place of the one that it is a newer measurement of.

    Says how many. Raises DataError where a file cannot be read.
    """
    newest = {key_of(record): record for record in (store.read(path) if path.exists() else ())}
    before, read, skipped = len(newest), 0, 0
    for file in files:
        for line, record in read_objects(file):
            if record is None:
                print(f"{file}, line {line}: not a record, skipped", file=sys.stderr)
                skipped += 1
            else:
                newest[key_of(record)] = record
                read += 1
    if not newest:
        raise DataError(f"no record in {', '.join(map(str, files))}; `make bench JSON=mine.jsonl` measures some")
    store.write(path, newest.values())
    added = len(newest) - before
    print(f"{path}: {added} records added, {read - added} replaced" + (f", {skipped} skipped" if skipped else ""))


def prune(path):
    """Drops the records of a table that nothing reads. Says how many."""
    records, catalogue = store.read(path), load_catalogue()
    from_y = {kernel["id"] for kernel in catalogue["chapters"] + catalogue["library"] if kernel["from_y"]}
    kept, passes = {}, {}  # {a record's place: that of the first of its pass}, so that problems keep their order
    for place, record in enumerate(records):
        flat = parse(record) if "provider" in record else None
        if flat and is_right(flat):
            key = (flat.get("device"), flat["direction"], problem_of(flat), condition(flat))
            passes.setdefault(key, []).append({**flat, "place": place})
        else:
            kept[place] = place
    for own in passes.values():
        kept |= {record["place"]: own[0]["place"] for record in peers.in_use(own, from_y)}
    store.write(path, [records[place] for place in sorted(kept, key=lambda place: (kept[place], place))])
    print(f"{path}: {len(records) - len(kept)} records dropped, {len(kept)} kept")


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    adds = actions.add_parser("add", help="records of --json files, into a table")
    adds.add_argument("table", type=Path, metavar="NAME.csv")
    adds.add_argument("files", type=Path, nargs="+", metavar="FILE.jsonl")
    actions.add_parser("show", help="a table as JSON lines").add_argument("table", type=Path, metavar="NAME.csv")
    prunes = actions.add_parser("prune", help="drops what nothing reads any more from a table")
    prunes.add_argument("table", type=Path, metavar="NAME.csv")
    options = parser.parse_args(argv)
    if options.table.suffix != ".csv" or options.table.name in store.NAMES:
        parser.error(f"{options.table}: a table's name ends in .csv, and is not {' or '.join(store.NAMES)}")
    try:
        if options.action == "add":
            add(options.table, options.files)
        elif options.action == "prune":
            prune(options.table)
        else:
            print("\n".join(json.dumps(record, ensure_ascii=False) for record in store.read(options.table)))
    except (OSError, ValueError) as error:
        sys.exit(f"archive: {error}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
