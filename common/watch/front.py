"""What the three front ends share: their arguments, and running a chapter's program while it is watched."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from common.watch.lines import Lines, WatchError


def parse(argv, doc, own=(), json_help="append all of it to FILE, a record a line"):
    """(options, what goes to the chapter's program). `own`: further options of a tool."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `… | head` ends it in silence
    first, _, rest = doc.partition("\n\n")
    parser = argparse.ArgumentParser(description=first, epilog=rest, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="a program of the build that watches")
    parser.add_argument("--json", metavar="FILE", help=json_help)
    for name, settings in own:
        parser.add_argument(name, **settings)
    if "-h" in argv or "--help" in argv:
        print(parser.format_help(), flush=True)
        if argv[0].startswith("-"):
            sys.exit(0)
        print("What the chapter's program takes:\n", flush=True)
        sys.exit(subprocess.run([argv[0], "count", "/dev/null", "0", "--help"], check=False).returncode)
    options, arguments = parser.parse_known_args(argv)
    if options.json and not can_write(options.json):  # before anything runs
        print(f"cannot write '{options.json}': give --json a file in a directory that exists and is yours",
              file=sys.stderr)
        sys.exit(2)
    return options, arguments


def can_write(path):
    path = Path(path)
    return os.access(path, os.W_OK) if path.is_file() else not path.exists() and os.access(path.parent, os.W_OK)


def ask(program, mode, arguments, block=0):
    """[(record, Lines), …]: what was seen of each chapter of the program, and its lines."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "seen.jsonl"
        done = subprocess.run([program, mode, str(file), str(block), *arguments], check=False)
        if not file.is_file() or not file.stat().st_size:
            sys.exit(done.returncode)  # help was asked for, or the request was wrong, and the program said so
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if done.returncode not in (0, 1):
        raise WatchError(f"{program} ended with status {done.returncode}")
    places = {place for record in records for place in places_in(record["seen"])}
    lines = Lines(program, records[0]["load_address"], places)
    return [(record, lines) for record in records]


def places_in(seen):
    """Every number that stands under the name 'place', wherever."""
    if isinstance(seen, dict):
        if "place" in seen:
            yield seen["place"]
        seen = list(seen.values())
    if isinstance(seen, list):
        for each in seen:
            yield from places_in(each)
