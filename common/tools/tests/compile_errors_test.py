"""A compiler's error is shown first in a sentence, then in full."""

import pytest

from common.tools import compile_errors


@pytest.mark.parametrize(("error", "sentence"), [
    ("‘__foo’ was not declared in this scope", "__foo is not known here"),
    ("there are no arguments to ‘__foo’ that depend on a template parameter, so …", "__foo is not known here"),
    ("conflicting specifiers in declaration of ‘tile’", "spells `T* tile = dynamic_shared<T>();`"),
    ("expected ‘;’ before ‘}’ token", "kernel.cu:7: expected ‘;’"),
])
def test_an_error_is_shown_in_a_sentence_and_then_in_full(tmp_path, capsys, error, sentence):
    log = tmp_path / "my01.log"
    told = f"kernel.cu: In function ‘void f()’:\nkernel.cu:7:3: error: {error}\nkernel.cu:9:3: error: more\n"
    log.write_text("[1/2] Building\n" + told.replace("kernel.cu", f"{compile_errors.ROOT}/kernel.cu"), encoding="utf-8")
    compile_errors.main(log)
    first, rest = capsys.readouterr().err.split("\n", 1)
    assert first.startswith("kernel.cu:7: ")
    assert sentence in first
    assert rest == told
