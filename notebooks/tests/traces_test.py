"""lab.traces: what it reads from a trace, and what it draws, of traces made up here."""

import pytest
from lab import traces
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

X = {"space": "device", "shape": [4, 16], "element_bytes": 4, "starts_at": 0}


def made_up(*events, **memory):
    return {"memory": {"x": X, "partial": {"space": "shared", "shape": [8], "element_bytes": 1},
                       "dynamic": {"space": "shared", "shape": [128], "element_bytes": 1}, **memory},
            "launches": [{"warps": 2, "events": list(events)}]}


def load(at, **fields):
    return {"warp": 0, "code": 0, "do": "load", "in": "x", "at": at, "each": 4, **fields}


def copy(number, at, slot):
    return {"warp": 0, "do": "bulk load", "copy": number, "in": "x", "at": at, "to_in": "dynamic", "to_at": 64 * slot,
            "bytes": 64, "mbarrier": slot}


def arrives(number):
    return {"do": "copy arrives", "copy": number}


def goes_on(slot):
    return {"warp": 0, "do": "go on", "from": "mbarrier", "mbarrier": slot}


def reads(slot):
    return {"warp": 1, "do": "load", "in": "dynamic", "at": 64 * slot + 32, "step": 4, "each": 4}


def colours(axes):
    return [to_hex(patch.get_facecolor()) for patch in axes.patches]


@pytest.mark.parametrize("event, elements", [
    (load(5, lanes=1), {0: 5}),
    (load(5, step=0, lanes=0b110), {1: 5, 2: 5}),
    (load(2, step=16, lanes=0b10110), {1: 2, 2: 18, 4: 50}),
    (load([9, 1], lanes=0b10001), {0: 9, 4: 1}),
])
def test_which_element_each_lane_has(event, elements):
    assert traces.elements_of(event) == elements


def test_all_lanes_take_part_where_none_is_named():
    assert traces.elements_of(load(0, step=1)) == {lane: lane for lane in range(32)}


def test_a_sector_is_32_bytes_of_memory_wherever_the_tensor_begins():
    request = load(0, step=1, lanes=0xFFFF)
    assert traces.sectors_of(made_up(), request) == {0: list(range(8)), 1: list(range(8, 16))}
    later = traces.sectors_of(made_up(x={**X, "starts_at": 4}), request)
    assert {sector: len(lanes) for sector, lanes in later.items()} == {0: 7, 1: 8, 2: 1}
    assert traces.sectors_of(made_up(), load(6, each=16, lanes=1)) == {0: [0], 1: [0]}  # across a boundary


def test_sectors_are_lit_and_each_lane_has_a_stripe():
    axes = Figure().subplots()
    assert traces.draw_sectors(axes, made_up(), load(0, step=16, lanes=0xF)) == 4
    cells, stripes = axes.patches[:8], axes.patches[8:]
    assert [to_hex(cell.get_facecolor()) == traces.LIT for cell in cells] == [True, False] * 4
    assert [(stripe.get_x(), round(stripe.get_y())) for stripe in stripes] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert {stripe.get_width() for stripe in stripes} == {1 / 8}


def test_a_warp_is_grey_from_its_wait_to_the_barrier():
    wait = {"do": "wait", "for": "block barrier"}
    trace = made_up(load(0), {"warp": 0, **wait}, {"warp": 1, "do": "shuffle", "xor": 16}, {"warp": 1, **wait},
                    {"do": "barrier", "since": [1, 3]}, {"warp": 0, "do": "exit"})
    axes = Figure().subplots()
    assert traces.draw_turns(axes, trace, 5, ["all are there"]) == [4]
    spans = [(patch.get_x(), patch.get_width()) for patch in axes.patches]
    assert spans == [(1, 3), (3, 1), (0, 1), (2, 1)]
    kinds = [traces.DOES[kind][0].lower() for kind in ("loads of x", "shuffles")]
    assert colours(axes) == [traces.WAITS] * 2 + kinds
    assert [text.get_text() for text in axes.texts] == ["all are there"]


def test_what_a_slot_holds_ends_where_it_is_asked_for_again():
    trace = made_up(copy(0, 0, 0), copy(1, 16, 1), arrives(0), goes_on(0), reads(0), reads(0), copy(2, 32, 0), arrives(1),
                    arrives(2), goes_on(1), reads(1), goes_on(0), reads(0), copy(3, 48, 0), arrives(3), goes_on(0), reads(0))
    assert traces.slots_of(trace, warp=0) == [(0, 0, 0, 2, 3, 5), (1, 16, 1, 7, 9, 10), (0, 32, 6, 8, 11, 12),
                                              (0, 48, 13, 14, 15, 16)]
    axes = Figure().subplots()
    traces.draw_slots(axes, trace)
    assert [text.get_text() for text in axes.texts] == [f"row {row}" for row in range(4)]
    widths = [patch.get_width() for patch in axes.patches]
    assert widths == [2, 1, 3, 6, 2, 2, 2, 3, 2, 1, 1, 2]
