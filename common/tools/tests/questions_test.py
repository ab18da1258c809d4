"""A chapter's questions have one form, which a script reads: choices, and an answer that explains each of them."""

import re
from pathlib import Path

import pytest

from common.tools.find_chapter import is_own

ROOT = Path(__file__).resolve().parents[3]
INVITATION = "Choose before you open an answer."
QUESTIONS = range(3, 6)  # of a chapter
CHOICES = range(3, 5)  # of a question
FEWEST_WORDS = 4  # of an explanation's first line, with the verdict

LIST = r"(?:- \*\*[a-z]\*\* \S.*\n(?:  \S.*\n)*)+"
QUESTION = rf"## (\d+)\. \S.*\n\n(?:.*\n)+?\n({LIST})\n<details><summary>Answer</summary>\n\n({LIST})\n</details>\n\n"


def items(markdown):
    """[(letter, first line)] of a list."""
    return re.findall(r"^- \*\*(.)\*\* (.+)", markdown, re.MULTILINE)


def faults(page, title):
    """What in a page of questions is not of the form, a sentence each. title: the first line of the lesson."""
    head, *questions = re.split(r"^(?=## )", page + "\n", flags=re.MULTILINE)
    found = []
    if head != f"{title}: questions\n\n{INVITATION}\n\n":
        found.append("it does not begin with its title and the invitation")
    if len(questions) not in QUESTIONS:
        found.append(f"it has {len(questions)} questions")
    for number, question in enumerate(questions, start=1):
        match = re.fullmatch(QUESTION, question)
        if not match:
            found.append(f"question {number} is not a heading, a text, choices and a folded answer")
            continue
        if match[1] != str(number):
            found.append(f"question {number} has the number {match[1]}")
        choices = "".join(letter for letter, _ in items(match[2]))
        if len(choices) not in CHOICES or not "abcdefgh".startswith(choices):
            found.append(f"question {number} has the choices {choices}")
        explained = "".join(letter for letter, _ in items(match[3]))
        if explained != choices:
            found.append(f"question {number} has the choices {choices} and explains {explained}")
        verdicts = [line.split()[0] for _, line in items(match[3])]
        if sorted(verdicts) != ["Right.", *["Wrong."] * (len(verdicts) - 1)]:
            found.append(f"question {number} has the verdicts {' '.join(verdicts)}")
        found += [f"question {number} explains {letter} with no more than a verdict" for letter, line in items(match[3])
                  if len(line.split()) < FEWEST_WORDS]
    return found


PAGES = [page for page in sorted(ROOT.glob("chapters/*/questions.md")) if not is_own(page.parent.name)]


@pytest.mark.parametrize("page", PAGES, ids=[page.parent.name for page in PAGES])
def test_the_questions_have_their_form(page):
    title = page.with_name("notes.md").read_text(encoding="utf-8").splitlines()[0]
    assert faults(page.read_text(encoding="utf-8"), title) == []


TITLE = "# fwd99 · An example"
GOOD = f"{TITLE}: questions\n\n{INVITATION}\n" + "".join(f"""
## {number}. A sum

What is `sum`?

```cpp
int sum = {number} + 1;
```

- **a** {number}
- **b** {number + 1}, or
  {number + 1}.0
- **c** {number + 2}

<details><summary>Answer</summary>

- **a** Wrong. The 1 is missing.
- **b** Right. One more than {number},
  as the code says.
- **c** Wrong. That is one too many.

</details>
""" for number in (1, 2, 3))


def test_a_page_of_the_form_has_no_fault():
    assert faults(GOOD, TITLE) == []


@pytest.mark.parametrize("old, new, sentence", [
    ("An example: questions", "An example", "it does not begin with its title"),
    (INVITATION, "Choose.", "it does not begin with its title"),
    (GOOD[GOOD.index("\n## 3."):], "", "it has 2 questions"),
    ("## 2.", "## 3.", "question 2 has the number 3"),
    ("- **c** 3\n", "- **d** 3\n", "question 1 has the choices abd"),
    ("- **c** 3\n", "", "question 1 has the choices ab"),
    ("- **c** 3\n", "- **c** 3\n- **d** 4\n- **e** 5\n", "question 1 has the choices abcde"),
    ("- **c** Wrong. That is one too many.\n", "", "question 1 has the choices abc and explains ab"),
    ("- **a** Wrong. The 1", "- **b** Wrong. The 1", "question 1 has the choices abc and explains bbc"),
    ("Wrong. That", "Right. That", "question 1 has the verdicts Wrong. Right. Right."),
    ("Right. One", "Wrong. One", "question 1 has the verdicts Wrong. Wrong. Wrong."),
    ("Right. One", "Right: one", "question 1 has the verdicts Wrong. Right: Wrong."),
    (" That is one too many.", "", "question 1 explains c with no more than a verdict"),
    ("  2.0", "2.0", "question 1 is not a heading"),
    ("\n</details>", "</details>", "question 1 is not a heading")])
def test_a_page_of_another_form_is_found(old, new, sentence):
    assert old in GOOD
    assert any(fault.startswith(sentence) for fault in faults(GOOD.replace(old, new, 1), TITLE))
