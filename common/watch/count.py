#!/usr/bin/env python3
"""What a chapter asks of a GPU's memory, line by line, counted on the SIMT machine.

    make count CH=fwd02
    make count CH=fwd02 ARGS="--cols 33"            how many sectors if N = 33?
    make count CH=fwd02 ARGS="--helpers"            also the lines of the helpers that it calls
    make count CH=fwd02 ARGS="--json counts.jsonl"  all of it, a record a chapter
    make count                                      a table of all chapters

A warp's lanes make one request where they load or store at the same place at the same time. Device
memory answers in sectors of 32 bytes; shared memory in passes, one for each word that lanes want of the
same bank. A line's 'useful' share is what its lanes asked for of what the sectors hold.

Counts say nothing about time. Other arguments are those of the chapter's program; -h lists them.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from common.tools.cpp_text import blanked
from common.watch.front import ask, parse
from common.watch.lines import WatchError

ROOT = Path(__file__).resolve().parents[2]
SECTOR = 32


# --- From what was seen to records ---


def resolve(record, lines):
    """The record with lines of the source in place of the program's places."""
    launches = []
    for launch in record["seen"]:
        scale = launch["blocks"] / launch["blocks_counted"] if launch["blocks_counted"] else 1
        counted = [resolve_line(line, lines, record["source"], scale) for line in launch["lines"]]
        launches.append({**launch, "totals": totals(launch, counted), "lines": counted})
    kept = {key: value for key, value in record.items() if key not in ("load_address", "seen")}
    return {**kept, "launches": launches}


COUNTS = ("times", "lanes", "bytes", "sectors", "held_by_l1", "held_by_l2", "passes", "passes_needed", "meeting",
          "link_bytes")


def resolve_line(line, lines, source, scale):
    frames = [frame for frame in lines.frames(line["place"])
              if frame.file == source or not frame.file.startswith(("common/simt/", "/"))]
    inner = frames[0] if frames else None
    outer = next((frame for frame in frames if frame.file == source), frames[-1] if frames else None)
    counts = {key: round(line[key] * scale) for key in COUNTS if key in line}
    place = {"file": outer.file if outer else "", "line": outer.line if outer else 0}
    if inner and (inner.file, inner.line) != (place["file"], place["line"]):
        place["helper"] = f"{inner.file}:{inner.line}"
    rest = {key: line[key] for key in ("what", "space", "access_bytes", "tensor") if key in line}
    return {**place, **rest, **counts}


def totals(launch, lines):
    """Sums over a launch's lines."""
    def total(key, what, space="device"):
        return sum(line[key] for line in lines if line["what"] == what and line["space"] == space)
    across = [line for line in lines if line.get("link_bytes")]
    links = {"link requests": sum(line["times"] for line in across),
             "link bytes": sum(line["link_bytes"] for line in across)}
    return {
        "load requests": total("times", "load"),
        "load sectors": total("sectors", "load"),
        "store requests": total("times", "store"),
        "store sectors": total("sectors", "store"),
        "atomic requests": total("times", "atomic"),
        "atomic sectors": total("sectors", "atomic"),
        "async copy requests": total("times", "async copy"),
        "async copy sectors": total("sectors", "async copy"),
        "bulk load bytes": total("bytes", "bulk load"),
        "bulk store bytes": total("bytes", "bulk store"),
        "shared load requests": total("times", "load", "shared"),
        "shared load passes": total("passes", "load", "shared"),
        "shared store requests": total("times", "store", "shared"),
        "shared store passes": total("passes", "store", "shared"),
        "shared atomic passes": total("passes", "atomic", "shared"),
        "async copy passes": total("passes", "async copy"),
        "shared conflicts": sum(line["passes"] - line["passes_needed"] for line in lines
                                if line["what"] in ("load", "store", "atomic", "async copy")
                                and line["space"] != "remote"),
        "remote requests": total("times", "load", "remote") + total("times", "store", "remote"),
        "shuffles": total("times", "shuffle", "shared"),
        "barriers": total("times", "barrier", "shared"),
        "sectors held by L1": sum(line["held_by_l1"] for line in lines),
        "sectors held by L2": sum(line["held_by_l2"] for line in lines),
        "sectors read once": launch["sectors_read_once"],
        "sectors written once": launch["sectors_written_once"],
        **(links if "gpu" in launch else {}),
    }


# --- The page ---


def number(value):
    """12345678 -> '12 345 678'"""
    return f"{round(value):,}".replace(",", " ")


def megabytes(count):
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{number(count)} bytes"


def each(value):
    return f"{value:.1f}".removesuffix(".0")


def words_of(line):
    """What a line of the account says, in columns: what, how many, what each costs."""
    what, times = line["what"], line["times"]
    if what in ("shuffle", "warp sync"):
        return f"{what}s" if what == "shuffle" else "warp syncs", number(times), ""
    if what == "barrier":
        return "barriers", number(times), "one for all warps of a block"
    if what in ("bulk load", "bulk store", "remote store"):
        of = f" of {line['tensor']}" if "tensor" in line else ""
        return f"{what}s{of}", number(times), f"{megabytes(line['bytes'])} in all"
    if line["space"] == "shared":
        conflicts = "" if line["passes"] == line["passes_needed"] else (
            f", where {each(line['passes_needed'] / times)} would do without bank conflicts")
        return f"{what} shared", number(times), f"{amount(line['passes'] / times, 'pass', 'es')} each{conflicts}"
    if line["space"] == "remote":
        return f"{what} in another block", number(times), ""
    cost = f"{amount(line['sectors'] / times, 'sector')} each, "
    if what == "atomic":
        meeting = line["meeting"] / times
        alone = "each lane at an address of its own"
        return f"{what} {line['tensor']}", number(times), cost + (alone if meeting == 1 else
                                                                  f"{each(meeting)} lanes at one address")
    cost += f"{useful(line):.0%} of {'it' if cost.startswith('1 ') else 'them'} useful"
    if line.get("link_bytes"):
        cost += f", {megabytes(line['link_bytes'])} across links"
    return f"{what} {line['tensor']}", number(times), cost


def amount(value, word, plural="s"):
    """'1 sector', '2.9 sectors'"""
    return f"{each(value)} {word}{'' if each(value) == '1' else plural}"


def useful(line):
    return line["bytes"] / (line["sectors"] * SECTOR) if line["sectors"] else 1.0


def merged(lines, key):
    """Lines of the account that would read alike, as one."""
    sums = {}
    for line in lines:
        name = (key(line), line["what"], line["space"], line.get("tensor"), bool(line.get("link_bytes")))
        if name in sums:
            sums[name] = {**line, **{count: sums[name][count] + line[count] for count in COUNTS if count in line}}
        else:
            sums[name] = line
    return sums


def page(record, helpers=False):
    """The source with its counts, and the totals below."""
    out = [f"{record['chapter']} · {record['words']}"]
    for launch in record["launches"]:
        out += ["", *heading(launch)]
        if not launch.get("gpu"):  # the source once, beside the counts of the first GPU
            out += [*annotated(launch, helpers), ""]
        out += summary(launch, record.get("problem", {}).get("rows", 1))
    if not record["launches"]:
        out += ["", "It launches no kernel."]
    if record["fault"]:
        out += ["", f"The kernel did not end, and the counts stop there: {record['fault']}"]
    elif record.get("ended"):
        out += ["", f"The program ended {record['ended']}. The counts are those until then."]
    elif not record["passed"]:
        out += ["", "The outputs are wrong: make run says where. The counts are those of the code as it is."]
    return "\n".join(out)


def heading(launch):
    grid = " × ".join(str(n) for n in launch["grid"] if n != 1) or "1"
    block = " × ".join(str(n) for n in launch["block"] if n != 1) or "1"
    text = f"{launch['kernel']}, {grid} block{'s' * (grid != '1')} of {block} threads"
    if "gpu" in launch:
        text = f"GPU {launch['gpu']}: {text}"
    if launch["cluster"] > 1:
        text += f", clusters of {launch['cluster']}"
    lines = [text]
    if launch["blocks_counted"] < launch["blocks"]:
        few, many = launch["fewest_of_a_block"], launch["most_of_a_block"]
        spread = "all alike" if few == many else f"with {number(few)} to {number(many)} operations each"
        lines.append(f"{launch['blocks_counted']} of the {number(launch['blocks'])} blocks were counted, {spread}; "
                     "the figures are scaled to all of them.")
    return lines


def annotated(launch, helpers):
    out = []
    for file in dict.fromkeys(line["file"] for line in launch["lines"]):
        lines = [line for line in launch["lines"] if line["file"] == file]
        if not (ROOT / file).is_file():
            out += ["", "elsewhere:", *(note(line) for line in lines)]
            continue
        source = (ROOT / file).read_text(encoding="utf-8").splitlines()
        by_line = {}
        key = (lambda line: (line["line"], line.get("helper"))) if helpers else (lambda line: line["line"])
        for line in merged(lines, key).values():
            by_line.setdefault(line["line"], []).append(line)
        out += ["", f"{file}"]
        shown = 0
        for first, last in items(source, by_line):
            if shown and first > shown + 1:
                out.append("    …")
            for i in range(first, last + 1):
                out.append(f"{i:4} │ {source[i - 1]}".rstrip())
                for line in by_line.get(i, ()):
                    out.append(note(line) + (f"   [{line['helper']}]" if helpers and "helper" in line else ""))
            shown = last
    return out


def note(line):
    what, times, cost = words_of(line)
    return f"     ·   {what:<24} {times:>11}   {cost}".rstrip()


def items(source, by_line):
    """(first, last) line of each item of the source that has counts: what stands in no braces but a namespace's. A line
    with counts that is in none, as in a macro, is shown alone."""
    found, first = [], 1
    opened, before = [], ""  # whether each brace is a namespace's; the code since the last brace or semicolon
    for i, text in enumerate(blanked("\n".join(source)).split("\n"), start=1):
        ends = False
        for character in f"{text}\n":
            if character == "{":
                opened.append(re.search(r"\b(namespace[\w\s:]*|extern\s*)$", before) is not None)
            if character == "}" and opened:
                ends |= not opened.pop()
            before = "" if character in "{};" else before + character
        if all(opened) and ends:
            if any(first <= line <= i for line in by_line):
                found.append((first, i))
            first = i + 1
        elif all(opened) and not source[i - 1].strip():
            first = i + 1
    alone = [line for line in by_line if not any(first <= line <= last for first, last in found)]
    return sorted(found + [(line, line) for line in alone if 1 <= line <= len(source)])


def summary(launch, rows):
    lines = [line for line in launch["lines"] if line["space"] == "device"]
    asked = sum(line["sectors"] for line in lines if line["what"] in ("load", "async copy", "bulk load")) * SECTOR
    l1 = sum(line["held_by_l1"] for line in lines) * SECTOR
    l2 = sum(line["held_by_l2"] for line in lines) * SECTOR
    stored = sum(line["sectors"] for line in lines if line["what"] in ("store", "bulk store")) * SECTOR
    added = sum(line["sectors"] for line in lines if line["what"] == "atomic") * SECTOR
    read_once, written_once = launch["sectors_read_once"] * SECTOR, launch["sectors_written_once"] * SECTOR
    out = []
    if asked:
        part = f"{launch['l1_bytes_a_block'] >> 10} KB"
        out += [
            f"  loads ask for     {megabytes(asked):>14}   each sector once: {megabytes(read_once)}",
            f"    L1 has          {megabytes(l1):>14}   with {part} for each block",
            f"    L2 has          {megabytes(l2):>14}",
            f"    from memory     {megabytes(asked - l1 - l2):>14}",
        ]
    if stored:
        out.append(f"  stores write      {megabytes(stored):>14}   each sector once: {megabytes(written_once)}")
    if added:
        out.append(f"  atomics update    {megabytes(added):>14}")
    if crossing := launch["totals"].get("link bytes"):
        out.append(f"  across links      {megabytes(crossing):>14}   {each(crossing / rows)} bytes a row, in "
                   f"{number(launch['totals']['link requests'])} requests")
    return out


MODEL = """\
L1 and L2 by a small model of an H100. L1 is what shared memory leaves of 256 KB, in equal parts for the blocks
that a multiprocessor holds; a part keeps a sector until as many others came in as it has room for. What
another block has read, the first block of each multiprocessor gets from L2, the others from L1. L2 keeps all
that the launch touches, and what it writes, where its tensors fit in 50 MB; else it follows L1's rule, in equal
parts for all blocks that run at once. Stores go through to L2."""


# --- The program ---


def table(records):
    """All chapters, a line for each kernel."""
    heads = ("chapter", "kernel", "loads", "sectors each", "stores", "sectors each", "atomics", "conflicts", "barriers")
    rows = [heads]
    for record in records:
        for launch in record["launches"]:
            sums = launch["totals"]
            ratio = {kind: each(sums[f"{kind} sectors"] / sums[f"{kind} requests"]) if sums[f"{kind} requests"] else "–"
                     for kind in ("load", "store")}
            name = launch["kernel"].split("::", 1)[-1].split("<")[0]
            rows.append((record["chapter"], name, number(sums["load requests"]), ratio["load"],
                         number(sums["store requests"]), ratio["store"], number(sums["atomic requests"]),
                         number(sums["shared conflicts"]), number(sums["barriers"])))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def main(argv):
    options, arguments = parse(argv, __doc__, [
        ("--helpers", {"action": "store_true", "help": "name the helper's line where a cost arises in one"})])
    try:
        records = [resolve(record, lines) for record, lines in ask(options.program, "count", arguments)]
        if options.json:
            with open(options.json, "a", encoding="utf-8") as out:
                out.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    except (WatchError, OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    if len(records) == 1:
        print(page(records[0], options.helpers))
        print()
        print(MODEL)
    else:
        print(records[0]["words"])
        print(table(records))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
