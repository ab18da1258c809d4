"""The reading view: a chapter's kernel.cu as a page, and beside its lines the remarks of its lesson.

A remark is written once, in notes.md under 'Reading the kernel', as **[3]**; the kernel has `// [3]` where it belongs.
Both are read here, and the page joins them:

    a stretch of the kernel     its lines, from one first mention of a remark to the next
    remarks                     those that are first mentioned in the stretch's first line

So the page is right without a script: each remark stands beside its lines, or under them where there is little room.
reading.js lets the remarks follow the lines as one scrolls.
"""

import difflib
import html
import re
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from docutils.utils import new_document
from myst_parser.parsers.sphinx_ import MystParser
from pygments import highlight, lexers
from pygments.formatters import HtmlFormatter
from sphinx.parsers import Parser
from sphinx.util import logging

from common.book.pages import links_to_files
from common.book.seen import ROOT, counts_of, the_map

logger = logging.getLogger(__name__)

MARK = re.compile(r"(?<!\w)\[(\d+)\]")
REMARK = re.compile(r"^(?:- )?\*\*\[(\d+)\]\*\*")
EXERCISE = ("// exercise", "// end of exercise")  # between these `make new` takes out the code
SECTION = "## Reading the kernel"


class Remark(NamedTuple):
    number: int
    line: int  # of notes.md, where it begins
    text: str  # Markdown


BELONGS = ("```", "$$", "|", "- ", "    ")  # a paragraph that begins so continues the remark before it


def remarks_of(notes):
    """The remarks of a lesson, a list of Remark in its order.

    notes: the text of notes.md. A remark is a paragraph, and the code, formula, list or table that follows it at once.
    """
    remarks, inside, open_remark, fenced, blank = [], False, False, False, False
    for number, line in enumerate(notes.splitlines(), 1):
        if not fenced and line.startswith("#"):  # a heading below that of the section ends a remark
            inside = line == SECTION or (inside and not line.startswith("## "))
            open_remark = False
        elif inside and not fenced and (begin := REMARK.match(line)):
            open_remark, is_item = True, line.startswith("- ")
            remarks.append(Remark(int(begin[1]), number, line[begin.end():].strip()))
        elif inside and open_remark:
            open_remark = fenced or not blank or not line or is_item or line.startswith(BELONGS)
            if open_remark:
                line = line.removeprefix("  ") if is_item else line
                remarks[-1] = remarks[-1]._replace(text=f"{remarks[-1].text}\n{line}")
        fenced ^= line.startswith("```")
        blank = not line
    return [remark._replace(text=remark.text.rstrip()) for remark in remarks]


def marks_of(kernel):
    """{remark's number: the line that mentions it first}, from the comments of a kernel's lines."""
    marks = {}
    for number, line in enumerate(kernel, 1):
        for mark in MARK.findall(line.partition("//")[2]):
            marks.setdefault(int(mark), number)
    return marks


def stretches_of(marks, first, last):
    """[(first line, last line, the remarks that begin there)] of the lines first to last."""
    begins = sorted({first, *(line for line in marks.values() if first < line <= last)})
    ends = [*(begin - 1 for begin in begins[1:]), last]
    return [(begin, end, [mark for mark, line in marks.items() if line == begin])
            for begin, end in zip(begins, ends)]


def top_comment(kernel):
    """(the title, the paragraphs, how many lines they take) of the comment that a kernel begins with."""
    size = next(number for number, line in enumerate(kernel) if not line.startswith("//"))
    text = "\n".join(line.removeprefix("//").strip() for line in kernel[:size])
    title, _, rest = text.partition("\n")
    return title, [" ".join(part.split()) for part in rest.strip().split("\n\n")], size


def coloured(kernel):
    """Each line of a kernel as HTML."""
    text = highlight("\n".join(kernel), lexers.get_lexer_by_name("cuda", stripnl=False), HtmlFormatter(nowrap=True))
    return text.split("\n")[:len(kernel)]


def what_changed(kernel, parent):
    """The lines of a unified diff of two kernels, without their top comments and what they say of themselves."""
    def body(lines):
        begin = next((number for number, line in enumerate(lines) if line.startswith("namespace ")), 0)
        end = next((number for number, line in enumerate(lines) if line.startswith("const Registration")), len(lines))
        return [MARK.sub("", line).rstrip().removesuffix("//").rstrip() for line in lines[begin + 2:end]
                if line.strip() not in EXERCISE]
    return list(difflib.unified_diff(body(parent), body(kernel), lineterm="", n=3))[2:]


class KernelParser(Parser):
    """Makes the page of a kernel.cu."""

    supported = ("kernel",)

    def parse(self, inputstring, document):
        path = Path(document["source"])
        kernel = inputstring.splitlines()
        title, paragraphs, size = top_comment(kernel)
        identifier = title.split(" · ")[0]
        document.settings.env.metadata[document.settings.env.docname]["hide-toc"] = "yes"  # all room for the source
        page = nodes.section("", nodes.title("", f"{title}: the source"), ids=["source"])
        document += page
        for paragraph in paragraphs:
            page += nodes.paragraph("", paragraph)

        self.depends_on = document.settings.env.note_dependency
        remarks = self.read_remarks(path, document)
        marks = marks_of(kernel)
        self.check(path, kernel, marks, remarks)
        counts = counts_of(identifier)
        first = next(number for number, line in enumerate(kernel[size:], size + 1) if line.strip())
        shown = coloured(kernel)
        page += raw(tools(bool(counts), identifier))
        name = f"{identifier}, kernel.cu and its remarks"
        page += raw(f'<div class="reading highlight" role="group" aria-label="{name}">')
        for begin, end, numbers in stretches_of(marks, first, len(kernel)):
            beside = [remarks[number] for number in numbers if number in remarks]
            self.add_stretch(page, shown, range(begin, end + 1), beside, counts)
        page += raw("</div>")
        self.add_parent(page, kernel, identifier)
        add_player(page, identifier)

    def read_remarks(self, path, document):
        """{number: (Remark, its nodes)} of the notes.md beside a kernel; their nodes know its lines."""
        notes = path.with_name("notes.md")
        if not notes.exists():
            return {}
        self.depends_on(str(notes))
        found = {}
        for remark in remarks_of(notes.read_text(encoding="utf-8")):
            part = new_document(str(notes), document.settings)
            MystParser().parse("\n" * (remark.line - 1) + links_to_files(remark.text), part)
            found[remark.number] = remark, part.children
        return found

    def check(self, path, kernel, marks, remarks):
        """A remark without its other half is an error of the source, told with its line."""
        for number, line in marks.items():
            if remarks and number not in remarks:
                logger.warning("remark [%d] of kernel.cu is not in notes.md", number, location=f"{path}:{line}")
        for number, (remark, _) in remarks.items():
            if number not in marks:
                logger.warning("remark [%d] of notes.md is not in kernel.cu", number,
                               location=f"{path.with_name('notes.md')}:{remark.line}")

    def add_stretch(self, page, kernel, numbers, remarks, counts):
        """Lines and their remarks: the first line, what is said of it, and the lines that follow."""
        lines = [line_html(number, kernel[number - 1], counts.get(number)) for number in numbers]
        first = 1 if remarks else len(lines)
        page += raw(f'<div class="stretch">{block(lines[:first])}')
        if remarks:
            page += raw('<div class="remarks">')
            for remark, children in remarks:
                page += raw(f'<details class="remark" id="remark-{remark.number}" open data-line="{numbers[0]}">'
                            f'<summary><span class="mark">[{remark.number}]</span> line {numbers[0]}</summary>')
                page += children
                page += raw("</details>")
            page += raw("</div>")
        page += raw(f"{block(lines[first:])}</div>")

    def add_parent(self, page, kernel, identifier):
        """What changed against the parent, folded."""
        parent = parent_of(identifier)
        if not parent:
            return
        source = ROOT / parent.directory / "kernel.cu"
        self.depends_on(str(source))
        changed = what_changed(kernel, source.read_text(encoding="utf-8").splitlines())
        part = nodes.section("", nodes.title("", f"What changed against {parent.id}"), ids=["changed"])
        part += raw(f'<details class="changed"><summary>Lines of {parent.id} with a minus, lines of {identifier} with '
                    'a plus</summary>')
        part += nodes.literal_block("", "\n".join(changed), language="diff")
        part += raw("</details>")
        page += part


def tools(has_counts, identifier):
    """What stands over the source: a switch of the margin, and where the page goes on."""
    onward = '<a href="#watch">Watch it run</a>'
    if parent_of(identifier):
        onward += f' <a href="#changed">What changed against {parent_of(identifier).id}</a>'
    if not has_counts:
        return f'<p class="reading-tools"><span class="missing">No counts here: they need GCC.</span> {onward}</p>'
    return ('<p class="reading-tools"><button type="button" class="counts-switch" aria-pressed="false">Counts in the '
            f'margin</button> {onward}</p>')


def parent_of(identifier):
    """The chapter that one improves on, or None."""
    chapters = the_map().chapters
    return chapters.get(chapters[identifier].parent) if identifier in chapters else None


def add_player(page, identifier):
    """The player's place; without a trace player.js says so there."""
    part = nodes.section("", nodes.title("", "Watch it run"), ids=["watch"])
    part += raw(f'<div class="player" data-trace="{identifier}"></div>')
    page += part


def block(lines):
    return f'<div class="lines"><pre>{"".join(lines)}</pre></div>' if lines else ""


def line_html(number, coloured_line, count):
    """A line of the source, with its number, its counts and links to the remarks that it mentions."""
    code, slashes, comment = coloured_line.partition('<span class="c1">//')
    comment = MARK.sub(r'<a class="mark" href="#remark-\1">[\1]</a>', comment)
    cells = ""
    if count:
        cells = (f'<span>{count.requests}</span><span>{count.sectors}</span><span>{count.conflicts}</span>'
                 if count.requests else f'<span class="whole">{count.meetings}</span>')
        cells = f'<span class="count" title="{html.escape(count.words)}">{cells}</span>'
    return (f'<span class="line" id="line-{number}"><a class="number" href="#line-{number}" tabindex="-1">{number}</a>'
            f'{cells or EMPTY}<span class="code">{code}{slashes}{comment}</span>\n</span>')


EMPTY = '<span class="count"></span>'


def raw(text):
    return nodes.raw("", text, format="html")


def setup(app):
    app.add_source_parser(KernelParser)
    return {"parallel_read_safe": True}
