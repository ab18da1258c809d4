"""The C example of the library's README.md is C99, links with the library, and runs; so lnc.h is C, too. Python's copies
of its structs are as large."""

import ctypes
import re
import subprocess
from pathlib import Path

from layernorm_chapters import library as interface

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "common/library/README.md"
MAIN = """
int main(void) { /* bfloat16 is the upper half of a float: 0x3f80 is 1, 0x4040 is 3 */
  unsigned short x[4] = {0x3f80, 0x4040, 0x4040, 0x3f80}, y[4];
  float mean[2], rstd[2];
  if (normalise(x, NULL, NULL, y, mean, rstd, 2, 2, NULL, 0, NULL) != 0) return 1;
  printf("%.3f %.3f %04x %04x %04x %04x\\n", mean[0], rstd[1], y[0], y[1], y[2], y[3]);
  return normalise(NULL, NULL, NULL, y, mean, rstd, 2, 2, NULL, 0, NULL) == 0;
}
"""


def test_the_example_of_the_readme_is_c_and_runs(compiler, library, tmp_path):
    example, = re.findall(r"^```c\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    program = tmp_path / "example"
    program.with_suffix(".c").write_text(example + MAIN, encoding="utf-8")
    subprocess.run([compiler, "-x", "c", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror",
                    f"-I{ROOT}", program.with_suffix(".c"), "-x", "none", library,
                    f"-Wl,-rpath,{library.parent}", "-o", program], check=True)
    result = subprocess.run([program], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "2.000 1.000 bf80 3f80 3f80 bf80\n", "x is null\n")


def test_pythons_structs_are_those_of_lnc_h(compiler, tmp_path):
    structs = {"lnc_problem": interface.Problem, "lnc_rows": interface.Rows, "lnc_forward_args": interface.ForwardArgs,
               "lnc_backward_args": interface.BackwardArgs, "lnc_plan": interface.Plan, "lnc_fused_forward": interface.FusedForward,
               "lnc_fused_backward": interface.FusedBackward, "lnc_chapter": interface._Chapter}
    lines = [f'printf("{name} %zu\\n", sizeof({name}));' for name in structs] + [
        f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));'
        for name, struct in structs.items() for field, _ in struct._fields_]
    program = tmp_path / "sizes"
    program.with_suffix(".c").write_text("#include <stdio.h>\n#include <stddef.h>\n#include \"common/library/lnc.h\"\n"
                                         "int main(void) {" + "".join(lines) + "return 0; }\n", encoding="utf-8")
    subprocess.run([compiler, "-x", "c", "-std=c99", f"-I{ROOT}", program.with_suffix(".c"), "-o", program], check=True)
    printed = dict(line.split() for line in subprocess.run([program], capture_output=True, text=True).stdout.splitlines())
    for name, struct in structs.items():
        assert int(printed[name]) == ctypes.sizeof(struct), name
        for field, _ in struct._fields_:
            assert int(printed[f"{name}.{field}"]) == getattr(struct, field).offset, f"{name}.{field}"
