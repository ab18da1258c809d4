"""What `make book` says of a repository with a fault, or with less than there could be. No browser."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.book import kernel_page, pages

ROOT = Path(__file__).resolve().parents[3]
LESSON = "chapters/fwd02_warp_per_row/notes.md"
LESS = "chapters/bwd03_shared_staging/notes.md"  # no other page links to its laboratory
KERNEL = "chapters/fwd02_warp_per_row/kernel.cu"


@pytest.fixture
def repository(tmp_path):
    """A copy of what a book is made from, without a build."""
    left_out = shutil.ignore_patterns("build", ".git", ".venv*", ".deps", "__pycache__", ".cache", "local*.jsonl")
    return Path(shutil.copytree(ROOT, tmp_path / "copy", ignore=left_out))


def make(repository):
    """(exit status, all that was said): without a compiler, so that nothing is counted, and without notebooks."""
    done = subprocess.run([sys.executable, "-m", "common.book.make_book", "--quick"], cwd=repository, check=False,
                          capture_output=True, text=True, env={**os.environ, "CXX": "false"})
    return done.returncode, done.stdout + done.stderr


def change(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{path.name} lacks {old!r}"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def line_of(path, text):
    """The number of the line of a file in which a text begins."""
    whole = path.read_text(encoding="utf-8")
    return whole[:whole.index(text)].count("\n") + 1


def test_every_fault_is_told_with_its_file_and_line(repository):
    faults = {
        "a link": (LESSON, "[kernel.cu](kernel.cu)", "[kernel.cu](no_such_page.md)", "no_such_page"),
        "a word": (LESSON, "README.md#register", "README.md#no-such-word", "no-such-word"),
        "a figure to move": (LESSON, "## Derivation", "<!-- to move: nothing -->\n\n## Derivation", "to move 'nothing'"),
        "an anchor": ("common/watch/README.md", "README.md#glossary", "README.md#no-such-anchor", "no-such-anchor"),
        "a remark without a lesson": (KERNEL, "// [5]", "// [5] and [77]", "remark [77] of kernel.cu is not in notes.md"),
        "a remark without a line": ("chapters/fwd03_block_per_row/notes.md", "**[1]**", "**[99]** Nowhere.\n\n**[1]**",
                                    "remark [99] of notes.md is not in kernel.cu"),
        "a picture": ("chapters/fwd01_thread_per_row/notes.md", "## Pitfalls",
                      "![](../../notebooks/figures/peers.svg)\n\n## Pitfalls", "a picture without alternative text"),
        "a predicted time": ("chapters/fwd05_tiled_row/notes.md", "**720 µs**", "720 µs",
                             "in the answers of 'Predict': 1, where prediction_page.py expects 2"),
        "a question": ("chapters/fwd01_thread_per_row/questions.md", " Right. ", " Wrong. ", "this is no question"),
    }
    for file, old, new, _ in faults.values():
        change(repository / file, old, new)
    status, said = make(repository)
    assert status == 1
    for name, (file, _, _, words) in faults.items():
        told = [line for line in said.splitlines() if words in line]
        assert told, f"{name} is not told"
        assert re.search(rf"{re.escape(file)}:\d+", told[0]), f"{name}: {told[0]}"
    lines = {"a link": "no_such_page", "a word": "no-such-word", "a remark without a line": "**[99]**"}
    for name, text in lines.items():
        file, _, _, words = faults[name]
        told = next(line for line in said.splitlines() if words in line)
        number = int(re.search(rf"{re.escape(file)}:(\d+)", told)[1])
        assert abs(number - line_of(repository / file, text)) <= 3, told  # Markdown knows the paragraph's first line


def test_a_chapter_with_less_is_built_and_the_lines_say_what_is_missing(repository):
    chapter = repository / LESS
    (chapter.parent / "lab.md").unlink()
    (chapter.parent / "questions.md").unlink()
    lesson = chapter.read_text(encoding="utf-8")
    chapter.write_text(re.sub("## The picture.*?(?=## )", "", lesson, flags=re.DOTALL), encoding="utf-8")
    status, said = make(repository)
    assert status == 0, said
    for words, names in (("lab.md, so no such page", "bwd03"), ("questions.md, so no such page", "bwd03"),
                         ("picture in the lesson", "bwd03"), ("trace, so nothing moves", "bwd03"),
                         ("counts in the margin", "bwd03"), ("outputs", "1_derivation.ipynb, ")):
        assert any(re.match(rf"book: without {words}: .*\b{names}", line) for line in said.splitlines()), words
    assert "book: no GCC here, so no counts and no traces: CXX names one" in said.splitlines()
    left = repository / "build/book" / Path(LESS).parent
    assert {page.name for page in left.iterdir()} == {"notes.html", "kernel.html"}
    assert "Laboratory" not in (left / "notes.html").read_text(encoding="utf-8").partition("<article")[2]
    check_what_leads_on(repository)


def check_what_leads_on(repository):
    """The pages of chapters that are gone lead to pages that are there, as index.html does."""
    book = repository / "build/book"
    leads = [book / f"chapters/{directory}/{page}.html" for directory in pages.RETIRED for page in pages.PAGES]
    for page in (book / "index.html", *leads):
        text = page.read_text(encoding="utf-8")
        to, = re.findall(r'content="0; url=([^"]+)"', text)
        assert f'<a href="{to}">' in text and (page.parent / to).is_file(), page


def test_a_page_that_is_gone_leads_to_the_same_of_another_chapter_or_to_its_lesson():
    new = "chapters/fwd07_fused_residual_dropout"
    found = pages.instead_of_retired({f"{new}/notes", f"{new}/kernel"})
    gone = {page: found[f"chapters/fwd12_residual/{page}"] for page in pages.PAGES}
    assert gone == {"notes": f"{new}/notes", "kernel": f"{new}/kernel", "questions": f"{new}/notes", "lab": f"{new}/notes"}
    assert not any((ROOT / "chapters" / directory).exists() for directory in pages.RETIRED)


# --- The parts that read ---

NOTES = """# fwd99 · A lesson

**[7]** This is not in the section.

## Reading the kernel

Before the first.

**[1]** One paragraph.

- its list

```cpp
code();

more();
```

The lesson goes on, and this is not a remark's.

- **[2]** An item
  of two lines.

### A heading

Not a remark's.

**[3]** The last.

## Predict

**[4]** No.
"""


def test_a_link_to_a_kernel_without_a_page_leads_to_its_file():
    text = "[Here](kernel.cu), [there](../fwd01_thread_per_row/kernel.cu), [lib](../../common/library/kernels/bwd_ring.cu)."
    assert pages.links_to_files(text) == text.replace("../../common", "path:../../common")


def test_a_remark_is_a_paragraph_with_the_list_or_code_that_follows_it():
    remarks = kernel_page.remarks_of(NOTES)
    assert [(remark.number, remark.line) for remark in remarks] == [(1, 9), (2, 21), (3, 28)]
    assert [remark.text.strip() for remark in remarks] == [
        "One paragraph.\n\n- its list\n\n```cpp\ncode();\n\nmore();\n```", "An item\nof two lines.", "The last."]


def test_a_mark_is_the_first_mention_in_a_comment():
    kernel = ["int a[1];", "f();  // [1] and [2]", "", "g();  // [1]", "h();  // [3]"]
    marks = kernel_page.marks_of(kernel)
    assert marks == {1: 2, 2: 2, 3: 5}
    assert kernel_page.stretches_of(marks, 1, 5) == [(1, 1, []), (2, 4, [1, 2]), (5, 5, [3])]


def test_every_line_of_a_kernel_keeps_its_text_in_colour():
    kernel = ["/* two", "   lines */", "", 'const char* s = "<&>";  // [1] <b>']
    plain = [re.sub("<[^>]*>", "", line).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
             .replace("&quot;", '"') for line in kernel_page.coloured(kernel)]
    assert plain == kernel


def test_a_diff_leaves_out_marks_and_what_a_kernel_says_of_itself():
    parent = ["// a", "#include <a>", "namespace a {", "using namespace lnc;", "same();  // [1]", "old();", "const Registration r;"]
    kernel = ["// b", "namespace b {", "using namespace lnc;", "  // exercise", "same();  // [2]", "changed();", "const Registration q;"]
    changed = kernel_page.what_changed(kernel, parent)
    assert [line for line in changed if line[0] in "+-"] == ["-old();", "+changed();"]
