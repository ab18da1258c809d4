"""The chart of the progression: its data against the records, and the page in a browser, over file://."""

import json
import shutil
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from common.results.peers import SHAPES
from common.book import chart, pages
from common.results import store
from common.results.records import with_current_ids

ROOT = Path(__file__).resolve().parents[3]
BOOK = ROOT / "common/book"

PROBLEM = {"kind": "layer", "dtype": "f32", "rows": 1024, "cols": 2048}
WITHIN_S = 5  # how long a test waits for the page


# --- The data ---


@pytest.fixture(scope="module")
def data():
    return chart.chart_data(ROOT)


def expanded(data):
    """The rows as dicts."""
    return [dict(zip(data["fields"], values)) for values in data["rows"]]


def lines(name):
    """The records of a table, with the ids of today, without those of the library's kernels and of kernels
    that are gone; of those with the same chapter and problem the last counts."""
    records = map(with_current_ids, store.read(ROOT / f"notebooks/data/{name}.csv"))
    return [record for record in records if not record.get("chapter", "").startswith(("lib_", "former "))]


def raw(name, who, problem):
    """The newest plain record of a chapter or a provider on a problem."""
    found = [record for record in lines(name) if who in (record.get("chapter"), record.get("provider"))
             and not record["problem"]["options"] and problem.items() <= record["problem"].items()]
    return found[-1]


def measured_forward():
    """The chapters, the copy among them, that an H100's records have on the first view's problem."""
    return {record["chapter"] for record in lines("h100") if record["direction"] != "backward"
            and not record["problem"]["options"] and PROBLEM.items() <= record["problem"].items()}


@pytest.mark.parametrize("file, who, problem", [
    ("h100", "fwd02", PROBLEM), ("h100", "copy00", PROBLEM), ("h100", "bwd12", PROBLEM), ("h200", "fwd05", PROBLEM),
    ("h100", "bwd05", {"dtype": "f16", "rows": 4096, "cols": 1536}),
    ("h200", "bwd02", {"dtype": "bf16", "rows": 131072, "cols": 8192})])
def test_a_row_is_the_newest_record(data, file, who, problem):
    record = raw(file, who, problem)
    row, = (row for row in expanded(data) if row["who"] == who and row["gpu"] == file and not row["run"]
            and not row["words"] and problem.items() <= row.items())
    for field in ("median_us", "p10_us", "p90_us", "cycles", "operator_bytes", "roof_us", "roof_bytes", "clock", "date",
                  "commit", "direction"):
        assert row[field] == record[field], field


def test_the_peers_are_of_one_run(data):
    shared = [row for row in expanded(data) if row["run"] and row["gpu"] == "h100"]
    runs = {}
    for row in shared:
        problem = tuple(row[name] for name in ("direction", "kind", "dtype", "rows", "cols", "words"))
        runs.setdefault(problem, set()).add(row["run"])
    assert len(runs) == 28 and all(len(own) == 1 for own in runs.values())
    for provider in ("dispatch", "torch.compile"):
        record = raw("peers_h100", provider, {**PROBLEM, "kind": "rms"})
        row = next(row for row in shared if row["who"] == provider and row["kind"] == "rms" and row["cols"] == 2048
                   and row["direction"] == record["direction"])
        assert (row["median_us"], row["run"]) == (record["median_us"], record["run"])


def test_the_sets_of_widths_have_a_picture_of_their_own_and_are_not_here(data):
    plain = {(shape.dtype, shape.rows, shape.cols) for shape in SHAPES}
    assert {(row["dtype"], row["rows"], row["cols"]) for row in expanded(data) if row["run"]} <= plain


def test_every_plain_right_record_is_there_once(data):
    wanted = {(record["chapter"], json.dumps(record["problem"], sort_keys=True)) for record in lines("h100")
              if record["passed"] and not record["problem"]["options"].get("group")}
    shown = [row for row in expanded(data) if row["gpu"] == "h100" and not row["run"]]
    assert len(shown) == len(wanted)
    assert not any("group" in row["words"] for row in shown)


def test_a_chapter_knows_its_page(data):
    for chapter in data["chapters"]:
        assert (ROOT / chapter["href"]).with_suffix(".md").exists()
    assert [chapter["id"] for chapter in data["chapters"] if chapter["road"] == "main line"][:4] == [
        "copy00", "fwd01", "fwd02", "fwd03"]


def test_the_scripts_are_small_and_written_only_when_they_change(tmp_path):
    chart.write(ROOT, tmp_path / "static")
    data, vega = (tmp_path / "static" / name for name in ("chart_data.js", "vega.js"))
    written = [path.stat().st_mtime_ns for path in (data, vega)]
    chart.write(ROOT, tmp_path / "static")
    assert [path.stat().st_mtime_ns for path in (data, vega)] == written
    assert data.stat().st_size < 400_000 and vega.stat().st_size < 1_200_000
    text = data.read_text(encoding="utf-8")
    assert "</" not in text and text.count("\n") > 1000
    assert "University of Washington" in vega.read_text(encoding="utf-8")[:2000]


# --- The page ---


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a page that holds the chart."""
    folder = tmp_path_factory.mktemp("book")
    chart.write(ROOT, folder)
    for path in BOOK.glob("static/chart*"):
        shutil.copy(path, folder)
    scripts = "".join(f'<script defer src="{name}"></script>' for name in pages.SCRIPTS[pages.CHART])
    (folder / "chart.html").write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>The chart</title><link rel="stylesheet" href="chart.css">{scripts}</head><body data-theme="light">'
        '<main><div id="progression" data-root="../../"></div></main></body></html>', encoding="utf-8")
    return (folder / "chart.html").as_uri()


class View:
    """A page (see conftest.py) that has the chart."""

    def __init__(self, page, address):
        self.page, self.address = page, address

    def __getattr__(self, name):
        return getattr(self.page, name)

    def open(self, state="", width=1400):
        self.resize(width, 900)
        self.driver.get("about:blank")
        self.driver.get(self.address + (f"#chart?{state}" if state else ""))
        self.wait("return document.querySelectorAll('.lnc-dot').length > 0")

    def run(self, script, *arguments):
        """What a script returns once the chart is drawn."""
        self.driver.execute_async_script("""const done = arguments[arguments.length - 1], chart = window.lncChartView;
            const settle = drawn => drawn.then(() => (drawn === chart.drawn ? done() : settle(chart.drawn)));
            chart ? settle(chart.drawn) : done();""")
        return self.script(script, *arguments)

    def wait(self, script):
        WebDriverWait(self.driver, WITHIN_S, 0.05).until(lambda _: self.run(script))

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def count(self, selector):
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def names(self):
        """What a screen reader says of each dot."""
        return self.run("return [...document.querySelectorAll('.lnc-dot')].map(dot => dot.getAttribute('aria-label'))")

    def focused(self):
        return self.run("return document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")

    def chosen(self):
        return self.run("return [...document.querySelectorAll('option:checked')].map(option => option.text)")

    def set(self, name, value):
        self.run("""const select = document.querySelector(`select[name=${arguments[0]}]`);
            select.value = arguments[1]; select.dispatchEvent(new Event('change', {bubbles: true}))""", name, value)

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()


@pytest.fixture
def view(page, address):
    return View(page, address)


def test_the_first_view(view):
    view.open()
    assert len(view.names()) == len(measured_forward())
    record = raw("h100", "fwd02", PROBLEM)
    share = 100 * record["roof_us"] / record["median_us"]
    assert f"fwd02, {record['median_us']:.1f} µs, {share:.0f} % of the roof" in view.names()
    ours = raw_forward("dispatch")["median_us"]
    best = min(raw_forward(who)["median_us"] for who in ("torch", "torch.compile", "liger", "quack", "flash-attention"))
    said = view.text(".lnc-said")
    fastest = min(raw("h100", chapter, PROBLEM)["median_us"] for chapter in measured_forward() - {"copy00"})
    assert f"{fastest:.2f} µs" in said
    assert f"ours takes {ours / best:.2f} of its time" in said
    link = view.one(".lnc-dot[aria-label^=fwd02]")
    assert view.run("return arguments[0].getAttribute('href')", link) == "../../chapters/fwd02_warp_per_row/notes.html"


def raw_forward(provider):
    """Of the newest run."""
    found = [record for record in lines("peers_h100") if record["provider"] == provider
             and record["direction"] == "forward" and PROBLEM.items() <= record["problem"].items()]
    return max(found, key=lambda record: record["run"])


# Goes through every path of the controls in their order; returns the views that draw nothing and do not say why.
EVERY_PATH = """
const chart = window.lncChartView, found = {views: 0, empty: [], repaired: []};
const drawn = new Map(); // one state of each kind of drawing
chart.draw = () => {};
const controls = ['gpu', 'direction', 'kind', 'dtype', 'view', 'place', 'measure'];
const walk = (at, state) => {
  const isWidth = chart.model.state.view === 'width';
  if (at === controls.length) {
    found.views += 1;
    drawn.set([state.gpu, state.direction, isWidth, state.measure].join(), state);
    const sentence = document.querySelector('.lnc-said').textContent;
    if (!chart.model.dots.length || !sentence || /NaN|undefined|null|Infinity/.test(chart.form.parentNode.textContent)) {
      found.empty.push(JSON.stringify(state));
    }
    return;
  }
  const name = controls[at] === 'place' ? (isWidth ? 'series' : 'problem') : controls[at];
  for (const {value} of [...chart.form.querySelectorAll(`[name=${name}]`)]
    .flatMap(one => (one.options ? [...one.options] : [one])).filter(one => !one.disabled)) {
    const next = {...state, [name]: value};
    chart.choose(next);
    if (chart.model.state[name] !== value) { found.repaired.push(JSON.stringify(next)); }
    walk(at + 1, next);
  }
};
walk(0, {});
delete chart.draw;
return {...found, drawn: [...drawn.values()]};
"""


def test_every_choice_that_is_enabled_draws_something(view):
    view.open()
    found = view.run(EVERY_PATH)
    assert found["views"] > 300
    assert found["empty"] == [] and found["repaired"] == []
    assert len(found["drawn"]) > 15
    for state in found["drawn"]:
        view.run("lncChartView.choose(arguments[0])", state)
        assert view.run("""return document.querySelectorAll('.lnc-dot').length === lncChartView.model.dots.length &&
            ![...document.querySelectorAll('svg *')].some(one => ['d', 'transform', 'x1', 'y1'].some(name =>
              /NaN|Infinity|undefined/.test(one.getAttribute(name) || '')))"""), state


def test_the_controls_change_the_chart_and_the_address(view):
    view.open()
    view.one("input[value=backward]").click()
    assert any(name.startswith("bwd12") for name in view.names())
    assert "direction=backward" in view.run("return location.hash")
    view.set("measure", "share")
    assert "% of the roof" in view.text(".lnc-plot .mark-text.role-title-text")
    view.set("dtype", "f16")
    assert "was not measured here" in view.text(".lnc-changes")
    view.one("input[value=width]").click()
    assert "columns" in view.names()[0] and view.text(".lnc-changes") == ""
    address = view.run("return location.hash")
    before = view.names()
    view.open(address.removeprefix("#chart?"))
    assert view.names() == before
    view.set("gpu", "h200")
    assert not view.one(".lnc-check input").is_enabled()
    assert "No peer was measured here" in view.text(".lnc-key")


def test_the_peers_can_be_left_out(view):
    view.open()
    assert view.count(".lnc-contender") == 6
    view.one(".lnc-check input").click()
    assert not view.count(".lnc-contender")
    assert "peer" not in view.text(".lnc-said")


@pytest.mark.parametrize("state", ["", "view=width&dtype=f16", "measure=share"])
def test_the_names_at_the_right_are_in_the_order_of_their_values_and_apart(view, state):
    view.open(state)
    names = view.run("""const {data, state} = lncChartView.model;
        return [...document.querySelectorAll('.ends_marks text')]
          .map(text => [text.getBoundingClientRect().y, text.__data__.datum[data.measured[state.measure]]])
          .sort((a, b) => a[0] - b[0])""")
    places, values = zip(*names)
    assert len(names) > 5 and list(values) == sorted(values, reverse=True)
    assert all(below - above > 14 for above, below in zip(places, places[1:]))


def test_an_address_without_data_says_what_it_shows(view):
    view.open("gpu=h200&kind=batch&dtype=f64&measure=colour&view=round")
    said = view.text(".lnc-changes")
    for word in ("batch was not measured here", "f64 was not measured", "colour was not", "round"):
        assert word in said
    view.open("gpu=own:NVIDIA L4")
    assert "The page keeps no file" in view.text(".lnc-changes")
    view.run("location.hash = '#chart?direction=backward'")
    view.wait("return document.querySelector('.lnc-dot').getAttribute('aria-label').startsWith('bwd')")


def test_by_keyboard(view):
    def tip():
        return view.one("#vg-tooltip-element")

    view.open()
    view.run("document.querySelector('.lnc-dot').focus()")
    first = view.focused()
    view.press(Keys.ARROW_RIGHT)
    second = view.focused()
    assert first.startswith("copy00") and second.startswith("fwd01")
    assert tip().is_displayed() and "One thread per row" in tip().text
    view.press(Keys.ESCAPE)
    assert not tip().is_displayed()
    view.press(Keys.TAB)
    assert view.focused().startswith("fwd02")
    view.open("view=width&dtype=f16")
    stops = view.count('.lnc-dot[tabindex="0"]')
    assert stops == len({name.partition(",")[0] for name in view.names()}) < len(view.names()) / 10


def test_a_chapter_can_be_highlighted(view):
    view.open("view=width&dtype=f16")
    next(button for button in view.all(".lnc-marks button") if button.text == "fwd03").click()
    assert view.count('.lines_marks path[stroke="var(--lnc-purple)"]') == 1
    assert view.focused() == "fwd03"
    assert "marked=fwd03" in view.run("return location.hash")


def test_the_table_says_the_same(view):
    view.open()
    heads = view.run("return [...document.querySelectorAll('.lnc-table thead th')].map(one => one.textContent)")
    rows = view.run("return [...document.querySelectorAll('.lnc-table tbody tr')]"
                    ".map(row => [...row.cells].map(cell => cell.textContent))")
    table = {row[0]: dict(zip(heads, row)) for row in rows}
    record = raw("h100", "fwd03", PROBLEM)
    assert table["fwd03"]["median µs"] == f"{record['median_us']:.2f}"
    assert table["fwd03"]["measured"] == f"{record['date']} {record['commit']}"
    ratio = raw_forward("torch")["median_us"] / raw_forward("dispatch")["median_us"]
    assert table["torch"]["time over ours, same run"] == f"{ratio:.2f}" and table["fwd03"]["time over ours, same run"] == "–"


@pytest.mark.parametrize("width", [360, 700, 1400])
@pytest.mark.parametrize("state", ["", "view=width&dtype=f16&direction=backward", "kind=rms&measure=share"])
def test_nothing_scrolls_sideways(view, width, state):
    view.open(state, width)
    assert view.run("return document.documentElement.scrollWidth <= innerWidth")
    outside = view.run("""const box = document.querySelector('.lnc-plot').getBoundingClientRect();
        return [...document.querySelectorAll('.lnc-plot text')].filter(text => {
          const own = text.getBoundingClientRect();
          return own.left < box.left - 1 || own.right > box.right + 1 || own.bottom > box.bottom + 1;
        }).map(text => text.textContent)""")
    assert outside == []
    drawn, shown = view.run("""const svg = document.querySelector('.lnc-plot svg');
        return [svg.viewBox.baseVal.width, svg.getBoundingClientRect().width]""")
    assert shown == pytest.approx(drawn, abs=1), "scaled, so its words are small"


def test_the_chart_is_drawn_anew_where_its_place_changes(view):
    view.open()
    view.resize(400)
    view.wait("return document.querySelector('.lnc-plot svg').getBoundingClientRect().width < 400")
    assert view.run("return document.querySelector('.lnc-plot text').getAttribute('font-size')") == "13px"


# --- The reader's own records ---


def own_record(chapter="fwd02", median=70.0, **fields):
    problem = {**PROBLEM, "eps": 1e-5, "seed": 1, "options": {}}
    return {"schema": 2, "chapter": chapter, "direction": "forward", "problem": problem, "set": None, "l2": "cold",
            "clock": 2, "device": "NVIDIA L4", "driver": "1", "cuda": "13.0", "backend": "cuda", "date": "2026-11-30",
            "commit": "c", "passed": True, "median_us": median, "p10_us": 0.9 * median, "p90_us": 1.2 * median,
            "samples": 31, "cycles": 100000, "operator_bytes": 16777216, "roof_us": 60.0, "roof_bytes": 16777216,
            **fields}


def choose_file(view, folder, text, name="local.jsonl"):
    """Chooses a file with this text by the input; returns what the page says of it."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    view.one("input[type=file]").send_keys(str(path))
    view.wait("return document.querySelector('.lnc-file-said').textContent")
    return view.text(".lnc-file-said")


def jsonl(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def test_a_file_joins_as_another_gpu(view, tmp_path):
    view.open()
    said = choose_file(view, tmp_path, jsonl(own_record("fwd01", 900.0), own_record(median=80.0), own_record(),
                                             own_record("my01", 65.0)))
    assert said == "local.jsonl: 3 records of NVIDIA L4 are shown."
    assert view.names() == ["fwd01, 900 µs, 7 % of the roof", "fwd02, 70.0 µs, 86 % of the roof",
                            "my01, 65.0 µs, 92 % of the roof"]
    assert view.count(".behind_marks path") == len(measured_forward())  # hollow
    assert "yours: NVIDIA L4" in view.chosen()
    assert "my01 is the fastest of 3 chapters here" in view.text(".lnc-said")
    view.set("gpu", "h100")
    assert len(view.names()) == len(measured_forward())


def test_a_dropped_file_is_read(view, tmp_path):
    path = tmp_path / "local.jsonl"
    path.write_text(jsonl(own_record()), encoding="utf-8")
    view.open()
    x, y = view.run("""const input = document.querySelector('input[type=file]');
        input.scrollIntoView();
        const {left, right, top, bottom} = input.getBoundingClientRect();
        return [(left + 3 * right) / 4, (top + bottom) / 2];""")
    for kind in ("dragEnter", "dragOver", "drop"):
        view.driver.execute_cdp_cmd("Input.dispatchDragEvent", {
            "type": kind, "x": x, "y": y, "data": {"items": [], "files": [str(path)], "dragOperationsMask": 1}})
    view.wait("return document.querySelector('.lnc-file-said').textContent")
    assert view.text(".lnc-file-said") == "local.jsonl: 1 record of NVIDIA L4 is shown."


def test_of_a_half_good_file_the_good_lines_stay(view, tmp_path):
    view.open()
    nameless = own_record()
    del nameless["chapter"]
    grouped = own_record(problem={**PROBLEM, "options": {"group": 4}})
    text = jsonl(own_record(), own_record("fwd03", 66.0, backend="cpu"), nameless, own_record("fwd05", l2="warm"),
                 own_record("fwd06", passed=False), grouped) + '{"schema": 2, "chap'
    assert choose_file(view, tmp_path, text) == (
        'local.jsonl: 1 record of NVIDIA L4 is shown. Left out: 2 lines (line 3 is not a record: no field "chapter"), 1 record '
        "with emulated times (backend cpu), which never stand beside a GPU's, 1 record without a right result or a time, "
        "1 record of a warm L2 or with the host's time and 1 record with the option group, which counts another thing in "
        "each chapter.")
    assert len(view.names()) == 1


@pytest.mark.parametrize("text, words", [
    ("", "local.jsonl is empty."),
    ("\n \n", "local.jsonl is empty."),
    ("# a page\n", "local.jsonl holds no record: line 1 is not a record: it is not JSON. Nothing was changed."),
    ("[1]\n", "line 1 is not a record: it is not a JSON object"),
    ('\n\n{"a": 1}\n', 'line 3 is not a record: no field "schema"'),
    (jsonl({**own_record(), "schema": 1}), "its schema is 1, and this chart reads schema 2"),
    (jsonl({**own_record(), "median_us": "<b>fast</b>"}), 'its median_us is "<b>fast</b>", not a number above 0'),
    (jsonl(own_record(backend="cpu", device="a CPU")),
     "local.jsonl holds nothing to draw: 1 record with emulated times (backend cpu), which never stand beside a GPU's."),
])
def test_a_file_without_a_record_changes_nothing(view, tmp_path, text, words):
    view.open()
    before = view.names()
    assert words in choose_file(view, tmp_path, text)
    assert view.names() == before


def test_words_of_a_file_stay_words(view, tmp_path):
    view.open()
    device = "<img src=x onerror=alert(1)>"
    said = choose_file(view, tmp_path, jsonl(own_record(device=device)))
    view.run("document.querySelector('.lnc-dot').focus()")
    assert device in said and device in view.one("#vg-tooltip-element").text
    assert not view.count("#progression img, #vg-tooltip-element img")


def test_options_are_called_as_in_the_committed_data(view, tmp_path):
    options = {"dropout": 0.1, "residual": "same", "prenorm": True}
    record = own_record("fwd07", 900.0, problem={"kind": "layer", "dtype": "bf16", "rows": 131072, "cols": 4096,
                                                 "options": options})
    view.open()
    choose_file(view, tmp_path, jsonl(record))
    words = "131072 × 4096, dropout 0.1, residual, prenorm"
    assert words in view.chosen()
    assert view.count(".behind_marks path") == 1  # the H100's on the same problem


def test_peers_of_the_readers_own(view, tmp_path):
    def provider(name, median, run, **fields):
        record = own_record(name, median, run=run, host="hidden", **fields)
        return {**record, "provider": record.pop("chapter")}

    view.open()
    choose_file(view, tmp_path, jsonl(
        own_record(), provider("dispatch", 61.0, "2026-11-30T1", chosen="fwd06"), provider("torch", 80.0, "2026-11-30T1"),
        provider("torch", 10.0, "2026-11-30T2")))
    assert "fwd06, took 61.00 µs and the fastest peer, torch, 80.00 µs: ours takes 0.76" in view.text(".lnc-said")


def test_printed_without_controls_and_with_the_table(view):
    view.open()
    view.media(media="print")
    view.run("window.dispatchEvent(new Event('beforeprint'))")
    assert not view.one(".lnc-controls").is_displayed() and view.one(".lnc-table").is_displayed()
    view.run("window.dispatchEvent(new Event('afterprint'))")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_fault(view, theme):
    for state in ("", "view=width&dtype=f16"):
        view.open(state)
        view.run("""document.body.dataset.theme = arguments[0];
            if (arguments[0] === 'dark') { document.body.style.cssText = `background: #131416; color: #cfd0d0;
              --color-foreground-primary: #cfd0d0; --color-foreground-secondary: #9ca0a5;
              --color-background-primary: #131416; --color-background-secondary: #1a1c1e`; }
            document.querySelector('details').open = true""", theme)
        assert view.axe() == []
