"""Predict as a form: the values against the records, and the form and the page 'Your predictions' in a browser."""

import json
import re
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from common.book import prediction_page
from common.results import store

ROOT = Path(__file__).resolve().parents[3]
LESSON = "chapters/fwd06_vectorized/notes.html"
ALL = "common/book/predictions.html"


@pytest.fixture(scope="module")
def data(book):
    text = (book / "_static/predictions_data.js").read_text(encoding="utf-8")
    return json.loads(text.removeprefix("window.lncPredictions = ").rstrip(";\n"))


def problems_of(data, identifier):
    return next(one["problems"] for one in data["chapters"] if one["id"] == identifier)


@pytest.fixture
def lesson(open_page):
    page = open_page(LESSON)
    page.script("localStorage.clear()")
    yield open_page(LESSON)
    page.script("localStorage.clear()")


def commit(page, **fields):
    for name, value in fields.items():
        page.one(f"[name={name.replace('_', '-')}]").send_keys(value)
    page.click(".prediction button")


def answers(page):
    return [one.is_displayed() for one in page.all("[id^=predict] > details > ol, #measured table")]


def test_every_lesson_asks_and_its_values_are_those_of_the_records_and_of_its_answers(data):
    assert {one["id"] for one in data["chapters"]} == set(prediction_page.results().chapters)
    one = problems_of(data, "fwd06")[1]
    shape = {"kind": "layer", "dtype": "bf16", "rows": 131072, "cols": 4096, "options": {}}
    record = [record for record in store.read(ROOT / "notebooks/data/h100.csv") if record.get("chapter") == "fwd06"
              and shape.items() <= record["problem"].items()][-1]
    answer = (ROOT / LESSON.replace(".html", ".md")).read_text(encoding="utf-8").partition("## Measured")[0]
    assert one["measured"] == record["median_us"] and "bytes" not in one and one["parent"] == "fwd05"
    assert f"**{one['model']:g} µs**" in answer


@pytest.mark.parametrize("text, expected", [("11.7 µs", 11.7), ("about 1 070\nµs", 1070), ("9.9 ms", 9900),
                                            ("2.2 µs longer", None), ("1.35", None), ("64 KB", None)])
def test_a_bold_time_is_a_number_of_µs_or_ms_and_nothing_else(text, expected):
    assert prediction_page.time_of(text) == expected


def test_without_a_bold_time_a_lesson_is_told():
    with pytest.raises(ValueError, match=r"bold times .* in the answers of 'Predict': 1, where .* expects 2"):
        prediction_page.problems_of("fwd06", "", [11.7])


def test_a_prediction_by_keyboard_shows_the_model_the_measurement_and_the_factor_and_unfolds_the_answers(lesson, data):
    small, large = problems_of(data, "fwd06")
    assert not any(answers(lesson))
    lesson.one("[name=speed-0]").send_keys("faster")
    lesson.one("[name=time-0]").send_keys("20", Keys.ENTER)
    said = lesson.script("return document.activeElement.innerText").replace("\u00a0", " ")
    assert f"The model says {small['model']:g} µs. You said 20 µs; measured {small['measured']:.3g} µs: " in said
    assert f"a factor of {20 / small['measured']:.1f}." in said
    assert "Not so: you said faster; measured about the same" in said
    assert f"You said nothing; measured {large['measured']:.3g} µs." in said
    assert all(answers(lesson))
    lesson.driver.refresh()
    assert lesson.one(".results").text.split() == said.split() and not lesson.one("[name=time-0]").is_enabled()
    lesson.click(".prediction button")
    assert lesson.one("[name=time-0]").is_enabled() and "Time" not in lesson.one(".results").text


@pytest.mark.parametrize("text, us", [("0.9 ms", 900), ("1 040", 1040), ("1,040 us", 1040), ("11,9", 11.9)])
def test_a_time_may_have_a_unit_and_a_comma(lesson, text, us):
    commit(lesson, time_1=text)
    assert json.loads(lesson.script("return localStorage['lnc-predictions']"))["fwd06"]["answers"][
        "bf16, 131072 × 4096"] == {"time": us}


@pytest.mark.parametrize("text, words", [("fast", "‘fast’ is not a number"), ("-3", "‘-3’ is not"), ("", "Fill in at least")])
def test_what_is_no_number_is_told_and_nothing_is_shown(lesson, text, words):
    commit(lesson, time_1=text)
    assert words in lesson.one(".prediction [role=alert]").text
    assert lesson.script("return document.activeElement.name") == ("time-1" if text else "speed-0")
    assert not any(answers(lesson)) and lesson.script("return localStorage['lnc-predictions']") is None


def test_the_last_page_charts_all_exports_them_and_clears_them_after_a_question(lesson, open_page, data):
    commit(lesson, time_0="20", time_1="0.9 ms", speed_1="slower")
    page = open_page(ALL)
    assert page.one("#predictions p").text.startswith("Answers: 3, in 1 of ")
    assert [len(page.all(f"#predictions svg .{name}")) for name in ("said", "model")] == [2, 2]
    assert [row.text.split()[-1] for row in page.all("#predictions tbody tr")][0] == "1.7"
    assert page.axe() == []
    page.script("window.Blob = class { constructor([text]) { window.exported = text; } }; URL.createObjectURL = () => '#';")
    page.click("#predictions button")
    exported = json.loads(page.script("return window.exported"))
    truth = {name: problems_of(data, "fwd06")[0][name] for name in ("model", "measured")}
    assert exported["version"] == data["version"] and exported["predictions"][0] == {
        "chapter": "fwd06", "problem": "f32, 1024 × 2048", "quantity": "time", "unit": "µs", "predicted": 20, **truth}
    for accept, rows in ((False, 3), (True, 0)):
        page.all("#predictions button")[-1].click()
        question = page.driver.switch_to.alert
        question.accept() if accept else question.dismiss()
        assert len(page.all("#predictions tbody tr")) == rows
    assert page.one("#predictions p").text.startswith("No predictions yet")


def test_predictions_for_other_measurements_are_left_out_with_a_sentence(lesson, open_page):
    lesson.script("localStorage['lnc-predictions'] = JSON.stringify({fwd06: {version: 'old', answers: {}}, fwd02: 3})")
    page = open_page(LESSON)
    assert "was made for other measurements" in page.one(".results").text
    page = open_page(ALL)
    assert "made for other measurements: fwd06, fwd02." in page.one("#predictions").text


def test_from_a_file_the_link_of_a_lesson_brings_its_prediction(lesson):
    commit(lesson, time_0="20")
    lesson.script("localStorage.clear()")  # as Firefox, which has another memory for the last page
    lesson.click(".results a")
    lesson.settle()
    assert lesson.one("#predictions p").text.startswith("Answers: 1, in 1 of ")
    assert "#" not in lesson.driver.current_url
    lesson.driver.refresh()
    assert len(lesson.all("#predictions tbody tr")) == 1


def test_kept_answers_that_make_no_sense_are_left_out(lesson, open_page, data):
    answers = {"f32, 1024 × 2048": {"time": "20", "speed": "toString"}, "bf16, 131072 × 4096": 3}
    lesson.script("localStorage['lnc-predictions'] = arguments[0]",
                  json.dumps({"fwd06": {"version": data["version"], "answers": answers}}))
    assert "Time. The model says" in open_page(LESSON).one(".results").text
    assert open_page(ALL).one("#predictions p").text.startswith("No predictions yet")


def test_on_paper_and_without_a_script_a_lesson_has_no_form(lesson, book):
    assert re.search(r'<div class="predict" data-chapter="fwd06"></div>', (book / LESSON).read_text(encoding="utf-8"))
    lesson.media(media="print")
    assert not lesson.one(".prediction").is_displayed()


def test_on_a_phone_and_in_the_dark_the_form_fits_and_is_accessible(open_page):
    page = open_page("chapters/fwd07_fused_residual_dropout/notes.html", 360)
    page.theme("dark")
    assert page.hidden_width() <= 0 and page.axe() == []
