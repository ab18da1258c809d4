"""The player of a trace, in a browser: what it shows of small traces written here, and of each chapter's where the
programs that watch are built.
"""

import json
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from common.book import traces

ROOT = Path(__file__).resolve().parents[3]
STATIC = ROOT / "common/book/static"
SCRIPTS = ("player_model.js", "player_words.js", "player_stage.js", "player.js")
PROGRAMS = ROOT / "build/cpu-watch/bin"
THEME = """body { margin: 1rem; font-family: sans-serif; background: var(--color-background-primary);
  color: var(--color-foreground-primary); --color-foreground-primary: black; --color-foreground-secondary: #5a5c63;
  --color-background-primary: white; --color-background-secondary: #f8f9fb; }
body[data-theme="dark"] { --color-foreground-primary: #cfd0d0; --color-foreground-secondary: #9ca0a5;
  --color-background-primary: #131416; --color-background-secondary: #1a1c1e; }"""


# --- Traces that are written by hand ---


def device(*shape):
    return {"space": "device", "shape": list(shape), "element_bytes": 4, "starts_at": 0}


def shared(size):
    return {"space": "shared", "shape": [size], "element_bytes": 1}


def trace(chapter, memory, events, warps=1, rows=32, cols=32):
    """A trace of one launch. Events name the line that they stand at as their code."""
    lines = [f"line {number};" for number in range(1, 101)]
    return {"chapter": chapter, "problem": {"rows": rows, "cols": cols, "dtype": "f32"}, "words": "", "block": 0,
            "order": "This is one order of many.", "ended": "", "fault": "", "left_out": "", "memory": memory,
            "source": {"path": "kernel.cu", "lines": lines},
            "launches": [{"kernel": f"{chapter}::kernel<float>", "grid": [1, 1, 1], "block": [32 * warps, 1, 1],
                          "cluster": 0, "shared_bytes": 0, "blocks": 1, "warps": warps, "mbarriers": [],
                          "code": [{"line": line, "helper": "helper.h:7", "text": "help();"} for line in range(101)],
                          "events": events}]}


def load(warp, name, at, code=10, **more):
    return {"warp": warp, "code": code, "do": "load", "in": name, "at": at, "each": 4, **more}


def store(warp, name, at, code=11, **more):
    return {**load(warp, name, at, code, **more), "do": "store"}


def wait_at_barrier(warp):
    return {"warp": warp, "code": 12, "do": "wait", "for": "block barrier"}


def apart():
    """Each lane in a row of its own."""
    events = [load(0, "x", col, step=16) for col in range(4)]
    return trace("apart", {"x": device(32, 16)}, [*events, {"warp": 0, "do": "exit"}], cols=16)


def side_by_side():
    """32 lanes in one row, then a butterfly."""
    events = [load(0, "x", 0, step=1), load(0, "x", 32, step=1)]
    events += [{"warp": 0, "code": 40, "do": "shuffle", "xor": far} for far in (16, 8, 4, 2, 1)]
    events += [store(0, "y", 0, 90, lanes=1), {"warp": 0, "do": "exit"}]
    return trace("side", {"x": device(1, 64), "y": device(1)}, events, rows=1, cols=64)


def barriers():
    """Three warps bring a word each to shared memory, read all three behind a barrier, and write behind another."""
    events = []
    for warp in range(3):
        events += [store(warp, "partial", 4 * warp, lanes=1), wait_at_barrier(warp)]
    events.append({"do": "barrier", "code": 12, "since": [1, 3, 5]})
    for warp in range(3):
        events += [load(warp, "partial", 0, 13, step=4, lanes=7), wait_at_barrier(warp)]
    events.append({"do": "barrier", "code": 12, "since": [8, 10, 12]})
    for warp in range(3):
        events += [store(warp, "partial", 4 * warp, lanes=1), {"warp": warp, "do": "exit"}]
    return trace("barriers", {"partial": shared(12)}, events, warps=3)


def ring():
    """Two slots of a row each, and three rows."""
    def ask(copy, slot):
        return {"warp": 0, "code": 20, "do": "bulk load", "copy": copy, "in": "x", "at": 32 * copy, "to_in": "slots",
                "to_at": 128 * slot, "bytes": 128, "mbarrier": slot, "lanes": 1}

    def use(copy, slot):
        wait = {"warp": 0, "code": 21, "do": "wait", "for": "mbarrier", "mbarrier": slot}
        return [wait, {"do": "copy arrives", "copy": copy}, {"do": "complete", "mbarrier": slot},
                {"warp": 0, "code": 21, "do": "go on", "from": "mbarrier", "mbarrier": slot, "since": 0},
                load(0, "slots", 128 * slot, 22, step=4)]

    events = [ask(0, 0), ask(1, 1), *use(0, 0), ask(2, 0), *use(1, 1), *use(2, 0), {"warp": 0, "do": "exit"}]
    return trace("ring", {"x": device(3, 32), "slots": shared(256)}, events, rows=3)


def copies_of_lanes():
    """cp.async: two groups on their way, then all but the last are there."""
    def ask(row):
        return {"warp": 0, "code": 20, "do": "async copy", "each": 4, "in": "x", "at": 32 * row, "step": 1,
                "to_in": "slots", "to_at": 128 * row, "to_step": 4}

    commit = {"warp": 0, "code": 20, "do": "commit", "copies": "async copies"}
    events = [ask(0), commit, ask(1), commit,
              {"warp": 0, "code": 21, "do": "go on", "from": "async copies", "but": 1}, load(0, "slots", 0, 22, step=4),
              {"warp": 0, "do": "exit"}]
    return trace("copies", {"x": device(2, 32), "slots": shared(256)}, events, rows=2)


def adds():
    """32 lanes add to one address, then each to its own."""
    return trace("adds", {"db": device(32)}, [{**load(0, "db", 3, step=0), "do": "atomic"},
                                             {**load(0, "db", 0, step=1), "do": "atomic"}, {"warp": 0, "do": "exit"}])


BY_HAND = (apart, side_by_side, barriers, ring, copies_of_lanes, adds)


def script_of(found):
    return f'(window.lncTraces ??= {{}})["{found["chapter"]}"] = {json.dumps(found)};\n'


# --- The browser ---


class Shown:
    """A page (see conftest.py) with players, and what a test asks of the first."""

    def __init__(self, page):
        self.page = page

    def __getattr__(self, name):
        return getattr(self.page, name)

    def text(self, selector):
        return self.script("return document.querySelector(arguments[0]).textContent", selector)

    def click(self, label):
        self.page.click(f'.player button[aria-label="{label}"]')

    def press(self, key, shift=False):
        keys = webdriver.ActionChains(self.driver)
        if shift:
            keys.key_down(Keys.SHIFT).send_keys(key).key_up(Keys.SHIFT).perform()
        else:
            keys.send_keys(key).perform()

    @property
    def at(self):
        return self.script("return document.querySelector('.player').player.at")

    def go(self, index):
        self.script("document.querySelector('.player').player.go(arguments[0])", index)
        return self

    def says(self):
        return self.text(".player-says")

    def html(self):
        return self.script("return document.querySelector('.player').innerHTML")


@pytest.fixture
def show(page, tmp_path):
    """show(apart()): a page with the player of a trace. show("fwd02", files=[…]): of a trace that is a file."""
    shown = Shown(page)

    def open_page(found, files=(), theme="light"):
        name = found if isinstance(found, str) else found["chapter"]
        if not isinstance(found, str):
            (tmp_path / "trace.js").write_text(script_of(found), encoding="utf-8")
            files = [tmp_path / "trace.js"]
        scripts = [*(Path(file).as_uri() for file in files), *((STATIC / script).as_uri() for script in SCRIPTS)]
        file = tmp_path / "page.html"
        file.write_text(f'<!doctype html><html lang="en"><meta charset="utf-8"><title>A player</title>'
                        f'<style>{THEME}</style><link rel="stylesheet" href="{(STATIC / "player.css").as_uri()}">'
                        + "".join(f'<script defer src="{script}"></script>' for script in scripts)
                        + f'<body data-theme="{theme}"><main><h1>A player</h1>'
                        f'<div class="player" data-trace="{name}"></div></main></body></html>', encoding="utf-8")
        shown.resize(1400)
        shown.driver.get(file.as_uri())
        return shown

    return open_page


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """{chapter: the file of its trace}, of each chapter whose program that watches is built."""
    if not PROGRAMS.is_dir():
        pytest.skip("no programs that watch are built here; `make trace CH=fwd02` builds one")
    out = tmp_path_factory.mktemp("traces")
    return {chapter: out / f"{chapter}.js" for chapter in traces.write(PROGRAMS, out)}


def trace_in(file):
    return json.loads(file.read_text(encoding="utf-8").partition('"] = ')[2].strip().removesuffix(";"))


def chapter_of(real, chapter):
    if chapter not in real:
        pytest.skip(f"no program of {chapter} that watches is built here")
    return real[chapter]


# --- What it shows ---


def test_a_missing_trace_is_said(show):
    page = show("fwd77")
    assert page.text(".player") == "No trace of fwd77 was made: `make book` builds it where GCC is."


def test_lanes_that_are_apart_take_32_sectors_and_neighbours_four(show):
    page = show(apart())
    assert "column 0 of rows 0 to 31: 32 sectors, 12.5 % of their bytes used" in page.says()
    assert len(page.all(".player-now .player-edge")) == 32
    assert "32 sectors × 32 bytes = 1024 bytes asked for, 128 used: 12.5 %" in page.text(".player-now")
    page = show(side_by_side())
    assert "columns 0 to 31 of row 0: 4 sectors, all bytes used" in page.says()
    assert len(page.all(".player-now .player-edge")) == 4


def test_a_butterfly_ends_with_the_values_of_32_lanes(show):
    page = show(side_by_side())
    for event, lanes in zip(range(2, 7), (2, 4, 8, 16, 32)):
        page.go(event)
        assert f"each sum now has the values of {lanes} lanes" in page.says()
        assert {number.text for number in page.all(".player-now .player-inside")} == {str(lanes)}
        assert len(page.all(".player-now .player-arc")) == 16
    assert page.text(".player-doublings [aria-current]") == "32"


def test_a_barrier_shows_who_is_there_and_what_it_is_for(show):
    page = show(barriers()).go(3)
    assert page.says() == "Warp 1 waits at the barrier: 2 of 3 warps are there."
    assert [chip.text.split() for chip in page.all(".player-chips .there")] == [["0", "✓"], ["1", "✓"]]
    assert "2 of 3 words written. Who went on now would miss one of them." in page.text(".player-barriers")
    assert [state.text for state in page.all(".player-stands")] == ["waits at the barrier"] * 2 + ["ready"]
    assert "All 3 warps are at the barrier: it opens." in page.go(6).says()
    assert len(page.all(".player-chips .there")) == 3
    assert [state.text for state in page.all(".player-stands")] == ["ready"] * 3
    assert "1 of 3 warps have read. Who went on now would write over what is still needed." \
        in page.go(8).text(".player-barriers")
    assert "No barrier is ahead." in page.go(14).text(".player-barriers")


def slots(page):
    """What stands in the ring, slot by slot."""
    return [[cell.text for cell in row.find_elements(By.TAG_NAME, "td") if cell.text]
            for row in page.all(".player-slots tbody tr")]


def test_the_ring_goes_round(show):
    page = show(ring())
    assert slots(page) == [["◔ row 0 of x: on its way"], []]
    assert slots(page.go(3)) == [["● row 0 of x: here"], ["◔ row 1 of x: on its way"]]
    assert slots(page.go(6))[0] == ["▶ row 0 of x: being read"]
    assert slots(page.go(7)) == [["✓ row 0 of x: read", "◔ row 2 of x: on its way"], ["◔ row 1 of x: on its way"]]
    assert "lane 0 asks the copy engine for row 2 of x, 128 bytes, to slot 0, and goes on at once" in page.says()
    assert slots(page.go(17)) == [["✓ row 0 of x: read", "▶ row 2 of x: being read"], ["✓ row 1 of x: read"]]


def test_the_copies_of_lanes_are_there_once_their_group_was_waited_for(show):
    page = show(copies_of_lanes()).go(3)
    assert slots(page) == [["◔ row 0 of x: on its way"], ["◔ row 1 of x: on its way"]]
    assert slots(page.go(4)) == [["● row 0 of x: here"], ["◔ row 1 of x: on its way"]]
    assert slots(page.go(5))[0] == ["▶ row 0 of x: being read"]


def test_lanes_that_add_at_one_address_take_turns(show):
    page = show(adds())
    assert page.says().endswith("column 3: all of them at one address, so they take turns.")
    assert "32 lanes add at one address: 32 turns." in page.text(".player-now")
    assert "each at its own address" in page.go(1).says()


# --- Going through it ---


def test_the_line_that_runs_is_marked_and_in_view_while_the_page_stands_still(show):
    page = show(side_by_side())
    page.resize(360)
    before = page.script("return window.scrollY")
    page.go(7)
    assert page.text(".player-line.player-runs .player-number") == "90"
    assert "helper.h:7: help();" in page.text(".player-helper")
    assert page.script("""
        const box = document.querySelector('.player-source').getBoundingClientRect();
        const line = document.querySelector('.player-runs').getBoundingClientRect();
        return line.top >= box.top && line.bottom <= box.bottom""")
    assert page.script("return window.scrollY") == before
    assert page.go(8).text(".player-runs .player-number") == "90"  # an event without a line
    assert page.script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_it_plays_to_the_end_and_stops_there(show):
    page = show(apart())
    assert page.at == 0 and page.one(".player-says").get_attribute("aria-live") == "polite"  # never by itself
    Select(page.one(".player-speed select")).select_by_visible_text("4×")
    page.click("Play")
    assert page.one('.player button[aria-label="Pause"]')
    WebDriverWait(page.driver, 10, poll_frequency=0.05).until(lambda _: page.at == 1)
    assert page.one(".player-says").get_attribute("aria-live") == "off"
    WebDriverWait(page.driver, 10).until(lambda _: page.at == 4)
    assert page.one('.player button[aria-label="Play"]')
    assert page.one(".player-says").get_attribute("aria-live") == "polite"
    assert page.text(".player-position") == "event 5 of 5"


def test_a_step_back_shows_the_very_same(show):
    page = show(ring())
    shown = []
    for _ in range(18):
        shown.append(page.html())
        page.click("One event on")
    for before in reversed(shown):
        page.click("One event back")
        assert page.html() == before
    page.click("One event back")
    assert page.at == 0


def test_the_buttons_the_slider_and_the_jumps(show):
    page = show(barriers())
    page.click("Last event")
    assert page.at == 19
    page.click("First event")
    assert page.at == 0
    page.script("""
        const slider = document.querySelector('.player-slider');
        slider.value = 5;
        slider.dispatchEvent(new Event('input', { bubbles: true }))""")
    assert page.at == 5 and page.text(".player-position") == "event 6 of 20"
    page.click("First event")
    jumps = {button.text: button for button in page.all(".player-jumps button")}
    jumps["next line"].click()
    assert page.at == 1
    jumps["next warp"].click()
    assert page.at == 2
    jumps["next barrier"].click()
    assert page.at == 6


def test_keys_count_while_the_focus_is_in_the_player(show):
    page = show(ring())
    page.press(Keys.ARROW_RIGHT)
    assert page.at == 0
    page.script("document.querySelector('.player').focus()")
    for key, shift, at in ((Keys.ARROW_RIGHT, False, 1), (Keys.ARROW_RIGHT, True, 11), (Keys.ARROW_LEFT, False, 10),
                           (Keys.ARROW_LEFT, True, 0), (Keys.END, False, 18), (Keys.HOME, False, 0)):
        page.press(key, shift)
        assert page.at == at, (key, shift)
    page.press(Keys.SPACE)
    assert page.one('.player button[aria-label="Pause"]')
    page.press(Keys.SPACE)
    assert page.one('.player button[aria-label="Play"]')
    page.script("document.querySelector('.player-slider').focus()")
    at = page.at
    page.press(Keys.ARROW_RIGHT)
    assert page.at == at + 1
    page.script("document.querySelector('.player-source').focus()")  # there the arrows scroll
    page.press(Keys.ARROW_RIGHT)
    assert page.at == at + 1
    page.script("document.querySelector('.player button[aria-label=\"One event on\"]').focus()")
    page.press(Keys.SPACE)
    assert page.at == at + 2 and page.one('.player button[aria-label="Play"]')


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("make", [apart, side_by_side, barriers, ring], ids=lambda make: make.__name__)
def test_axe_finds_no_fault(show, make, theme):
    assert show(make(), theme=theme).go(3).axe(every=True) == []


def test_paper_gets_the_state_without_the_controls(show):
    page = show(side_by_side()).go(3)
    page.media(media="print")
    assert not page.one(".player-controls").is_displayed()
    assert page.one(".player-now").is_displayed() and page.one(".player-runs").is_displayed()
    assert len([line for line in page.all(".player-line") if line.is_displayed()]) == 15


# --- All traces ---

REPLAY = """
    const player = window.lncPlayer;
    const wrong = [];
    for (const trace of Object.values(window.lncTraces)) {
      trace.launches.forEach((launch, number) => {
        if (!launch.events.length) {
          return;
        }
        const run = player.read(trace, number);
        const seen = [];
        let state;
        for (let i = 0; i < launch.events.length; i++) {
          state = player.stateAt(run, i, state);
          seen.push(JSON.stringify(state));
          const parts = player.parts(run, state, 600);
          const shown = player.say(run, state) + Object.values(parts).join('');
          if (/undefined|NaN|null|\\[object/.test(shown)) {
            wrong.push([trace.chapter, number, i, shown]);
          }
        }
        for (let i = launch.events.length - 1; i >= 0; i -= 1 + Math.floor(launch.events.length / 40)) {
          state = player.stateAt(run, i, state);
          if (JSON.stringify(state) !== seen[i]) {
            wrong.push([trace.chapter, number, i, 'is another than on the way there']);
          }
        }
        state = player.stateAt(run, launch.events.length - 1);
        const alive = state.warps.filter((warp, i) => player.standing(run, state, i) !== 'ended');
        if (alive.length) {
          wrong.push([trace.chapter, number, 'end', `${alive.length} warps have not ended`]);
        }
      });
    }
    return wrong;"""


def test_each_event_by_hand_is_told_and_drawn_and_is_the_same_on_the_way_back(show, tmp_path):
    files = []
    for make in BY_HAND:
        files.append(tmp_path / f"{make.__name__}.js")
        files[-1].write_text(script_of(make()), encoding="utf-8")
    assert show("ring", files).script(REPLAY) == []


def test_each_event_of_each_chapter_is_told_and_drawn_and_is_the_same_on_the_way_back(show, real):
    page = show("fwd02", real.values())
    page.driver.set_script_timeout(120)
    assert page.script(REPLAY) == []


def test_the_sectors_of_fwd01_and_of_fwd02(show, real):
    for chapter, sectors in (("fwd01", 32), ("fwd02", 4)):
        page = show(chapter, [chapter_of(real, chapter)])
        assert f"{sectors} sectors" in page.says() and len(page.all(".player-now .player-edge")) == sectors
        assert "sum += to_float(x[col]);" in page.text(".player-runs")


def test_the_barriers_of_fwd03(show, real):
    file = chapter_of(real, "fwd03")
    events = trace_in(file)["launches"][0]["events"]
    first = next(i for i, event in enumerate(events) if event["do"] == "barrier")
    page = show("fwd03", [file]).go(first - 1)
    assert page.says() == "Warp 7 waits at the barrier: 8 of 8 warps are there."
    page.go(first - 3)
    assert len(page.all(".player-chips .there")) == 7
    assert "partial" in page.text(".player-barriers") and "7 of 8 words written" in page.text(".player-barriers")
    assert page.go(first).says() == "All 8 warps are at the barrier: it opens."
    assert "block_sum" in page.text(".player-runs") and "reduce.h" in page.text(".player-helper")


def test_the_ring_of_fwd08_is_filled_twice(show, real):
    page = show("fwd08", [chapter_of(real, "fwd08")])
    page.click("Last event")
    assert slots(page) == [[f"✓ row {slot} of x: read", f"✓ row {slot + 3} of x: read"] for slot in range(3)]


def test_no_chapter_makes_a_narrow_page_scroll_sideways(show, real):
    for chapter, file in real.items():
        page = show(chapter, [file])
        page.resize(360)
        page.go(40)
        assert page.script("return document.documentElement.scrollWidth") <= 360, chapter


# --- The data ---


def test_a_chapter_without_a_program_is_told(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/fwd02.js").write_text("old", encoding="utf-8")
    assert traces.write(tmp_path, tmp_path / "out") == []
    assert list((tmp_path / "out").iterdir()) == []
    told = capsys.readouterr().err.splitlines()
    assert len(told) == len(traces.PROBLEMS) and f"no trace of fwd02: {tmp_path / 'fwd02'} is not built" in told


def test_each_chapter_has_a_problem():
    chapters = {path.parent.name.split("_")[0] for path in ROOT.glob("chapters/*/kernel.cu")}
    assert set(traces.PROBLEMS) == {chapter for chapter in chapters if not chapter.startswith("my")}


def test_what_is_left_out_leaves_the_waits_of_the_rest_in_order():
    events = [{"warp": 0, "do": "shuffle", "xor": 1}, {"warp": 1, "do": "shuffle", "xor": 1}, {"warp": 0, "do": "wait"},
              {"warp": 1, "do": "wait"}, {"do": "barrier", "since": [2, 3]}, {"warp": 0, "do": "go on", "since": 2}]
    launch = {"warps": 2, "events": events}
    without_shuffles = traces.shortened(launch, traces.Problem("", shuffles_of=1))
    assert [event.get("since") for event in without_shuffles["events"]] == [None, None, None, [1, 2], 1]
    of_one_warp = traces.shortened(launch, traces.Problem("", warps=1))
    assert [event.get("since") for event in of_one_warp["events"]] == [None, None, [1], 1]
    assert (of_one_warp["warps"], of_one_warp["warps_in_all"]) == (1, 2)


def test_traces_are_small_and_written_only_where_they_change(real, tmp_path):
    times = {chapter: file.stat().st_mtime_ns for chapter, file in real.items()}
    folder = next(iter(real.values())).parent
    traces.write(PROGRAMS, folder)
    assert {chapter: file.stat().st_mtime_ns for chapter, file in real.items()} == times
    for chapter, file in real.items():
        found = trace_in(file)
        assert file.stat().st_size < 150_000 and not found["ended"] and not found["fault"], chapter
        assert max(len(launch["events"]) for launch in found["launches"]) < 700, chapter
