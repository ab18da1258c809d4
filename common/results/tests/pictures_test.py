"""The lessons' pictures: each lesson has one, with words that say what it shows and that do not touch each other."""

import itertools
import re
import xml.etree.ElementTree as ET

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from common.bench.tests.made_up import Repository
from common.results import tables
from common.results.pictures import Picture, PictureError, pictures_of
from common.results.problems import ROOT

CHAPTERS = [path.parent for path in sorted(ROOT.glob("chapters/*/kernel.cu")) if not path.parent.name.startswith("my")]
PICTURES = {f"{chapter.name}/{name}": (chapter, name, *one) for chapter in CHAPTERS
            for name, one in pictures_of(chapter).items()}
SMALLEST, LARGEST_FILE = 12, 40_000  # units of 480: 9 pixels where a picture is 370 wide; bytes
DRAWS = '''from common.results.pictures import Picture
def picture(kWarps=4):
    """Two words."""
    p = Picture(40)
    p.text(8, 20, "one two")
    return p
'''


def words_in(svg):
    """[(words, left, top, right, bottom)], as wide as DejaVu Sans sets them."""
    found = []
    for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        size, x, y = float(text.get("font-size", 13)), float(text.get("x")), float(text.get("y"))
        font = FontProperties(family="DejaVu Sans", weight=text.get("font-weight", "normal"))
        width = TextPath((0, 0), text.text, size=size, prop=font).get_extents().width
        left = x - {"start": 0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
        assert size >= SMALLEST, f"'{text.text}' is too small for a telephone"
        found.append((text.text, left, y - 0.75 * size, left + width, y + 0.1 * size))
    return found


def box_of(words, boxes):
    """The smallest box that has the middle of the words; the first is the whole picture."""
    _, left, top, right, bottom = words
    x, y = (left + right) / 2, (top + bottom) / 2
    return min((box for box in boxes if box[0] <= x <= box[2] and box[1] <= y <= box[3]), default=boxes[0],
               key=lambda box: box[2] - box[0])


def faults_of(svg):
    """What is outside of its box or of the picture, and what lies over what."""
    words, boxes = words_in(svg), []
    for rect in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect"):
        x, y, width, height = (float(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
        boxes.append((x, y, x + width, y + height))
    outside = [one[0] for one in words for box in [box_of(one, boxes)]
               if one[1] < box[0] or one[2] < box[1] or one[3] > box[2] or one[4] > box[3]]
    return outside, [(a[0], b[0]) for a, b in itertools.combinations(words, 2)
                     if a[1] < b[3] + 1 and b[1] < a[3] + 1 and a[2] < b[4] and b[2] < a[4]]


@pytest.mark.parametrize("name", PICTURES)
def test_words_are_inside_of_the_picture_and_apart(name):
    chapter, _, words, svg = PICTURES[name]
    assert faults_of(svg) == ([], [])
    assert len(svg) < LARGEST_FILE
    assert 40 < len(words) < 400 and words.endswith(".")
    assert pictures_of(chapter)[name.partition("/")[2]] == (words, svg), "it is another at each time"


def test_words_that_touch_or_leave_are_found():
    p = Picture(40)
    p.text(8, 20, "one two")
    p.text(50, 22, "three")
    p.text(470, 20, "four")
    p.box(200, 9, 20, 22, "five")
    assert faults_of(str(p)) == (["four", "five"], [("one two", "three")])


@pytest.mark.parametrize("chapter", CHAPTERS, ids=[chapter.name for chapter in CHAPTERS])
def test_a_lesson_has_a_picture_and_shows_all_of_its_own(chapter):
    lesson = (chapter / "notes.md").read_text(encoding="utf-8")
    names = set(pictures_of(chapter))
    assert "picture" in names
    assert set(re.findall(r"^!\[[^\]]+\]\((\w+)\.svg\)$", lesson, re.MULTILINE)) == names
    assert {path.stem for path in chapter.glob("*.svg")} == names, "`make tables` draws, and removes nothing"


@pytest.fixture
def repo(tmp_path):
    repo = Repository(tmp_path)
    repo.list_chapters(fwd01=("fwd01_first", "First"))
    repo.write("chapters/fwd01_first/kernel.cu", "constexpr int kWarps = 4;\n")
    repo.write("chapters/fwd01_first/picture.py", DRAWS)
    repo.write("chapters/fwd01_first/notes.md", "<!-- table: picture fwd01 -->\n<!-- end table -->\n")
    return repo


def run(repo, *arguments):
    return tables.main(arguments, repo.root)


def test_a_stale_picture_and_stale_words_are_told_and_drawn_anew(repo, capsys):
    svg = "chapters/fwd01_first/picture.svg"
    assert run(repo) == 0 and run(repo, "--check") == 0
    assert "![Two words.](picture.svg)" in repo.text("chapters/fwd01_first/notes.md")
    repo.write("chapters/fwd01_first/picture.py", DRAWS.replace('"one two"', '"one 2"'))
    capsys.readouterr()
    before = repo.text(svg)
    assert run(repo, "--check") == 1 and f"{svg} was not drawn from these data" in capsys.readouterr().out
    assert repo.text(svg) == before and run(repo) == 0 and "one 2" in repo.text(svg)
    repo.write("chapters/fwd01_first/picture.py", DRAWS.replace("Two words.", "More words."))
    assert run(repo, "--check") == 1 and "the table 'picture fwd01'" in capsys.readouterr().out


@pytest.mark.parametrize("old, new, why", [
    ('"""Two words."""', "pass", "picture has no docstring, so its picture no alternative text"),
    ("kWarps=4", "kWarps=8", "picture draws kWarps = 8, which is not in kernel.cu"),
    ("def picture", "def other", "picture.py has no function picture")])
def test_a_picture_without_words_or_of_another_kernel_is_a_sentence(repo, capsys, old, new, why):
    repo.write("chapters/fwd01_first/picture.py", DRAWS.replace(old, new))
    assert run(repo) == 2 and why in capsys.readouterr().err
    if "function" not in why:
        with pytest.raises(PictureError):
            pictures_of(repo.root / "chapters/fwd01_first")
