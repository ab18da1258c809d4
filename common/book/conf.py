"""The book's configuration for Sphinx. `make book` calls it, through make_book.py.

The source directory is the repository itself: every page is made from a file that stands there anyway.
"""

import hashlib
from pathlib import Path

from common.book.seen import COUNTS, ROOT, TRACES

HERE = Path(__file__).resolve().parent

project = "LayerNorm, chapter by chapter"
author = "the authors of LayerNorm, chapter by chapter"
language = "en"

extensions = ["myst_nb", "sphinx.ext.mathjax",
              *(f"common.book.{name}"
                for name in ("pages", "kernel_page", "question_page", "prediction_page", "explore"))]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".cu": "kernel"}
root_doc = "README"
include_patterns = [
    "README.md",
    "chapters/README.md",
    "chapters/*/*.md",
    "chapters/*/kernel.cu",
    "common/README.md",
    "common/*/*.md",
    "notebooks/README.md",
    "notebooks/*.ipynb",
    "reference_cpu/README.md",
]
exclude_patterns = ["chapters/my*"]  # the reader's own

# Markdown as GitHub reads it.
myst_enable_extensions = ["dollarmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 4
nb_execution_mode = "off"  # make_book.py has executed them
mathjax_path = "mathjax/tex-chtml.js"

html_theme = "furo"
html_title = project
html_favicon = "static/icon.svg"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = [("book.js", {"defer": "defer"})]
templates_path = ["templates"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_search_scorer = str(HERE / "scorer.js")
html_show_search_summary = False  # it would fetch each page found, which no browser allows from file://
html_domain_indices = False
html_use_index = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def hash_of_sources():
    """Changes with this folder's code, with the counts, and when a page or a trace comes or goes: then all pages are
    read again."""
    files = [*sorted(HERE.glob("*.py")), *([COUNTS] if COUNTS.exists() else [])]
    names = [str(path) for pattern in include_patterns for path in sorted(ROOT.glob(pattern))]
    names += [str(path) for path in sorted(TRACES.glob("*.js"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files) + "\n".join(names).encode()).hexdigest()


def setup(app):
    app.add_config_value("made_from", hash_of_sources(), "env", str)
