"""make trace: what the trace of a block says of kernels whose turns are known."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 1_000_000
ALL_LANES = 0xFFFFFFFF


@pytest.fixture
def ask(programs, tmp_path):
    """A function that runs the front end on a chapter: (what it ended with, the trace's file)."""

    def run(chapter, *arguments, schedule="forward"):
        file = tmp_path / "trace.json"
        file.unlink(missing_ok=True)
        done = subprocess.run([sys.executable, "-m", "common.watch.trace", programs[chapter], "--json", file,
                               *map(str, arguments)], cwd=ROOT, capture_output=True, encoding="utf-8",
                              env={**os.environ, "SIMT_SCHEDULE": schedule}, check=False)
        return done, file

    return run


@pytest.fixture
def trace(ask):
    """A function that traces a chapter, and checks what holds of every trace."""

    def run(chapter, *arguments, **options):
        done, file = ask(chapter, *arguments, **options)
        assert done.returncode == 0, done.stderr
        found = json.loads(file.read_text(encoding="utf-8"))
        check_form(found)
        return found

    return run


def check_form(trace):
    for launch in trace["launches"]:
        for i, event in enumerate(launch["events"]):
            assert event["do"]
            assert 0 <= event.get("warp", 0) < launch["warps"], event
            if "code" in event:
                assert launch["code"][event["code"]], event
            for where in ("in", "to_in"):
                assert where not in event or event[where] in trace["memory"], event
            since = event.get("since", [])
            for begun in since if isinstance(since, list) else [since]:
                assert launch["events"][begun]["do"] == "wait" and begun < i, event


def events_of(trace, launch=0, **fields):
    """[(number, event), …] of a launch, of those that have these fields."""
    return [(i, event) for i, event in enumerate(trace["launches"][launch]["events"])
            if all(event.get(key) == value for key, value in fields.items())]


def source_of(trace, event, launch=0):
    code = trace["launches"][launch]["code"][event["code"]]
    return trace["source"]["lines"][code["line"] - 1], code.get("text", "")


def lanes_of(event):
    return [lane for lane in range(32) if event.get("lanes", ALL_LANES) >> lane & 1]


# --- Requests ---


def test_a_warp_of_fwd02_walks_its_row_side_by_side(trace):
    found = trace("fwd02", "--rows", 4, "--cols", 64)
    launch = found["launches"][0]
    assert launch["warps"] == 4 and launch["block"] == [128, 1, 1] and found["memory"]["x"]["shape"] == [4, 64]
    for warp in range(4):
        first, second, *rest = [event for _, event in events_of(found, warp=warp)]
        for request, at in ((first, 0), (second, 32)):
            assert "sum += to_float(x[col]);" in source_of(found, request)[0]
            assert {**request, "code": 0} == {"warp": warp, "code": 0, "do": "load", "in": "x", "at": 64 * warp + at,
                                              "step": 1, "each": 4}
        shuffles, rest = rest[:5], rest[5:]
        assert [(event["do"], event["xor"]) for event in shuffles] == [("shuffle", k) for k in (16, 8, 4, 2, 1)]
        line, helper = source_of(found, shuffles[0])
        assert "const float mean = warp_sum(sum)" in line and "__shfl_xor_sync" in helper
        assert [event["at"] for event in rest if event.get("in") == "x"] == [64 * warp, 64 * warp + 32] * 2
        last = rest[-3:]
        assert [(event["do"], event.get("in"), event.get("at"), lanes_of(event)) for event in last[:2]] \
            == [("store", "mean", warp, [0]), ("store", "rstd", warp, [0])]
        assert last[2] == {"warp": warp, "do": "exit"}


def test_the_lanes_of_fwd01_are_a_row_apart(trace):
    found = trace("fwd01", "--rows", 40, "--cols", 16)
    requests = [event for _, event in events_of(found, warp=0, do="load")]
    assert "sum += to_float(x[col]);" in source_of(found, requests[0])[0]
    assert [(event["in"], event["at"], event["step"]) for event in requests[:16]] == [("x", col, 16) for col in range(16)]
    assert all("lanes" not in event for event in requests)
    assert lanes_of(events_of(found, warp=1, do="load")[0][1]) == list(range(8))  # rows 32 to 39
    assert events_of(found, warp=2) == [(i, {"warp": 2, "do": "exit"}) for i, _ in events_of(found, warp=2)]


def test_what_lanes_touch_is_what_the_operator_needs(trace):
    found = trace("fwd03", "--block", 2, "--rows", 3, "--cols", 37)
    for do, name, times in (("load", "x", 3), ("load", "weight", 1), ("store", "y", 1)):
        touched = sorted(event["at"] + event.get("step", 0) * (lane - lanes_of(event)[0])
                         for _, event in events_of(found, do=do, **{"in": name}) for lane in lanes_of(event))
        first = 0 if name == "weight" else 2 * 37
        assert touched == sorted(times * list(range(first, first + 37))), name


def test_lanes_that_are_not_evenly_apart_are_listed(trace):
    found = trace("lib_fwd_ring", "--rows", 1, "--cols", 4096)  # eight warps, whose partial sums each warp reads four times
    of_sums, of_pairs = ([event["at"] for _, event in events_of(found, do="load", **{"in": name})]
                         for name in ("partial", "partial'"))  # the mean's, then two about it, in the other place
    assert of_sums == 8 * [4 * list(range(0, 32, 4))]
    assert of_pairs == 8 * [4 * list(range(64, 128, 8))]


def test_the_schedule_decides_whose_turn_it_is(trace):
    turns = {schedule: [event["warp"] for _, event in events_of(trace("fwd02", schedule=schedule), do="exit")]
             for schedule in ("forward", "reverse")}
    assert turns == {"forward": [0, 1, 2, 3], "reverse": [3, 2, 1, 0]}


# --- Barriers and waits ---


def test_the_two_barriers_of_a_block_sum(trace):
    found = trace("fwd03", "--rows", 4, "--cols", 128)
    events = found["launches"][0]["events"]
    barriers = events_of(found, do="barrier")
    lines = [source_of(found, event) for _, event in barriers]
    assert len(barriers) == 4  # two of each sum
    for sum_of, first, second in (("(sum)", *lines[:2]), ("(squares)", *lines[2:])):
        assert sum_of in first[0] and sum_of in second[0]
        assert "every partial is written before one is read" in first[1]
        assert "every partial is read before the next call writes one" in second[1]
    for number, event in barriers:
        waits = [events[i] for i in event["since"]]
        assert [wait["warp"] for wait in waits] == list(range(8))
        assert all(wait["for"] == "block barrier" and "lanes" not in wait and wait["code"] == event["code"]
                   for wait in waits)
        for warp, since in enumerate(event["since"]):  # who waits does nothing
            assert not [other for other in events[since + 1:number] if other.get("warp") == warp]
    assert found["memory"]["partial"] == {"space": "shared", "shape": [32], "element_bytes": 1}
    stores = events_of(found, do="store", **{"in": "partial"})
    loads = events_of(found, do="load", **{"in": "partial"})
    assert sorted(event["at"] for _, event in stores[:8]) == list(range(0, 32, 4))
    assert all(lanes_of(event) == [0] for _, event in stores)
    assert all((event["at"], event["step"], lanes_of(event)) == (0, 4, list(range(8))) for _, event in loads)
    numbers = [number for number, _ in barriers]
    for i in range(2):
        written = [number for number, _ in stores[8 * i:8 * i + 8]]
        read = [number for number, _ in loads[8 * i:8 * i + 8]]
        assert max(written) < numbers[2 * i] < min(read) <= max(read) < numbers[2 * i + 1]


def test_a_slot_of_the_ring_of_fwd08_is_asked_for_filled_and_read(trace):
    rows, stages, cols = 24, 3, 256
    found = trace("fwd08", "--rows", rows, "--cols", cols, "--blocks", 1)
    copies = events_of(found, do="bulk load")
    assert sorted(event["at"] for _, event in copies) == [cols * row for row in range(rows)]
    barriers = found["launches"][0]["mbarriers"]
    assert len(barriers) == stages and {barrier["in"] for barrier in barriers} == {"full"}
    for number, copy in copies:
        assert copy["bytes"] == 4 * cols and copy["to_in"] == "dynamic"
        (arrives, _), = events_of(found, do="copy arrives", copy=copy["copy"])
        of_slot = {"mbarrier": copy["mbarrier"]}
        completes = min(i for i, _ in events_of(found, do="complete", **of_slot) if i > number)
        after = events_of(found, do="go on", warp=copy["warp"], **of_slot)
        goes_on, end = min((pair for pair in after if pair[0] > number),
                           key=lambda pair: pair[0])
        reads = min(i for i, event in events_of(found, do="load", **{"in": "dynamic"})
                    if i > goes_on and event["at"] == copy["to_at"])
        assert number < arrives < completes < goes_on < reads
        assert end["from"] == "mbarrier" and "lanes" not in end
        assert end["since"] < arrives  # in a forward order nothing arrives before all wait
        again = [i for i, event in copies if i > number and event["to_at"] == copy["to_at"]]
        assert not again or reads < min(again)


def test_copies_of_lanes_and_their_wait(trace):
    found = trace("bwd11", "--rows", 8, "--cols", 4096)
    number, copy = events_of(found, do="async copy", warp=0)[0]
    assert (copy["in"], copy["at"], copy["step"], copy["each"]) == ("x", 0, 4, 16)
    assert (copy["to_in"], copy["to_step"]) == ("dynamic", 16)
    waited = [i for i, _ in events_of(found, do="go on", warp=0, **{"from": "async copies"})]
    read = [i for i, event in events_of(found, do="load", warp=0, **{"in": "dynamic"}) if event["at"] == copy["to_at"]]
    assert number < events_of(found, do="commit", warp=0)[0][0] < waited[0] < read[0]


def test_another_block_of_the_cluster_is_named(trace):
    for block, other in ((0, 1), (1, 0)):
        found = trace("fwd09", "--block", block)
        places = {event["to_in"] for _, event in events_of(found, do="remote store")}
        assert places == {"received", f"received of block {other}"}
        assert found["memory"][f"received of block {other}"]["space"] == "remote"
        assert events_of(found, do="copy arrives", **{"from": "another block"})
        assert {event["for"] for _, event in events_of(found, do="wait")} <= {"cluster", "mbarrier", "bulk stores"}


def test_each_launch_that_has_the_block_is_traced(trace):
    found = trace("bwd02", "--block", 1, "--rows", 8)
    assert [(launch["blocks"], bool(launch["events"])) for launch in found["launches"]] == [(1, False), (2, True)]


# --- The record, the log, and what is refused ---


def test_the_trace_stands_alone_and_the_log_tells_its_beginning(ask):
    done, file = ask("fwd02")
    found = json.loads(file.read_text(encoding="utf-8"))
    source = (ROOT / "chapters/fwd02_warp_per_row/kernel.cu").read_text(encoding="utf-8")
    assert found["source"] == {"path": "chapters/fwd02_warp_per_row/kernel.cu", "lines": source.splitlines()}
    assert (found["problem"]["rows"], found["problem"]["cols"]) == (4, 128)  # where none is asked for
    assert found["ended"] == "" and "one order of many" in found["order"]
    assert found["memory"]["bias"] == {"space": "device", "shape": [128], "element_bytes": 4, "starts_at": 0}
    line = 1 + next(i for i, text in enumerate(source.splitlines()) if "sum += to_float" in text)
    shown = done.stdout.splitlines()
    assert f"      0     0  {line:4}   load x[0, 0…31]: 4 sectors" in shown
    events = len(found["launches"][0]["events"])
    assert f"      …  {events - 40} more events" in shown
    assert found["order"] in " ".join(shown) and shown[-1].startswith(f"All of it is in {file}")


def test_a_misaligned_tensor_says_where_it_starts(trace):
    found = trace("fwd02", "--cols", 33, "--misalign", 1)
    assert found["memory"]["x"]["starts_at"] == 4


def test_a_trace_that_would_pass_its_limit_ends_there_and_says_so(ask):
    done, file = ask("fwd02", "--rows", 4, "--cols", 1 << 15)
    assert LIMIT - 200 < file.stat().st_size <= LIMIT
    found = json.loads(file.read_text(encoding="utf-8"))
    check_form(found)
    assert found["ended"] == "the trace ends here: 1 MB is full"
    assert "The trace ends here: 1 MB is full." in done.stdout
    assert found["launches"][0]["events"][-1]["do"] != "exit"


@pytest.mark.parametrize("arguments, words", [
    (["--block", 7], "fwd02 has no block 7 on .*: --block 0 is its only one"),
    (["--block", 2, "--rows", 8], "fwd02 has no block 2 on .*: --block takes 0 to 1"),
    (["--block", "x"], "--block takes the number of a block, from 0 on, not 'x'"),
    (["--block=-1"], "--block takes the number of a block, from 0 on, not '-1'"),
    (["--set", "progression"], "make trace takes one problem, not a --set.*"),
])
def test_what_cannot_be_traced_is_refused_in_a_sentence(ask, arguments, words):
    done, file = ask("fwd02", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(words + "\n", done.stderr)
    assert not file.exists()
