"""Every file of Python tests is named where tests are run: one that is not never turns red."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RUN_BY = ("common/tools/tests.cmake", "common/watch/tests/tests.cmake", "common/tools/test_book.sh")


def files():
    return [path.relative_to(ROOT) for folder in ("common", "notebooks", "chapters", "reference_cpu")
            for path in sorted((ROOT / folder).rglob("*_test.py"))]


def unnamed(paths, texts):
    """Those of the paths that no text names. A variable of CMake stands for its folder, or for each item of its loop; pytest
    may be given a folder."""
    named = set()
    for text in texts:
        for name, folder in re.findall(r"set\((\w+) (\S+)\)", text):
            text = text.replace(f"${{{name}}}", folder)
        for name, items, body in re.findall(r"foreach\((\w+) ([\w ]+)\)\n(.*?)endforeach", text, re.DOTALL):
            text += "\n".join(body.replace(f"${{{name}}}", item) for item in items.split())
        for line in text.splitlines():
            named |= {word for word in re.findall(r"[\w/.]+", line) if word.endswith(".py") or "pytest" in line}
    return [str(path) for path in paths if not {str(path), str(path.parent)} & named]


def test_every_file_is_named():
    assert len(files()) > 30
    assert unnamed(files(), [(ROOT / path).read_text(encoding="utf-8") for path in RUN_BY]) == []


def test_one_that_is_not_is_found():
    paths = [Path("a/tests/x_test.py"), Path("a/tests/y_test.py"), Path("b/tests/z_test.py"), Path("c/tests/w_test.py")]
    texts = ["set(here a/tests)\nforeach(name x)\n  add_python_test(${name} ${here}/${name}_test.py)\nendforeach()",
             'pytest -q b/tests "$@"']
    assert unnamed(paths, texts) == ["a/tests/y_test.py", "c/tests/w_test.py"]
