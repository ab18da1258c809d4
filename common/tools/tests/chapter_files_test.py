"""A chapter's four files say the same: ids, titles, remark numbers, sections, links."""

import functools
import pathlib
import re
import subprocess

import pytest

from common.results.chapters import MAIN, load_catalogue
from common.tools.find_chapter import is_own

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Of a lesson; chapter zero, which is no norm, has sections of its own.
LESSON = ["The idea", "The picture", "Derivation", "Reading the kernel", "Predict", "Measured", "Pitfalls", "Try it",
          "Sources"]
OWN_SECTIONS = {"copy00"}
TOP_LEVEL = {"chapters", "common", "notebooks", "reference_cpu", "CMakeLists.txt", "CMakePresets.json", "Makefile",
             "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "pyproject.toml"}
PAGES_OF_GITHUB = {"../../codespaces/new"}  # of the repository, relative to a page of its code
LONGEST_TOP_COMMENT = 12
# What a kernel of Hopper's includes, itself or through another of these.
NEEDS_HOPPER = {"common/kernel/hopper.h", "common/kernel/ring.h"}


def prose(markdown):
    """Markdown without code and formulas: what looks like a heading or a link there is none."""
    for code in (r"^ *```.*?^ *```", r"`[^`\n]*`", r"\$\$.*?\$\$", r"\$[^$\n]*\$"):
        markdown = re.sub(code, "", markdown, flags=re.MULTILINE | re.DOTALL)
    return markdown


REGISTERED = {entry["id"]: entry for entry in load_catalogue()["chapters"]}


class Chapter:
    def __init__(self, directory):
        self.directory = directory
        self.id = directory.name.split("_")[0]
        registered = REGISTERED.get(self.id, {})  # `make tables` enters it
        self.title, self.parent, self.road, self.min_architecture = (
            registered.get(field) for field in ("title", "parent", "road", "min_architecture"))

    @functools.cached_property
    def kernel(self):
        return (self.directory / "kernel.cu").read_text()

    @functools.cached_property
    def notes(self):
        return (self.directory / "notes.md").read_text()

    @functools.cached_property
    def laboratory(self):
        return (self.directory / "lab.md").read_text()

    def section(self, title):
        """The notes under the heading `## title`, up to the next heading of that level."""
        parts = re.split(r"^## (.*)\n", prose(self.notes), flags=re.MULTILINE)
        return dict(zip(parts[1::2], parts[2::2])).get(title, "")


CHAPTERS = [Chapter(path) for path in sorted((ROOT / "chapters").iterdir())
            if path.is_dir() and not is_own(path.name)]  # the reader's own need no lesson
FIRST = "copy00"  # of the main line; every other chapter has a parent
BY_ID = {chapter.id: chapter for chapter in CHAPTERS}

of_each_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=[chapter.directory.name for chapter in CHAPTERS])


@of_each_chapter
def test_a_chapter_is_four_files_and_its_pictures(chapter):
    files = sorted(path.name for path in chapter.directory.iterdir()
                   if path.name not in ("picture.py", "__pycache__") and path.suffix != ".svg")
    assert files == ["kernel.cu", "lab.md", "notes.md", "questions.md"]
    assert re.fullmatch(r"(copy|fwd|bwd)\d\d(_[a-z0-9]+)+", chapter.directory.name)


@of_each_chapter
def test_one_id_and_title_everywhere(chapter):
    match = re.match(r"// (\w+) · (.*\S)\n", chapter.kernel)
    assert match, "kernel.cu does not begin with a comment '// id · Title'"
    identifier, title = match.groups()
    assert (identifier, title) == (chapter.id, chapter.title)
    assert f"\nnamespace {identifier} {{\n" in chapter.kernel
    assert chapter.notes.splitlines()[0] == f"# {identifier} · {title}"
    assert chapter.laboratory.splitlines()[0] == f"# {identifier} · {title}: laboratory"


def sections(markdown):
    """The names of a page's sections: '## Derivation: how 32 sums become one' is called Derivation."""
    headings = re.findall(r"^## (.*)$", prose(markdown), re.MULTILINE)
    names = [re.split(r"[:,]", heading)[0] for heading in headings]
    return [name for name in names if name in LESSON]


@of_each_chapter
def test_the_notes_have_their_sections_in_order(chapter):
    if chapter.id in OWN_SECTIONS:
        pytest.skip("it has sections of its own")
    assert sections(chapter.notes) == LESSON


def test_a_lesson_in_another_order_or_with_a_section_missing_is_found():
    def page(names):
        return "\n".join(f"## {name}" for name in names)

    assert sections(page(["The idea", "Derivation: how", "Predict, before you look", "Else"])) == [
        "The idea", "Derivation", "Predict"]
    for names in (LESSON[1:], LESSON[::-1], [*LESSON, "Sources"]):
        assert sections(page(names)) != LESSON


@of_each_chapter
def test_a_chapter_s_parent_is_there(chapter):
    if chapter.id == FIRST:
        assert chapter.parent == ""
    else:
        assert chapter.parent in BY_ID, "'.parent' names no chapter"


@of_each_chapter
def test_every_way_back_over_the_parents_leads_to_the_first_chapter(chapter):
    way = [chapter.id]
    while way[-1] in BY_ID and way[-1] != FIRST:
        way.append(BY_ID[way[-1]].parent)
        assert len(way) == len(set(way)), f"a circle: {' from '.join(way)}"
    assert way[-1] == FIRST


@of_each_chapter
def test_the_main_line_comes_from_the_main_line_and_goes_on_in_one_chapter_of_a_direction(chapter):
    if chapter.road != MAIN:
        return
    assert chapter.parent not in BY_ID or BY_ID[chapter.parent].road == MAIN, "it comes from a side road"
    onward = [other.id for other in CHAPTERS if other.parent == chapter.id and other.road == MAIN]
    assert len(onward) == len({identifier[:3] for identifier in onward}), f"after it come {onward}"


@of_each_chapter
def test_the_laboratory_links_to_the_lesson_and_holds_the_tables(chapter):
    assert "](notes.md)" in chapter.laboratory
    for table in ("measured", "profile"):
        assert f"<!-- table: {table} {chapter.id} -->" in chapter.laboratory.splitlines()


@of_each_chapter
def test_the_remarks_of_kernel_and_notes_match(chapter):
    def in_order_of_first_mention(pattern, text):
        return list(dict.fromkeys(int(number) for number in re.findall(pattern, text)))

    comments = "\n".join(re.findall(r"//.*", chapter.kernel))
    in_kernel = in_order_of_first_mention(r"(?<!\w)\[(\d+)\]", comments)
    in_notes = in_order_of_first_mention(r"\*\*\[(\d+)\]\*\*",
                                         chapter.section("Reading the kernel"))
    rising = list(range(1, max(in_kernel, default=1) + 1))
    assert in_kernel == rising, "the remarks of kernel.cu, by their first mention"
    assert in_notes == rising, "the remarks of notes.md"


@of_each_chapter
def test_a_kernel_stands_alone(chapter):
    lines = re.findall(r"^\s*#\s*include\s+(.*\S)", chapter.kernel, re.MULTILINE)
    includes = {line.strip('"') for line in lines}
    for line in lines:
        assert re.fullmatch(r'"common/kernel/\w+\.h"', line)
    assert "common/kernel/chapter.h" in includes
    needs_hopper = bool(includes & NEEDS_HOPPER)
    assert (chapter.min_architecture == 90) == needs_hopper
    used = set(re.findall(r"\b((?:copy|fwd|bwd)\d\d)::", re.sub(r"//.*", "", chapter.kernel)))
    assert used <= {chapter.id}


@of_each_chapter
def test_the_top_comment_is_short(chapter):
    lines = chapter.kernel.splitlines()
    top_comment = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    assert top_comment <= LONGEST_TOP_COMMENT, "lines of the top comment"


def test_each_lesson_has_the_reader_write_a_chapter_of_an_id_that_no_other_lesson_takes():
    asked = {chapter.id: re.findall(r"make new CH=(my\d\d) FROM=(\w+)", chapter.notes) for chapter in CHAPTERS}
    for identifier, requests in asked.items():
        assert all(origin == identifier for _, origin in requests)
    own = [name for requests in asked.values() for name, _ in requests]
    assert len(own) == len(set(own))
    for chapter in CHAPTERS:
        names = {name for name, _ in asked[chapter.id]}
        assert set(re.findall(r"CH=(my\d\d)", chapter.notes)) <= names, "what an exercise runs is what was made"


FOLDERS = (".", ".github", "chapters", "chapters/*", "common", "common/*", "notebooks", "reference_cpu")
PAGES = sorted(page.relative_to(ROOT).as_posix() for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page):
    text = prose((ROOT / page).read_text())
    links = re.findall(r"\]\(<?([^)\s>]+)", text)
    links += re.findall(r"^\[[^\]]+\]:\s*<?([^\s>]+)", text, re.MULTILINE)
    links += re.findall(r"""(?:src|href)=["']([^"']+)""", text)
    for link in links:
        if re.match(r"[a-z]+:|#", link) or link in PAGES_OF_GITHUB:
            continue
        target = ((ROOT / page).parent / link.partition("#")[0]).resolve()
        assert target.exists(), f"{link} leads nowhere"
        assert target.is_relative_to(ROOT), f"{link} leaves the repository"


def test_the_machine_s_page_names_each_header_that_it_replaces():
    page = (ROOT / "common/simt/README.md").read_text()
    headers = {path.name for path in (ROOT / "common/simt/include").glob("*.h")}
    assert {header for header in headers if f"`{header}`" not in page} == set()


def test_the_top_level_holds_nothing_else():
    if not (ROOT / ".git").exists():
        pytest.skip("this copy has no .git")
    try:
        listing = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True,
                                 text=True)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if listing.returncode != 0 or not listing.stdout:
        pytest.skip(listing.stderr.strip() or "nothing is committed yet")
    entries = {path.split("/")[0] for path in listing.stdout.split("\0") if path}
    assert {e for e in entries if not e.startswith(".")} <= TOP_LEVEL
