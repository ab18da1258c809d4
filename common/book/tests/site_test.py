"""Every page of the book: it opens from a file, fits, has its mathematics; every link leads somewhere."""

import functools
import re
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

BOOK = Path(__file__).resolve().parents[3] / "build/book"
MEGABYTES = 40  # the book's size, at most
PAGES = sorted(path.relative_to(BOOK).as_posix() for path in BOOK.rglob("*.html") if "_static" not in path.parts)
LESSON = "chapters/fwd02_warp_per_row/notes.html"
KERNEL = "chapters/fwd02_warp_per_row/kernel.html"
KINDS = {
    "first page": "README.html",
    "map and glossary": "chapters/README.html",
    "lesson": LESSON,
    "long lesson": "chapters/bwd12_async_bulk/notes.html",
    "lesson with figures to move": "chapters/copy00_machine/notes.html",
    "source": KERNEL,
    "long source": "chapters/fwd08_async_bulk/kernel.html",
    "questions": "chapters/fwd02_warp_per_row/questions.html",
    "laboratory": "chapters/fwd02_warp_per_row/lab.html",
    "chart": "common/book/chart.html",
    "predictions": "common/book/predictions.html",
    "notebook": "notebooks/6_simt_machine.html",
    "house": "common/watch/README.html",
    "search": "search.html",
}


def test_there_are_pages(book):
    assert len(PAGES) > 90


class Links(HTMLParser):
    """What a page links to and loads, and the anchors that it has."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.anchors, self.images = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors.update(filter(None, (given.get("id"), given.get("name") if tag == "a" else None)))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(given["href"])
        if tag == "img" and not given.get("alt", "").strip():
            self.images.append(given.get("src", "")[:80])


@pytest.fixture(scope="module")
def parsed(book):
    return {page: Links((book / page).read_text(encoding="utf-8")) for page in PAGES}


def broken(page, links, parsed, book):
    """The links of a page that lead nowhere."""
    for link in links:
        parts = urlsplit(link)
        if parts.scheme in ("http", "https", "mailto", "data"):
            continue
        target = ((book / page).parent / unquote(parts.path)).resolve() if parts.path else book / page
        if not target.exists():
            yield link
        elif parts.fragment and target.suffix == ".html":
            other = target.relative_to(book).as_posix()
            if unquote(parts.fragment) not in parsed[other].anchors:
                yield link


def test_every_link_and_every_anchor_is_there(book, parsed):
    found = {page: [*broken(page, [*part.links, *part.loads], parsed, book)] for page, part in parsed.items()}
    assert {page: links for page, links in found.items() if links} == {}


def test_a_broken_link_and_a_missing_anchor_are_found(book, parsed):
    links = ["nowhere.html", "#nowhere", "../README.html#nowhere", "#furo-main-content", "../README.html"]
    assert [*broken("chapters/README.html", links, parsed, book)] == links[:3]


def test_nothing_is_loaded_from_elsewhere(parsed):
    assert {page: part.loads for page, part in parsed.items()
            if any(urlsplit(load).scheme not in ("", "data") for load in part.loads)} == {}


def test_every_picture_has_words(parsed):
    assert {page: part.images for page, part in parsed.items() if part.images} == {}


def test_scripts_are_classic_and_fetch_nothing(book):
    for script in Path(__file__).parents[1].glob("static/*.js"):
        text = script.read_text(encoding="utf-8")
        assert not re.search(r"\bfetch\(|XMLHttpRequest|^import |^export |importScripts", text, re.MULTILINE), script.name


def test_it_is_not_too_big(book):
    assert sum(path.stat().st_size for path in book.rglob("*") if path.is_file()) < MEGABYTES * 1e6


def leads_on(name):
    """Whether a page has nothing but the way to another."""
    return '<meta http-equiv="refresh"' in (BOOK / name).read_text(encoding="utf-8")


def test_a_page_of_a_chapter_that_is_gone_leads_to_what_stands_in_its_place(open_page):
    assert leads_on("index.html") and not leads_on(LESSON)
    for gone, heading in (("fwd12_residual/notes.html", "fwd07 · "), ("bwd18_wide_rows_anywhere/lab.html", "bwd13 · ")):
        assert leads_on(f"chapters/{gone}")
        page = open_page(f"chapters/{gone}")
        assert page.wait("return document.querySelector('h1')").text.startswith(heading)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_and_fits_and_has_its_mathematics(open_page, name):
    page = open_page(name)
    if leads_on(name):
        return
    assert page.hidden_width() <= 0, "wider than 1400 pixels"
    formulas = page.script("return document.querySelectorAll('article .math').length")
    assert page.script("return document.querySelectorAll('article .math mjx-container').length") == formulas
    assert page.script("return document.querySelectorAll('mjx-merror, [data-mjx-error]').length") == 0
    page.resize(360)
    page.settle()
    assert page.hidden_width() <= 0, "wider than 360 pixels"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_no_serious_fault(open_page, kind, theme):
    page = open_page(KINDS[kind])
    page.theme(theme)
    page.settle()
    assert page.axe() == []


def test_axe_finds_a_planted_fault(open_page):
    page = open_page("README.html")
    page.script("document.querySelector('article').insertAdjacentHTML('beforeend', '<img src=\"data:,\"><button></button>')")
    assert {fault.partition(":")[0] for fault in page.axe()} >= {"image-alt", "button-name"}


def test_light_and_dark_differ_and_the_switch_changes_them(open_page):
    page = open_page("README.html")

    def background():
        return page.script("return getComputedStyle(document.body).backgroundColor")

    page.theme("light")
    light = background()
    page.theme("dark")
    assert background() != light
    seen = set()
    for _ in range(3):  # light, dark, as the system has it
        page.click(".theme-toggle-content .theme-toggle")
        seen.add(page.script("return document.body.dataset.theme"))
    assert seen == {"light", "dark", "auto"}
    page.script("localStorage.clear()")


def test_the_search_finds_bank_conflict(open_page):
    page = open_page("search.html?q=bank+conflict")
    found = page.wait("return [...document.querySelectorAll('#search-results li a')].map(a => a.href)")
    assert found[0].partition("?")[0].endswith("/chapters/README.html"), "the glossary is first"
    assert "bwd06_two_stage/notes.html" in found[1] + found[2] + found[3], "then the lessons that speak of it"
    for link in found:
        assert (BOOK / unquote(urlsplit(link).path).partition("/build/book/")[2]).exists()


def test_the_first_page_is_the_index(open_page):
    page = open_page("index.html")
    assert page.wait("return location.pathname.endsWith('/README.html')")


def test_a_page_on_paper_has_its_text_and_no_controls(open_page):
    page = open_page(LESSON)
    page.one(".try-first button").click()
    page.media(media="print")
    page.settle()
    shown = page.script("return [...document.querySelectorAll('article section')].every(s => s.offsetHeight > 0)")
    assert shown, "paper lacks what 'Try first' hides"
    assert page.script("return document.querySelector('.chapter-bar').offsetHeight") == 0
    page.script("localStorage.clear()")


def test_a_source_on_paper_has_its_remarks_open(open_page):
    page = open_page(KERNEL, 360)
    page.script("window.dispatchEvent(new Event('beforeprint'))")
    assert page.script("return [...document.querySelectorAll('.remark')].every(remark => remark.open)")
    page.script("window.dispatchEvent(new Event('afterprint'))")
    assert not page.script("return document.querySelector('.remark').open")


# --- From a web server ---


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def server(book):
    """The address of a web server that has the book."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(book))) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_a_web_server_serves_it_as_well(page, server):
    page.driver.get(f"{server}/{KERNEL}")
    page.settle()
    assert page.script("return document.querySelector('.reading').matches('.following')")
    page.driver.get(f"{server}/search.html?q=bank+conflict")
    assert page.wait("return document.querySelectorAll('#search-results li a').length")
    asked = page.asked_of_the_network()
    assert asked and all(url.startswith(server) for url in asked)


# --- By keyboard ---


def focused_in_turn(page, presses):
    """What has the focus after each press of the tabulator: a tag, its class and whether it can be seen to have it."""
    found = []
    for _ in range(presses):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        found.append(page.script("""
            const element = document.activeElement;
            const style = getComputedStyle(element);
            const marked = style.outlineStyle !== 'none' || style.boxShadow !== 'none';
            return [element.matches('.chapter-bar a') ? 'bar' : element.closest('.try-first') ? 'try first' :
                    element.tagName.toLowerCase(), marked];"""))
    return found


def test_the_tabulator_reaches_every_control_and_shows_where_it_is(open_page):
    page = open_page(LESSON)
    page.script("document.querySelector('.sidebar-drawer').remove()")  # the theme's own, of many links
    found = focused_in_turn(page, 16)
    assert {"bar", "try first", "a"} <= {name for name, _ in found}
    assert all(marked for name, marked in found if name in ("bar", "try first"))


def test_the_first_stop_leads_past_the_contents(open_page):
    page = open_page(LESSON)
    page.script("document.querySelector('.skip-to-content').focus()")
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.script("return location.hash") == "#furo-main-content"


def test_a_phone_s_menu_opens_by_keyboard(open_page):
    page = open_page(LESSON, 360)

    def left():
        return page.script("return document.querySelector('.sidebar-drawer').getBoundingClientRect().left")

    assert left() < 0
    page.script("document.querySelector('.nav-overlay-icon').focus()")
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.wait("return document.querySelector('.sidebar-drawer').getBoundingClientRect().left === 0")


def test_a_chapter_s_pages_unfold_in_the_contents_by_keyboard(open_page):
    page = open_page("README.html")
    label = page.one(".sidebar-tree .toctree-l1 label")
    page.script("arguments[0].focus()", label)
    before = page.script("return [...document.querySelectorAll('.sidebar-tree .toctree-l2')].filter(e => e.offsetHeight).length")
    label.send_keys(Keys.SPACE)
    assert before == 0 and page.script(
        "return [...document.querySelectorAll('.sidebar-tree .toctree-l2')].filter(e => e.offsetHeight).length") > 0
