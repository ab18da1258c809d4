"""The prose's form: mathematics that GitHub shows as it is written, folded answers, lengths, the glossary."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GLOSSARY = "chapters/README.md"
MOST_TERMS = 68

# At most so many words, as wc counts them, tables between markers left out. A reason is an expected failure: whoever
# shortens the page takes it away.
LIMITS = {
    "README.md": (700, ""),
    "chapters/copy00_machine/notes.md": (2500, ""),
    "chapters/fwd01_thread_per_row/notes.md": (1200, ""),
    "chapters/fwd02_warp_per_row/notes.md": (1200, ""),
    "chapters/fwd03_block_per_row/notes.md": (1200, ""),
    "chapters/fwd04_welford/notes.md": (1800, ""),
    "chapters/fwd05_tiled_row/notes.md": (1200, ""),
    "chapters/fwd06_vectorized/notes.md": (1200, ""),
    "chapters/fwd08_async_bulk/notes.md": (1200, ""),
    "chapters/fwd18_producer_warp/notes.md": (1200, ""),
    "chapters/fwd09_cluster/notes.md": (1800, ""),
    "chapters/fwd17_columns_over_gpus/notes.md": (1800, ""),
    "chapters/bwd20_columns_over_gpus/notes.md": (1800, ""),
    "chapters/bwd21_rows_over_gpus/notes.md": (1800, ""),
    "chapters/bwd01_thread_per_row/notes.md": (1800, ""),
    "chapters/bwd02_warp_per_row/notes.md": (1200, ""),
    "chapters/bwd03_shared_staging/notes.md": (1200, ""),
    "chapters/bwd04_block_per_row/notes.md": (1200, ""),
    "chapters/bwd05_row_groups/notes.md": (1200, ""),
    "chapters/fwd07_fused_residual_dropout/notes.md": (1800, ""),
    "chapters/bwd10_fused_residual_dropout/notes.md": (1800, ""),
    "chapters/bwd06_two_stage/notes.md": (1800, ""),
    "chapters/bwd07_memory_efficient/notes.md": (1800, ""),
    "chapters/bwd08_locked_buffers/notes.md": (1800, ""),
    "chapters/bwd09_persistent/notes.md": (1200, ""),
    "chapters/fwd10_narrow_rows/notes.md": (1800, ""),
    "chapters/bwd14_narrow_rows/notes.md": (1800, ""),
    "chapters/fwd15_tiles/notes.md": (1800, ""),
    "chapters/fwd16_shifted_weights/notes.md": (1800, ""),
    "chapters/bwd19_tiles/notes.md": (1800, ""),
    "chapters/bwd15_rows_anywhere/notes.md": (1800, ""),
    "chapters/bwd11_vectorized/notes.md": (1200, ""),
    "chapters/bwd12_async_bulk/notes.md": (1200, ""),
    "chapters/bwd13_cluster/notes.md": (1800, ""),
    "chapters/bwd17_one_shot/notes.md": (1800, ""),
}

# What GitHub takes away is the backslash before ASCII punctuation; what to write in its place.
INSTEAD = {",": r"\thinspace, or \cdot between two factors", ";": r"\quad", ":": r"\thinspace or \quad",
           "!": "nothing", "{": r"\lbrace", "}": r"\rbrace", "|": r"\lVert and \rVert", "_": "a word without it",
           "\\": "one formula for each line", "*": r"\ast"}
PUNCTUATION = re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def pages():
    """Every Markdown page and every notebook, by its path from the repository's top."""
    tops = [path for path in ROOT.iterdir() if path.is_dir() and path.name != "build" and
            (not path.name.startswith(".") or path.name == ".github")]
    found = [*ROOT.glob("*.md"), *(path for top in tops for ending in ("md", "ipynb") for path in top.rglob(f"*.{ending}"))]
    return sorted(path.relative_to(ROOT).as_posix() for path in found if ".ipynb_checkpoints" not in path.parts)


def texts(page):
    """[(where, Markdown)]: a page is one text, a notebook one for each of its Markdown cells."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if not page.endswith(".ipynb"):
        return [(page, text)]
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return [(f"{page}, cell {cell['id']}", "".join(cell["source"])) for cell in cells]


def without_code(markdown):
    """The same lines, code emptied: there GitHub leaves everything as it is."""
    for code in (r"^ *```.*?^ *```", r"(`+)(?!`).+?(?<!`)\1(?!`)"):
        markdown = re.sub(code, lambda match: "\n" * match[0].count("\n"), markdown, flags=re.MULTILINE | re.DOTALL)
    return markdown


def eaten(markdown):
    """[(line, sentence)]: what in a text's formulas GitHub does not show as it is written."""
    markdown, found = without_code(markdown), []
    for match in re.finditer(r"\$\$(.+?)\$\$|\$((?:[^$\n]|\n(?!\n))+)\$", markdown, re.DOTALL):
        formula, line = match[1] or match[2], markdown.count("\n", 0, match.start()) + 1
        for sign in dict.fromkeys(re.findall(rf"\\([{PUNCTUATION}])", formula)):
            found.append((line, f"GitHub shows `\\{sign}` in a formula as `{sign}`; write "
                                f"{INSTEAD.get(sign, 'a word for it')}: ${formula.strip()}$"))
        if re.search(r"(?<!\\)\*", formula):
            found.append((line, f"GitHub takes two `*` for emphasis; write \\ast or \\cdot: ${formula.strip()}$"))
    return found


def folded_too_tightly(markdown):
    """[(line, sentence)]: where Markdown in <details> would be shown as it is typed."""
    markdown, found = without_code(markdown), []
    for match in re.finditer(r"</summary>(?!\n[ \t]*\n)", markdown):
        found.append((match.start(), "behind </summary> put an empty line"))
    for match in re.finditer(r"</details>", markdown):
        if not re.search(r"\n[ \t]*\n[ \t]*$", markdown[: match.start()]):
            found.append((match.start(), "before </details> put an empty line"))
    return [(markdown.count("\n", 0, at) + 1, words) for at, words in found]


def words_of(markdown):
    """As `wc -w` counts, without code and the tables between markers."""
    text = re.sub(r"<!--\s*table:.*?<!--\s*end table\s*-->|<!--.*?-->", "", markdown, flags=re.DOTALL)
    return len(re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).split())


def in_words(found, where):
    return [f"{where}:{line}: {sentence}" for line, sentence in found]


# --- What GitHub shows ---


@pytest.mark.parametrize("page", pages())
def test_github_shows_formulas_as_they_are_written(page):
    assert [fault for where, text in texts(page) for fault in in_words(eaten(text), where)] == []


@pytest.mark.parametrize("page", pages())
def test_what_is_folded_has_empty_lines_around_it(page):
    assert [fault for where, text in texts(page) for fault in in_words(folded_too_tightly(text), where)] == []


@pytest.mark.parametrize("formula, instead", [
    (r"$w\,dy$", r"\thinspace"), (r"$$a \; b$$", r"\quad"), (r"$\{1\}$", r"\lbrace"), (r"$\|x\|$", r"\lVert"),
    (r"$x\_y$", "a word"), ("$$a\n\\\\ b$$", "for each line"), ("$a* + b*$", r"\ast"), ("a $b\n\\,c$ d", r"\thinspace"),
    ("$G^*$", r"\ast")])
def test_a_formula_that_github_would_eat_is_found_and_told_what_to_be(formula, instead):
    (line, sentence), *_ = eaten("\n" + formula)
    assert line == 2
    assert instead in sentence


@pytest.mark.parametrize("text", [r"$\frac{a}{b} \cdot \hat x_{ij}$", r"`$w\,dy$`", "```\n$a\\,b$\n```", r"costs $5 \, or so",
                                  "$a$ and **bold** and $b$", "$a\n\n\\, b$", "```math\na \\\\ b\n```"])
def test_what_github_leaves_alone_is_not_found(text):
    assert eaten(text) == []


@pytest.mark.parametrize("text, faults", [
    ("<details><summary>A</summary>\n\nb\n\n</details>", 0), ("<details><summary>A</summary>\nb\n\n</details>", 1),
    ("<details><summary>A</summary>\n\nb\n</details>", 1), ("<details><summary>A</summary> b</details>", 2),
    ("`</summary>`", 0)])
def test_a_fold_without_empty_lines_is_found(text, faults):
    assert len(folded_too_tightly(text)) == faults


# --- Lengths ---


@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.xfail(strict=True, reason=why)] if why else [])
                                  for page, (_, why) in LIMITS.items()])
def test_a_page_is_no_longer_than_a_reader_s_patience(page):
    limit, _ = LIMITS[page]
    assert words_of((ROOT / page).read_text(encoding="utf-8")) <= limit


def test_words_are_counted_without_code_and_the_tables_between_markers():
    assert words_of("one two\n\n<!-- table: a -->\n| x | y |\n<!-- end table -->\n`three` $4 + 5$\n<!-- to move: six -->\n```\nfour\n```") == 6


# --- The glossary ---


def glossary():
    return (ROOT / GLOSSARY).read_text(encoding="utf-8")


def section(markdown, title):
    """What stands under `## title`, up to the next heading of that level."""
    parts = re.split(r"^## (.*)\n", markdown, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))[title]


def anchors(markdown):
    """The places of a page that a link may lead to: those named, and the headings."""
    headings = re.findall(r"^#+ (.*)$", without_code(markdown), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return re.findall(r'<a id="([^"]*)"></a>', without_code(markdown)) + slugs


def test_each_term_is_a_line_of_one_or_two_sentences():
    lines = [line for line in section(glossary(), "Glossary").splitlines() if line.startswith("- ")]
    assert 0 < len(lines) <= MOST_TERMS
    wrong = [line for line in lines if not re.fullmatch(r'- <a id="[a-z0-9-]+"></a>\*\*[^*]+\*\* \S.*\.', line) or
             len(re.findall(r"[.?](?= [A-Z])", line)) > 1]
    assert wrong == []


def test_the_terms_are_in_the_alphabet_s_order():
    terms = re.findall(r'^- <a id="[^"]*"></a>\*\*([^*]+)\*\*', section(glossary(), "Glossary"), re.MULTILINE)
    assert terms == sorted(terms, key=str.casefold)


def test_no_anchor_and_no_symbol_stands_twice():
    found = anchors(glossary())
    assert sorted(found) == sorted(set(found))
    symbols = re.findall(r"^\| (\$[^|]*\$) \|", section(glossary(), "Symbols"), re.MULTILINE)
    symbols = [symbol for cell in symbols for symbol in cell.split(", ")]
    assert len(symbols) > 10
    assert sorted(symbols) == sorted(set(symbols))


@pytest.mark.parametrize("page", [page for page in pages() if re.fullmatch(r"chapters/\w+/\w+\.md", page)])
def test_a_link_to_the_glossary_leads_to_a_term(page):
    asked = re.findall(r"\]\(\.\./README\.md#([^)\s]*)\)", without_code((ROOT / page).read_text(encoding="utf-8")))
    assert [f"{GLOSSARY} has no #{name}" for name in asked if name not in anchors(glossary())] == []
