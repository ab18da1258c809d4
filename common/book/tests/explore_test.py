"""Figures to move: what a slider changes, by pointer and by keyboard, and that the sentences tell the truth."""

import pytest
from selenium.webdriver.common.keys import Keys

from common.book import explore

LESSONS = {"sectors": "fwd01_thread_per_row", "flight": "copy00_machine", "model": "copy00_machine",
           "waves": "bwd04_block_per_row", "groups": "bwd05_row_groups", "ring": "fwd08_async_bulk"}


@pytest.fixture
def figure(open_page):
    """figure("sectors", stride=2): its sentence after sliders have been moved, named by their labels' places."""
    def moved(name, *values):
        page = open_page(f"chapters/{LESSONS[name]}/notes.html")
        return page.script("""
            const figure = document.querySelector(`figure[data-figure="${arguments[0]}"]`);
            const sliders = figure.querySelectorAll('input');
            arguments[1].forEach((value, i) => {
              if (value === null) return;
              sliders[i].value = value;
              sliders[i].dispatchEvent(new Event('input'));
            });
            return figure.querySelector('.explore-sentence').textContent.replaceAll('\\u202f', '');""", name, values)
    return moved


@pytest.mark.parametrize(("name", "values", "said"), [
    ("sectors", [1, 0], "4 sectors move 128. 100 %"),
    ("sectors", [1, 1], "5 sectors move 160. 80 %"),
    ("sectors", [2, 0], "8 sectors move 256. 50 %"),
    ("sectors", [32, 0], "32 sectors move 1024. 13 %"),
    ("sectors", [1, 0, 3], "32 lanes ask for 512 bytes; 16 sectors"),
    ("flight", [64, 1], "= 8 KB in flight: about 1.74 TB/s"),
    ("flight", [1, 1], "0.125 KB in flight: about 0.035 TB/s"),
    ("model", [None, None, None, None, None], "3.9 µs (launch) + 5.59 µs (16.8 MB) + 0.35 µs (1 wait) = 9.84 µs"),
    ("waves", [5, 32], "holds 2 blocks, limited by threads: 2048 of 2048 threads. 1024 blocks make 3.88 waves"),
    ("waves", [5, 65], "No block fits: 1024 threads with 65 registers"),
    ("waves", [3, 32, 227], "holds 1 block, limited by shared memory"),
    ("groups", [None, None, 6], "16 blocks: 0.131 million atomics take 1.04 µs at the rate of chapter zero; the bytes take 138 µs"),
    ("ring", [3, 3], "12 rows take 18 row times, of which the block waits 6: 33 %. 4 slots would"),
    ("ring", [4, 3], "12 rows take 15 row times, of which the block waits 3: 20 %. After the first load it never waits."),
    ("ring", [1, 3], "12 rows take 48 row times"),
])
def test_the_sentence_says_what_the_sliders_mean(figure, name, values, said):
    assert said in figure(name, *values)


def test_a_slider_moves_by_keyboard_and_is_named(open_page):
    page = open_page(f"chapters/{LESSONS['sectors']}/notes.html")
    slider = page.one('figure[data-figure="sectors"] input')
    slider.send_keys(Keys.ARROW_RIGHT)
    assert "8 sectors" in page.one(".explore-sentence").text
    assert slider.accessible_name.startswith("elements from lane to lane")
    assert slider.get_attribute("aria-valuetext") == "2"


def test_each_figure_stands_in_a_lesson(book):
    for name, lesson in LESSONS.items():
        assert f'data-figure="{name}"' in (book / f"chapters/{lesson}/notes.html").read_text(encoding="utf-8")
    assert {*LESSONS} == {*explore.CAPTIONS}


def test_on_a_phone_nothing_is_cut_off(open_page):
    page = open_page(f"chapters/{LESSONS['waves']}/notes.html", 360)
    assert page.script("return document.documentElement.scrollWidth") <= 360
