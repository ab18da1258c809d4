"""What the book adds to Sphinx's pages: the order of the map, a bar of a chapter's pages, the glossary's words under
the pointer, notebooks with their outputs, and two checks: an anchor that is not there, a picture without words.

Every page stays the file that it is. What is added to it is added while it is read; its lines keep their numbers.
"""

import html
import importlib.metadata
import json
import re
import shutil
from pathlib import Path

from docutils import nodes
from sphinx.util import logging

from common.book.seen import DATA, EXECUTED, ROOT, has_trace, the_map

logger = logging.getLogger(__name__)

# A chapter's pages, in the order of its bar: the document and what it is called.
PAGES = {"notes": "Lesson", "kernel": "Source and remarks", "questions": "Check yourself", "lab": "Laboratory"}
GLOSSARY = "chapters/README"
CHART = "common/book/chart"
PREDICTIONS = "common/book/predictions"  # the last page
ANCHOR = re.compile(r'<a id="([^"]+)">')
OTHER_SOURCE = re.compile(r"\]\(((?:[\w.]+/)*(?!kernel\.cu)\w+\.cu)\)")
CONTRIBUTING = re.compile(r"\]\(((?:\.\./)*)\.github/CONTRIBUTING\.md")
BADGE = re.compile(r"^\[!\[.*/codespaces/new\)\n", re.MULTILINE)  # of GitHub's page
LINK_TO = r"\[([^\]]*)\]\({name}\.md(?:#[^)]*)?\)"  # in the same directory
IMAGE_WITHOUT_WORDS = re.compile(r"<img(?![^>]*\balt=\"[^\"])[^>]*>")
MATHJAX = "sphinx-mathjax-offline"

# Directories of chapters that are gone, and the chapter that teaches their idea now: their pages lead there.
RETIRED = {"fwd11_rows_anywhere": "bwd15", "fwd12_residual": "fwd07", "fwd13_cluster_registers": "fwd09",
           "fwd14_wide_rows_anywhere": "fwd16", "bwd16_residual": "bwd12", "bwd18_wide_rows_anywhere": "bwd13"}

# The pages that scripts of their own belong to: where they stand under static/ or build/book-data/static/.
SCRIPTS = {
    "kernel": ["reading.js", "player_model.js", "player_words.js", "player_stage.js", "player.js"],
    "questions": ["questions.js"],
    "notes": ["try_first.js", "predictions_data.js", "predictions.js"],
    PREDICTIONS: ["predictions_data.js", "predictions.js"],
    CHART: ["chart_data.js", "vega.js", "chart_rows.js", "chart_words.js", "chart_file.js", "chart_drawing.js",
            "chart.js"],
}
STYLES = {"kernel": ["reading.css", "player.css"], "questions": ["questions.css"], "notes": ["predictions.css"],
          CHART: ["chart.css"], PREDICTIONS: ["predictions.css"]}


# --- Which pages there are, and in which order ---


def document_of(chapter, page):
    """'chapters/fwd02_warp_per_row/notes'"""
    return f"{chapter.directory.as_posix()}/{page}"


def place_of(document):
    """(Chapter, 'notes') of a chapter's page; (None, '') of any other."""
    directory, _, page = document.rpartition("/")
    for chapter in the_map().chapters.values():
        if chapter.directory.as_posix() == directory:
            return chapter, page
    return None, ""


def in_reading_order():
    """[(a part's caption, its chapters)]: the main line in its order, forward and backward, then each side road.

    A chapter that is read before one of the other direction is in that one's part.
    """
    parts = {"Chapter zero": [], "Main line, forward": [], "Main line, backward": []}
    captions = dict(zip(("copy", "fwd", "bwd"), parts))
    for chapter in the_map().main_line():
        follows = the_map().chapters.get(chapter.before, chapter)
        parts[captions[follows.direction]].append(chapter)
    for road, chapters in the_map().roads().items():
        parts[f"Side road: {road}"] = chapters
    return [(caption, chapters) for caption, chapters in parts.items() if chapters]


def contents():
    """The toctrees of the first page, as MyST."""
    parts = [toctree(caption, [document_of(chapter, "notes") for chapter in chapters])
             for caption, chapters in in_reading_order()]
    shown = ["notebooks/README", *sorted(f"notebooks/{path.stem}" for path in ROOT.glob("notebooks/*.ipynb"))]
    house = ["common/README", *sorted(path.relative_to(ROOT).with_suffix("").as_posix()
                                      for path in ROOT.glob("common/*/*.md")
                                      if path.relative_to(ROOT).with_suffix("").as_posix() not in (CHART, PREDICTIONS)),
             "reference_cpu/README"]
    first = toctree("", [GLOSSARY, CHART], {GLOSSARY: "Map, symbols, glossary", CHART: "The progression as a chart"})
    return "\n".join([first, *parts, toctree("Notebooks", shown), toctree("Where everything is", house),
                      toctree("At the end", [PREDICTIONS], {PREDICTIONS: "Your predictions"})])


def toctree(caption, documents, titles=None):
    entries = [f"{titles[document]} </{document}>" if titles else f"/{document}" for document in documents]
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])


# --- While a page is read ---


def on_source(app, document, source):
    """Adds the contents to the pages that have some, and to a notebook its outputs."""
    chapter, page = place_of(document)
    source[0] = links_to_files(source[0])
    source[0] = CONTRIBUTING.sub(r"](\1common/book/contributing.md", source[0])
    if document == "README":
        source[0] = BADGE.sub("", source[0]) + contents()
    elif document.startswith("notebooks/") and document != "notebooks/README":
        add_outputs(app, document, source)
    elif page == "notes":
        there = [name for name in PAGES if (ROOT / chapter.directory / file_of(name)).exists()]
        source[0] += toctree("", [document_of(chapter, name) for name in there if name != page],
                             {document_of(chapter, name): PAGES[name] for name in there})
        for name in {"questions", "lab"} - {*there}:
            source[0] = re.sub(LINK_TO.format(name=name), r"\1", source[0])


def links_to_files(text):
    """Markdown whose links to kernels without a page say that they lead to a file."""
    return OTHER_SOURCE.sub(r"](path:\1)", text)


def file_of(page):
    return "kernel.cu" if page == "kernel" else f"{page}.md"


def add_outputs(app, document, source):
    """Takes the executed copy of a notebook where there is one of these very cells."""
    name = Path(document).name
    copy = EXECUTED / f"{name}.ipynb"
    if copy.exists():
        app.env.note_dependency(str(copy))
        executed = copy.read_text(encoding="utf-8")
        if cells_of(executed) == cells_of(source[0]):
            source[0] = executed
            app.env.metadata[document]["words"] = words_of_pictures(executed)


def cells_of(notebook):
    return [cell["source"] for cell in json.loads(notebook)["cells"]]


def words_of_pictures(notebook):
    """The alternative texts of a notebook's pictures, in their order; empty where one has none."""
    outputs = [output for cell in json.loads(notebook)["cells"] for output in cell.get("outputs", ())]
    return [output.get("metadata", {}).get("image/png", {}).get("alt", "")
            for output in outputs if "image/png" in output.get("data", {})]


def on_doctree(app, doctree):
    """Anchors that are written in HTML, kernels' colours in notebooks, and pictures without words."""
    document = app.env.docname
    anchors = app.env.metadata[document].setdefault("myst_slugs", {})
    for node in doctree.findall(nodes.raw):
        for name in ANCHOR.findall(node.astext()):
            anchors[name] = (node.line or 0, name, "")
        if IMAGE_WITHOUT_WORDS.search(node.astext()):
            logger.warning("a picture without alternative text", location=with_line(node))
    words = iter(app.env.metadata[document].pop("words", ()))
    for node in doctree.findall(nodes.image):
        if "alt" not in node:
            node["alt"] = next(words, "")
        if not node.get("alt", "").strip():
            logger.warning("a picture without alternative text: %s", node["uri"], location=with_line(node))
    for node in doctree.findall(nodes.literal_block):
        if node.astext().startswith("%%kernel"):
            node["language"] = "cuda"
    if place_of(document)[1] == "notes":
        add_way_to_player(doctree)
    if document == GLOSSARY:
        app.env.metadata[document]["meanings"] = glossary_of(doctree)


def add_way_to_player(lesson):
    """A link behind the picture, or behind the idea where a lesson has none: how it is meant, and then how it runs."""
    parts = {name: section for section in lesson.findall(nodes.section) for name in section["ids"]}
    part = parts.get("the-picture", parts.get("the-idea"))
    if part is not None:
        link = '<a href="kernel.html#watch">Watch it run</a>'
        part += nodes.raw("", f"<p>{link}, one turn of a warp after the other.</p>", format="html")


def with_line(node):
    """The node itself, or the next around it, that knows its line: a picture inside of a paragraph does not."""
    while not node.line and node.parent is not None:
        node = node.parent
    return node


def glossary_of(doctree):
    """{anchor: (word, what it means)} from the glossary's items, each of which begins with its anchor and its word."""
    words = {}
    for item in doctree.findall(nodes.list_item):
        if found := ANCHOR.match("".join(node.astext() for node in item.findall(nodes.raw))):
            word = next(item.findall(nodes.strong)).astext()
            text = " ".join(item.astext().split()).removeprefix(found[0]).removeprefix("</a>").strip()
            words[found[1]] = word, text.removeprefix(word).strip()
    return words


# --- While a page is written ---


def on_page(app, document, template, context, doctree):
    """A chapter's bar, its neighbours on the map, and the scripts that a page needs."""
    chapter, page = place_of(document)
    context["chapter_bar"] = []
    if chapter and page in PAGES:
        context["chapter"] = chapter
        context["chapter_bar"] = [(title, context["pathto"](document_of(chapter, name)), name == page)
                                  for name, title in PAGES.items() if document_of(chapter, name) in app.env.all_docs]
        context["prev"], context["next"] = neighbours(app, chapter, page, context["pathto"])
    # The theme's captions are headings without a level, which a screen reader needs.
    tree = context["furo_navigation_tree"]
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')
    if document == "README":
        first = in_reading_order()[0][1][0]
        link = context["pathto"](document_of(first, "notes"))
        context["next"] = {"link": link, "title": f"{first.id} · {first.title}"}
    key = page if chapter else document
    if page == "kernel" and has_trace(chapter.id):
        app.add_js_file(f"traces/{chapter.id}.js", defer="defer")
    for name in SCRIPTS.get(key, ()):
        app.add_js_file(name, defer="defer")
    for name in STYLES.get(key, ()):
        app.add_css_file(name)


def neighbours(app, chapter, page, pathto):
    """(previous, next): of a lesson those on the map; from its other pages on to the next lesson."""
    lessons = [one for _, chapters in in_reading_order() for one in chapters]
    here = lessons.index(chapter)
    before, after = lessons[:here], lessons[here + 1:]
    own = [name for name in PAGES if document_of(chapter, name) in app.env.all_docs]

    def lesson(other):
        return {"link": pathto(document_of(other, "notes")), "title": f"{other.id} · {other.title}"}

    def of_chapter(name):
        return {"link": pathto(document_of(chapter, name)), "title": PAGES[name]}

    onward = lesson(after[0]) if after else None
    if page == "notes":
        return lesson(before[-1]) if before else {"link": pathto("README"), "title": app.config.project}, onward
    place = own.index(page)
    follows = own[place + 1] if page == "kernel" and place + 1 < len(own) else None  # the laboratory is beside the way
    return of_chapter(own[place - 1]), of_chapter(follows) if follows else onward


# --- At the end ---


def on_end(app, problem):
    """What stands beside the pages: the glossary's words for the scripts, MathJax, and pages that only lead on."""
    if problem or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    words = json.dumps(app.env.metadata[GLOSSARY].get("meanings", {}), ensure_ascii=False, indent=0)
    (static / "glossary.js").write_text(f"window.lncGlossary = {words};\n", encoding="utf-8")
    copy_mathjax(static / "mathjax")
    lead(Path(app.outdir) / "index.html", "README.html", app.config.html_title)
    for gone, document in instead_of_retired(app.env.all_docs).items():
        title = app.env.titles[document].astext()
        lead(Path(app.outdir) / f"{gone}.html", f"../../{document}.html", title)


def instead_of_retired(documents):
    """{'chapters/fwd12_residual/lab': 'chapters/fwd07_…/lab', …}: for each page that is gone one of `documents`."""
    found = {}
    for directory, identifier in RETIRED.items():
        chapter = the_map().chapters[identifier]
        for page in PAGES:
            there = document_of(chapter, page)
            found[f"chapters/{directory}/{page}"] = there if there in documents else document_of(chapter, "notes")
    return found


def lead(file, to, title):
    """Writes a page that leads on to another."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(LEADS.format(to=to, title=html.escape(title)), encoding="utf-8")


def copy_mathjax(target):
    """The one script that a page loads, and the fonts that it asks for."""
    package = next(Path(path.locate()) for path in importlib.metadata.files(MATHJAX) if path.name == "tex-chtml.js")
    fonts = Path("output/chtml/fonts/woff-v2")
    (target / fonts).mkdir(parents=True, exist_ok=True)
    for file in [package, *(package.parent / fonts).iterdir()]:
        shutil.copyfile(file, target / file.relative_to(package.parent))


LEADS = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<meta http-equiv="refresh" content="0; url={to}">
<p><a href="{to}">{title}</a></p>
</html>
"""


def setup(app):
    app.config.html_static_path.append(str(DATA / "static"))
    app.add_js_file("glossary.js", defer="defer")
    app.connect("source-read", on_source)
    app.connect("doctree-read", on_doctree)
    app.connect("html-page-context", on_page, priority=900)
    app.connect("build-finished", on_end)
    return {"parallel_read_safe": True}
