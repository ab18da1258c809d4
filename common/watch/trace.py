#!/usr/bin/env python3
"""What the warps of one block do, turn by turn, as the SIMT machine lets them.

    make trace CH=fwd02                                          block 0 on 4 rows of 128 columns
    make trace CH=fwd02 ARGS="--block 1 --rows 8 --cols 64"
    make trace CH=fwd02 ARGS="--json mine.json"                  else build/traces/fwd02.json

It prints the first events and writes all of them as JSON, 1 MB at most: requests with their lanes' elements,
shuffles, barriers, waits and their ends, copies begun and arrived. common/watch/README.md has its format.

The machine runs a warp until all its lanes wait, then the next. That is one order of many: what two warps do
between two barriers, a GPU may do in any.

Other arguments are those of the chapter's program; -h lists them.
"""

import json
import subprocess
import sys
import textwrap
from bisect import bisect_right
from pathlib import Path

from common.watch.front import ask, parse
from common.watch.lines import ROOT, WatchError

LIMIT = 1_000_000  # bytes of JSON
SHOWN = 40  # events that are printed
SECTOR = 32  # bytes
ALL_LANES = 0xFFFFFFFF
SMALL = {"--rows": "4", "--cols": "128"}  # the problem, where none is asked for
MACHINE = "common/simt/"  # its files are no lines of a kernel
ORDER = ("The machine runs a warp until all its lanes wait, then the next. This is one order of many: what two warps "
         "do between two barriers, a GPU may do in any.")
PLACES = (("in", "at"), ("to_in", "to_at"))  # the fields of an event that say where in memory


# --- From what was seen to a trace ---


def trace_of(record, lines, shared):
    """The record that is written, without regard to its size. `shared`: the Shared of the program."""
    seen = record["seen"]
    path = record["source"]
    memory = seen["memory"]
    launches = []
    for launch in seen["launches"]:
        for holder in (*launch["events"], *launch["mbarriers"]):
            name_shared(holder, memory, launch, shared)
        code = [code_line(entry["place"], lines, path) for entry in launch["code"]]
        fields = ("kernel", "grid", "block", "cluster", "shared_bytes", "blocks", "warps")
        launches.append({**{key: launch[key] for key in fields}, "mbarriers": launch["mbarriers"], "code": code,
                         "events": launch["events"]})
    kept = ("schema", "mode", "chapter", "direction", "problem", "words")
    return {**{key: record[key] for key in kept if key in record}, "block": seen["block"], "order": ORDER,
            "ended": seen["ended"], "fault": record["fault"], "memory": memory,
            "source": {"path": path, "lines": (ROOT / path).read_text(encoding="utf-8").splitlines()},
            "launches": launches}


def code_line(place, lines, source):
    """The line of the kernel's source, and that of the helper which it calls, if it does."""
    frames = [frame for frame in lines.frames(place) if not frame.file.startswith(MACHINE)]
    entry = {"line": lines.line_in(source, place)}
    inner = frames[0] if frames else None
    if inner and (inner.file, inner.line) != (source, entry["line"]):
        entry["helper"] = f"{inner.file}:{inner.line}"
        entry["text"] = line_of(inner.file, inner.line)
    return entry


def line_of(file, number):
    path = ROOT / file
    if not path.is_file():
        return ""
    lines = path.read_text(encoding="utf-8").splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def name_shared(holder, memory, launch, shared):
    """Gives shared memory its name in an event or a barrier, and an entry in the table of memory."""
    for where, at in PLACES:
        if where not in holder or holder[where] in memory:
            continue
        kind, _, block = holder[where].partition(" of block ")
        name, size = "dynamic", launch["shared_bytes"]
        if kind == "static":
            offsets = holder[at] if isinstance(holder[at], list) else [holder[at]]
            name, begin, size = shared.find(offsets[0])
            moved = [offset - begin for offset in offsets]
            holder[at] = moved if isinstance(holder[at], list) else moved[0]
        name = f"{name} of block {block}" if block else name
        holder[where] = name
        memory.setdefault(name, {"space": "remote" if block else "shared", "shape": [size], "element_bytes": 1})


class Shared:
    """The program's __shared__ variables, which are thread-local ones of C++."""

    ANCHOR = "threadIdx"  # the machine gives places by their distance from it

    def __init__(self, program):
        try:
            said = subprocess.run(["readelf", "--wide", "--syms", "--demangle", str(program)], check=True,
                                  capture_output=True, encoding="utf-8").stdout
        except (OSError, subprocess.CalledProcessError):
            said = ""  # names are missing then, no more
        symbols = {}
        for words in map(str.split, said.splitlines()):
            if len(words) > 7 and words[3] == "TLS" and words[6] != "UND":
                symbols[int(words[1], 16)] = (" ".join(words[7:]), int(words[2], 0))
        anchor = next((begin for begin, (name, _) in symbols.items() if name == self.ANCHOR), 0)
        self._variables = sorted((begin - anchor, name, size) for begin, (name, size) in symbols.items())
        self._names = {}  # of those that were asked for

    def find(self, offset):
        """(name, begin, size) of the variable that holds the place."""
        i = bisect_right(self._variables, offset, key=lambda variable: variable[0]) - 1
        if i < 0 or offset >= self._variables[i][0] + self._variables[i][2]:
            return "static", 0, 0
        begin, symbol, size = self._variables[i]
        if begin not in self._names:
            name = symbol.rpartition("::")[2].partition("[abi")[0]
            taken = sum(other.partition("'")[0] == name for other in self._names.values())
            self._names[begin] = name + "'" * taken  # two functions may each have one of the name
        return self._names[begin], begin, size


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def text_of(trace):
    """The trace as JSON, an event a line, and what fits of it if that is too long; `ended` says so then."""
    without = {**trace, "launches": [{**launch, "events": []} for launch in trace["launches"]]}
    room = LIMIT - len(compact(without).encode()) - 2 * len(END) - 2 * len(trace["launches"])
    for launch in trace["launches"]:
        kept = 0
        for event in launch["events"]:
            room -= len(compact(event).encode()) + 2  # a comma and a line's end
            if room < 0:
                trace["ended"] = "1 MB is full"
                break
            kept += 1
        launch["events"] = launch["events"][:kept]
    if trace["ended"]:
        trace["ended"] = END + trace["ended"]
    events = "\n@events@\n"
    text = compact({**trace, "launches": [{**launch, "events": events} for launch in trace["launches"]]})
    for launch in trace["launches"]:
        text = text.replace(compact(events), "[\n" + ",\n".join(map(compact, launch["events"])) + "]", 1)
    return text + "\n"


END = "the trace ends here: "


# --- The log ---


def lanes_of(event):
    mask = event.get("lanes", ALL_LANES)
    return [lane for lane in range(32) if mask >> lane & 1]


def elements_of(event, prefix=""):
    """[the number of the element that a lane begins at, …], in the order of the lanes."""
    at, lanes = event[f"{prefix}at"], lanes_of(event)
    if isinstance(at, list):
        return at
    return [at + event.get(f"{prefix}step", 0) * (lane - lanes[0]) for lane in lanes]


def sectors_of(event, memory):
    """The sectors of device memory that a request names, by their numbers in the tensor's lines."""
    tensor = memory[event["in"]]
    sectors = set()
    for element in elements_of(event):
        begin = tensor["starts_at"] + element * tensor["element_bytes"]
        sectors.update(range(begin // SECTOR, (begin + event["each"] - 1) // SECTOR + 1))
    return sorted(sectors)


def index_of(element, tensor):
    shape = tensor["shape"]
    return f"{element // shape[1]}, {element % shape[1]}" if len(shape) == 2 else f"{element}"


def spots(event, memory, prefix=""):
    """x[0, 0…31], partial + 4"""
    name = event[f"{prefix}in"]
    tensor = memory.get(name, {"shape": [0], "element_bytes": 1, "space": "device"})
    elements = elements_of(event, prefix)
    if isinstance(event[f"{prefix}at"], list):  # not evenly apart
        some = ", ".join(index_of(element, tensor) for element in elements[:3])
        return f"{name} at {some}" + (", …" if len(elements) > 3 else "")
    if tensor["element_bytes"] == 1:
        return f"{name} + {elements[0]}" + (f"…{elements[-1]}" if elements[-1] != elements[0] else "")
    last = max(elements) + event.get("each", tensor["element_bytes"]) // tensor["element_bytes"] - 1
    if event.get("bytes"):
        last = elements[0] + event["bytes"] // tensor["element_bytes"] - 1
    first = index_of(elements[0], tensor)
    if last == elements[0]:
        return f"{name}[{first}]"
    if len(tensor["shape"]) == 2 and last // tensor["shape"][1] != elements[0] // tensor["shape"][1]:
        return f"{name}[{first}] … {name}[{index_of(last, tensor)}]"
    return f"{name}[{first}…{last % tensor['shape'][-1]}]"


def lanes_in_words(event):
    lanes = lanes_of(event)
    if len(lanes) == 32:
        return ""
    if len(lanes) == 1:
        return f", lane {lanes[0]}"
    if lanes == list(range(lanes[0], lanes[-1] + 1)):
        return f", lanes {lanes[0]}–{lanes[-1]}"
    return f", {len(lanes)} lanes"


def says(event, memory):
    """An event in words."""
    do = event["do"]
    lanes = lanes_in_words(event) if "warp" in event else ""
    of = f" {event['mbarrier']}" if "mbarrier" in event else ""
    if do in ("load", "store", "atomic"):
        on_device = memory.get(event["in"], {}).get("space") == "device"
        cost = f": {plural(len(sectors_of(event, memory)), 'sector')}" if on_device else ""
        return f"{do} {spots(event, memory)}{lanes}{cost}"
    if do == "shuffle":
        how = next((f" {key} {event[key]}" for key in ("xor", "up", "down") if key in event), "")
        return f"shuffle{how}{lanes}"
    if do in ("bulk load", "bulk store", "remote store", "async copy"):
        source = spots(event, memory) if "in" in event else "a register"
        number = f" {event['copy']}" if "copy" in event else ""
        return f"begins {do}{number}: {source} to {spots(event, memory, 'to_')}{lanes}"
    if do == "copy arrives":
        return f"copy {event['copy']} arrives" if "copy" in event else "a copy from another block arrives"
    if do == "wait":
        return f"waits: {event['for']}{of}{lanes}"
    if do == "go on":
        how = f"goes on, has waited since {event['since']}" if "since" in event else "goes on without a wait"
        but = f" but the last {event['but']}" if event.get("but") else ""
        return f"{how}: {event['from']}{of}{but}{lanes}"
    if do == "barrier":
        return "all threads have met at the barrier"
    if do in ("init", "arrive", "complete"):
        return {"init": "sets up mbarrier", "arrive": "arrives at mbarrier", "complete": "completes mbarrier"}[do] \
            + of + lanes
    if do == "fence":
        return f"fence for {event['for']}{lanes}"
    return do + lanes


def plural(count, word):
    return f"{count} {word}{'' if count == 1 else 's'}"


def log(trace):
    """The first events, a line each."""
    out = [f"{trace['chapter']} · {trace['words']}"]
    left = SHOWN
    for launch in trace["launches"]:
        if trace["block"] >= launch["blocks"]:
            out += ["", f"{launch['kernel']} has no block {trace['block']}"]
            continue
        out += ["", f"{launch['kernel']}, block {trace['block']} of {launch['blocks']}: "
                    f"{plural(launch['warps'], 'warp')}, {plural(len(launch['events']), 'event')}"]
        if left:
            out.append("  event  warp  line")
        for i, event in enumerate(launch["events"][:left]):
            code = launch["code"][event["code"]] if "code" in event else {"line": 0}
            helper = f"   [{code['helper']}]" if "helper" in code else ""
            line = code["line"] or ""
            out.append(f"{i:7}  {event.get('warp', ''):>4}  {line:>4}   {says(event, trace['memory'])}{helper}")
        if len(launch["events"]) > left:
            out.append(f"      …  {plural(len(launch['events']) - left, 'more event')}")
        left = max(left - len(launch["events"]), 0)
    out += ["", *textwrap.wrap(trace["order"], 100)]
    if trace["fault"]:
        out.append(f"The kernel did not end: {trace['fault']}")
    if trace["ended"]:
        out.append(trace["ended"][0].upper() + trace["ended"][1:] + ".")
    return "\n".join(out)


# --- The program ---


def with_small_problem(arguments):
    """The arguments, with a small problem where they name none."""
    if any(word.split("=")[0] == "--set" for word in arguments):
        return arguments
    asked = {word.split("=")[0] for word in arguments}
    return arguments + [word for option, value in SMALL.items() if option not in asked for word in (option, value)]


def refusal_of_block(record):
    """Why no launch has the block that was asked for, as a sentence; None where one has."""
    launches = record["seen"]["launches"]
    if any(launch["traced"] for launch in launches) or record["fault"]:
        return None
    most = max((launch["blocks"] for launch in launches), default=0)
    which = "--block 0 is its only one" if most == 1 else f"--block takes 0 to {most - 1}" if most else "it has none"
    return f"{record['chapter']} has no block {record['seen']['block']} on {record['words']}: {which}"


def main(argv):
    options, arguments = parse(argv, __doc__, [
        ("--block", {"default": "0", "metavar": "N", "help": "of each launch, in the grid (default: 0)"})],
        json_help="where the trace goes (default: build/traces/CHAPTER.json)")
    if not options.block.isdecimal() or len(options.block) > 18:
        print(f"--block takes the number of a block, from 0 on, not '{options.block}'", file=sys.stderr)
        return 2
    try:
        (record, lines), *others = ask(options.program, "trace", with_small_problem(arguments), options.block)
        if others:
            raise WatchError("make trace shows one chapter: make trace CH=fwd02")
        if why := refusal_of_block(record):
            raise WatchError(why)
        show(trace_of(record, lines, Shared(options.program)), options.json)
    except (WatchError, OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def show(trace, json_file=None):
    """Prints the first events, and writes all of them."""
    text = text_of(trace)
    traces = ROOT / "build/traces"
    traces.mkdir(parents=True, exist_ok=True)
    file = Path(json_file or traces / f"{trace['chapter']}.json")
    file.write_text(text, encoding="utf-8")
    print(log(trace))
    shown = file.resolve()
    shown = shown.relative_to(ROOT) if shown.is_relative_to(ROOT) else shown
    print(f"{'What there is' if trace['ended'] else 'All of it'} is in {shown}, {len(text.encode()) / 1000:.0f} kB.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
