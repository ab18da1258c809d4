"""The self-check: a chapter's questions.md as questions that answer back.

The file is plain Markdown, and so is its page without a script: choices, and the answer folded. Here each choice gets
its letter and each explanation its verdict as attributes, for questions.js to find them:

    - **a** 32 sectors …                          a choice
    - **a** Wrong. That is fwd01's cost …         its explanation, under <details>
"""

import re

from docutils import nodes
from sphinx.util import logging

logger = logging.getLogger(__name__)

EXPLANATION = re.compile(r"^([a-e]) (Right|Wrong)\. \S")
CHOICE = re.compile(r"^([a-e]) \S")


def on_doctree(app, doctree):
    """Marks the lists of a questions page; one that is no question is an error of its file."""
    if not app.env.docname.endswith("/questions"):
        return
    for section in doctree.findall(nodes.section):
        lists = [child for child in section.children if isinstance(child, nodes.bullet_list)]
        if not isinstance(section.parent, nodes.section):
            continue
        if len(lists) != 2 or not mark(*lists):
            logger.warning("this is no question: two lists with the same letters, the second with one 'Right.'",
                           location=section)


def mark(choices, explanations):
    """Whether the two lists are choices and their explanations, which are marked so."""
    letters = [CHOICE.match(item.astext()) for item in choices]
    verdicts = [EXPLANATION.match(" ".join(item.astext().split())) for item in explanations]
    if not all(letters) or not all(verdicts) or [one[1] for one in letters] != [one[1] for one in verdicts]:
        return False
    if [one[2] for one in verdicts].count("Right") != 1:
        return False
    choices["classes"].append("choices")
    explanations["classes"].append("explanations")
    for item, verdict in zip(explanations, verdicts):
        item["classes"].append(verdict[2].lower())
    return True


def setup(app):
    app.connect("doctree-read", on_doctree)
    return {"parallel_read_safe": True}
