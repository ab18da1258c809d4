"""A chapter's pages: its bar, the map's order, the reading view, the glossary's words, 'Try first', the questions."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

LESSON = "chapters/fwd02_warp_per_row/notes.html"
KERNEL = "chapters/fwd02_warp_per_row/kernel.html"
LONG = "chapters/fwd08_async_bulk/kernel.html"
MAIN_LINE = ["copy00", "fwd01", "fwd02", "fwd03", "fwd05", "fwd06", "bwd01", "bwd02", "bwd04", "bwd05", "bwd09", "bwd11",
             "fwd08", "fwd18", "bwd12"]
CROWDED = "chapters/bwd08_locked_buffers/kernel.html"  # its remarks take more room than their lines
QUESTIONS = "chapters/fwd02_warp_per_row/questions.html"
NEAR = 40  # pixels between a line and its remark


def names(page, selector):
    return [element.text.split("\n")[-1] for element in page.all(selector)]


# --- The way through the book ---


def test_the_bar_has_a_chapter_s_pages_and_says_which_is_shown(open_page):
    page = open_page(LESSON)
    assert names(page, ".chapter-bar a") == ["Lesson", "Source and remarks", "Check yourself", "Laboratory"]
    assert names(page, ".chapter-bar [aria-current=page]") == ["Lesson"]
    page.all(".chapter-bar a")[1].click()
    assert names(page, ".chapter-bar [aria-current=page]") == ["Source and remarks"]


def test_next_follows_the_main_line_and_previous_goes_back(open_page):
    page = open_page("README.html")
    for expected in MAIN_LINE:
        page.click(".next-page")
        assert page.one("h1").text.startswith(expected)
    page.click(".prev-page")
    assert page.one("h1").text.startswith(MAIN_LINE[-2])


def test_from_a_source_the_way_goes_over_the_questions_to_the_next_lesson(open_page):
    page = open_page(KERNEL)
    page.click(".next-page")
    assert page.one("h1").text == "fwd02 · One warp per row: questions"
    page.click(".next-page")
    assert page.one("h1").text == "fwd03 · One block per row"
    page = open_page("chapters/fwd02_warp_per_row/lab.html")
    page.click(".next-page")
    assert page.one("h1").text == "fwd03 · One block per row"


def test_a_lesson_leads_to_its_player(open_page):
    page = open_page(LESSON)
    page.click("#the-picture a[href='kernel.html#watch']")
    page.settle()
    assert page.one("#watch .player button").is_displayed()


@pytest.mark.parametrize("chapter", MAIN_LINE)
def test_every_chapter_of_the_main_line_moves(open_page, book, chapter):
    directory = next(book.glob(f"chapters/{chapter}_*")).name
    page = open_page(f"chapters/{directory}/kernel.html")
    player = page.one(".player")

    def shown():
        return page.script("return document.querySelector('.player').textContent.match(/event (\\d+) of (\\d+)/)")

    page.script("arguments[0].querySelector('button').focus()", player)
    _, at, last = shown()
    assert at == "1" and int(last) > 4
    ActionChains(page.driver).send_keys(Keys.END).perform()
    assert shown()[1] == last
    ActionChains(page.driver).send_keys(Keys.ARROW_LEFT).perform()
    assert int(shown()[1]) == int(last) - 1
    ActionChains(page.driver).send_keys(Keys.HOME).perform()
    assert shown()[1] == "1"


# --- Source and remarks ---


def place(page):
    """Of the remark that is marked: the y of its first line and its own."""
    return page.script("""
        const remark = document.querySelector('.remark.current');
        const line = document.getElementById('line-' + remark.dataset.line);
        return [line.getBoundingClientRect().top, remark.getBoundingClientRect().top, line.matches('.current')];""")


@pytest.mark.parametrize("source", [KERNEL, LONG])
def test_the_marked_remark_stands_beside_its_line_wherever_one_scrolls_to(open_page, source):
    page = open_page(source)
    lines = page.script("return [...new Set([...document.querySelectorAll('.remark')].map(r => r.dataset.line))]")
    assert len(lines) > 3
    for line in lines:
        page.script("""
            const y = document.getElementById('line-' + arguments[0]).getBoundingClientRect().top;
            scrollBy({top: y - innerHeight / 3 + 2, behavior: 'instant'});""", line)
        page.settle()
        y, remark, marked = place(page)
        if page.script("return scrollY + innerHeight >= document.documentElement.scrollHeight - 1"):
            break
        assert marked
        assert abs(y - remark) < NEAR, f"line {line}"


def test_between_two_lines_the_remarks_move_evenly(open_page):
    page = open_page(CROWDED)
    lines = page.script("return [...new Set([...document.querySelectorAll('.remark')].map(r => +r.dataset.line))]")

    def shift(line, further=0):
        page.script("""
            const top = document.getElementById('line-' + arguments[0]).getBoundingClientRect().top;
            scrollBy({top: top + arguments[1] - innerHeight / 3, behavior: 'instant'});""", line, further)
        page.settle()
        return page.script("return parseFloat(document.querySelector('.reading').style.getPropertyValue('--shift'))")

    moving = [(a, b) for a, b in zip(lines, lines[1:]) if abs(shift(a) - shift(b)) > 20]
    assert moving, "no remark is pushed down on this page: choose another"
    first, second = moving[0]
    apart = page.script("const y = n => document.getElementById('line-' + n).getBoundingClientRect().top;"
                        "return y(arguments[1]) - y(arguments[0])", first, second)
    assert abs(shift(first, apart / 2) - (shift(first) + shift(second)) / 2) < 2


def test_a_mark_in_the_source_leads_to_its_remark_and_back(open_page):
    page = open_page(LONG)
    mark = page.one(".line a.mark[href='#remark-9']")
    page.script("arguments[0].scrollIntoView()", mark)
    page.script("arguments[0].click()", mark)
    assert page.script("return document.activeElement.closest('.remark').id") == "remark-9"
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.script("return document.activeElement.closest('.line').id") == page.script(
        "return 'line-' + document.getElementById('remark-9').dataset.line")


def test_with_less_motion_each_remark_stands_beside_its_lines_and_nothing_follows(open_page):
    page = open_page(LONG)
    page.media(prefers_reduced_motion="reduce")
    page.settle()
    assert page.script("return document.querySelector('.reading').matches('.following')") is False
    apart = page.script("""
        return [...document.querySelectorAll('.remarks')].map(r =>
          Math.abs(r.getBoundingClientRect().top - r.previousElementSibling.getBoundingClientRect().top));""")
    assert max(apart) < NEAR


def test_on_a_phone_remarks_fold_under_their_lines_and_open_by_keyboard(open_page):
    page = open_page(KERNEL, 360)
    assert page.script("return document.querySelectorAll('.remark[open]').length") == 0
    summary = page.one("#remark-1 summary")
    page.script("arguments[0].focus()", summary)
    summary.send_keys(Keys.SPACE)
    assert page.script("""
        const remark = document.getElementById('remark-1');
        const line = document.getElementById('line-' + remark.dataset.line);
        const below = remark.getBoundingClientRect().top - line.getBoundingClientRect().bottom;
        return remark.open && below >= -1 && below < 20""")
    assert page.hidden_width() <= 0


def test_the_margin_shows_counts_on_demand(open_page):
    page = open_page(KERNEL)

    def shown(line):
        return page.script("return [...document.querySelectorAll(`#line-${arguments[0]} .count span`)]"
                           ".map(s => s.offsetWidth ? s.textContent : null)", line)

    load = page.script("return [...document.querySelectorAll('.line')].find("
                       "l => l.textContent.includes('sum += to_float(x[col])')).id.slice(5)")
    assert shown(load) == [None, None, None]
    page.one(".counts-switch").send_keys(Keys.ENTER)
    assert shown(load) == ["65 536", "4", ""]
    assert shown(page.script("return [...document.querySelectorAll('.line')].find("
                             "l => l.textContent.includes('= warp_sum(sum)')).id.slice(5)")) == ["5 120 shuffles"]


def test_long_remarks_leave_the_player_free(open_page):
    page = open_page("chapters/copy00_machine/kernel.html")
    button = page.one(".player button")
    page.script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", button)
    page.settle()
    assert page.script("""
        const box = arguments[0].getBoundingClientRect();
        return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2).closest('.player') !== null""",
                       next(one for one in reversed(page.all(".player button")) if one.is_displayed()))
    assert page.script("""
        const last = [...document.querySelectorAll('.remark')].at(-1).getBoundingClientRect().bottom;
        return document.querySelector('.reading').getBoundingClientRect().bottom - last""") >= -1


def test_where_there_is_room_a_remark_stays_beside_its_line(open_page):
    page = open_page("chapters/fwd03_block_per_row/kernel.html")
    for y in (0, 200, 400, 600):
        page.script("scrollTo({top: arguments[0], behavior: 'instant'})", y)
        page.settle()
        apart = page.script("""
            return [...document.querySelectorAll('.remark')].map(r => Math.abs(r.getBoundingClientRect().top -
              document.getElementById('line-' + r.dataset.line).getBoundingClientRect().top));""")
        assert max(apart) < NEAR


def test_what_changed_against_the_parent_is_a_diff(open_page):
    page = open_page(KERNEL)
    page.click(".changed summary")
    assert "+constexpr int kWarpsPerBlock = 4;" in page.one(".changed pre").text


# --- The lesson ---


def test_a_word_of_the_glossary_says_what_it_means(open_page):
    page = open_page(LESSON)
    word = page.one("a.word[href$='#register']")
    page.script("arguments[0].focus()", word)
    meaning = page.one("[role=tooltip]")
    assert meaning.text.startswith("register: ") and word.get_attribute("aria-describedby") == meaning.get_attribute("id")
    word.send_keys(Keys.ESCAPE)
    assert page.all("[role=tooltip]") == []
    page.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", word)  # no smooth scroll
    ActionChains(page.driver).move_to_element(word).perform()
    assert page.all("[role=tooltip]")


def test_try_first_hides_what_comes_after_the_idea_and_shows_it_part_by_part(open_page):
    page = open_page(LESSON)

    def shown():
        return page.script("return [...document.querySelectorAll('article h2')].filter(h => h.offsetHeight)"
                           ".map(h => h.firstChild.textContent)")

    everything = shown()
    page.one(".try-first button").send_keys(Keys.ENTER)
    assert shown() == everything[:1] == ["The idea"]
    page.one(".next-part.now").click()
    assert shown() == everything[:2]
    assert page.script("return document.activeElement.textContent").startswith(everything[1])
    page.driver.refresh()
    assert shown() == everything[:1], "the choice is kept"
    page.one(".try-first button").click()
    assert shown() == everything


def test_a_link_into_a_hidden_part_shows_it(open_page):
    page = open_page(LESSON)
    page.one(".try-first button").click()
    page.script("location.hash = 'pitfalls'")
    page.settle()
    assert page.script("return document.getElementById('pitfalls').offsetHeight") > 0
    page.script("localStorage.clear()")


# --- The questions ---


def test_every_choice_answers_and_one_of_a_question_is_right(open_page):
    page = open_page(QUESTIONS)
    questions = page.all(".question")
    assert len(questions) >= 3
    for question in questions:
        verdicts = []
        for choice in question.find_elements("css selector", "input"):
            choice.send_keys(Keys.SPACE)
            assert choice.is_selected()
            shown = [one.text for one in question.find_elements("css selector", ".verdict") if one.is_displayed()]
            assert len(shown) == 1 and len(shown[0]) > 20
            verdicts.append(shown[0].split(".")[0])
        assert sorted(verdicts)[0] == "Right" and verdicts.count("Right") == 1


def test_questions_are_answered_by_arrow_keys(open_page):
    page = open_page(QUESTIONS)
    page.one(".question input").send_keys(Keys.SPACE)
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert [choice.is_selected() for choice in page.all(".question")[0].find_elements("css selector", "input")][:2] == [
        False, True]
