"""Places in the text of a C++ file: lines, comments and texts, matching parentheses, parts between separators."""

import ast
import re

TEXT = r'R"(?P<mark>[^\s()\\]{0,16})\((?P<raw>.*?)\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
COMMENTS_AND_TEXTS = re.compile(rf"//[^\n]*|/\*.*?\*/|{TEXT}|'(?:\\.|[^'\\\n])*'", re.DOTALL)


def blanked(source):
    """The source with spaces for its comments and texts, so that what is found is code at the same offset."""
    return COMMENTS_AND_TEXTS.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def line_of(source, at):
    return source.count("\n", 0, at) + 1


def closing(source, opening):
    """The offset of the parenthesis that closes the one at `opening`."""
    code = blanked(source[opening:])
    depth = 0
    for at, character in enumerate(code):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return opening + at
    return len(source)


def parts(source, separator):
    """What stands between separators that are in no parentheses, comment or text."""
    code = blanked(source)
    found, depth, begin = [], 0, 0
    for at, character in enumerate(code):
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth == 0:
            found.append(source[begin:at])
            begin = at + 1
    return [*found, source[begin:]]


def texts_in(source, replaced=None):
    """The values of the string literals of a source; or, with `replaced`, the source with that in their places."""
    if replaced is not None:
        return re.sub(TEXT, replaced, source, flags=re.DOTALL)
    return [match["raw"] if match["raw"] is not None else ast.literal_eval(match[0])
            for match in re.finditer(TEXT, source, re.DOTALL)]
